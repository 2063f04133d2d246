"""Two layers by the neighbours of each row: the Jaccard index of their sets, the cosine of their similarities."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.arguments import takes_arrays
from thinkalike.measures.contract import LayerMeasure, both_in_order, each_pair
from thinkalike.measures.estimates import RowGroups
from thinkalike.measures.neighbours import NEIGHBOURS, directions, in_order, nearest


@takes_arrays
def jaccard(X: Float[Tensor, "n d"], Y: Float[Tensor, "m e"], k: int = NEIGHBOURS) -> Float[Tensor, ""]:
    """Return the mean Jaccard index of the k nearest neighbours of each row, in [0, 1].

    1/n Σᵢ |S_X(i) ∩ S_Y(i)| / |S_X(i) ∪ S_Y(i)|, S(i) as in `mutual_knn`, whose errors it has (Klabunde et al. 2024,
    ReSi). Features with nothing in common give about k / (2n). It has no gradient.
    """
    return jaccard_measure(k).of(X, Y)


@takes_arrays
def second_order_cosine(X: Float[Tensor, "n d"], Y: Float[Tensor, "m e"], k: int = NEIGHBOURS) -> Float[Tensor, ""]:
    """Return the mean cosine of two layers' similarities of each row with its neighbours in either, in [-1, 1].

    1/n Σᵢ cos(s_X(i), s_Y(i)), s(i) the cosine similarities of row i with the rows of S_X(i) ∪ S_Y(i), see `mutual_knn`
    (Hamilton et al. 2016). ReSi's code takes cosine *distances* in their place. Similarities are mostly above 0,
    so chance lies far above 0 where states share a direction: compare it with its null. It has no gradient here.
    """
    return second_order_measure(k).of(X, Y)


class Neighbours(NamedTuple):
    numbers: Int[Tensor, "n k"]
    member: Bool[Tensor, "n n"]
    cosine: Float[Tensor, "n n"]


def jaccard_measure(k: int = NEIGHBOURS) -> LayerMeasure:
    return LayerMeasure(partial(_neighbours, k=k), each_pair(_jaccard), _moved, fewest=k + 2)


def second_order_measure(k: int = NEIGHBOURS) -> LayerMeasure:
    return LayerMeasure(partial(_neighbours, k=k), each_pair(_second_order), _moved, fewest=k + 2)


@torch.no_grad()
def _neighbours(features: Float[Tensor, "n d"], name: str, k: int) -> Neighbours:
    n = len(features)
    rows = directions(features, RowGroups.whole(n, features.device), name)
    numbers = nearest(rows[None], k)[0]
    member = torch.zeros(n, n, dtype=torch.bool, device=rows.device).scatter_(1, numbers, True)
    return Neighbours(numbers, member, rows @ rows.T)


def _moved(prepared: Neighbours, order: Int[Tensor, " n"]) -> Neighbours:
    member, cosine = (both_in_order(pairs, order) for pairs in (prepared.member, prepared.cosine))
    return Neighbours(in_order(prepared.numbers, order), member, cosine)


def _jaccard(source: Neighbours, target: Neighbours) -> Float[Tensor, ""]:
    shared = source.member.gather(1, target.numbers).sum(1).double()
    return (shared / (2 * source.numbers.shape[1] - shared)).mean()


def _second_order(source: Neighbours, target: Neighbours) -> Float[Tensor, ""]:
    places = torch.cat([source.numbers, target.numbers], 1)
    once = torch.ones_like(places, dtype=torch.bool)
    once[:, source.numbers.shape[1] :] = ~source.member.gather(1, target.numbers)
    own, other = (side.cosine.gather(1, places).double() * once for side in (source, target))
    return torch.nn.functional.cosine_similarity(own, other, dim=1).mean()
