"""What two layers' sets of nearest neighbours share: mutual neighbours, Jaccard, second-order cosine."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.measures.calibration.contract import Compare, LayerMeasure, each_pair
from thinkalike.measures.conditional.groups import RowGroups
from thinkalike.measures.neighbours.mutual import check_neighbours, directions, nearest

NEIGHBOURS = 10


class Neighbours(NamedTuple):
    """The k nearest neighbours of each of n rows, by cosine similarity."""

    numbers: Int[Tensor, "n k"]
    member: Bool[Tensor, "n n"]
    cosine: Float[Tensor, "n n"]


def jaccard(X: Float[Tensor, "n d"], Y: Float[Tensor, "m e"], k: int = NEIGHBOURS) -> Float[Tensor, ""]:
    """Return the mean Jaccard index of the k nearest neighbours of each row, in [0, 1].

    1/n Σᵢ |S_X(i) ∩ S_Y(i)| / |S_X(i) ∪ S_Y(i)|, S(i) the k rows of greatest cosine similarity with row i, without i
    itself (Klabunde et al. 2024, ReSi). Features with nothing in common give about k / (2n). It has no gradient.

    Raises:
        ValueError: k is not in 1..n - 2, n differs, a value is not finite, a row is 0, or all rows are the same.
    """
    return neighbour_measure("jaccard", k).of(X, Y)


def second_order_cosine(X: Float[Tensor, "n d"], Y: Float[Tensor, "m e"], k: int = NEIGHBOURS) -> Float[Tensor, ""]:
    """Return the mean cosine of two layers' similarities of each row with its neighbours in either, in [-1, 1].

    1/n Σᵢ cos(s_X(i), s_Y(i)), s(i) the cosine similarities of row i with the rows of S_X(i) ∪ S_Y(i), see `jaccard`
    (Hamilton et al. 2016). ReSi's code takes cosine *distances* in their place. Similarities are mostly above 0,
    so chance lies far above 0 where states share a direction: compare it with its null. It has no gradient here.

    Raises:
        ValueError: See `jaccard`.
    """
    return neighbour_measure("second order cosine", k).of(X, Y)


def neighbour_measure(name: str, k: int = NEIGHBOURS) -> LayerMeasure:
    """Return "mutual", "jaccard" or "second order cosine" of k neighbours as a measure of layer pairs."""
    return LayerMeasure(partial(_prepared, k=k), each_pair(COMPARISONS[name]), _moved, fewest=k + 2)


@torch.no_grad()
def _prepared(features: Float[Tensor, "n d"], name: str, k: int) -> Neighbours:
    n = len(features)
    check_neighbours(k, n)
    rows = directions(features, RowGroups.whole(n, features.device), name)
    with torch.autocast(rows.device.type, enabled=False):
        numbers, cosine = nearest(rows[None], k)[0], rows @ rows.T
    member = torch.zeros(n, n, dtype=torch.bool, device=rows.device).scatter_(1, numbers, True)
    return Neighbours(numbers, member, cosine)


def _moved(prepared: Neighbours, order: Int[Tensor, " n"]) -> Neighbours:
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=order.device)
    member, cosine = (pairs[order[:, None], order] for pairs in (prepared.member, prepared.cosine))
    return Neighbours(places[prepared.numbers[order]], member, cosine)


def _shared(source: Neighbours, target: Neighbours) -> Float[Tensor, " n"]:
    """Return how many neighbours of each row two layers share."""
    return source.member.gather(1, target.numbers).sum(1).double()


def _mutual(source: Neighbours, target: Neighbours) -> Float[Tensor, ""]:
    return _shared(source, target).mean() / source.numbers.shape[1]


def _jaccard(source: Neighbours, target: Neighbours) -> Float[Tensor, ""]:
    shared = _shared(source, target)
    return (shared / (2 * source.numbers.shape[1] - shared)).mean()


def _second_order(source: Neighbours, target: Neighbours) -> Float[Tensor, ""]:
    places = torch.cat([source.numbers, target.numbers], 1)
    once = torch.ones_like(places, dtype=torch.bool)
    once[:, source.numbers.shape[1] :] = ~source.member.gather(1, target.numbers)
    own, other = (side.cosine.gather(1, places).double() * once for side in (source, target))
    return torch.nn.functional.cosine_similarity(own, other, dim=1).mean()


COMPARISONS: dict[str, Compare] = {"mutual": _mutual, "jaccard": _jaccard, "second order cosine": _second_order}
