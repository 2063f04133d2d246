"""Intervals in which subjects and stimuli both vary: scores of models in subjects, resampled both ways."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.arguments import seeded
from thinkalike.measures.statistics.estimate import Estimate, interval_around
from thinkalike.measures.statistics.random_effects import two_sided
from thinkalike.measures.statistics.student import student_t

FEWEST = 3  # different stimuli, or groups of them, that a resample must have: fewer have no distances to compare


class Draws(NamedTuple):
    """How often each subject and each stimulus is drawn in each of r resamples."""

    subjects: Float[Tensor, "r s"]
    stimuli: Float[Tensor, "r n"]
    units: int  # how many stimuli, or groups of them, were drawn from

    def take(self, kept: Tensor) -> Draws:
        """Return the resamples at an index."""
        return Draws(self.subjects[kept], self.stimuli[kept], self.units)


def draw(subjects: int, stimuli: int, resamples: int, seed: int = 0, groups: Int[Tensor, " n"] | None = None) -> Draws:
    """Draw subjects and stimuli with replacement, as many as there are, with at least three different stimuli.

    Args:
        groups: (n) numbers; stimuli of a group, such as the words of a sentence, are drawn together.

    Raises:
        ValueError: There are fewer than two resamples, or fewer than three stimuli or groups.
    """
    owners = torch.arange(stimuli) if groups is None else groups.unique(return_inverse=True)[1].cpu()
    units = int(owners.max()) + 1
    if resamples < 2:
        raise ValueError(f"resamples={resamples}: a spread needs two of them or more")
    if units < FEWEST:
        raise ValueError(f"{units} stimuli or groups of them are too few to resample; three are needed")
    generator = seeded(seed)
    drawn = torch.empty(0, units, dtype=torch.float64)
    while len(drawn) < resamples:
        more = _counts(units, resamples, generator)
        drawn = torch.cat([drawn, more[(more > 0).sum(1) >= FEWEST]])
    return Draws(_counts(subjects, resamples, generator), drawn[:resamples][:, owners], units)


def _counts(n: int, resamples: int, generator: torch.Generator) -> Float[Tensor, "r n"]:
    drawn = torch.randint(n, (resamples, n), generator=generator)
    return torch.zeros(resamples, n, dtype=torch.float64).scatter_add_(1, drawn, torch.ones(drawn.shape).double())


class TwoFactors(NamedTuple):
    """A mean over subjects with its interval over subjects and stimuli, and the p-value of 0."""

    estimate: Estimate
    p: Float[Tensor, "*b"]
    error: Float[Tensor, "*b"]  # the standard error


def two_factor(
    values: Float[Tensor, "*b s"], replicates: Float[Tensor, "r *b s"], draws: Draws, *, level: float = 0.95
) -> TwoFactors:
    """Return the mean over subjects, (*b), with an interval over subjects and stimuli: the corrected dual bootstrap.

    Resampling subjects and stimuli at once counts the noise of single measurements, that belongs to both, three times
    over. So the variance comes from three bootstraps with the same draws: V_s of subjects alone, V_n of stimuli alone,
    V of both (Schütt et al. 2023, eq. 11; rsatoolbox's `eval_dual_bootstrap`, with its correction for few),

        V_s' + V_n' - s n / ((s - 1) (n - 1)) (V - V_s - V_n),    V_s' = s / (s - 1) V_s,    V_n' = n / (n - 1) V_n,

    not below V_s' and V_n', nor above V. Ends are ± t of min(s, n) - 1 degrees of freedom. A difference of two models
    is that of their rows: models in the same subjects, with the same draws, are paired.

    Args:
        values: Scores in each subject, of all stimuli.
        replicates: The same in each resample of stimuli, of all subjects.

    Raises:
        ValueError: There are fewer than two subjects, or a value is not finite.
    """
    s, n = values.shape[-1], draws.units
    if s < 2:
        raise ValueError(f"an interval over subjects needs two of them, not {s}")
    if not (values.isfinite().all() and replicates.isfinite().all()):
        raise ValueError("a score is not finite")
    values, replicates, weights = values.double(), replicates.double(), draws.subjects / s
    both = torch.einsum("r...s,rs->r...", replicates, weights).var(0)
    of_subjects = torch.einsum("...s,rs->r...", values, weights).var(0)
    variance = dual_variance(both, of_subjects, replicates.mean(-1).var(0), s, n)
    value, error = values.mean(-1), variance.sqrt()
    freedom = min(s, n) - 1
    return TwoFactors(
        interval_around(value, student_t(level, freedom) * error), two_sided(value, error, freedom), error
    )


def dual_variance(
    both: Float[Tensor, "*b"], subjects: Float[Tensor, "*b"], stimuli: Float[Tensor, "*b"], s: int, n: int
) -> Float[Tensor, "*b"]:
    """Return the variance of a mean over s subjects and n stimuli from those of the three bootstraps; see `two_factor`.

    Like rsatoolbox it never returns more than `both`, the variance of resampling subjects and stimuli at once.
    """
    own, theirs = s / (s - 1) * subjects, n / (n - 1) * stimuli
    joint = s * n / ((s - 1) * (n - 1)) * (both - subjects - stimuli)
    return torch.minimum((own + theirs - joint).maximum(own).maximum(theirs), both)
