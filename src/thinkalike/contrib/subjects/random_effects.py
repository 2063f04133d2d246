"""A mean over subjects, with an interval over all subjects that these are a sample of."""

from __future__ import annotations

import math

from jaxtyping import Float
from torch import Tensor

from thinkalike.measures.estimates import Estimate, interval_around, student_t


def random_effects(values: Float[Tensor, "*b s"], *, level: float = 0.95) -> Estimate:
    """Return the mean over s subjects, (*b), with the interval ± t √(Σ (v - mean)² / (s - 1) / s).

    v is the value of a subject, such as a participant or a seed, and t is the quantile of
    Student's t with s - 1 degrees of freedom. This is a random-effects analysis (Holmes & Friston
    1998): the subjects are a sample, and the noise within a subject is part of the variance
    between them. Stimuli count as fixed. With one subject the interval is (-∞, ∞).
    """
    n_subjects = values.shape[-1]
    half_width: Tensor | float = math.inf
    if n_subjects > 1:
        t = student_t(level, n_subjects - 1)
        half_width = t * values.std(-1) / math.sqrt(n_subjects)
    return interval_around(values.mean(-1), half_width)
