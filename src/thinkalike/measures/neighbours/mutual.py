"""Mutual nearest neighbours: do two sets of features put the same stimuli next to each other? (Huh et al. 2024)"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.measures.conditional.groups import RowGroups

AT_ONCE = 2**24  # numbers that say who is whose neighbour; their sums are whole and exact in float32
SIMILARITIES = 2**22  # of one layer at a time


def mutual_knn(
    X: Float[Tensor, "n d"], Y: Float[Tensor, "m e"], k: int = 10, groups: Int[Tensor, " g"] | None = None
) -> Float[Tensor, ""]:
    """Return the mean share of a stimulus's k nearest neighbours in X that are also among those in Y.

    m = 1/n Σᵢ |S_X(i) ∩ S_Y(i)| / k, with S(i) the k rows of greatest cosine similarity with row i, without i itself
    (Huh et al. 2024, "The Platonic Representation Hypothesis", appendix A). In [0, 1]; features that have nothing in
    common give k / (n - 1) on average. It has no gradient. Cosines have the precision of the states, at least float32:
    where one dimension is massive, give float64.

    Args:
        X, Y: row i of both belongs to stimulus i; widths and dtypes may differ.
        groups: what each row belongs to, such as its token; then neighbours are rows of the same group, and groups of
            fewer than k + 2 rows are left out.

    Raises:
        ValueError: no group has k + 2 rows; see `mutual_knn_matrix`.
    """
    return mutual_knn_matrix([X, Y], k, None if groups is None else RowGroups.of(groups, k + 2))[0, 1]


def mutual_knn_matrix(
    layers: Sequence[Float[Tensor, "_ _"]], k: int = 10, groups: RowGroups | None = None
) -> Float[Tensor, "l l"]:
    """Return `mutual_knn` of every two of several layers, in float64; the neighbours of each are found once.

    Args:
        groups: among whose rows neighbours are looked for, each of at least k + 2 rows; None: among all rows.

    Raises:
        ValueError: layers or groups differ in n, n < k + 2, k < 1, a value is not finite, a row is zero, or all rows
            of a layer are the same, or all rows of each group.
    """
    n = len(layers[0])
    for index, layer in enumerate(layers):
        if len(layer) != n:
            raise ValueError(f"layer {index} has {len(layer)} rows, not {n}: all layers need the same stimuli")
    check_neighbours(k, n)
    place = layers[0].device
    groups = groups or RowGroups.whole(n, place)
    if groups.rows != n:
        raise ValueError(f"groups of {groups.rows} rows do not fit layers of {n} rows")
    rows = [directions(layer, groups, f"layer {index}").to(place) for index, layer in enumerate(layers)]
    with torch.autocast(place.type, enabled=False):
        shared = sum(_shared(blocks, k) for blocks in zip(*map(groups.blocks, rows), strict=True))
    return shared / (k * len(groups.order))  # type: ignore[return-value]


def check_neighbours(k: int, n: int) -> None:
    """Raise a ValueError unless each of n rows can have k neighbours that are not all of the others."""
    if not 1 <= k <= n - 2:
        raise ValueError(f"k={k} neighbours of {n} rows: k must lie between 1 and n - 2, as n - 1 would be all of them")


def chance_share(groups: RowGroups, k: int) -> float:
    """Return the mean share of neighbours of features with nothing in common: Σ_g n_g k / (n_g - 1) / Σ_g n_g."""
    return sum(count * size * k / (size - 1) for count, size in groups.shapes) / len(groups.order)


def directions(features: Float[Tensor, "n d"], groups: RowGroups, name: str) -> Float[Tensor, "kept d"]:
    """Return the rows in the order of their groups, each of length 1."""
    rows = features.detach().to(torch.promote_types(features.dtype, torch.float32))
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    if not norms.isfinite().all():
        raise ValueError(f"{name}: a value is not finite, or too large for {rows.dtype}")
    if (norms == 0).any():
        raise ValueError(f"{name}: row {int((norms == 0).nonzero()[0, 0])} is zero and has no direction")
    order = groups.order.to(rows.device)
    kept = rows[order]
    if all((block == block[:, :1]).all() for block in groups.blocks(kept)):
        of = "" if len(groups.shapes) == 1 and groups.shapes[0][0] == 1 else " of each token"
        raise ValueError(f"{name}: all rows{of} are the same, so none is nearer than another")
    return kept.div_(norms[order])


def _shared(layers: Sequence[Float[Tensor, "g s _"]], k: int) -> Float[Tensor, "l l"]:
    """Return how many neighbours any two layers share, in all of g groups of s rows; some rows at a time."""
    neighbours = [nearest(x, k).flatten(0, 1) for x in layers]
    size = layers[0].shape[1]
    at_once = max(AT_ONCE // (len(layers) * size), 1)
    shared = layers[0].new_zeros(len(layers), len(layers), dtype=torch.float64)
    for part in zip(*(each.split(at_once) for each in neighbours), strict=True):
        member = torch.zeros(len(layers), len(part[0]), size, device=shared.device)
        for own, numbers in zip(member, part, strict=True):
            own.scatter_(1, numbers, 1.0)
        flat = member.flatten(1)
        shared += (flat @ flat.T).double()
    return shared


def nearest(x: Float[Tensor, "g s d"], k: int) -> Int[Tensor, "g s k"]:
    """Return the numbers of the k rows of the group that are nearest to each row, without the row itself.

    Some rows at a time, and as many for any number of layers: so a layer has the same neighbours in any company.
    """
    count, size, _ = x.shape
    groups_at_once, rows_at_once = max(SIMILARITIES // size**2, 1), max(SIMILARITIES // size, 1)
    found = torch.empty(count, size, k, dtype=torch.long, device=x.device)
    for first in range(0, count, groups_at_once):
        part = x[first : first + groups_at_once]
        for top in range(0, size, rows_at_once):
            similarity = part[:, top : top + rows_at_once] @ part.mT
            similarity.diagonal(top, 1, 2).fill_(-torch.inf)
            found[first : first + len(part), top : top + rows_at_once] = similarity.topk(k, dim=2).indices
    return found
