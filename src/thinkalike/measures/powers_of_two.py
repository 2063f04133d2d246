"""Powers of two as units: dividing by one brings numbers into range without rounding."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def power_of_two_below(size: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """Return the greatest power of two up to each size, or 1 for 0."""
    power = size / (2 * torch.frexp(size).mantissa)  # the mantissa is in [½, 1)
    return power.where(size > 0, 1.0)


def power_of_two_unit(
    features: Float[Tensor, "..."], over: tuple[int, ...] = ()
) -> Float[Tensor, "*l"]:
    """Return the greatest power of two up to the largest absolute value, or ½ if all values are 0.

    Dividing values by it makes the largest about 1, without rounding any.

    Args:
        features: The values.
        over: The axes over which the largest value is taken; (): all.
    """
    largest = torch.maximum(-features.amin(over), features.amax(over))
    # `frexp` writes a number as m 2^e with m in [½, 1), and 0 as 0 2^0.
    exponent = torch.frexp(largest).exponent - 1
    ones = torch.ones_like(exponent, dtype=features.dtype)
    return torch.ldexp(ones, exponent)
