"""Clusters of models by their distances, and how well they agree with known groups."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from thinkalike.contrib.populations.group_means import group_numbers
from thinkalike.measures.seeds import seeded

MOST_ASSIGNMENTS = 20_000  # of models to groups in a permutation test


def cluster(distances: Float[Tensor, "m m"], k: int) -> Int[Tensor, " m"]:
    """Return the cluster of each model, in 0..k-1, by average linkage.

    Each model begins as a cluster of its own. The two clusters with the smallest mean distance are
    merged, until k clusters are left.

    Raises:
        ValueError: The distances are NaN or not symmetric, or k is not in 1..m.
    """
    if not torch.allclose(distances, distances.T):
        raise ValueError(
            "distances must be symmetric and not NaN; `symmetric` gives the mean of two directions"
        )
    from sklearn.cluster import AgglomerativeClustering

    linkage = AgglomerativeClustering(k, metric="precomputed", linkage="average")
    return torch.from_numpy(linkage.fit_predict(distances.double().cpu().numpy()))


def adjusted_rand_index(labels: Int[Tensor, " m"], groups: Sequence[Hashable]) -> float:
    """Return the adjusted Rand index of clusters and groups (Hubert & Arabie 1985, eq. 5).

    It is 1 for equal partitions, and 0 on average by chance.

    Args:
        labels: The number of the cluster of each of m models.
        groups: The known group of each model.
    """
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(group_numbers(groups).tolist(), labels.tolist()))


def adjusted_rand_index_p(
    labels: Int[Tensor, " m"], groups: Sequence[Hashable], *, seed: int = 0
) -> float:
    """Return the p-value of the adjusted Rand index under permutations of the groups, in (0, 1].

    It is the share of assignments of models to groups of the same sizes whose index is at least as
    high. If there are at most `MOST_ASSIGNMENTS` distinct assignments, all are tried and p is
    exact. Otherwise `MOST_ASSIGNMENTS` random ones are drawn, and p = (1 + count) / (1 + draws)
    (Phipson & Smyth 2010). Two groups of six have 924 assignments, two of them perfect (the groups
    may change places), so p is at least 0.0022.

    With the sizes of clusters and groups fixed, the index only depends on Σ n_ij² and rises with
    it, where n_ij is the number of models of cluster i in group j. So the sums, which are whole
    numbers, are compared instead of indices, which are rounded.

    Args:
        labels: The cluster of each model.
        groups: The known group of each model.
        seed: The seed of random assignments.
    """
    actual = group_numbers(groups)
    group_sizes = actual.bincount().tolist()
    # The multinomial coefficient: m! / (n_1! n_2! ...) for groups of n_1, n_2, ... models.
    n_assignments = math.factorial(len(actual)) // math.prod(map(math.factorial, group_sizes))
    is_exact = n_assignments <= MOST_ASSIGNMENTS
    if is_exact:
        assignments = torch.tensor(list(_assignments(group_sizes)))
    else:
        # Sorting random numbers gives a random permutation in each row.
        random_numbers = torch.rand(MOST_ASSIGNMENTS, len(actual), generator=seeded(seed))
        assignments = actual[random_numbers.argsort(1)]

    # `_overlap` returns Σ n_ij² for each assignment.
    is_as_good = _overlap(assignments, labels) >= _overlap(actual[None], labels)
    n_as_good = int(is_as_good.sum())
    if is_exact:
        return n_as_good / len(assignments)
    return (n_as_good + 1) / (len(assignments) + 1)


def _assignments(remaining: Sequence[int]) -> Iterator[list[int]]:
    """Yield every way to assign models to groups of given sizes: the group of each model.

    The function chooses the group of the first model, and calls itself for the others. With no
    model left, it yields an empty list.

    Args:
        remaining: How many models are still to be assigned to each group.
    """
    if not any(remaining):
        yield []
    for group, count in enumerate(remaining):
        if count > 0:
            without_one = [*remaining[:group], count - 1, *remaining[group + 1 :]]
            for groups_of_later_models in _assignments(without_one):
                yield [group, *groups_of_later_models]


def _overlap(assignments: Int[Tensor, "r m"], labels: Int[Tensor, " m"]) -> Int[Tensor, " r"]:
    """Return how well each assignment of models to groups agrees with their clusters, as Σ n_gk².

    Here n_gk is how many models of cluster k are in group g, and the sum is over both. For fixed
    sizes of clusters and groups, it is the larger the better they agree.

    Args:
        assignments: The group number of each of m models, in each of r assignments.
        labels: The cluster of each model.
    """
    _, cluster_numbers = labels.unique(return_inverse=True)
    # counts[r, g, k] is how many of the m models are in group g in assignment r, and in cluster k.
    counts = torch.einsum("rmg,mk->rgk", one_hot(assignments), one_hot(cluster_numbers))
    return counts.square().sum((1, 2))
