"""Intervals from leaving out one batch at a time (Tukey 1958).

Never from resampled rows: a row that is drawn twice is a pair of different rows that are alike, which the unbiased
estimator takes for similarity.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Estimate:
    """A value with the ends of its interval, of one shape."""

    value: Tensor
    low: Tensor
    high: Tensor


def leave_one_out(values: Float[Tensor, " b *s"]) -> Float[Tensor, " b *s"]:
    """Mean of all other batches, for every batch."""
    return (values.sum(0) - values) / (len(values) - 1)


def jackknife(value: Float[Tensor, "*s"], replicates: Float[Tensor, " b *s"], *, level: float = 0.95) -> Estimate:
    """value ± t √((b-1)/b Σ (replicate - mean)²), with t of Student's distribution of b - 1 degrees of freedom.

    One batch alone tells nothing: its interval is (-∞, ∞).
    """
    b = len(replicates)
    if b < 2:
        return Estimate(value, value - math.inf, value + math.inf)
    error = replicates.var(0, correction=0).mul(b - 1).sqrt()
    half = student_t(level, b - 1) * error
    return Estimate(value, value - half, value + half)


@lru_cache
def student_t(level: float, freedom: int) -> float:
    """The t with P(|T| < t) = level, to five digits.

    T = √freedom tan θ, with a density of θ in proportion to cos^(freedom - 1) θ.
    """
    angle = torch.linspace(0, math.pi / 2, 100_001, dtype=torch.float64)
    mass = torch.cumulative_trapezoid(angle.cos() ** (freedom - 1), angle)
    above = int(torch.searchsorted(mass, level * mass[-1]))
    rest = (level * mass[-1] - mass[above - 1]) / (mass[above] - mass[above - 1])
    theta = angle[above] + rest * (angle[above + 1] - angle[above])
    return math.sqrt(freedom) * math.tan(theta)
