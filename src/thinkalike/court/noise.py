"""Noise that is a function: the same codes give the same numbers, in every call, in every order and on every device.

A code is a whole number that says on what the noise depends: a token, a pair of tokens, or all tokens up to a place.
Code and dimension go through the finaliser of splitmix64 (Steele, Lea, Flood 2014), and its two halves of 32 bits give
two normal numbers by Box and Muller.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

STEP = 0x9E3779B97F4A7C15 - 2**64  # of the sequence; integers of torch are signed, and products wrap
FIRST = 0xBF58476D1CE4E5B9 - 2**64
SECOND = 0x94D049BB133111EB - 2**64
HALF = 2**32


def mixed(codes: Int[Tensor, "*b"]) -> Int[Tensor, "*b"]:
    """Return whole numbers of 64 bits in which every bit depends on every bit of the codes."""
    codes = (codes ^ _shifted(codes, 30)) * FIRST
    codes = (codes ^ _shifted(codes, 27)) * SECOND
    return codes ^ _shifted(codes, 31)


def _shifted(codes: Int[Tensor, "*b"], by: int) -> Int[Tensor, "*b"]:
    """Return the bits moved to the right, with zeros put in; torch's own shift puts in the sign."""
    return (codes >> by) & ((1 << (64 - by)) - 1)


def normals(codes: Int[Tensor, "*b"], width: int, seed: int) -> Float[Tensor, "*b d"]:
    """Return independent standard normal numbers for each code, of this width, in float32.

    Args:
        seed: other numbers for the same codes.
    """
    start = mixed(codes.long() * STEP + seed)
    places = torch.arange(1, (width + 1) // 2 + 1, device=codes.device)
    bits = mixed(start[..., None] + places * STEP)
    high, low = ((part & (HALF - 1)).double().add(0.5).div(HALF) for part in (_shifted(bits, 32), bits))
    radius, angle = (-2 * high.log()).sqrt(), 2 * math.pi * low
    return torch.cat([radius * angle.cos(), radius * angle.sin()], -1)[..., :width].float()


def prefixes(rows: Int[Tensor, "b t"], seed: int = 0) -> Int[Tensor, "b t"]:
    """Return a code for each place of a row, which depends on all tokens up to there and on no later one."""
    code = torch.full_like(rows[:, 0].long(), seed)
    found = []
    for column in rows.long().unbind(1):
        code = mixed((code + column + 1) * STEP)
        found.append(code)
    return torch.stack(found, 1)
