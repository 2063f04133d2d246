"""How alike are the neighbours of each row in two layers: the Jaccard index of their sets, and their similarities?"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.measures.contract import LayerMeasure, both_in_order, each_pair
from thinkalike.measures.neighbours import (
    NEIGHBOURS,
    directions,
    in_order,
    nearest_rows,
    neighbour_numbers_of,
    neighbours,
)
from thinkalike.measures.row_groups import RowGroups


def jaccard(X: Float[Tensor, "n d"], Y: Float[Tensor, "m e"], k: int = NEIGHBOURS) -> Float[Tensor, ""]:
    """Return the mean Jaccard index of the k nearest neighbours of each row, in [0, 1].

    1/n Σᵢ |S_X(i) ∩ S_Y(i)| / |S_X(i) ∪ S_Y(i)|, S(i) as in `mutual_knn`, whose errors it has (Klabunde et al. 2024,
    ReSi). Features with nothing in common give about k / (2n). It has no gradient.
    """
    return jaccard_measure(k).of(X, Y)


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
    return LayerMeasure(
        partial(neighbour_numbers_of, k=k), each_pair(_jaccard), in_order, k + 2, needed_by=neighbours(k)
    )


def second_order_measure(k: int = NEIGHBOURS) -> LayerMeasure:
    return LayerMeasure(partial(_neighbours, k=k), each_pair(_second_order), _moved, k + 2, needed_by=neighbours(k))


@torch.no_grad()
def _neighbours(features: Float[Tensor, "n d"], name: str, k: int) -> Neighbours:
    rows = directions(features, RowGroups.whole(len(features), features.device), name)
    cosines = rows.new_empty(1, len(rows), len(rows))
    numbers = nearest_rows(rows[None], k, cosines)[0]
    return Neighbours(numbers, _members(numbers), cosines[0])


def _moved(prepared: Neighbours, order: Int[Tensor, " n"]) -> Neighbours:
    member, cosine = (both_in_order(pairs, order) for pairs in (prepared.member, prepared.cosine))
    return Neighbours(in_order(prepared.numbers, order), member, cosine)


def _jaccard(source: Int[Tensor, "n k"], target: Int[Tensor, "n k"]) -> Float[Tensor, ""]:
    shared = _members(source).gather(1, target).sum(1).double()
    return (shared / (2 * source.shape[1] - shared)).mean()


def _members(numbers: Int[Tensor, "n k"]) -> Bool[Tensor, "n n"]:
    """Return which rows are among the neighbours of each."""
    n = len(numbers)
    return torch.zeros(n, n, dtype=torch.bool, device=numbers.device).scatter_(1, numbers, True)


def _second_order(source: Neighbours, target: Neighbours) -> Float[Tensor, ""]:
    places = torch.cat([source.numbers, target.numbers], 1)
    once = torch.ones_like(places, dtype=torch.bool)
    once[:, source.numbers.shape[1] :] = ~source.member.gather(1, target.numbers)
    own, other = (side.cosine.gather(1, places).double() * once for side in (source, target))
    return torch.nn.functional.cosine_similarity(own, other, dim=1).mean()
