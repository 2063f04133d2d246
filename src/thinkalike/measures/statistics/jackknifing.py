"""Intervals from leaving out one batch at a time (Tukey 1958).

Rows are never resampled: a row that is drawn twice is a pair of different rows that are alike, which the unbiased
estimator takes for similarity.
"""

from __future__ import annotations

import math

from jaxtyping import Float
from torch import Tensor

from thinkalike.measures.statistics.estimate import Estimate, interval_around
from thinkalike.measures.statistics.student import student_t


def leave_one_out(values: Float[Tensor, " b *s"]) -> Float[Tensor, " b *s"]:
    """Return, for every batch, the mean of all the others."""
    return (values.sum(0) - values) / (len(values) - 1)


def as_batches(records: Float[Tensor, " a *s"]) -> Float[Tensor, " b *s"]:
    """Turn a statistic of all rows, and of all but each of b parts of them, into values of b batches.

    Their mean is the statistic of all rows, s, and their means without each batch spread as those without each part, r:
    s + (b - 1) (mean(r) - r), Tukey's pseudo-values without his correction of the bias.

    Args:
        records: s, and then r; b = a - 1.
    """
    whole, without = records[:1], records[1:]
    return whole + (len(without) - 1) * (without.mean(0, keepdim=True) - without)


def jackknife(value: Float[Tensor, "*s"], replicates: Float[Tensor, " b *s"], *, level: float = 0.95) -> Estimate:
    """Return value ± t √((b-1)/b Σ (replicate - mean)²), t of Student's distribution with b - 1 degrees of freedom.

    A single batch says nothing about the spread: its interval is (-∞, ∞).

    Args:
        replicates: The same statistic without each of the b batches in turn.
    """
    b = len(replicates)
    if b < 2:
        return interval_around(value, math.inf)
    error = replicates.var(0, correction=0).mul(b - 1).sqrt()
    return interval_around(value, student_t(level, b - 1) * error)
