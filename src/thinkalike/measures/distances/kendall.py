"""Likeness of feature-importance profiles: a rank correlation in which the most important features weigh most."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.arguments import refuse_nan


def weighted_tau(profiles: Float[Tensor, "l f"], others: Float[Tensor, "m f"] | None = None) -> Float[Tensor, "l m"]:
    """Return the weighted Kendall τ of every two profiles, in [-1, 1], as `scipy.stats.weightedtau` does.

    τ = <x, y> / (‖x‖ ‖y‖), <x, y> = Σ_{i<j} w_ij sgn(x_i - x_j) sgn(y_i - y_j), w_ij = 1/(1 + r_i) + 1/(1 + r_j), with
    r = 0 for the most important feature (Vigna 2015, additive hyperbolic). The value is the mean of that with features
    ranked by x, ties by y, and the other way round.

    Args:
        others: The profiles to compare with; by default the same.

    Raises:
        ValueError: A profile is constant, or holds NaN.
    """
    refuse_nan(profiles, "profiles")
    if others is not None:
        refuse_nan(others, "others")
    left, right = (_signs(part) for part in (profiles, profiles if others is None else others))
    left, right = left[:, None], right[None]
    return (_tau(left, right) + _tau(right, left)) / 2


def _signs(profiles: Float[Tensor, "l f"]) -> Float[Tensor, "l f f"]:
    signs = (profiles[:, :, None] - profiles[:, None]).sign().double()
    if constant := (~signs.any((1, 2))).nonzero().flatten().tolist():
        raise ValueError(f"profile {constant[0]} is constant and ranks no feature")
    return signs


def _tau(first: Tensor, second: Tensor) -> Float[Tensor, "l m"]:
    """Return τ with ranks by `first`, and ties by `second`."""
    f = first.shape[-1]
    position = torch.ones(f, f, dtype=first.dtype, device=first.device).tril(-1)
    position = position - position.T  # for those equal in both: in whatever order, they are interchangeable
    before = torch.where(first != 0, first, torch.where(second != 0, second, position)) < 0  # of i, by j
    weight = 1 / (1 + before.sum(-1).double())
    both = weight[..., :, None] + weight[..., None, :]
    inner, x, y = ((both * part).sum((-2, -1)) for part in (first * second, first.square(), second.square()))
    return inner / (x * y).sqrt()
