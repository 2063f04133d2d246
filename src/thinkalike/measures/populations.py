"""Populations of models: what each costs another, and how far and from which layer on two groups part.

What two models have together may have a direction: the row is the source, the column the target. A model beside itself
is never a pair.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.arguments import seeded
from thinkalike.measures.bootstrapping import percentile_interval
from thinkalike.measures.estimates import Estimate, interval_around, student_t

ROUNDING = 1e-12  # of means: a difference that is nearer to 0 is at it


class Grouped(NamedTuple):
    """Means over pairs of models, see `grouped`; all but the last two have the shape (*s) of what a pair has."""

    within: Estimate  # both models are of one group
    between: Estimate  # the models are of two groups, in both directions
    difference: Estimate  # within - between
    cells: Estimate  # (g, g, *s): source of one group and target of another; groups in the order of their first models
    directed: Estimate  # (g, g, *s): cell (a, b) - cell (b, b), the same targets under sources of their own group


def population_penalties(values: Float[Tensor, "m m *s"]) -> Float[Tensor, "m m *s"]:
    """Return what each target loses under each source of the value that it has with itself."""
    own = torch.arange(len(values))
    return values[own, own][None] - values


def flips(predicted: Int[Tensor, "m m c n"]) -> Float[Tensor, "m m c n"]:
    """Return 1 where a stitched model predicts another class than its target does alone, else 0.

    Signed penalties of accuracy cancel, and flips do not: a group that gains in one direction what it loses in the
    other, as where G into H costs +.026 and H into G -.030, has a mean penalty of about 0 although the groups do not
    understand each other. The share of flips, in [0, 1], counts both; it is 0 for a target under itself.

    Args:
        predicted: The class of each of n examples, by source, target and cut.
    """
    own = torch.arange(len(predicted))
    return (predicted != predicted[own, own][None]).double()


def grouped(
    values: Float[Tensor, "m m *s"], groups: Sequence[Hashable], *, examples: bool = False, level: float = 0.95
) -> Grouped:
    """Return means over pairs within and between groups, with jackknife intervals that leave out models, never pairs.

    Pairs that share a model are not independent, so one model and all its pairs are left out at a time (Arvesen 1969).
    The squared errors Σ_g (n_g - 1) / n_g Σ (replicate - mean)² over models and var / n over examples add up, and t is
    Student's with one degree of freedom less than models in the smallest group. The one pair of a group of two models
    says nothing about the spread: the interval of its cell is (-∞, ∞), as are those of `directed` that compare with it.

    `within` - `between` averages both directions, in which signed values may cancel; `directed` keeps them apart: what
    sources of group a do to targets of group b beyond what b's own sources do to them. It is 0 on the diagonal.

    Args:
        groups: The group of each model.
        examples: Whether the last axis of `values` holds examples. It is then averaged over, and intervals are over
            examples, too.

    Raises:
        ValueError: There are fewer than two groups, a group has fewer than two models, or a value is not finite.
    """
    members = _members(groups, len(values))
    without, sizes = torch.cat([torch.ones(1, len(members)), 1 - torch.eye(len(members))]), members.sum(0)
    means = _means(values.mean(-1) if examples else values, members, without)
    whole, replicates = means[0], means[1:]
    variance = sum((n - 1) * replicates[own].var(0, correction=0) for own, n in zip(members.T, sizes, strict=True))
    if examples:
        variance = variance + _means(values, members, without[:1])[0].var(-1) / values.shape[-1]
    half = student_t(level, int(sizes.min()) - 1) * variance.sqrt().nan_to_num(torch.inf)
    kinds = interval_around(whole, half)
    cells, directed = (
        Estimate(*(end.unflatten(0, (len(sizes), len(sizes))) for end in part))
        for part in (kinds[3 : 3 + len(sizes) ** 2], kinds[3 + len(sizes) ** 2 :])
    )
    return Grouped(kinds[0], kinds[1], kinds[2], cells, directed)


def group_change_point(
    values: Float[Tensor, "m m l"],
    groups: Sequence[Hashable],
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Estimate:
    """Return the place in the last axis from which on groups have parted, a whole number in [1, l - 1].

    It is the `change_point` of within - between of `grouped`. The interval is a percentile bootstrap over models: a
    resample weighs each by a draw from Dirichlet(1, .., 1) in its group (Rubin 1981) and a pair by the product of two
    weights, so that no model meets itself and no group runs empty.

    Raises:
        ValueError: See `grouped` and `change_point`.
    """
    members = _members(groups, len(values))
    own, generator = members.double(), seeded(seed)
    draws = torch.empty(resamples, len(own), dtype=torch.float64).exponential_(generator=generator)
    weights = torch.cat([torch.ones_like(draws[:1]), draws / (draws @ (own / own.sum(0)) @ own.T)])
    places = change_point(_means(values, members, weights)[:, 2])
    return percentile_interval(places[0], places[1:], level)


def change_point(curve: Float[Tensor, "*b l"]) -> Int[Tensor, "*b"]:
    """Return the first place after the step of the one-step function nearest to a curve, in [1, l - 1].

    Nearest is by least squares: the k where a step explains the most, k (l - k) / l (mean after - mean before)².

    Raises:
        ValueError: A curve is flat or has a single place.
    """
    length = curve.shape[-1]
    if length < 2 or (curve.amax(-1) == curve.amin(-1)).any():
        raise ValueError(f"a curve of {length} places without any change has no step")
    k = torch.arange(1, length, dtype=torch.float64, device=curve.device)
    before = curve.double().cumsum(-1)
    total, before = before[..., -1:], before[..., :-1]
    explained = k * (length - k) / length * ((total - before) / (length - k) - before / k).square()
    return explained.argmax(-1) + 1


def onset(curve: Estimate, least: float = 0.0) -> int | None:
    """Return the first place of a curve of differences whose interval excludes 0, in [0, l - 1], or None if none does.

    The intervals must hold for all l places together, such as those of `grouped(..., level=1 - 0.05 / l)` (Bonferroni);
    then a curve of nothing but noise has an onset in at most 5 % of draws. Where a curve rises slowly, this is where
    the rise begins to show, and `group_change_point`, which looks for one step, is the middle of it. With more models
    or examples smaller differences show, so an onset is no property of the groups alone, unless `least` says which
    count.

    Args:
        curve: Differences of l places with their intervals, (l).
        least: The interval must exclude all from -least to least.

    Raises:
        ValueError: The curve does not have one axis, or an end of an interval is nan.
    """
    if curve.value.ndim != 1 or curve.low.isnan().any() or curve.high.isnan().any():
        raise ValueError(f"an onset is of one curve of numbers with intervals, not of shape {tuple(curve.value.shape)}")
    places = ((curve.low > least + ROUNDING) | (curve.high < -least - ROUNDING)).nonzero()
    return int(places[0]) if len(places) else None


def _means(
    values: Float[Tensor, "m m *s"], members: Bool[Tensor, "m g"], weights: Float[Tensor, "r m"]
) -> Float[Tensor, "r k *s"]:
    """Return for r weightings of the models what `Grouped` has: k = 3 + 2 g² numbers for g groups."""
    values = values.double().clone()
    values.diagonal().fill_(0)  # in no kind of pair, whatever is there
    if not values.isfinite().all():
        raise ValueError("a value of a pair of models is not finite")
    kinds, weights = _kinds(members).to(values.device), weights.to(values)
    products = torch.einsum("ri,rj,kij->rkij", weights, weights, kinds)
    sums = torch.einsum("rkij,ij...->rk...", products, values)
    means = sums / products.sum((2, 3)).view(*sums.shape[:2], *[1] * (sums.ndim - 2))
    within, between, cells = means[:, :1], means[:, 1:2], means[:, 2:]
    return torch.cat([within, between, within - between, cells, _directed(cells, members.shape[1])], 1)


def _directed(cells: Float[Tensor, "r k *s"], groups: int) -> Float[Tensor, "r k *s"]:
    """Return cell (a, b) - cell (b, b) of each group a with each b."""
    own = torch.arange(groups)
    square = cells.unflatten(1, (groups, groups))
    differences = square - square[:, own, own][:, None]
    differences[:, own, own] = 0  # also where a group of two models, one left out, has no pair
    return differences.flatten(1, 2)


def _members(groups: Sequence[Hashable], count: int) -> Bool[Tensor, "m g"]:
    """Return which model is in which group, with groups in the order of their first models."""
    if len(groups) != count:
        raise ValueError(f"there are groups of {len(groups)} models, but {count} models")
    return torch.tensor([[group == name for name in dict.fromkeys(groups)] for group in groups])


def _kinds(members: Bool[Tensor, "m g"]) -> Float[Tensor, "k m m"]:
    """Return which pairs are within a group, between two, and of each group with each."""
    sizes = members.sum(0)
    if len(sizes) < 2 or sizes.min() < 2:
        raise ValueError(f"groups of {sizes.tolist()} models: there must be two groups, and two models in each")
    within = (members[:, None] & members).any(-1)
    cells = members.T[:, None, :, None] & members.T[None, :, None, :]
    return torch.cat([within[None], ~within[None], cells.flatten(0, 1)]).double() * (1 - torch.eye(len(members)))


# ---- Clusters of models from distances alone, and how well they agree with groups that are known

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


def adjusted_rand_index(labels: Int[Tensor, " m"], groups: Sequence[Hashable]) -> float:
    """Return the adjusted Rand index of two partitions: 1 if they are the same, and 0 on average by chance.

    See Hubert & Arabie 1985, eq. 5.

    Raises:
        ValueError: The partitions are of different numbers of models.
    """
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(_numbers(groups, len(labels)).tolist(), labels.tolist()))


def adjusted_rand_index_p(labels: Int[Tensor, " m"], groups: Sequence[Hashable], *, seed: int = 0) -> float:
    """Return the p-value of `adjusted_rand_index` under permutations of the groups, in (0, 1].

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
