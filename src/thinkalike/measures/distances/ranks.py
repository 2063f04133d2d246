"""Ranks with ties, and Spearman correlation from them: of vectors, and of predictions that take few values."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.arguments import refuse_nan

LONG = 2**14  # numbers from which a row sorts faster alone
STEPS = 2**31 - 2**8  # between the ends of a row; below 2^31 after rounding
NARROW = 1e-290  # between the ends of a row, where a step would have no reciprocal


def mid_ranks(values: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n"]:
    """Return ranks from 1 along the last axis, in float64; ties share the mean of their ranks."""
    rows = [_row_ranks(row) for row in _rows(values)]  # a long row sorts faster alone, by radix
    return torch.stack(rows).view(values.shape)


def _rows(values: Float[Tensor, "*b n"]) -> Float[Tensor, "k n"]:
    """Return a matrix of all rows, which may be empty."""
    return values.reshape(values.shape[:-1].numel(), values.shape[-1])


def _orders(values: Float[Tensor, "*b n"]) -> Int[Tensor, "*b n"]:
    """Return the order of each row."""
    if values.shape[-1] < LONG:
        return values.argsort(-1)
    return torch.stack([_ascending(row) for row in _rows(values)]).view(values.shape)


def _row_ranks(values: Float[Tensor, " n"], out: Tensor | None = None) -> Float[Tensor, " n"]:
    order, ordered = _sorted_row(values)
    ranks = _ranks_in_order(ordered)
    return (torch.empty_like(ranks) if out is None else out).scatter_(0, order, ranks)


def _ranks_in_order(ordered: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Return the mid-ranks of sorted values."""
    ranks = torch.arange(1, len(ordered) + 1, dtype=torch.float64, device=ordered.device)
    same = torch.nn.functional.pad(ordered[1:] == ordered[:-1], (1, 1))  # as the value before
    first, last = ((here & ~there).nonzero()[:, 0] for here, there in ((same[1:], same[:-1]), (same[:-1], same[1:])))
    if len(first):
        ranks[same[1:] | same[:-1]] = ((first + last).double() / 2 + 1).repeat_interleave(last - first + 1)
    return ranks


def _sorted_row(values: Float[Tensor, " n"]) -> tuple[Int[Tensor, " n"], Float[Tensor, " n"]]:
    """Return the order of a row, of equal values the first first, and its values in that order.

    Long rows of float64 on a CPU are sorted by their place between the ends in 2^31 steps: half as many bytes for the
    radix sort as they have. The few that share a step are sorted again among themselves.
    """
    span = 0.0
    if values.dtype == torch.float64 and not values.is_cuda and len(values) >= LONG:
        low, high = values.aminmax()
        span = float(high - low)
    if not NARROW < span < torch.inf:
        order = _ascending(values)
        return order, values.index_select(0, order)
    steps = torch.sub(values, low).mul_(STEPS / span).to(torch.int32)
    steps, order = steps.sort(stable=True)
    ordered = values.index_select(0, order)
    same = torch.nn.functional.pad(steps[1:] == steps[:-1], (1, 1))
    if len(shared := (same[1:] | same[:-1]).nonzero()[:, 0]):
        again = shared[_ascending(ordered[shared])]  # later steps have greater values, so each stays in its own
        order[shared], ordered[shared] = order[again], ordered[again]
    return order, ordered


