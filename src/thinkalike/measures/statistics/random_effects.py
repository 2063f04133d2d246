"""The mean over subjects as a sample of all subjects there could be: random effects (Holmes & Friston 1998)."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.measures.statistics.estimate import Estimate, interval_around
from thinkalike.measures.statistics.student import student_p, student_t

ROUNDING = 1e-12  # of scores in [-1, 1]


def random_effects(values: Float[Tensor, "*b s"], *, level: float = 0.95) -> Estimate:
    """Return the mean over s subjects, (*b), ± t √(Σ (v - mean)² / (s - 1) / s), t of s - 1 degrees of freedom.

    The variance between subjects holds each one's own noise already, so that noisy subjects widen the interval. It is
    of subjects alone: of the same stimuli, see `two_factor` for both.

    Raises:
        ValueError: There are fewer than two subjects.
    """
    s = values.shape[-1]
    if s < 2:
        raise ValueError(f"an interval over subjects needs two of them, not {s}")
    return interval_around(values.mean(-1), student_t(level, s - 1) * values.std(-1) / math.sqrt(s))


def two_sided(value: Tensor, error: Tensor, freedom: int) -> Float[Tensor, "*b"]:
    """Return the p-value of a value that is 0, by Student's t of value / error; 1 where both are 0 up to rounding."""
    value, error = (part.where(part.abs() > ROUNDING, 0.0) for part in (value, error))
    t = (value / error).nan_to_num(0.0, math.inf, -math.inf)
    found: Any = [student_p(each, freedom) for each in t.flatten().tolist()]
    return torch.tensor(found, dtype=torch.float64).reshape(t.shape)
