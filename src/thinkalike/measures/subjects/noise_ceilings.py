"""How well any model could do, given how much subjects differ: the noise ceiling (Nili et al. 2014)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.measures.distances.comparators import CENTRED, RANKED, check_comparator, comparable, compare
from thinkalike.measures.distances.ranks import mid_ranks


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
