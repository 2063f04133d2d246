"""Several subjects with the same stimuli: noise ceilings, and intervals from resampled subjects and stimuli."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.measures.bootstrap import drawn_counts
from thinkalike.measures.changes import two_sided
from thinkalike.measures.distances.comparators import CENTRED, RANKED, comparable, compare, stimuli_of
from thinkalike.measures.distances.ranks import mid_ranks
from thinkalike.measures.estimates import Estimate, interval_around, student_t
from thinkalike.measures.seeds import seeded
from thinkalike.processes import counted

FEWEST = 3  # different stimuli, or groups of them, in a resample: fewer have no distances to compare
AT_ONCE = 16  # resamples whose scores are computed together


class Scored(NamedTuple):
    """The scores of one model in s subjects: of all stimuli, and in r resamples of them."""

    values: Float[Tensor, " s"]
    replicates: Float[Tensor, "r s"]

    def minus(self, other: Scored) -> Scored:
        """Return the paired difference from another model in the same subjects and resamples."""
        return Scored(self.values - other.values, self.replicates - other.replicates)


def random_effects(values: Float[Tensor, "*b s"], *, level: float = 0.95) -> Estimate:
    """Return the mean over s subjects, (*b), ± t √(Σ (v - mean)² / (s - 1) / s), t of s - 1 degrees of freedom.

    The subjects are a sample of all subjects (Holmes & Friston 1998), and each one's own noise is in the variance
    between them. Stimuli are fixed; see `two_factor` for both. Of one subject the interval is (-∞, ∞).
    """
    s = values.shape[-1]
    half = student_t(level, s - 1) * values.std(-1) / math.sqrt(s) if s > 1 else math.inf
    return interval_around(values.mean(-1), half)


@dataclass(frozen=True, eq=False)
class ModelScores:
    """The scores of m models in s subjects, and in r resamples of stimuli, on the CPU."""

    values: Float[Tensor, "m s"]
    replicates: Float[Tensor, "r m s"]
    ceiling: NoiseCeiling
    lower: Float[Tensor, "r s"]  # the lower ceiling in the resamples
    draws: Draws

    def of(self, model: int) -> Scored:
        return Scored(self.values[model], self.replicates[:, model])

    def of_ceiling(self) -> Scored:
        """Return the lower noise ceiling as the scores of a model: each subject compared with the others' mean."""
        return Scored(self.ceiling.lower, self.lower)

    def best(self, models: Sequence[int]) -> tuple[Scored, Int[Tensor, " s"]]:
        """Return the scores of the best of some models, and its number, chosen for each subject on all other subjects.

        The highest of many scores is biased upwards; a choice that does not see the subject is not.
        """
        inside = self.values[list(models)]
        others = inside.sum(1, keepdim=True) - inside
        chosen = torch.tensor(list(models))[others.argmax(0).cpu()]
        subjects = torch.arange(len(chosen))
        return Scored(self.values[chosen, subjects], self.replicates[:, chosen, subjects]), chosen


def model_scores(
    models: Float[Tensor, "m p"],
    subjects: Float[Tensor, "s p"],
    comparator: str = "spearman",
    *,
    resamples: int = 1000,
    seed: int = 0,
    groups: Int[Tensor, " n"] | None = None,
) -> ModelScores:
    """Compare squared distances of m models with those of s subjects, for all stimuli and in resamples of them.

    A stimulus that is drawn twice counts as two stimuli, without their own pair, whose distance is 0 in all models.
    Resamples in which a vector is constant are left out; where these are more than half of all, that is a ValueError.
    There may be 0 of them; see `draw` for groups.
    """
    values, ceiling = compare(models, subjects, comparator).cpu(), noise_ceiling(subjects, comparator)
    ceiling = NoiseCeiling(*(part.cpu() for part in ceiling))
    (m, s), n = values.shape, stimuli_of(models.shape[1])
    if not resamples:
        none = values.new_zeros(0, s)
        return ModelScores(values, values.new_zeros(0, m, s), ceiling, none, Draws(none, values.new_zeros(0, n), n))
    draws = draw(s, n, resamples, seed, groups)
    rows = torch.cat([models.double(), ceiling.without.to(models.device)])
    some = draws.stimuli.to(models.device).split(AT_ONCE)
    parts = [compare(rows, subjects, comparator, part) for part in counted(some, "part of the resamples")]
    found = torch.cat(parts).cpu()
    known = found.isfinite().flatten(1).all(1)
    if (lost := resamples - int(known.sum())) * 2 > resamples:
        raise ValueError(f"the distances of a layer are constant in {lost} of {resamples} resamples: use more stimuli")
    found, draws = found[known], Draws(draws.subjects[known], draws.stimuli[known], draws.units)
    return ModelScores(values, found[:, :m], ceiling, found[:, m:].diagonal(dim1=1, dim2=2), draws)


class NoiseCeiling(NamedTuple):
    """The score of the subjects' mean distances in each subject, computed without and with that subject.

    A perfect model is expected to score above the mean of `lower`, and not much above that of `upper`.
    """

    lower: Float[Tensor, " s"]
    upper: Float[Tensor, " s"]
    without: Float[Tensor, "s p"]  # the mean distances of the other subjects, which give `lower`


