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
from thinkalike.contrib.court.source import StateFunction, Tokens
from thinkalike.measures.splitmix import SPLITMIX_STEP, shift_right, splitmix

TWO_TO_32 = 2**32


def normals_by_code(codes: Int[Tensor, "*b"], width: int, seed: int) -> Float[Tensor, "*b d"]:
    """Return a vector of independent standard normal numbers for each code, in float32.

    A code is any integer, such as a token id. The same code always gives the same vector, as the
    random bits are a hash (SplitMix) of code and seed. The Box-Muller transform turns each 64 bits
    into two normal numbers.

    Args:
        codes: The code of each vector.
        width: The length d of the vectors.
        seed: Different seeds give different vectors for the same codes.
    """
    # SplitMix is a generator whose state grows by a constant step, and whose output is a hash of
    # the state. Here each code has a start of its own.
    start = splitmix(codes.long() * SPLITMIX_STEP + seed)
    n_pairs_of_numbers = (width + 1) // 2
    steps = torch.arange(1, n_pairs_of_numbers + 1, device=codes.device)
    bits = splitmix(start[..., None] + steps * SPLITMIX_STEP)  # (*b, pairs), 64 bits each

    # Box-Muller
    radius_uniform = _uniform(shift_right(bits, 32))  # from the upper 32 bits
    angle_uniform = _uniform(bits)  # from the lower 32 bits
    radius = (-2 * radius_uniform.log()).sqrt()
    angle = 2 * math.pi * angle_uniform
    normals = torch.cat([radius * angle.cos(), radius * angle.sin()], -1)
    return normals[..., :width].float()  # one too many, if the width is odd


def _uniform(bits: Int[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """Return numbers in (0, 1) from the lower 32 bits of each integer."""
    lower_bits = bits & (TWO_TO_32 - 1)
    # With 0.5 added, no number is 0; the logarithm of 0 is infinite.
    return (lower_bits.double() + 0.5) / TWO_TO_32


def prefix_codes(rows: Int[Tensor, "b t"], seed: int = 0) -> Int[Tensor, "b t"]:
    """Return at each position a hash of all tokens from the beginning of the row up to it.

    Equal prefixes have equal hashes. Each hash is computed from the one before and the token, to
    which 1 is added, since the hash of 0 is 0.

    Args:
        rows: Rows of tokens.
        seed: Different seeds give different hashes.
    """
    prefix_hash = torch.full_like(rows[:, 0].long(), seed)
    hashes = []
    for tokens_at_position in rows.long().unbind(1):
        prefix_hash = splitmix((prefix_hash + tokens_at_position + 1) * SPLITMIX_STEP)
        hashes.append(prefix_hash)
    return torch.stack(hashes, 1)


def noise_for(
    materials: Materials, purpose: str, codes_of: Callable[[Tokens], Tokens] = prefix_codes
) -> StateFunction:
    """Return a function from tokens to noise: standard normal vectors as wide as target states.

    Args:
        materials: The target model with its layer, the text, and a seed for each purpose.
        purpose: What the noise is for; different purposes have independent noise.
        codes_of: Returns an integer (code) for each position. Positions with equal codes get equal
            noise. By default, the code is a hash of all tokens up to the position.
    """
    seed = materials.seed_for(purpose)

    def noise(rows: Tokens) -> Float[Tensor, "b t d"]:
        """Return the noise at each position of some rows of tokens."""
        numbers = normals_by_code(codes_of(rows), materials.width, seed)
        return numbers.to(materials.device, materials.dtype)

    return noise
