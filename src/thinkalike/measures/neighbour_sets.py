"""How alike the neighbours of each row are in two layers: their sets and similarities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.measures.contract import both_in_order
from thinkalike.measures.neighbours import (
    NEIGHBOURS,
    OfNeighbours,
    directions,
    in_order,
    nearest_rows,
    neighbour_numbers_of,
)
from thinkalike.measures.row_groups import RowGroups


def jaccard(
    X: Float[Tensor, "n d"], Y: Float[Tensor, "m e"], k: int = NEIGHBOURS
) -> Float[Tensor, ""]:
    """Return the mean Jaccard index of the k nearest neighbours of each row, in [0, 1].

    1/n Σᵢ |S_X(i) ∩ S_Y(i)| / |S_X(i) ∪ S_Y(i)|, S(i) as in `mutual_knn`, whose errors it has
    (Klabunde et al. 2024, ReSi). Features with nothing in common give about k / (2n). It has no
    gradient.
    """
    return Jaccard(k).of(X, Y)


def second_order_cosine(
    X: Float[Tensor, "n d"], Y: Float[Tensor, "m e"], k: int = NEIGHBOURS
) -> Float[Tensor, ""]:
    """Return the mean cosine of two layers' similarities of rows to neighbours, in [-1, 1].

    1/n Σᵢ cos(s_X(i), s_Y(i)), s(i) the cosine similarities of row i with the rows of S_X(i) ∪
    S_Y(i), see `mutual_knn` (Hamilton et al. 2016). ReSi's code takes cosine *distances* in their
    place. Similarities are mostly above 0, so chance lies far above 0 where states share a
    direction: compare it with its null. It has no gradient here.
    """
    return SecondOrderCosine(k).of(X, Y)


class Neighbours(NamedTuple):
    """The neighbours of each row, and how near all rows are.

    Attributes:
        numbers: The numbers of the k nearest neighbours of each row.
        member: Whether row j is among the neighbours of row i, at [i, j].
        cosine: The cosine of rows i and j, at [i, j].
    """

    numbers: Int[Tensor, "n k"]
    member: Bool[Tensor, "n n"]
    cosine: Float[Tensor, "n n"]


@dataclass(frozen=True)
class Jaccard(OfNeighbours[Tensor]):
    """Jaccard index of the sets of neighbours, see `jaccard`."""

    formula = "common neighbours over neighbours in either"
    source = "Klabunde et al. 2024"

    def prepare(self, layer: Float[Tensor, "n d"], name: str) -> Int[Tensor, "n k"]:
        """Return the numbers of the k nearest neighbours of each row."""
        return neighbour_numbers_of(layer, name, self.neighbours)

    def compare(self, first: Int[Tensor, "n k"], second: Int[Tensor, "n k"]) -> Float[Tensor, ""]:
        """Return the mean share of the neighbours in either layer that both layers have."""
        shared = _members(first).gather(1, second).sum(1).double()
        return (shared / (2 * first.shape[1] - shared)).mean()

    def moved(self, prepared: Int[Tensor, "n k"], order: Int[Tensor, " n"]) -> Int[Tensor, "n k"]:
        """Return the neighbours of rows in another order."""
        return in_order(prepared, order)


@dataclass(frozen=True)
class SecondOrderCosine(OfNeighbours[Neighbours]):
    """Cosine of the similarities with neighbours, see `second_order_cosine`."""

    formula = "cosine of the similarities with the neighbours in either"
    source = "Hamilton et al. 2016"
    value_range = (-1.0, 1.0)

    @torch.no_grad()
    def prepare(self, layer: Float[Tensor, "n d"], name: str) -> Neighbours:
        """Return the neighbours of each row with the cosines of all pairs of rows."""
        rows = directions(layer, RowGroups.whole(len(layer), layer.device), name)
        cosines = rows.new_empty(1, len(rows), len(rows))
        numbers = nearest_rows(rows[None], self.neighbours, cosines)[0]
        return Neighbours(numbers, _members(numbers), cosines[0])

    def compare(self, first: Neighbours, second: Neighbours) -> Float[Tensor, ""]:
        """Return the mean cosine of the similarities to the neighbours in either layer."""
        neighbours_in_either = torch.cat([first.numbers, second.numbers], 1)  # (n, 2 k)
        # A neighbour in both layers stands there twice, and counts the first time only.
        counts_once = torch.ones_like(neighbours_in_either, dtype=torch.bool)
        counts_once[:, first.numbers.shape[1] :] = ~first.member.gather(1, second.numbers)
        in_first = first.cosine.gather(1, neighbours_in_either).double() * counts_once
        in_second = second.cosine.gather(1, neighbours_in_either).double() * counts_once
        return torch.nn.functional.cosine_similarity(in_first, in_second, dim=1).mean()

    def moved(self, prepared: Neighbours, order: Int[Tensor, " n"]) -> Neighbours:
        """Return the neighbours and cosines of rows in another order."""
        return Neighbours(
            numbers=in_order(prepared.numbers, order),
            member=both_in_order(prepared.member, order),
            cosine=both_in_order(prepared.cosine, order),
        )


def _members(numbers: Int[Tensor, "n k"]) -> Bool[Tensor, "n n"]:
    """Return a matrix that is True at [i, j] where row j is a neighbour of row i.

    Args:
        numbers: The numbers of the k neighbours of each of n rows.
    """
    n = len(numbers)
    return torch.zeros(n, n, dtype=torch.bool, device=numbers.device).scatter_(1, numbers, True)
