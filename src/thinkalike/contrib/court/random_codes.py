"""Random numbers that depend on codes, and nothing else.

A code is a whole number that says what a source's noise depends on: a token, a pair of tokens, or
all tokens up to a position. The same codes give the same numbers in every call, in every order and
on every device.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.contrib.court.materials import Materials
from thinkalike.contrib.court.source import States, Tokens
from thinkalike.measures.splitmix import SPLITMIX_STEP, shift_right, splitmix

TWO_TO_32 = 2**32


def normals_by_code(codes: Int[Tensor, "*b"], width: int, seed: int) -> Float[Tensor, "*b d"]:
    """Return independent standard normal numbers for each code, in float32.

    The two halves of 64 random bits give two normal numbers, by Box and Muller.

    Args:
        codes: A code for each vector of numbers.
        width: How many numbers a code has.
        seed: Another seed gives other numbers for the same codes.
    """
    start = splitmix(codes.long() * SPLITMIX_STEP + seed)
    steps = torch.arange(1, (width + 1) // 2 + 1, device=codes.device)
    bits = splitmix(start[..., None] + steps * SPLITMIX_STEP)
    high = _uniform(shift_right(bits, 32))
    low = _uniform(bits)
    radius = (-2 * high.log()).sqrt()
    angle = 2 * math.pi * low
    return torch.cat([radius * angle.cos(), radius * angle.sin()], -1)[..., :width].float()


def _uniform(bits: Int[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """Return numbers in (0, 1) from the lower 32 bits."""
    # With 0.5 added, none is 0, of which the logarithm is infinite.
    return (bits & (TWO_TO_32 - 1)).double().add(0.5).div(TWO_TO_32)


def prefix_codes(rows: Int[Tensor, "b t"], seed: int = 0) -> Int[Tensor, "b t"]:
    """Return a code for each position that depends on the tokens up to there, on none later."""
    code = torch.full_like(rows[:, 0].long(), seed)
    codes = []
    for column in rows.long().unbind(1):
        code = splitmix((code + column + 1) * SPLITMIX_STEP)
        codes.append(code)
    return torch.stack(codes, 1)


def noise_for(
    materials: Materials, purpose: str, codes_of: Callable[[Tokens], Tokens] = prefix_codes
) -> States:
    """Return a function from tokens to normal numbers, of the width of the target's states.

    Args:
        materials: The materials of a court.
        purpose: The purpose that the seed is for, see `Materials.seed_for`.
        codes_of: Gives the code at each position; the same code has the same numbers.
    """
    seed = materials.seed_for(purpose)

    def noise(rows: Tokens) -> Float[Tensor, "b t d"]:
        """Return the numbers of the code at each position."""
        numbers = normals_by_code(codes_of(rows), materials.width, seed)
        return numbers.to(materials.device, materials.dtype)

    return noise
