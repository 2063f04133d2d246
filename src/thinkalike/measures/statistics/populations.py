"""Populations of models: clusters from distances alone, and how far and from which layer on two groups part.

What two models have together may have a direction: the row is the source, the column the target. A model beside itself
is never a pair.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.measures.statistics.bootstrapping import percentile_interval
from thinkalike.measures.statistics.estimate import Estimate, interval_around
from thinkalike.measures.statistics.student import student_t


class Grouped(NamedTuple):
    """Means over pairs of models, see `grouped`; all but `cells` have the shape (*s) of what a pair has."""

    within: Estimate  # both models are of one group
    between: Estimate  # the models are of two groups, in both directions
    difference: Estimate  # within - between
    cells: Estimate  # (g, g, *s): source of one group and target of another; groups in the order of their first models


def population_penalties(values: Float[Tensor, "m m *s"]) -> Float[Tensor, "m m *s"]:
    """Return what each target loses under each source of the value that it has with itself."""
    own = torch.arange(len(values))
    return values[own, own][None] - values


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
    return torch.from_numpy(linkage.fit_predict(distances.cpu().numpy()))


def agreement(labels: Int[Tensor, " m"], groups: Sequence[Hashable]) -> float:
    """Return the adjusted Rand index of two partitions: 1 if they are the same, and 0 on average by chance.

    See Hubert & Arabie 1985, eq. 5.

    Raises:
        ValueError: The partitions are of different numbers of models.
    """
    from sklearn.metrics import adjusted_rand_score

    known = [list(dict.fromkeys(groups)).index(group) for group in groups]
    if len(known) != len(labels):
        raise ValueError(f"there are groups of {len(known)} models, but {len(labels)} models")
    return float(adjusted_rand_score(known, labels.tolist()))


def grouped(
    values: Float[Tensor, "m m *s"], groups: Sequence[Hashable], *, examples: bool = False, level: float = 0.95
) -> Grouped:
    """Return means over pairs within and between groups, with jackknife intervals that leave out models, never pairs.

    Pairs that share a model are not independent, so one model and all its pairs are left out at a time (Arvesen 1969).
    The squared errors Σ_g (n_g - 1) / n_g Σ (replicate - mean)² over models and var / n over examples add up, and t is
    Student's with one degree of freedom less than models in the smallest group. The one pair of a group of two models
    says nothing about the spread: the interval of its cell is (-∞, ∞).

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
    cells = Estimate(*(part[3:].unflatten(0, (len(sizes), len(sizes))) for part in kinds))
    return Grouped(kinds[0], kinds[1], kinds[2], cells)


def parting(
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
    own, generator = members.double(), torch.Generator().manual_seed(seed)
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


def _means(
    values: Float[Tensor, "m m *s"], members: Bool[Tensor, "m g"], weights: Float[Tensor, "r m"]
) -> Float[Tensor, "r k *s"]:
    """Return means within, between, their difference, and of each group with each, for r weightings of the models."""
    values = values.double().clone()
    values.diagonal().fill_(0)  # in no kind of pair, whatever is there
    if not values.isfinite().all():
        raise ValueError("a value of a pair of models is not finite")
    kinds, weights = _kinds(members).to(values.device), weights.to(values)
    products = torch.einsum("ri,rj,kij->rkij", weights, weights, kinds)
    sums = torch.einsum("rkij,ij...->rk...", products, values)
    means = sums / products.sum((2, 3)).view(*sums.shape[:2], *[1] * (sums.ndim - 2))
    within, between = means[:, :1], means[:, 1:2]
    return torch.cat([within, between, within - between, means[:, 2:]], 1)


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
