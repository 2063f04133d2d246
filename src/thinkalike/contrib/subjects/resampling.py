"""Resamples of subjects and stimuli together, and intervals over both (the dual bootstrap)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.measures.bootstrap import drawn_counts
from thinkalike.measures.changes import two_sided
from thinkalike.measures.estimates import Estimate, interval_around, student_t
from thinkalike.measures.seeds import seeded

# Different stimuli, or groups of them, in a resample: fewer have no distances to compare.
FEWEST_UNITS = 3


class Draws(NamedTuple):
    """How often each subject and each stimulus is drawn in each of r resamples.

    Attributes:
        subjects: The counts of the s subjects (recorded participants).
        stimuli: The counts of the n stimuli.
        units: The number of stimuli, or groups of them, that a resample is drawn from.
    """

    subjects: Float[Tensor, "r s"]
    stimuli: Float[Tensor, "r n"]
    units: int


def draw_resamples(
    n_subjects: int,
    n_stimuli: int,
    resamples: int,
    seed: int = 0,
    groups: Int[Tensor, " n"] | None = None,
) -> Draws:
    """Draw bootstrap resamples of subjects and of stimuli, with replacement.

    Each resample has as many subjects as there are, as many stimuli (or groups of them), and at
    least three different stimuli (or groups); resamples with fewer are drawn again.

    Args:
        n_subjects: How many subjects there are.
        n_stimuli: How many stimuli there are.
        resamples: How many resamples are drawn.
        seed: The seed of the draws.
        groups: The group of each stimulus. Those of one group, such as the words of a sentence,
            are drawn together.

    Raises:
        ValueError: There are fewer than three stimuli or groups.
    """
    # A unit is what is drawn: a stimulus or a group of them.
    unit_of_stimulus = torch.arange(n_stimuli)
    if groups is not None:
        _, group_indices = groups.unique(return_inverse=True)
        unit_of_stimulus = group_indices.cpu()
    n_units = int(unit_of_stimulus.max()) + 1
    if n_units < FEWEST_UNITS:
        raise ValueError(
            f"{n_units} stimuli or groups of them are too few to resample: give three or more"
        )
    generator = seeded(seed)
    unit_counts = torch.empty(0, n_units, dtype=torch.float64)
    while len(unit_counts) < resamples:
        drawn = drawn_counts(n_units, resamples, generator)  # (resamples, units)
        n_different = (drawn > 0).sum(1)
        unit_counts = torch.cat([unit_counts, drawn[n_different >= FEWEST_UNITS]])
    stimulus_counts = unit_counts[:resamples][:, unit_of_stimulus]
    subject_counts = drawn_counts(n_subjects, resamples, generator)
    return Draws(subject_counts, stimulus_counts, n_units)


class TwoFactors(NamedTuple):
    """A mean over subjects with its interval over subjects and stimuli.

    Attributes:
        estimate: The mean with its interval.
        p: The p-value of the null hypothesis that the mean is 0.
        error: The standard error.
    """

    estimate: Estimate
    p: Float[Tensor, "*b"]
    error: Float[Tensor, "*b"]


def two_factor(
    values: Float[Tensor, "*b s"],
    replicates: Float[Tensor, "r *b s"],
    draws: Draws,
    *,
    level: float = 0.95,
) -> TwoFactors:
    """Return the mean over s ≥ 2 subjects, (*b), with an interval over them and stimuli.

    Resampling subjects and stimuli together would count the noise of single measurements three
    times. So the variance comes from three bootstraps with the same draws: V_s of subjects alone,
    V_n of stimuli alone, and V of both (Schütt et al. 2023, eq. 11; rsatoolbox's
    `eval_dual_bootstrap`, with its correction for few subjects or stimuli),

        V_s' + V_n' - s n / ((s - 1) (n - 1)) (V - V_s - V_n),
        V_s' = s / (s - 1) V_s,    V_n' = n / (n - 1) V_n,

    for n stimuli (or groups of them). It is clamped to be at least V_s' and V_n', and then at most
    V. The interval is ± t standard errors, with min(s, n) - 1 degrees of freedom. To compare two
    models, pass the difference of their scores in the same subjects and resamples.

    Args:
        values: The value of each subject, from all stimuli.
        replicates: The value of each subject in each of r resamples of the stimuli.
        draws: The resamples. Only those of subjects, and the number of stimuli or groups of them
            (`units`), are used here.
        level: The level of the interval.
    """
    n_subjects = values.shape[-1]
    values = values.double()
    replicates = replicates.double()
    weights = draws.subjects / n_subjects  # (r, s); a weighted sum is the mean of a resample
    variance_both = torch.einsum("r...s,rs->r...", replicates, weights).var(0)
    variance_subjects = torch.einsum("...s,rs->r...", values, weights).var(0)
    variance_stimuli = replicates.mean(-1).var(0)
    variance = dual_variance(
        variance_both, variance_subjects, variance_stimuli, n_subjects, draws.units
    )
    mean = values.mean(-1)
    standard_error = variance.sqrt()
    degrees_of_freedom = min(n_subjects, draws.units) - 1
    half_width = student_t(level, degrees_of_freedom) * standard_error
    p = two_sided(mean, standard_error, degrees_of_freedom)
    return TwoFactors(interval_around(mean, half_width), p, standard_error)


def dual_variance(
    both: Float[Tensor, "*b"],
    subjects: Float[Tensor, "*b"],
    stimuli: Float[Tensor, "*b"],
    s: int,
    n: int,
) -> Float[Tensor, "*b"]:
    """Return the variance of a mean over s subjects and n stimuli (Schütt et al. 2023, eq. 11).

    It is V_s' + V_n' - s n / ((s - 1) (n - 1)) (V - V_s - V_n), clamped to be at least V_s' and
    V_n', and then at most V. V, V_s and V_n are variances of bootstrap means. V_s' = s / (s - 1)
    V_s and V_n' = n / (n - 1) V_n are corrected for few subjects or stimuli.

    Args:
        both: V, with subjects and stimuli resampled together.
        subjects: V_s, with subjects resampled alone.
        stimuli: V_n, with stimuli resampled alone.
        s: The number of subjects, at least two.
        n: The number of stimuli, or of groups of them, at least two.
    """
    corrected_subjects = s / (s - 1) * subjects
    corrected_stimuli = n / (n - 1) * stimuli
    interaction = s * n / ((s - 1) * (n - 1)) * (both - subjects - stimuli)
    variance = corrected_subjects + corrected_stimuli - interaction
    lower_limit = torch.maximum(corrected_subjects, corrected_stimuli)
    return torch.minimum(variance.maximum(lower_limit), both)
