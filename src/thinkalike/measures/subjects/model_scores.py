"""How well models of the distances between stimuli do in several subjects, against the noise ceiling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.measures.distances.comparators import compare, stimuli_of
from thinkalike.measures.statistics.estimate import Estimate
from thinkalike.measures.statistics.random_effects import random_effects
from thinkalike.measures.subjects.noise_ceilings import NoiseCeiling, noise_ceiling
from thinkalike.measures.subjects.two_factors import Draws, TwoFactors, draw, two_factor
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
