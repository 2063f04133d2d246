"""Do two sets of features put the same stimuli next to each other? Mutual nearest neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.arguments import Count
from thinkalike.measures.contract import SAME_SHAPE, LayerMeasure, ModelPairs, Pair
from thinkalike.measures.powers_of_two import power_of_two_unit
from thinkalike.measures.row_groups import SUM_ROUNDING, RowGroups
from thinkalike.measures.splitmix import random_codes
from thinkalike.measures.working_copies import Prepared
from thinkalike.ranges import parameter

NEIGHBOURS = 10

# The largest k. No batch has more rows.
MOST_NEIGHBOURS = 10**8

# Memberships of neighbours are compared in blocks of this many entries. Their sums are whole
# numbers, which are exact in float32 up to this size.
MEMBERSHIPS_AT_ONCE = 2**24

# Similarities of one layer are computed in blocks of this many entries.
SIMILARITIES_AT_ONCE = 2**22

# The most rows of a group on a CPU, where comparing all pairs of them takes ten to thirty seconds.
# A GPU has no such limit.
MOST_ROWS = 2**15

# If the mean squared distance of directions is at most this many rounding errors of a cosine,
# cosines are computed in float64.
ROUNDINGS_APART = 100

# The order of equally near rows is the same in every layer, batch and job.
TIE_SEED = 0


def mutual_knn(
    X: Float[Tensor, "n d"],
    Y: Float[Tensor, "m e"],
    k: Count = NEIGHBOURS,
    groups: Int[Tensor, " n"] | None = None,
) -> Float[Tensor, ""]:
    """Return the mean share of a stimulus's k nearest neighbours in X that are also such in Y.

    m = 1/n Σᵢ |S_X(i) ∩ S_Y(i)| / k, with S(i) the k rows of greatest cosine similarity with row
    i, without i itself (Huh et al. 2024, "The Platonic Representation Hypothesis", appendix A). It
    is in [0, 1]. Features that have nothing in common give k / (n - 1) on average, unless both
    have many rows that are equally near, such as copies: both sides choose among these by the same
    order (`tie_order`), so that chance gives more, which `thinkalike.compare(..., null=True)`
    estimates. The value has no gradient. Cosines have the precision of the states, at least
    float32. If all rows point nearly the same way, it is float64.

    Args:
        X, Y: Row i of both belongs to stimulus i; widths and dtypes may differ.
        k: How many neighbours of each row are compared.
        groups: What each row belongs to, such as its token; then neighbours are rows of the same
            group, and groups of fewer than k + 2 rows are left out.

    Raises:
        ValueError: No group has k + 2 rows, X and Y differ in n, n < k + 2, a value is not finite,
            a row is zero, or all rows are the same, or all rows of each group. On a CPU also if a
            group has more than `MOST_ROWS` = 2^15 rows.

    >>> X = torch.randn(20, 4)
    >>> float(mutual_knn(X, 5 * X, k=3))
    1.0
    """
    if len(X) < k + 2:
        raise ValueError(
            f"{neighbours(k)} need {k + 2} rows, and X has {len(X)}: choose a smaller k"
        )
    if groups is None:
        return MutualKNN(k).of(X, Y)

    _, counts = groups.unique(return_counts=True)
    largest = int(counts.max())
    if largest < k + 2:
        raise ValueError(
            f"{neighbours(k)} need {k + 2} rows of its group, and the largest group has "
            f"{largest}: "
            "choose a smaller k, or give larger groups"
        )
    return MutualKNN(k, RowGroups.of(groups, k + 2)).of(X, Y)


def neighbours(k: int) -> str:
    """Return "k=10 neighbours of a row" for k = 10, for errors that these need more rows."""
    return f"k={k} neighbours of a row"


def directions(
    features: Float[Tensor, "n d"], groups: RowGroups, name: str
) -> Float[Tensor, "kept d"]:
    """Return each row divided by its norm, in the order of their groups, without gradients.

    If all rows point nearly the same way, they are in float64, as cosines then need its digits.

    Args:
        features: The states of one layer.
        groups: Groups of its rows; rows of no group are left out.
        name: What errors call the layer.

    Raises:
        ValueError: A value is not finite, a row is zero, or all rows are the same, or all rows of
            each group.
    """
    rows = features.detach()
    rows = rows / power_of_two_unit(rows)
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    order = groups.order.to(rows.device)
    unit_rows = rows[order].div_(norms[order])

    # The mean squared distance of directions from the mean of their group is 1 - ‖mean‖².
    squared_means = []  # summed over the rows of all groups of one size
    for units_of_groups in groups.split_by_size(unit_rows):  # (g, s, d)
        size = units_of_groups.shape[1]
        squared_means.append(size * units_of_groups.mean(1).square().sum())
    spread = 1 - torch.stack(squared_means).sum() / len(unit_rows)
    # A single copy from the device, as each makes a GPU wait.
    checks = torch.stack([norms.isfinite().all(), (norms == 0).any(), spread])
    is_finite, has_zero, spread_on_host = checks.tolist()
    if not is_finite:
        raise ValueError(f"{name}: a value is not finite")
    if has_zero:
        zero_row = int((norms == 0).nonzero()[0, 0])
        raise ValueError(f"{name}: row {zero_row} is zero and has no direction")
    eps = torch.finfo(unit_rows.dtype).eps
    if spread_on_host <= ROUNDINGS_APART * eps and unit_rows.dtype == torch.float32:
        return directions(features.double(), groups, name)
    if spread_on_host <= SUM_ROUNDING * eps:
        raise ValueError(
            f"{name}: all rows, or all of each token, are the same, so none is nearer than another"
        )
    return unit_rows


class Ties(NamedTuple):
    """The rows among whose nearest ones `tie_order` chooses: the k-th is as near as the next.

    Attributes:
        rows: The t rows with such a choice.
        candidates: For each of them the rows of its group that are at least as near as its k-th
            neighbour, as indices within the group: first those that are nearer, the nearest first,
            and then the equally near ones. Entries after the first `at_least_as_near` are padding.
        nearer: How many candidates of each row are nearer than the k-th neighbour.
        at_least_as_near: How many candidates each row has.
    """

    rows: Int[Tensor, " t"]
    candidates: Int[Tensor, "t c"]
    nearer: Int[Tensor, " t"]
    at_least_as_near: Int[Tensor, " t"]


class NearestRows(NamedTuple):
    """The k nearest rows of each row of a layer.

    Attributes:
        indices: The neighbours of each row, as indices within its group, the nearest first.
        ties: The rows for which the order of equally near rows decided; None: there are none.
    """

    indices: Int[Tensor, "kept k"]
    ties: Ties | None


def nearest_rows(
    unit_rows: Float[Tensor, "g s d"], k: int, cosines: Float[Tensor, "g s s"] | None = None
) -> NearestRows:
    """Return the k rows of the same group that are nearest to each row, without the row itself.

    If several rows are as near as the k-th, a fixed order decides between them (`tie_order`), the
    same in every layer. Copies of one token in two embeddings are therefore shared neighbours:
    both models put them next to each other. How many rows are compared at a time does not depend
    on the number of layers, so that a layer has the same neighbours whichever layers it is
    compared with.

    Args:
        unit_rows: Rows of length 1.
        k: How many neighbours each row has.
        cosines: If given, the cosines of all rows of a group are written into it.

    Returns:
        The neighbours of the g s rows, group by group.

    Raises:
        ValueError: On a CPU, a group has more than `MOST_ROWS` rows: all pairs of them would take
            minutes.
    """
    group_count, size, _ = unit_rows.shape
    if size > MOST_ROWS and unit_rows.device.type == "cpu":
        raise ValueError(
            f"{size:,} rows are too many to find neighbours among on a CPU, where all pairs of "
            f"them are compared: give at most {MOST_ROWS:,}, such as a random choice"
        )
    groups_at_once = max(SIMILARITIES_AT_ONCE // size**2, 1)
    rows_at_once = max(SIMILARITIES_AT_ONCE // size, 1)
    neighbour_numbers = torch.empty(
        group_count, size, k, dtype=torch.long, device=unit_rows.device
    )

    ties = []
    order = tie_order(size).to(unit_rows.device)
    for first_group in range(0, group_count, groups_at_once):
        block = unit_rows[first_group : first_group + groups_at_once]
        groups = slice(first_group, first_group + len(block))
        for first_row in range(0, size, rows_at_once):
            rows = slice(first_row, first_row + rows_at_once)
            similarity = block[:, rows] @ block.mT  # (groups, rows, s)
            if cosines is not None:
                cosines[groups, rows] = similarity
            similarity.diagonal(first_row, 1, 2).fill_(-torch.inf)
            # In two dimensions this takes a tenth of the time.
            reordered = similarity.flatten(0, 1).index_select(1, order)
            largest = reordered.topk(k + 1, dim=1)
            nearest_in_order = largest.indices[:, :k]

            # Among equal values topk takes any, and a stable sort, which is slower, the first.
            is_tied = largest.values[:, k - 1] == largest.values[:, k]
            tied_rows = is_tied.nonzero()[:, 0]
            if len(tied_rows):
                sorted_rows = reordered[tied_rows].sort(dim=1, descending=True, stable=True)
                nearest_in_order[tied_rows] = sorted_rows.indices[:, :k]
                kth = sorted_rows.values[:, k - 1 : k]
                at_least_as_near = (sorted_rows.values >= kth).sum(1)
                candidates = sorted_rows.indices[:, : int(at_least_as_near.max())]
                row_numbers = torch.arange(group_count * size, device=order.device)
                row_numbers = row_numbers.view(group_count, size)[groups, rows].flatten()
                ties.append(
                    Ties(
                        rows=row_numbers[tied_rows],
                        candidates=order[candidates].int(),
                        nearer=(sorted_rows.values > kth).sum(1),
                        at_least_as_near=at_least_as_near,
                    )
                )
            numbers = order[nearest_in_order].unflatten(0, similarity.shape[:2])
            neighbour_numbers[groups, rows] = numbers
    return NearestRows(neighbour_numbers.flatten(0, 1), _joined_ties(ties))


def _joined_ties(ties: Sequence[Ties]) -> Ties | None:
    """Join the ties of several blocks of rows to those of all their rows; None: there are no ties.

    Lists of candidates have one length within a block. Shorter ones are padded with zeros at the
    end. A zero there is not read as the row of index 0, since `at_least_as_near` says how many
    entries of each list are candidates.
    """
    if not ties:
        return None
    longest = max(block.candidates.shape[1] for block in ties)
    candidates = []
    for block in ties:
        missing = longest - block.candidates.shape[1]
        candidates.append(torch.nn.functional.pad(block.candidates, (0, missing)))
    return Ties(
        rows=torch.cat([block.rows for block in ties]),
        candidates=torch.cat(candidates),
        nearer=torch.cat([block.nearer for block in ties]),
        at_least_as_near=torch.cat([block.at_least_as_near for block in ties]),
    )


def tie_order(size: int) -> Int[Tensor, " s"]:
    """Return the order in which equally near rows of a group are taken as neighbours.

    It is a fixed pseudo-random permutation of the indices 0..size - 1: they are sorted by their
    splitmix64 codes, which another program can reproduce. The order of the indices themselves
    would prefer the rows of the first documents.
    """
    return random_codes(torch.arange(size), TIE_SEED).argsort()


def neighbours_of_reordered_rows(
    nearest: NearestRows, order: Int[Tensor, " n"], groups: RowGroups | None = None
) -> NearestRows:
    """Return the neighbours of each row after the rows took another order.

    They are those that `nearest_neighbours_of` finds in the reordered layer: among equally near
    rows, those are neighbours whose new indices come first in `tie_order`. So a permuted layer
    chooses as an unpermuted one does. With the choice of the former order, two layers with ties
    would have more in common than their permutations, although they are independent.

    Args:
        nearest: The neighbours of each row in the former order.
        order: The former index of each row of the new order; rows stay within their group.
        groups: The groups of rows; None: all rows are one group.

    Returns:
        For each row of the new order its neighbours, as new indices within its group.
    """
    if groups is None:
        groups = RowGroups.whole(len(order), order.device)
    rows = torch.arange(len(order), device=order.device)
    new_index = torch.empty_like(order)
    new_index[order] = rows
    first_rows = []
    for rows_of_groups in groups.split_by_size(rows):  # (g, s)
        first_rows.append(rows_of_groups[:, :1].expand_as(rows_of_groups).flatten())
    first_row_of_group = torch.cat(first_rows)[:, None]  # for each row
    neighbour_rows = (nearest.indices + first_row_of_group)[order]
    indices = new_index[neighbour_rows] - first_row_of_group
    if nearest.ties is None:
        return NearestRows(indices, None)

    # A row and its candidates are in one group, whose first row stays the same.
    first_row = first_row_of_group[nearest.ties.rows]
    candidates = new_index[nearest.ties.candidates + first_row] - first_row
    ties = nearest.ties._replace(rows=new_index[nearest.ties.rows], candidates=candidates.int())
    indices[ties.rows] = _first_candidates(ties, indices.shape[1], groups)
    return NearestRows(indices, ties)


def _first_candidates(ties: Ties, k: int, groups: RowGroups) -> Int[Tensor, "t k"]:
    """Return the k neighbours of rows with ties: all nearer rows, then the first of the others.

    Args:
        ties: The rows and their candidates.
        k: How many neighbours each row has.
        groups: The groups of rows.
    """
    ranks_of_groups = []  # the place in `tie_order` of each row of a group
    first_rank_of_row = []  # where the ranks of the row's group start
    start = 0
    for group_count, size in groups.counts_and_sizes:
        ranks_of_groups.append(tie_order(size).argsort())
        first_rank_of_row.append(torch.full((group_count * size,), start))
        start += size
    device = ties.rows.device
    ranks = torch.cat(ranks_of_groups).to(device)
    first_rank = torch.cat(first_rank_of_row).to(device)[ties.rows][:, None]
    rank = ranks[first_rank + ties.candidates]  # (t, c)

    place = torch.arange(rank.shape[1], device=device)
    is_nearer = place < ties.nearer[:, None]
    is_candidate = place < ties.at_least_as_near[:, None]
    most = max(size for _, size in groups.counts_and_sizes)  # above all places and ranks
    rank = rank.where(~is_nearer, place - most).where(is_candidate, most)
    first = rank.topk(k, dim=1, largest=False, sorted=True).indices
    return ties.candidates.gather(1, first).long()


@torch.no_grad()
def nearest_neighbours_of(
    features: Float[Tensor, "n d"], name: str, k: int, groups: RowGroups | None = None
) -> NearestRows:
    """Return the k nearest neighbours of each row.

    They are the other rows of the group of greatest cosine similarity with the row. The result has
    the rows that are in a group, group by group, as in `groups.order`; other rows are left out.

    Args:
        features: The states of one layer.
        name: What errors call the layer.
        k: How many neighbours each row has.
        groups: Groups of rows, within which neighbours are; None: all rows are one group.
    """
    if groups is None:
        groups = RowGroups.whole(len(features), features.device)
    unit_rows = directions(features, groups, name)  # rows of norm 1, group by group
    indices = []
    ties = []
    first_row = 0
    for units_of_groups in groups.split_by_size(unit_rows):  # (g, s, d)
        nearest = nearest_rows(units_of_groups, k)
        indices.append(nearest.indices)
        if nearest.ties is not None:
            ties.append(nearest.ties._replace(rows=nearest.ties.rows + first_row))
        first_row += len(nearest.indices)
    return NearestRows(torch.cat(indices), _joined_ties(ties))


@dataclass(frozen=True)
class OfNeighbours(LayerMeasure[Prepared]):
    """What measures of the nearest neighbours of rows have in common: k, and what follows from it.

    Attributes:
        neighbours: k, how many nearest neighbours of each row are compared.
    """

    # number of nearest neighbours, k
    neighbours: int = parameter(NEIGHBOURS, least=1, most=MOST_NEIGHBOURS)

    invariances = SAME_SHAPE - {"translation"}
    version = 15
    smallest: ClassVar[Mapping[str, int | float | str]] = {"measure.neighbours": 3}
    in_atlas = True
    in_benchmarks = True

    @property
    def fewest(self) -> int:
        """The least number of rows: a row, its k neighbours, and one that is no neighbour."""
        return self.neighbours + 2

    @property
    def needed_by(self) -> str:
        """What needs this many rows, for errors about too few: "k=10 neighbours of a row"."""
        return neighbours(self.neighbours)


@dataclass(frozen=True, eq=False)
class MutualKNN(OfNeighbours[NearestRows]):
    """Mutual nearest neighbours, see `mutual_knn`.

    Attributes:
        groups: Groups of at least k + 2 rows, within which rows are compared; None: all rows are.

    Raises:
        ValueError: A group has fewer rows.
    """

    groups: RowGroups | None = None

    formula = "share of common neighbours, k = `measure.neighbours`, cosine"
    source = "Huh et al. 2024"
    compares_within_groups = True

    @property
    def meaning(self) -> str:
        return (
            f"A value is the share of a row's {self.neighbours} nearest neighbours by cosine that "
            "are its neighbours in the other layer, too."
        )

    def __post_init__(self) -> None:
        """Raise a ValueError if a setting is out of range, or a group has fewer than k + 2 rows.

        A row needs k neighbours in its group, and one row more that is no neighbour.
        """
        super().__post_init__()
        if self.groups is None:
            return
        smallest_size = min((size for _, size in self.groups.counts_and_sizes), default=0)
        if smallest_size < self.fewest:  # the least number of rows that a comparison needs
            raise ValueError(
                f"{neighbours(self.neighbours)} need {self.fewest} rows of its group, and one has "
                f"{smallest_size}: choose a smaller k"
            )

    def prepare(self, layer: Float[Tensor, "n d"], name: str) -> NearestRows:
        """Return the k nearest neighbours of each row, as indices within its group."""
        return nearest_neighbours_of(layer, name, self.neighbours, self.groups)

    def compare(self, first: NearestRows, second: NearestRows) -> Float[Tensor, ""]:
        """Return the share of neighbours that two layers have in common, in [0, 1].

        Args:
            first, second: The k neighbours of each row in either layer, as indices within its
                group.
        """
        # Two models, 0 and 1, with one layer each, of which 0 is compared with 1.
        model_pairs = ModelPairs([[0], [1]], [(0, 1)])
        # Not `self.compare_all`, as that of a subclass may call `compare`.
        shares = MutualKNN.compare_all(self, [first, second], model_pairs)
        return shares[0, 1][0, 0]  # for models 0 and 1, of the only layer of each

    def reordered(self, prepared: NearestRows, order: Int[Tensor, " n"]) -> NearestRows:
        """Return the neighbours after the rows took another order within their groups."""
        return neighbours_of_reordered_rows(prepared, order, self.groups)

    def compare_all(
        self, layers: Sequence[NearestRows], model_pairs: ModelPairs
    ) -> dict[Pair, Float[Tensor, "l m"]]:
        """Return the share of neighbours that every two layers of compared models have in common.

        A row's k neighbours are written as a 0/1 vector over its group, so that the inner product
        of two layers counts the neighbours that they share.

        Args:
            layers: For each of the distinct layers, the neighbours of each row.
            model_pairs: Which of these layers each model has, and which models are compared.
        """
        neighbours_of_layers = torch.stack([layer.indices for layer in layers])  # (layers, n, k)
        layer_count, row_count, _ = neighbours_of_layers.shape
        # How many groups have which size; groups of one size follow one another.
        counts_and_sizes: Sequence[tuple[int, int]] = [(1, row_count)]
        if self.groups is not None:
            counts_and_sizes = self.groups.counts_and_sizes
        shared = neighbours_of_layers.new_zeros(layer_count, layer_count, dtype=torch.float64)
        start = 0
        for group_count, size in counts_and_sizes:
            stop = start + group_count * size
            rows_at_once = max(MEMBERSHIPS_AT_ONCE // (layer_count * size), 1)
            for indices in neighbours_of_layers[:, start:stop].split(rows_at_once, 1):
                is_neighbour = indices.new_zeros(*indices.shape[:2], size, dtype=torch.float32)
                is_neighbour.scatter_(2, indices, 1.0)
                flat = is_neighbour.flatten(1)  # (layers, rows s)
                shared += (flat @ flat.T).double()
            start = stop
        shares = shared / (self.neighbours * row_count)  # of every two of the distinct layers
        # The rows of a source's layers are chosen, and then the columns of a target's layers. This
        # is done by `unbind`: indices in a list would be copied, and a GPU waited for.
        rows_by_model = model_pairs.by_model(shares.unbind())  # (l, layers) for each model
        shares_of_pairs = {}
        for source, target in model_pairs.pairs:
            columns = rows_by_model[source].unbind(1)  # (l) for each of the distinct layers
            columns_by_model = model_pairs.by_model(columns)  # (m, l) for each model
            shares_of_pairs[source, target] = columns_by_model[target].T  # (l, m)
        return shares_of_pairs

    def within(self, groups: RowGroups) -> MutualKNN:
        """Return the measure that compares rows only with rows of the same group."""
        return MutualKNN(self.neighbours, groups)

    def similarities(self, prepared: NearestRows) -> list[Float[Tensor, "_ _ _"]]:
        """Return, for each group of rows, how much its rows are neighbours of each other.

        Args:
            prepared: The k neighbours of each row in one layer, as indices within its group.

        Returns:
            For each group size s, a symmetric matrix for each of its g groups, (g, s, s). An entry
            is 1 if each of two rows is a neighbour of the other, ½ if only one is, and else 0.
        """
        assert self.groups is not None  # a measure without groups is not asked
        adjacency = []
        for indices_of_groups in self.groups.split_by_size(prepared.indices):  # (g, s, k)
            group_count, size, _ = indices_of_groups.shape
            half_if_neighbour = torch.zeros(
                group_count, size, size, device=indices_of_groups.device
            )
            half_if_neighbour.scatter_(2, indices_of_groups, 0.5)
            adjacency.append(half_if_neighbour + half_if_neighbour.mT)
        return adjacency
