"""Clusters of models from distances alone, and how well they agree with groups that are known."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.arguments import seeded

MOST = 20_000  # assignments of models to groups that are tried


def symmetric(penalties: Float[Tensor, "m m *s"]) -> Float[Tensor, "m m *s"]:
    """Return (P + Pᵀ) / 2: penalties have a direction, and a distance between two models has none."""
    return (penalties + penalties.transpose(0, 1)) / 2


def cluster(distances: Float[Tensor, "m m"], k: int) -> Int[Tensor, " m"]:
    """Return the cluster of each model, in 0..k-1, by average linkage.

    The two clusters of least mean distance merge until k are left.

    Raises:
        ValueError: A distance is not finite or has a direction, or k is not in 1..m.
    """
    if not distances.isfinite().all() or not torch.allclose(distances, distances.T):
        raise ValueError("distances must be finite and symmetric; `symmetric` gives the mean of two directions")
    if not 1 <= k <= len(distances):
        raise ValueError(f"{len(distances)} models cannot form {k} clusters")
    from sklearn.cluster import AgglomerativeClustering

    linkage = AgglomerativeClustering(k, metric="precomputed", linkage="average")
    return torch.from_numpy(linkage.fit_predict(distances.double().cpu().numpy()))


def agreement(labels: Int[Tensor, " m"], groups: Sequence[Hashable]) -> float:
    """Return the adjusted Rand index of two partitions: 1 if they are the same, and 0 on average by chance.

    See Hubert & Arabie 1985, eq. 5.

    Raises:
        ValueError: The partitions are of different numbers of models.
    """
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(_numbers(groups, len(labels)).tolist(), labels.tolist()))


def agreement_p(labels: Int[Tensor, " m"], groups: Sequence[Hashable], *, seed: int = 0) -> float:
    """Return the p-value of `agreement` under permutations of the groups, in (0, 1].

    It is the share of the distinct assignments of the models to groups of these sizes that agree with the labels at
    least as well, out of all where there are at most 20,000 of them, which makes it exact; else out of 20,000 random
    ones, (1 + count) / (1 + draws) (Phipson & Smyth 2010). For two groups of six 2 of 924 are perfect, as each group
    may have either label, so that it is never below 0.0022; for two groups of two never below 1 / 3.

    Sizes of clusters and groups are the same under every assignment, so that the adjusted Rand index rises with
    Σ n_ij² alone, the squared counts of models of each cluster in each group, which are whole numbers without ties by
    rounding.

    Args:
        labels: The cluster of each model.
        groups: Its group.
        seed: Of random assignments.

    Raises:
        ValueError: The partitions are of different numbers of models, or of none.
    """
    if not len(groups):
        raise ValueError("there is no model, so no agreement that chance could reach")
    known = _numbers(groups, len(labels))
    sizes = known.bincount().tolist()
    if _count(sizes) <= MOST:
        assigned, extra = torch.tensor(list(_assignments(sizes))), 0
    else:
        draws = torch.rand(MOST, len(known), generator=seeded(seed))
        assigned, extra = known[draws.argsort(1)], 1
    as_good = _together(assigned, labels) >= _together(known[None], labels)
    return (int(as_good.sum()) + extra) / (len(assigned) + extra)


def _numbers(groups: Sequence[Hashable], count: int) -> Int[Tensor, " m"]:
    """Return the number of the group of each model, with groups in the order of their first models."""
    if len(groups) != count:
        raise ValueError(f"there are groups of {len(groups)} models, but {count} models")
    names = list(dict.fromkeys(groups))
    return torch.tensor([names.index(group) for group in groups], dtype=torch.long)


def _count(sizes: Sequence[int]) -> int:
    """Return how many distinct assignments there are to groups of these sizes."""
    return math.factorial(sum(sizes)) // math.prod(map(math.factorial, sizes))


def _assignments(sizes: Sequence[int]) -> Iterator[list[int]]:
    """Yield every distinct way to give models the numbers of groups of these sizes."""

    def fill(given: dict[int, int], left: list[int], number: int) -> Iterator[list[int]]:
        if not left:
            yield [given[model] for model in range(len(given))]
            return
        for chosen in itertools.combinations(left, sizes[number]):
            others = [model for model in left if model not in chosen]
            yield from fill(given | dict.fromkeys(chosen, number), others, number + 1)

    yield from fill({}, list(range(sum(sizes))), 0)


def _together(assigned: Int[Tensor, "r m"], labels: Int[Tensor, " m"]) -> Int[Tensor, " r"]:
    """Return Σ n_ij² of each assignment: over clusters and groups, the squared counts of the models in both."""
    clusters = torch.nn.functional.one_hot(labels.unique(return_inverse=True)[1])
    groups = torch.nn.functional.one_hot(assigned)
    return torch.einsum("rmg,mk->rgk", groups, clusters).square().sum((1, 2))