def noise_ceiling(subjects: Float[Tensor, "s p"], comparator: str = "spearman") -> NoiseCeiling:
    """Return the noise ceiling of s ≥ 2 subjects' distances, as rsatoolbox's `boot_noise_ceiling` does.

    The mean is over ranks (spearman and tau_a), z-scores (corr, corr_cov), or vectors of norm 1 (cosine, cosine_cov).
    The lower end compares each subject with the mean of the others, the upper end with that of all subjects. A mean
    that is constant or, of no others, not finite is a ValueError.
    """
    s = len(subjects)
    comparable(subjects, comparator)
    normalised = _normalised(subjects.double(), comparator)
    pool = normalised.mean(0, keepdim=True)
    without = (s * pool - normalised) / (s - 1)
    names = ["the mean of all subjects", *(f"the mean of all subjects but {each}" for each in range(s))]
    comparable(torch.cat([pool, without]), comparator, names)
    lower = [compare(without[each : each + 1], subjects[each : each + 1], comparator)[0, 0] for each in range(s)]
    return NoiseCeiling(torch.stack(lower), compare(pool, subjects, comparator)[0], without)


def _normalised(vectors: Float[Tensor, "s p"], comparator: str) -> Float[Tensor, "s p"]:
    """Return each subject's distances in the unit in which subjects are averaged."""
    if comparator in RANKED:
        return mid_ranks(vectors)
    if comparator in CENTRED:
        vectors = vectors - vectors.mean(1, keepdim=True)
    return vectors / vectors.square().mean(1, keepdim=True).sqrt()


class Draws(NamedTuple):
    """How often each subject and each stimulus is drawn in each of r resamples."""

    subjects: Float[Tensor, "r s"]
    stimuli: Float[Tensor, "r n"]
    units: int  # the number of stimuli, or groups of them, from which a resample is drawn


def draw(subjects: int, stimuli: int, resamples: int, seed: int = 0, groups: Int[Tensor, " n"] | None = None) -> Draws:
    """Draw subjects and stimuli with replacement, as many as there are, with at least three different stimuli.

    The stimuli of a group, such as the words of a sentence, are drawn together. Fewer than three stimuli or
    groups are a ValueError.
    """
    owners = torch.arange(stimuli) if groups is None else groups.unique(return_inverse=True)[1].cpu()
    units = int(owners.max()) + 1
    if units < FEWEST:
        raise ValueError(f"{units} stimuli or groups of them are too few to resample: give three or more")
    generator = seeded(seed)
    drawn = torch.empty(0, units, dtype=torch.float64)
    while len(drawn) < resamples:
        more = drawn_counts(units, resamples, generator)
        drawn = torch.cat([drawn, more[(more > 0).sum(1) >= FEWEST]])
    return Draws(drawn_counts(subjects, resamples, generator), drawn[:resamples][:, owners], units)


class TwoFactors(NamedTuple):
    """A mean over subjects with its interval over subjects and stimuli, and the p-value of 0."""

    estimate: Estimate
    p: Float[Tensor, "*b"]
    error: Float[Tensor, "*b"]  # the standard error


def two_factor(
    values: Float[Tensor, "*b s"], replicates: Float[Tensor, "r *b s"], draws: Draws, *, level: float = 0.95
) -> TwoFactors:
    """Return the mean over s ≥ 2 subjects, (*b), with an interval over them and stimuli: the corrected dual bootstrap.

    As resampling both together counts the noise of single measurements three times, the variance comes from three
    bootstraps with the same draws: V_s of subjects alone, V_n of stimuli alone, V of both (Schütt et al. 2023, eq. 11;
    rsatoolbox's `eval_dual_bootstrap`, with its correction for few),

        V_s' + V_n' - s n / ((s - 1) (n - 1)) (V - V_s - V_n),    V_s' = s / (s - 1) V_s,    V_n' = n / (n - 1) V_n,

    not below V_s' and V_n', nor above V. The interval is ± t of min(s, n) - 1 degrees of freedom. For two models with
    the same subjects and draws give the difference of their scores. The replicates are of all subjects.
    """
    s, n = values.shape[-1], draws.units
    values, replicates, weights = values.double(), replicates.double(), draws.subjects / s
    both = torch.einsum("r...s,rs->r...", replicates, weights).var(0)
    of_subjects = torch.einsum("...s,rs->r...", values, weights).var(0)
    variance = dual_variance(both, of_subjects, replicates.mean(-1).var(0), s, n)
    value, error = values.mean(-1), variance.sqrt()
    freedom = min(s, n) - 1
    ends = interval_around(value, student_t(level, freedom) * error)
    return TwoFactors(ends, two_sided(value, error, freedom), error)


def dual_variance(
    both: Float[Tensor, "*b"], subjects: Float[Tensor, "*b"], stimuli: Float[Tensor, "*b"], s: int, n: int
) -> Float[Tensor, "*b"]:
    """Return the variance of a mean over s subjects and n stimuli from those of three bootstraps; see `two_factor`."""
    own, theirs = s / (s - 1) * subjects, n / (n - 1) * stimuli
    joint = s * n / ((s - 1) * (n - 1)) * (both - subjects - stimuli)
    return torch.minimum((own + theirs - joint).maximum(own).maximum(theirs), both)
