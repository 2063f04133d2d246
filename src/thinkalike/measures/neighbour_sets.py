"""How similar the neighbours of each row are in two layers: their sets and similarities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.measures.contract import reordered_matrix
from thinkalike.measures.neighbours import (
    NEIGHBOURS,
    NearestRows,
    OfNeighbours,
    directions,
    nearest_neighbours_of,
    nearest_rows,
    neighbours_of_reordered_rows,
)
from thinkalike.measures.row_groups import RowGroups


def jaccard(
    X: Float[Tensor, "n d"], Y: Float[Tensor, "m e"], k: int = NEIGHBOURS
) -> Float[Tensor, ""]:
    """Return the mean Jaccard index of the k nearest neighbours of each row, in [0, 1].

    It is 1/n Σᵢ |S_X(i) ∩ S_Y(i)| / |S_X(i) ∪ S_Y(i)|, with S(i) the k other rows of greatest
    cosine similarity with row i (Klabunde et al. 2024, ReSi). Features with nothing in common give
    about k / (2n), and more if both have many rows that are equally near, see `mutual_knn`. It has
    no gradient.

    Raises:
        ValueError: X and Y differ in n, n < k + 2, a value is not finite, a row is zero, or all
            rows are the same.
    """
    return Jaccard(k).of(X, Y)


def second_order_cosine(
    X: Float[Tensor, "n d"], Y: Float[Tensor, "m e"], k: int = NEIGHBOURS
) -> Float[Tensor, ""]:
    """Return the mean cosine of two layers' similarities of rows to neighbours, in [-1, 1].

    It is 1/n Σᵢ cos(s_X(i), s_Y(i)), where s_X(i) are the cosine similarities in X of row i with
    its k nearest neighbours in X and those in Y, and s_Y(i) the same in Y (Hamilton et al. 2016).
    The code of the ReSi benchmark has cosine *distances* in their place. Similarities are mostly
    above 0, so the value by chance is far above 0 where states share a direction: compare it with
    its null. It has no gradient.
    """
    return SecondOrderCosine(k).of(X, Y)


class Neighbours(NamedTuple):
    """The neighbours of each row, and how near all rows are.

    Attributes:
        nearest: The k nearest neighbours of each row.
        is_neighbour: Whether row j is among the neighbours of row i, at [i, j].
        cosine: The cosine of rows i and j, at [i, j].
    """

    nearest: NearestRows
    is_neighbour: Bool[Tensor, "n n"]
    cosine: Float[Tensor, "n n"]


@dataclass(frozen=True)
class Jaccard(OfNeighbours[NearestRows]):
    """Jaccard index of the sets of neighbours, see `jaccard`."""

    formula = "common neighbours over neighbours in either"
    source = "Klabunde et al. 2024"

    @property
    def meaning(self) -> str:
        return (
            f"A value is the share of the rows that are among the {self.neighbours} nearest "
            "neighbours by cosine in both layers, of those that are among them in either."
        )

    def prepare(self, layer: Float[Tensor, "n d"], name: str) -> NearestRows:
        """Return the k nearest neighbours of each row."""
        return nearest_neighbours_of(layer, name, self.neighbours)

    def compare(self, first: NearestRows, second: NearestRows) -> Float[Tensor, ""]:
        """Return the mean over rows of |common neighbours| / |neighbours in either layer|."""
        is_shared = _is_neighbour(first.indices).gather(1, second.indices)
        shared = is_shared.sum(1).double()
        k = first.indices.shape[1]
        return (shared / (2 * k - shared)).mean()

    def reordered(self, prepared: NearestRows, order: Int[Tensor, " n"]) -> NearestRows:
        """Return the neighbours after the rows took another order."""
        return neighbours_of_reordered_rows(prepared, order)


@dataclass(frozen=True)
class SecondOrderCosine(OfNeighbours[Neighbours]):
    """Cosine of the similarities with neighbours, see `second_order_cosine`."""

    formula = "cosine of the similarities with the neighbours in either"
    source = "Hamilton et al. 2016"
    value_range = (-1.0, 1.0)

    @property
    def meaning(self) -> str:
        return (
            "A value is the cosine of two lists: how similar a row is in either layer to its "
            f"{self.neighbours} nearest neighbours in both."
        )

    @torch.no_grad()
    def prepare(self, layer: Float[Tensor, "n d"], name: str) -> Neighbours:
        """Return the k nearest neighbours of each row, and the cosines of all pairs of rows."""
        # `directions` and `nearest_rows` take groups of rows; here all rows are one group.
        single_group = RowGroups.whole(len(layer), layer.device)
        unit_rows = directions(layer, single_group, name)  # rows of norm 1
        cosines = unit_rows.new_empty(1, len(unit_rows), len(unit_rows))  # `nearest_rows` fills it
        nearest = nearest_rows(unit_rows[None], self.neighbours, cosines)
        return Neighbours(nearest, _is_neighbour(nearest.indices), cosines[0])

    def compare(self, first: Neighbours, second: Neighbours) -> Float[Tensor, ""]:
        """Return the mean over rows of the cosine of two vectors, s and t.

        For each row, take the rows that are its neighbours in the first or in the second layer. s
        holds its cosine similarities with them in the first layer, t those in the second layer.
        """
        indices = [first.nearest.indices, second.nearest.indices]
        neighbours_in_either = torch.cat(indices, 1)  # (n, 2 k)
        # A neighbour in both layers is listed twice, and counts the first time only.
        is_counted = torch.ones_like(neighbours_in_either, dtype=torch.bool)
        k = indices[0].shape[1]
        is_counted[:, k:] = ~first.is_neighbour.gather(1, indices[1])
        in_first = first.cosine.gather(1, neighbours_in_either).double() * is_counted
        in_second = second.cosine.gather(1, neighbours_in_either).double() * is_counted
        return torch.nn.functional.cosine_similarity(in_first, in_second, dim=1).mean()

    def reordered(self, prepared: Neighbours, order: Int[Tensor, " n"]) -> Neighbours:
        """Return the neighbours and cosines after the rows took another order."""
        nearest = neighbours_of_reordered_rows(prepared.nearest, order)
        return Neighbours(
            nearest=nearest,
            is_neighbour=_is_neighbour(nearest.indices),
            cosine=reordered_matrix(prepared.cosine, order),
        )


def _is_neighbour(neighbour_indices: Int[Tensor, "n k"]) -> Bool[Tensor, "n n"]:
    """Return a matrix that is True at [i, j] where row j is a neighbour of row i.

    Args:
        neighbour_indices: The indices of the k neighbours of each of n rows.
    """
    n = len(neighbour_indices)
    is_neighbour = torch.zeros(n, n, dtype=torch.bool, device=neighbour_indices.device)
    return is_neighbour.scatter_(1, neighbour_indices, True)
