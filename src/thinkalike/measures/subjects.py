"""Several subjects that saw the same stimuli: noise ceilings, and intervals from resampled subjects and stimuli."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.arguments import seeded
from thinkalike.measures.distances.comparators import CENTRED, RANKED, check_comparator, comparable, compare, stimuli_of
from thinkalike.measures.distances.ranks import mid_ranks
from thinkalike.measures.estimates import Estimate, interval_around, random_effects, student_t, two_sided
from thinkalike.progress import counted

AT_ONCE = 16  # resamples whose scores are computed together


class Scored(NamedTuple):
    """The scores of one model in s subjects: of all stimuli, and in r resamples of them."""

    values: Float[Tensor, " s"]
    replicates: Float[Tensor, "r s"]

    def minus(self, other: Scored) -> Scored:
        """Return the paired difference from another model in the same subjects and resamples."""
        return Scored(self.values - other.values, self.replicates - other.replicates)


@dataclass(frozen=True, eq=False)
class ModelScores:
    """The scores of m models in s subjects, and in r resamples of stimuli, on the CPU."""

    values: Float[Tensor, "m s"]
    replicates: Float[Tensor, "r m s"]
    ceiling: NoiseCeiling
    lower: Float[Tensor, "r s"]  # the lower ceiling in the resamples
    draws: Draws | None  # None: no resamples

    def of(self, model: int) -> Scored:
        """Return the scores of one model."""
        return Scored(self.values[model], self.replicates[:, model])

    def of_ceiling(self) -> Scored:
        """Return the lower noise ceiling as if it were a model: each subject's score by the others' distances."""
        return Scored(self.ceiling.lower, self.lower)

    def best(self, models: Sequence[int]) -> tuple[Scored, Int[Tensor, " s"]]:
        """Return the score of the best of some models, chosen for each subject by the mean of all other subjects.

        The highest of many scores is too high by what chance adds to it; a choice that does not see the subject in
        which it is judged is not. It is the same in all resamples.

        Returns:
            Its scores, and the number of the model that was chosen for each subject.
        """
        inside = self.values[list(models)]
        others = inside.sum(1, keepdim=True) - inside
        chosen = torch.tensor(list(models))[others.argmax(0).cpu()]
        subjects = torch.arange(len(chosen))
        return Scored(self.values[chosen, subjects], self.replicates[:, chosen, subjects]), chosen

    def over_subjects(self, scored: Scored, level: float = 0.95) -> Estimate:
        """Return the mean score with its interval over subjects alone; see `random_effects`."""
        return random_effects(scored.values, level=level)

    def over_both(self, scored: Scored, level: float = 0.95) -> TwoFactors:
        """Return the mean score with its interval over subjects and stimuli; see `two_factor`.

        Raises:
            ValueError: There are no resamples.
        """
        if self.draws is None:
            raise ValueError("an interval over stimuli needs resamples of them: ask for some, such as resamples=1000")
        return two_factor(scored.values, scored.replicates, self.draws, level=level)


def model_scores(
    models: Float[Tensor, "m p"],
    subjects: Float[Tensor, "s p"],
    comparator: str = "spearman",
    *,
    resamples: int = 1000,
    seed: int = 0,
    groups: Int[Tensor, " n"] | None = None,
) -> ModelScores:
    """Compare the distances of m models with those of s subjects, and do so again in resamples of the stimuli.

    In a resample a stimulus that is drawn twice is two stimuli, whose own pair is left out: its distance is 0 in all
    models. The pool of the others' distances that gives the lower ceiling is that of all stimuli. Resamples that leave
    a vector constant are left out.

    Args:
        models, subjects: Squared distances of all pairs of the same n stimuli.
        resamples: How many; 0: none.
        groups: (n) numbers; stimuli of a group are drawn together.

    Raises:
        ValueError: More than half of the resamples leave a vector constant; see `compare`, `noise_ceiling` and `draw`.
    """
    values, ceiling = compare(models, subjects, comparator).cpu(), noise_ceiling(subjects, comparator)
    ceiling = NoiseCeiling(*(part.cpu() for part in ceiling))
    (m, s), n = values.shape, stimuli_of(models.shape[1])
    if not resamples:
        return ModelScores(values, values.new_zeros(0, m, s), ceiling, values.new_zeros(0, s), None)
    draws = draw(s, n, resamples, seed, groups)
    rows = torch.cat([models.double(), ceiling.without.to(models.device)])
    some = draws.stimuli.to(models.device).split(AT_ONCE)
    parts = [compare(rows, subjects, comparator, part) for part in counted(some, "part of the resamples")]
    found = torch.cat(parts).cpu()
    known = found.isfinite().flatten(1).all(1)
    if (lost := resamples - int(known.sum())) * 2 > resamples:
        raise ValueError(f"{lost} of {resamples} resamples leave the distances of a layer constant: take more stimuli")
    found, draws = found[known], draws.take(known)
    return ModelScores(values, found[:, :m], ceiling, found[:, m:].diagonal(dim1=1, dim2=2), draws)


# ------------------------------------------------------------------------------------------------------- noise ceilings


class NoiseCeiling(NamedTuple):
    """What the mean distances of subjects reach in each of them: without and with that subject among them.

    The mean of `lower` is a score that a model without error can be expected to reach, and that of `upper` one that no
    model is much above.
    """

    lower: Float[Tensor, " s"]
    upper: Float[Tensor, " s"]
    without: Float[Tensor, "s p"]  # the pooled distances of the others, which give `lower`


def noise_ceiling(subjects: Float[Tensor, "s p"], comparator: str = "spearman") -> NoiseCeiling:
    """Return the noise ceiling of s subjects' distances, as rsatoolbox's `boot_noise_ceiling` does.

    Distances are pooled as is best for the comparator: the mean of ranks (spearman and tau_a), of z-scores (corr,
    corr_cov), or of vectors of norm 1 (cosine, cosine_cov). The lower end compares each subject with the pool of the
    others, the upper end with that of all, of which the subject is one.

    Raises:
        ValueError: There are fewer than two subjects; see `compare`.
    """
    check_comparator(comparator)
    s = len(subjects)
    if s < 2:
        raise ValueError(f"a noise ceiling needs two subjects or more, not {s}")
    comparable(subjects, comparator)
    normalised = _normalised(subjects.double(), comparator)
    pool = normalised.mean(0, keepdim=True)
    without = (s * pool - normalised) / (s - 1)
    comparable(pool, comparator, ["the mean of all subjects"])
    comparable(without, comparator, [f"the mean of all subjects but {each}" for each in range(s)])
    lower = [compare(without[each : each + 1], subjects[each : each + 1], comparator)[0, 0] for each in range(s)]
    return NoiseCeiling(torch.stack(lower), compare(pool, subjects, comparator)[0], without)


def _normalised(vectors: Float[Tensor, "s p"], comparator: str) -> Float[Tensor, "s p"]:
    """Return each subject's distances in the unit in which they are averaged."""
    if comparator in RANKED:
        return mid_ranks(vectors)
    if comparator in CENTRED:
        vectors = vectors - vectors.mean(1, keepdim=True)
    return vectors / vectors.square().mean(1, keepdim=True).sqrt()


# ------------------------------------------------------------------------------------------------- subjects and stimuli

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
