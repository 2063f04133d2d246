"""Ranks with ties, and Spearman's correlation of vectors and of predictions with few different values."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.arguments import refuse_nan


def mid_ranks(values: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n"]:
    """Return ranks from 1 along the last axis, in float64; ties share the mean of their ranks."""
    return torch.stack([_row_ranks(row) for row in _rows(values)]).view(values.shape)


def _rows(values: Float[Tensor, "*b n"]) -> Float[Tensor, "k n"]:
    return values.reshape(values.shape[:-1].numel(), values.shape[-1])


def _row_ranks(values: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    _, levels, counts = values.unique(return_inverse=True, return_counts=True)
    return (counts.cumsum(0) - (counts - 1).double() / 2)[levels]


def weighted_ranks(levels: Int[Tensor, "k p"], weights: Float[Tensor, " p"]) -> Float[Tensor, "k p"]:
    """Return the mid-ranks from 1 of values with these numbers of copies.

    Args:
        levels: The index of each value among the different values, in ascending order.
    """
    sizes = weights.new_zeros(len(levels), int(levels.max()) + 1).scatter_add_(1, levels, weights.expand(levels.shape))
    return (sizes.cumsum(1) - (sizes - 1) / 2).gather(1, levels)


def unit_ranks(
    rows: Iterable[Float[Tensor, " n"]], name: str = "row", count: int | None = None
) -> Float[Tensor, "l n"]:
    """Return the mid-ranks of each row, centred and of norm 1, so that Spearman's ρ is an inner product.

    Args:
        name: The name of a row in errors.
        count: The number of rows, if known, to save memory: then the rows are not copied once more.

    Raises:
        ValueError: A row is constant, or has fewer than two values.
    """
    found: list[Tensor] = []
    memory: Tensor | None = None
    for index, row in enumerate(rows):
        ranks = _row_ranks(row).sub_((len(row) + 1) / 2)
        norm = ranks.norm()
        if norm == 0:
            raise ValueError(f"{name} {index}: all {len(row)} values are equal and have no ranks")
        if memory is None and count:
            memory = ranks.new_empty(count, len(row))
        found.append(torch.div(ranks, norm, out=None if memory is None else memory[index]))
    return torch.stack(found) if memory is None else memory


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
    ranks = _row_ranks(values).sub_((len(values) + 1) / 2)
    return ranks @ unit / ranks.norm()


def spearman_of_patterns(
    predictions: Float[Tensor, "*b l q"], counts: Float[Tensor, " q"], rank_sums: Float[Tensor, "l q"]
) -> Float[Tensor, "*b l"]:
    """Return Spearman's ρ of predictions with one value for all pairs of a pattern, NaN where they are constant.

    Args:
        predictions: The prediction of each pattern.
        counts: The number of pairs of each pattern.
        rank_sums: The sums, over the pairs of each pattern, of `unit_ranks` of the target.
    """
    ranks = _counted_ranks(predictions, counts.expand_as(predictions)) - (counts.sum() + 1) / 2
    return (ranks * rank_sums).sum(-1) / (counts * ranks.square()).sum(-1).sqrt()


def _counted_ranks(values: Float[Tensor, "*b n"], counts: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n"]:
    """Return the mid-ranks of values with these numbers of copies."""
    ordered, order = values.sort(-1)
    sizes = counts.gather(-1, order)
    ends = sizes.cumsum(-1)
    border = ordered[..., 1:] != ordered[..., :-1]
    first, last = (torch.nn.functional.pad(border, side, value=True) for side in ((1, 0), (0, 1)))
    start = torch.where(first, ends - sizes, 0).cummax(-1).values
    end = torch.where(last, ends, torch.inf).flip(-1).cummin(-1).values.flip(-1)
    return torch.empty_like(ends).scatter_(-1, order, (start + end + 1) / 2)
