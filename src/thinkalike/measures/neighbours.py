"""Do two sets of features put the same stimuli next to each other? Mutual nearest neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.arguments import Count
from thinkalike.measures.contract import SAME_SHAPE, Blocks, LayerMeasure, Pair, Prepared
from thinkalike.measures.estimates import ROUNDINGS, RowGroups, seeded
from thinkalike.measures.rows import size_of
from thinkalike.ranges import parameter

NEIGHBOURS = 10
MOST_NEIGHBOURS = 10**8  # as many as a batch has rows at most
AT_ONCE = 2**24  # entries of the table of neighbours; their sums are whole and exact in float32
SIMILARITIES = 2**22  # of one layer at a time
MOST_ROWS = 2**15  # of a group on a CPU, which takes ten to thirty seconds for all pairs of them
DIGITS = 100  # roundings of a cosine that directions need to be apart, by the mean square of their distance


def mutual_knn(
    X: Float[Tensor, "n d"], Y: Float[Tensor, "m e"], k: Count = NEIGHBOURS, groups: Int[Tensor, " n"] | None = None
) -> Float[Tensor, ""]:
    """Return the mean share of a stimulus's k nearest neighbours in X that are also among those in Y.

    m = 1/n Σᵢ |S_X(i) ∩ S_Y(i)| / k, with S(i) the k rows of greatest cosine similarity with row i, without i itself
    (Huh et al. 2024, "The Platonic Representation Hypothesis", appendix A). In [0, 1]; features that have nothing in
    common give k / (n - 1) on average. It has no gradient. Cosines have the precision of the states, at least float32,
    or float64 where all rows point nearly the same way.

    Args:
        X, Y: Row i of both belongs to stimulus i; widths and dtypes may differ.
        groups: What each row belongs to, such as its token; then neighbours are rows of the same group, and groups of
            fewer than k + 2 rows are left out.

    Raises:
        ValueError: No group has k + 2 rows, X and Y differ in n, n < k + 2, a value is not finite, a row is zero, or
            all rows are the same, or all rows of each group. On a CPU also if a group has more than `MOST_ROWS` rows.

    >>> X = torch.randn(20, 4)
    >>> float(mutual_knn(X, 5 * X, k=3))
    1.0
    """
    if len(X) < k + 2:
        raise ValueError(f"{neighbours(k)} need {k + 2} rows, and X has {len(X)}: choose a smaller k")
    if groups is not None:
        largest = int(groups.unique(return_counts=True)[1].max())
        if largest < k + 2:
            raise ValueError(
                f"{neighbours(k)} need {k + 2} rows of its group, and the largest group has {largest}: "
                "choose a smaller k, or give larger groups"
            )
    return MutualKNN(k, None if groups is None else RowGroups.of(groups, k + 2)).of(X, Y)


def neighbours(k: int) -> str:
    """Return the subject of a sentence about how many rows are needed."""
    return f"k={k} neighbours of a row"


def directions(features: Float[Tensor, "n d"], groups: RowGroups, name: str) -> Float[Tensor, "kept d"]:
    """Return the rows in the order of their groups, each of length 1; in float64 where cosines need its digits."""
    rows = features.detach()
    rows = rows / size_of(rows)
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    order = groups.order.to(rows.device)
    kept = rows[order].div_(norms[order])
    shared = torch.stack([block.shape[1] * block.mean(1).square().sum() for block in groups.blocks(kept)]).sum()
    is_finite, has_zero, spread = torch.stack(
        [norms.isfinite().all(), (norms == 0).any(), 1 - shared / len(kept)]
    ).tolist()
    if not is_finite:
        raise ValueError(f"{name}: a value is not finite")
    if has_zero:
        raise ValueError(f"{name}: row {int((norms == 0).nonzero()[0, 0])} is zero and has no direction")
    eps = torch.finfo(kept.dtype).eps
    if spread <= DIGITS * eps and kept.dtype == torch.float32:
        return directions(features.double(), groups, name)
    if spread <= ROUNDINGS * eps:
        raise ValueError(f"{name}: all rows, or all of each token, are the same, so none is nearer than another")
    return kept


def nearest(x: Float[Tensor, "g s d"], k: int, cosines: Float[Tensor, "g s s"] | None = None) -> Int[Tensor, "g s k"]:
    """Return the numbers of the k rows of the group that are nearest to each row, without the row itself.

    Where there is a place for the `cosines` of all rows, they are left there.

    All pairs of rows of a group are compared, which takes a processor minutes where a group has more than `MOST_ROWS`
    rows; that is a ValueError.

    Rows that are equally near, such as the copies of one token in an embedding, are taken in a random order that
    depends on the states alone: by number, two models would choose the same copies and look alike. As many rows are
    compared at a time for any number of layers, so that a layer has the same neighbours in any company.
    """
    count, size, _ = x.shape
    if size > MOST_ROWS and x.device.type == "cpu":
        raise ValueError(
            f"{size:,} rows are too many to find neighbours among on a CPU, where all pairs of them are compared: "
            f"give at most {MOST_ROWS:,}, such as a random choice"
        )
    groups_at_once, rows_at_once = max(SIMILARITIES // size**2, 1), max(SIMILARITIES // size, 1)
    found = torch.empty(count, size, k, dtype=torch.long, device=x.device)
    own = x.flatten()[:: max(x.numel() // 1024, 1)].double().sum().cpu()  # whose bits are a seed
    order = torch.randperm(size, generator=seeded(abs(int(own.view(torch.int64))))).to(x.device)
    for first in range(0, count, groups_at_once):
        part = x[first : first + groups_at_once]
        for top in range(0, size, rows_at_once):
            similarity = part[:, top : top + rows_at_once] @ part.mT
            if cosines is not None:
                cosines[first : first + len(part), top : top + rows_at_once] = similarity
            similarity.diagonal(top, 1, 2).fill_(-torch.inf)
            moved = similarity.flatten(0, 1).index_select(1, order)  # in two dimensions, in a tenth of the time
            places = order[moved.topk(k, dim=1).indices].unflatten(0, similarity.shape[:2])
            found[first : first + len(part), top : top + rows_at_once] = places
    return found


def in_order(
    numbers: Int[Tensor, "n k"], order: Int[Tensor, " n"], groups: RowGroups | None = None
) -> Int[Tensor, "n k"]:
    """Return the neighbours of rows in another order, by their new numbers in their group."""
    rows = torch.arange(len(order), device=order.device)
    places = torch.empty_like(order)
    places[order] = rows
    if groups is None:
        return places[numbers[order]]
    first = torch.cat([block[:, :1].expand_as(block).flatten() for block in groups.blocks(rows)])[:, None]
    return places[(numbers + first)[order]] - first


@torch.no_grad()
def numbers_of(
    features: Float[Tensor, "n d"], name: str, k: int, groups: RowGroups | None = None
) -> Int[Tensor, "kept k"]:
    """Return the k nearest neighbours of each row, by their numbers in its group."""
    groups = groups or RowGroups.whole(len(features), features.device)
    rows = directions(features, groups, name)
    return torch.cat([nearest(block, k).flatten(0, 1) for block in groups.blocks(rows)])


@dataclass(frozen=True)
class OfNeighbours(LayerMeasure[Prepared]):
    """What measures of the nearest neighbours of rows have in common."""

    neighbours: int = parameter(NEIGHBOURS, least=1, most=MOST_NEIGHBOURS)  # k

    invariances = SAME_SHAPE - {"translation"}
    version = 12
    smallest: ClassVar[Mapping[str, int | float | str]] = {"measure.neighbours": 3}
    in_atlas = True
    in_benchmarks = True

    @property
    def fewest(self) -> int:
        """The least number of rows: k neighbours of a row, the row itself, and one that is no neighbour."""
        return self.neighbours + 2

    @property
    def needed_by(self) -> str:
        """What needs so many rows."""
        return neighbours(self.neighbours)


@dataclass(frozen=True, eq=False)
class MutualKNN(OfNeighbours[Tensor]):
    """Mutual nearest neighbours, see `mutual_knn`, among all rows or within groups of at least k + 2 rows.

    Raises:
        ValueError: A group has fewer rows.
    """

    groups: RowGroups | None = None

    formula = "share of common neighbours, k = `measure.neighbours`, cosine"
    source = "Huh et al. 2024"
    compares_within_groups = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.groups is None:
            return
        smallest = min((size for _, size in self.groups.shapes), default=0)
        if smallest < self.fewest:
            raise ValueError(
                f"{self.needed_by} need {self.fewest} rows of its group, and one has {smallest}: choose a smaller k"
            )

    def prepare(self, layer: Float[Tensor, "n d"], name: str) -> Int[Tensor, "kept k"]:
        """Return the k nearest neighbours of each row, by their numbers in its group."""
        return numbers_of(layer, name, self.neighbours, self.groups)

    def compare(self, first: Int[Tensor, "kept k"], second: Int[Tensor, "kept k"]) -> Float[Tensor, ""]:
        return self.compare_all([first, second], Blocks([[0], [1]], [(0, 1)]))[0, 1][0, 0]

    def moved(self, prepared: Int[Tensor, "kept k"], order: Int[Tensor, " n"]) -> Int[Tensor, "kept k"]:
        return in_order(prepared, order, self.groups)

    def compare_all(self, layers: Sequence[Int[Tensor, "kept k"]], blocks: Blocks) -> dict[Pair, Float[Tensor, "l m"]]:
        """Return the share of neighbours that any two layers have in common, some rows at a time."""
        numbers = torch.stack([*layers])
        rows = len(layers[0])
        shared = numbers.new_zeros(len(layers), len(layers), dtype=torch.float64)
        start = 0
        for count, size in self.groups.shapes if self.groups else [(1, rows)]:
            groups_at_once = max(AT_ONCE // (len(layers) * size), 1)
            for part in numbers[:, start : start + count * size].split(groups_at_once, 1):
                member = part.new_zeros(*part.shape[:2], size, dtype=torch.float32).scatter_(2, part, 1.0)
                flat = member.flatten(1)
                shared += (flat @ flat.T).double()
            start += count * size
        by_model = blocks.by_model((shared / (self.neighbours * rows)).unbind())
        return {(a, b): blocks.by_model(by_model[a].unbind(1))[b].T for a, b in blocks.pairs}

    def within(self, groups: RowGroups) -> MutualKNN:
        return MutualKNN(self.neighbours, groups)

    def similarities(self, prepared: Int[Tensor, "kept k"]) -> list[Float[Tensor, "_ _ _"]]:
        """Return half of how often two rows of a group are neighbours of each other: 0, 1/2 or 1."""
        assert self.groups is not None
        adjacency = []
        for block in self.groups.blocks(prepared):
            member = torch.zeros(*block.shape[:2], block.shape[1], device=block.device).scatter_(2, block, 0.5)
            adjacency.append(member + member.mT)
        return adjacency
