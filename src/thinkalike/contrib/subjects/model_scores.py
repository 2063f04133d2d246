"""The scores of models in subjects: from all stimuli, from resamples, and of the best model.

A subject is a recorded participant, such as in fMRI. The score of a model in a subject says how
similar their distances between stimuli are. A model is here what has distances, such as one layer
of a network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.contrib.subjects.noise_ceiling import NoiseCeiling, noise_ceiling
from thinkalike.contrib.subjects.resampling import Draws, draw_resamples
from thinkalike.measures.distances.comparators import compare, stimulus_count_of
from thinkalike.processes import counted

RESAMPLES_AT_ONCE = 16


class SubjectScores(NamedTuple):
    """The scores of one model in s subjects: from all stimuli, and from r resamples of them.

    A subject is a recorded participant. The score says how similar its distances between stimuli
    are to those of the model.

    Attributes:
        values: The score in each subject, from all stimuli.
        replicates: The score in each subject, from each resample of the stimuli.
    """

    values: Float[Tensor, " s"]
    replicates: Float[Tensor, "r s"]

    def minus(self, other: SubjectScores) -> SubjectScores:
        """Return the scores minus those of another model in the same subjects and resamples."""
        return SubjectScores(self.values - other.values, self.replicates - other.replicates)


@dataclass(frozen=True, eq=False)
class ModelScores:
    """The scores of m models in s subjects, and in r resamples of stimuli, on the CPU.

    Attributes:
        values: The score of each model in each subject, from all stimuli.
        replicates: The same from each resample of the stimuli.
        ceiling: The noise ceiling, from all stimuli.
        lower_of_resamples: The lower end of the noise ceiling in each subject, from each resample
            of the stimuli.
        draws: How often each subject and each stimulus is drawn in each resample.
    """

    values: Float[Tensor, "m s"]
    replicates: Float[Tensor, "r m s"]
    ceiling: NoiseCeiling
    lower_of_resamples: Float[Tensor, "r s"]
    draws: Draws

    def of(self, model: int) -> SubjectScores:
        """Return the scores of the model at an index."""
        return SubjectScores(self.values[model], self.replicates[:, model])

    def ceiling_scores(self) -> SubjectScores:
        """Return the lower end of the noise ceiling in the form of the scores of a model.

        It is the score that the mean of all other subjects has in each subject, for all stimuli
        and for each resample of the stimuli.
        """
        return SubjectScores(self.ceiling.lower, replicates=self.lower_of_resamples)

    def best(self, models: Sequence[int]) -> tuple[SubjectScores, Int[Tensor, " s"]]:
        """Return for each subject the score of the best of some models, and its index.

        Subjects are recorded participants; a score says how well a model explains the recordings
        of one. The best model for a subject is the one with the highest mean score in all other
        subjects: the highest of many scores in the same subject would be biased upwards.

        Args:
            models: The indices of the models, such as those of the layers of one network.
        """
        indices = torch.tensor(list(models))
        values = self.values[indices]  # (models, subjects)
        sums_over_others = values.sum(1, keepdim=True) - values  # over all other subjects
        best_indices = indices[sums_over_others.argmax(0).cpu()]  # one for each subject
        subjects = torch.arange(len(best_indices))
        scores = SubjectScores(
            self.values[best_indices, subjects], self.replicates[:, best_indices, subjects]
        )
        return scores, best_indices


def model_scores(
    models: Float[Tensor, "m p"],
    subjects: Float[Tensor, "s p"],
    comparator: str = "spearman",
    *,
    resamples: int = 1000,
    seed: int = 0,
    groups: Int[Tensor, " n"] | None = None,
) -> ModelScores:
    """Compare the distances between stimuli of m models with those of s subjects.

    They are compared for all stimuli, and again for bootstrap resamples of the stimuli. A stimulus
    that is drawn twice in a resample counts as two stimuli; the pair of these two, whose distance
    is 0 in all models, is left out. Resamples in which all distances of a model or a subject are
    the same are left out, too.

    Args:
        models: The distances of each model over p pairs of stimuli.
        subjects: The distances of each subject over the same pairs.
        comparator: How distances are compared, see `compare`.
        resamples: How many resamples of the stimuli are scored; may be 0.
        seed: The seed of the resamples.
        groups: The group of each stimulus; those of one group are drawn together. None: each
            stimulus is drawn by itself.

    Raises:
        ValueError: All distances of a model or a subject are the same in more than half of the
            resamples.
    """
    values = compare(models, subjects, comparator).cpu()
    ceiling = noise_ceiling(subjects, comparator)
    ceiling_on_cpu = NoiseCeiling(*(tensor.cpu() for tensor in ceiling))
    n_models, n_subjects = values.shape
    n_stimuli = stimulus_count_of(models.shape[1])
    if resamples == 0:
        return ModelScores(
            values,
            replicates=values.new_zeros(0, n_models, n_subjects),
            ceiling=ceiling_on_cpu,
            lower_of_resamples=values.new_zeros(0, n_subjects),
            draws=Draws(
                values.new_zeros(0, n_subjects), values.new_zeros(0, n_stimuli), n_stimuli
            ),
        )

    draws = draw_resamples(n_subjects, n_stimuli, resamples, seed, groups)
    # The mean of all subjects but one is compared like a model. Its score in the subject that was
    # left out is the lower noise ceiling.
    compared = torch.cat([models.double(), ceiling.without.to(models.device)])
    replicates = _scores_in_resamples(compared, subjects, comparator, draws)  # (r, m + s, s)

    is_finite = replicates.isfinite().flatten(1).all(1)
    n_lost = resamples - int(is_finite.sum())
    if 2 * n_lost > resamples:
        raise ValueError(
            f"the distances of a layer are constant in {n_lost} of {resamples} resamples: "
            "use more stimuli"
        )
    replicates = replicates[is_finite]
    scores_of_means = replicates[:, n_models:]  # (r, subject that was left out, subject)
    return ModelScores(
        values,
        replicates=replicates[:, :n_models],
        ceiling=ceiling_on_cpu,
        lower_of_resamples=scores_of_means.diagonal(dim1=1, dim2=2),
        draws=Draws(draws.subjects[is_finite], draws.stimuli[is_finite], draws.units),
    )


def _scores_in_resamples(
    models: Float[Tensor, "c p"], subjects: Float[Tensor, "s p"], comparator: str, draws: Draws
) -> Float[Tensor, "r c s"]:
    """Return the scores of c models in s subjects, in each of r resamples of the stimuli.

    Subjects are recorded participants. A score says how similar the distances of a model are to
    those of a subject; it is not finite if all distances of one of them are the same. The result
    is on the CPU.

    Args:
        models: The distances of each model over p pairs of stimuli.
        subjects: The distances of each subject over the same pairs.
        comparator: How distances are compared, such as "spearman".
        draws: How often each stimulus occurs in each resample.
    """
    scores = []
    batches = draws.stimuli.to(models.device).split(RESAMPLES_AT_ONCE)
    for stimulus_counts in counted(batches, "part of the resamples"):  # shows the progress
        scores.append(compare(models, subjects, comparator, stimulus_counts))
    return torch.cat(scores).cpu()
