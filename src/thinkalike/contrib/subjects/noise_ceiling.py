"""How well the best possible model could explain the distances of noisy subjects."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.measures.distances.comparators import (
    CENTRED_COMPARATORS,
    RANK_COMPARATORS,
    comparable,
    compare,
)
from thinkalike.measures.distances.ranks import mid_ranks


class NoiseCeiling(NamedTuple):
    """The score of the subjects' mean distances in each subject.

    A perfect model is expected to score above the mean of `lower`, and not much above that of
    `upper`.

    Attributes:
        lower: The mean is computed without that subject.
        upper: The mean is computed with that subject.
        without: The mean distances of the other subjects, which give `lower`.
    """

    lower: Float[Tensor, " s"]
    upper: Float[Tensor, " s"]
    without: Float[Tensor, "s p"]


def noise_ceiling(subjects: Float[Tensor, "s p"], comparator: str = "spearman") -> NoiseCeiling:
    """Return the noise ceiling: how well the best model could explain the distances of subjects.

    A subject is a recorded participant. The lower end compares each subject with the mean of the
    other subjects, and the upper end with the mean of all s ≥ 2 subjects. The means are taken over
    ranks (spearman and tau_a), z-scores (corr, corr_cov), or vectors of equal norm (cosine,
    cosine_cov), as in rsatoolbox's `boot_noise_ceiling`.

    Args:
        subjects: The distances of each subject over the same p pairs of stimuli.
        comparator: How distances are compared, see `compare`.

    Raises:
        ValueError: The distances of a subject, or a mean, are constant or not finite. With one
            subject, the mean of the others is not finite.
    """
    n_subjects = len(subjects)
    comparable(subjects, comparator)  # raises an error if the distances of a subject are constant
    normalised = _normalised(subjects.double(), comparator)
    mean_of_all = normalised.mean(0, keepdim=True)  # (1, p)
    means_without_subject = (n_subjects * mean_of_all - normalised) / (n_subjects - 1)  # (s, p)
    names = ["the mean of all subjects"]
    names += [f"the mean of all subjects but {number}" for number in range(n_subjects)]
    # Raises an error if a mean cannot be compared.
    comparable(torch.cat([mean_of_all, means_without_subject]), comparator, names)

    lower = []
    for index in range(n_subjects):
        mean_of_others = means_without_subject[index : index + 1]
        subject = subjects[index : index + 1]
        lower.append(compare(mean_of_others, subject, comparator)[0, 0])
    upper = compare(mean_of_all, subjects, comparator)[0]  # (s,): the one mean in each subject
    return NoiseCeiling(torch.stack(lower), upper, means_without_subject)


def _normalised(vectors: Float[Tensor, "s p"], comparator: str) -> Float[Tensor, "s p"]:
    """Return each subject's distances, scaled so that subjects can be averaged.

    A subject is a recorded participant.

    Args:
        vectors: The distances of s subjects over p pairs of stimuli.
        comparator: How two such vectors are compared. For a comparator of ranks, distances become
            ranks, for a correlation z-scores, and for a cosine vectors of mean square 1.
    """
    if comparator in RANK_COMPARATORS:
        return mid_ranks(vectors)
    if comparator in CENTRED_COMPARATORS:
        vectors = vectors - vectors.mean(1, keepdim=True)
    return vectors / vectors.square().mean(1, keepdim=True).sqrt()