def _ascending(values: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Return the order of a row by the bits of its numbers: integers sort by radix, two to four times as fast."""
    wide = values.dtype == torch.float64
    values = values if wide else values.float()
    bits = (values + 0.0).view(torch.int64 if wide else torch.int32)  # -0.0 becomes 0.0
    low = 2**63 - 1 if wide else 2**31 - 1
    bits[bits < 0] ^= low
    return bits.sort(stable=True).indices


def unit_ranks(
    rows: Iterable[Float[Tensor, " n"]], name: str = "row", count: int | None = None
) -> Float[Tensor, "l n"]:
    """Return the mid-ranks of each row, centred and of norm 1, so that Spearman's ρ is a product.

    Args:
        name: What an error calls a row.
        count: How many rows there are, if that is known: then no second copy of them is made.

    Raises:
        ValueError: A row is constant, or has fewer than two values.
    """
    unit: list[Tensor] = []
    memory: Tensor | None = None
    for index, row in enumerate(rows):
        if memory is None and count:
            memory = row.new_empty(count, len(row), dtype=torch.float64)
        ranks = _row_ranks(row, None if memory is None else memory[index])
        unit.append(_unit(ranks.sub_((len(row) + 1) / 2), f"{name} {index}", len(row)))
    return torch.stack(unit) if memory is None else memory


def _unit(ranks: Float[Tensor, " n"], row: str, count: int) -> Float[Tensor, " n"]:
    """Return centred ranks with a norm of 1.

    Raises:
        ValueError: They are all 0.
    """
    norm = ranks.norm()
    if norm == 0:
        raise ValueError(f"{row}: all {count} values are equal, so that they have no ranks")
    return ranks.div_(norm)


class SortedRows:
    """Rows in ascending order, from which the ranks of some of their values follow without sorting again."""

    def __init__(self, rows: Iterable[Float[Tensor, " n"]]):
        self._rows = [_sorted(row) for row in rows]

    def unit_ranks(self, kept: Bool[Tensor, " n"], name: str = "row") -> Float[Tensor, "l n"]:
        """Return what `unit_ranks` gives of the values that are kept, and 0 at the others.

        Raises:
            ValueError: The kept values of a row are constant.
        """
        unit, number = [], int(kept.sum())
        for index, (order, ends) in enumerate(self._rows):
            there = kept[order]
            counts = there.cumsum(0, dtype=torch.float64)
            if len(ends) < len(order):  # equal values share the mean of their ranks
                after = counts[ends]
                before = torch.nn.functional.pad(after[:-1], (1, 0))
                sizes = ends.diff(prepend=ends.new_tensor([-1]))
                counts = ((before + after + 1) / 2).repeat_interleave(sizes)
            ranks = _unit(counts.sub_((number + 1) / 2).mul_(there), f"{name} {index}", number)
            unit.append(torch.empty_like(ranks).scatter_(0, order, ranks))
        return torch.stack(unit)


def _sorted(row: Float[Tensor, " n"]) -> tuple[Int[Tensor, " n"], Int[Tensor, " v"]]:
    """Return the order of a row, and the places in it where a value is the last of its like."""
    order, ordered = _sorted_row(row)
    border = torch.nn.functional.pad(ordered[1:] != ordered[:-1], (0, 1), value=True)
    return order, border.nonzero()[:, 0]


def spearman(x: Float[Tensor, "*b n"], y: Float[Tensor, "*b n"]) -> Float[Tensor, "*b"]:
    """Return Spearman's ρ along the last axis, in [-1, 1], with ties at mid-ranks, as `scipy.stats.spearmanr` does.

    Raises:
        ValueError: x or y is constant, holds NaN, or has fewer than two values.
    """
    refuse_nan(x, "x")
    refuse_nan(y, "y")
    left, right = (unit_ranks(_rows(part)) for part in (x, y))
    return (left * right).sum(-1).view(x.shape[:-1])


def spearman_of_units(values: Float[Tensor, " n"], unit: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    """Return Spearman's ρ of values with others whose `unit_ranks` are given, NaN where the values are constant."""
    order, ordered = _sorted_row(values)
    ranks = _ranks_in_order(ordered).sub_((len(values) + 1) / 2)
    return ranks @ unit.index_select(0, order) / ranks.norm()


def spearman_of_patterns(
    predictions: Float[Tensor, "*b l q"], counts: Float[Tensor, "v q"], rank_sums: Float[Tensor, "v l q"]
) -> Float[Tensor, "v *b l"]:
    """Return Spearman's ρ of predictions that are the same for all pairs of one pattern, NaN where they are constant.

    Args:
        predictions: The prediction of each pattern.
        counts: The number of pairs of each pattern, in v sets of as many pairs.
        rank_sums: The sums, over the pairs of each pattern, of `unit_ranks` of what is predicted.
    """
    middle = (1,) * (predictions.dim() - 2)
    counts, sums = counts.view(len(counts), *middle, 1, -1), rank_sums.view(len(counts), *middle, *rank_sums.shape[1:])
    ranks = _weighted_ranks(*torch.broadcast_tensors(predictions, counts)) - (counts[:1].sum() + 1) / 2
    return (ranks * sums).sum(-1) / (counts * ranks.square()).sum(-1).sqrt()


def _weighted_ranks(values: Float[Tensor, "*b n"], counts: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n"]:
    """Return the mid-ranks of values that each stand for as many equal ones as their counts."""
    order = _orders(values)
    ordered, sizes = values.gather(-1, order), counts.gather(-1, order)
    ends = sizes.cumsum(-1)
    border = ordered[..., 1:] != ordered[..., :-1]
    first, last = (torch.nn.functional.pad(border, side, value=True) for side in ((1, 0), (0, 1)))
    start = torch.where(first, ends - sizes, 0).cummax(-1).values
    end = torch.where(last, ends, torch.inf).flip(-1).cummin(-1).values.flip(-1)
    return torch.empty_like(ends).scatter_(-1, order, (start + end + 1) / 2)
