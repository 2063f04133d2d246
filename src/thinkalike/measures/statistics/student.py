"""Quantiles and tails of Student's distribution, without SciPy."""

from __future__ import annotations

import math
from functools import lru_cache


@lru_cache
def student_t(level: float, freedom: int) -> float:
    """Return the t with P(|T| < t) = level for T with this many degrees of freedom, to ten digits.

    T = √freedom tan θ, and the distribution of θ is a finite sum (Abramowitz & Stegun 26.7.3, 26.7.4), which bisection
    inverts.
    """
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _probability(middle, freedom) < level else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def student_p(t: float, freedom: int) -> float:
    """Return P(|T| ≥ |t|), the two-sided p-value, in [0, 1], for T with this many degrees of freedom, to 1e-14."""
    return max(1 - _probability(math.atan(abs(t) / math.sqrt(freedom)), freedom), 0.0)


def _probability(angle: float, freedom: int) -> float:
    """Return P(|T| < √freedom tan θ)."""
    cosine, odd = math.cos(angle), freedom % 2
    term, total = (cosine if odd else 1.0), 0.0
    for step in range(2 + odd, freedom + 1, 2):
        total += term
        term *= cosine**2 * (step - 1) / step
    return (2 / math.pi) * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
