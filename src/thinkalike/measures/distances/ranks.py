"""Ranks of numbers, where rounding alone does not break ties."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.arguments import Within, refuse_nan


def levels_of(
    values: Float[Tensor, "*b n"], rounding: float | Float[Tensor, "*b n"] = 0.0
) -> Int[Tensor, "*b n"]:
    """Return the level of each value: 0 for the least, 1 for the next different one, and so on.

    Values that rounding alone may have taken apart have one level.

    Args:
        values: The values, along the last axis.
        rounding: By how much rounding may have changed each value; or, as a number, the share of
            the larger one by which two values that follow each other may differ by rounding. For
            a tensor, a chain of values, each near the next one, that is longer than twice their
            rounding is a continuum: these values stay apart.
    """
    if not values.shape[-1]:
        return torch.zeros_like(values, dtype=torch.long)
    ordered, order = in_ascending_order(values)
    if isinstance(rounding, Tensor):
        begins_level = _level_beginnings(ordered, rounding.gather(-1, order))
    else:
        gaps = ordered.diff()
        sizes = torch.maximum(ordered[..., 1:].abs(), ordered[..., :-1].abs())
        # An infinite value is near no other one, though its gap is a share of its size.
        is_near = (gaps <= rounding * sizes) & gaps.isfinite()
        begins_level = (ordered[..., 1:] != ordered[..., :-1]) & ~is_near
    levels = begins_level.cumsum(-1)
    return torch.zeros_like(order).scatter_(-1, order[..., 1:], levels)


def _level_beginnings(
    ordered: Float[Tensor, "*b n"], rounding: Float[Tensor, "*b n"]
) -> Bool[Tensor, "*b m"]:
    """Return for every value but the first whether it begins a new level.

    Args:
        ordered: The values in ascending order.
        rounding: By how much rounding may have changed each of them.
    """
    differs = ordered[..., 1:] != ordered[..., :-1]
    begins_level = differs & ~(ordered.diff() <= rounding[..., 1:])

    # A level that is wider than twice the rounding is a continuum, whose values stay apart.
    with_first = torch.nn.functional.pad(begins_level, (1, 0), value=True)
    indices = torch.arange(ordered.shape[-1], device=ordered.device).expand_as(with_first)
    level_start = torch.where(with_first, indices, 0).cummax(-1).values
    is_wide = ordered - ordered.gather(-1, level_start) > 2 * rounding
    if is_wide.is_cpu and not is_wide.any():  # a GPU would be waited for
        return begins_level
    is_start_of_wide = torch.zeros_like(indices)
    is_start_of_wide.scatter_reduce_(-1, level_start, is_wide.long(), "amax")
    is_in_wide = is_start_of_wide.gather(-1, level_start).bool()
    return begins_level | (differs & is_in_wide[..., 1:])


def with_ties(values: Float[Tensor, " n"], rounding: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Return the values, with those that rounding alone has taken apart set to the least of them.

    Args:
        values: The values.
        rounding: By how much rounding may have changed each of them, see `levels_of`.
    """
    levels = levels_of(values, rounding)
    least = values.new_full((len(values),), torch.inf)
    least.scatter_reduce_(0, levels, values, "amin")
    return least[levels]


def in_ascending_order(
    values: Float[Tensor, "*b n"],
) -> tuple[Float[Tensor, "*b n"], Int[Tensor, "*b n"]]:
    """Return the values in ascending order along the last axis, and their indices before.

    This is `values.sort()`; on a CPU NumPy sorts with vector instructions and takes a third of the
    time. The order of equal values is not defined.
    """
    if not values.is_cpu:
        return values.sort()
    plain = values.float() if values.dtype == torch.bfloat16 else values  # NumPy has no bfloat16
    order = torch.from_numpy(np.argsort(plain.detach().numpy()))
    return values.gather(-1, order), order


def ranks_of_levels(
    levels: Int[Tensor, "*b n"], counts: Float[Tensor, "*c n"], most: int | None = None
) -> Float[Tensor, "*b n"]:
    """Return the mid-ranks, from 1, of values that are given by their levels.

    Args:
        levels: Whole numbers from 0 in the order of the values, equal for equal values; some
            numbers may be missing.
        counts: How many copies there are of each value; the ranks are of all copies.
        most: How many levels there are at most; a GPU is not waited for where it is known. None:
            one more than the largest level.
    """
    if most is None:
        most = int(levels.max()) + 1 if levels.numel() else 0
    sizes = counts.new_zeros(*levels.shape[:-1], most)
    sizes.scatter_add_(-1, levels, counts.expand(levels.shape))
    rank_of_level = sizes.cumsum(-1) - (sizes - 1) / 2
    return rank_of_level.gather(-1, levels)


def mid_ranks(
    values: Annotated[Float[Tensor, "*b n"], Within(is_finite=False)],
    rounding: Annotated[float | Float[Tensor, "*b n"], Within(least=0)] = 0.0,
) -> Float[Tensor, "*b n"]:
    """Return ranks from 1 along the last axis, in float64; ties share the mean of their ranks.

    Args:
        values: The values.
        rounding: By how much rounding may have changed them, see `levels_of`.
    """
    one_each = torch.ones_like(values, dtype=torch.float64)
    return ranks_of_levels(levels_of(values, rounding), one_each, values.shape[-1])


def unit_ranks(
    rows: Iterable[Float[Tensor, " n"]], count: int, name: str = "row", rounding: float = 0.0
) -> Float[Tensor, "l n"]:
    """Return the mid-ranks of each row, centred and of norm 1.

    Spearman's ρ is an inner product of these.

    Args:
        rows: The rows, all of one length; they may come one at a time, to save memory.
        count: How many there are.
        name: What errors call a row.
        rounding: See `levels_of`.

    Raises:
        ValueError: All values of a row are equal.
    """
    unit = torch.empty(0)
    for index, row in enumerate(rows):
        ranks = mid_ranks(row, rounding).sub_((len(row) + 1) / 2)
        norm = ranks.norm()
        if norm == 0:
            raise ValueError(f"{name} {index}: all {len(row)} values are equal and have no ranks")
        if index == 0:
            unit = ranks.new_empty(count, len(row))
        torch.div(ranks, norm, out=unit[index])
    return unit


def spearman(x: Float[Tensor, "*b n"], y: Float[Tensor, "*b n"]) -> Float[Tensor, "*b"]:
    """Return Spearman's ρ along the last axis, in [-1, 1], as `scipy.stats.spearmanr` does.

    Ties have mid-ranks.

    Raises:
        ValueError: Values are constant, NaN or fewer than two.
    """
    refuse_nan(x, "x")
    refuse_nan(y, "y")
    count = x.shape[:-1].numel()
    x_ranks = unit_ranks(x.reshape(count, -1), count, "x, row")
    y_ranks = unit_ranks(y.reshape(count, -1), count, "y, row")
    return (x_ranks * y_ranks).sum(-1).view(x.shape[:-1])


def spearman_of_patterns(
    predictions: Float[Tensor, "*b l q"],
    counts: Float[Tensor, " q"],
    rank_sums: Float[Tensor, "l q"],
) -> Float[Tensor, "*b l"]:
    """Return Spearman's ρ of predictions that have one value for all pairs of a pattern.

    It is NaN where they are constant. The rank of a prediction is the same for all pairs of its
    pattern, so that sums over the pairs of each pattern are enough.

    Args:
        predictions: The prediction of each of q patterns, for each of l targets.
        counts: The number of pairs of each pattern.
        rank_sums: The sums over the pairs of each pattern of the `unit_ranks` of each target.
    """
    ranks = ranks_of_levels(levels_of(predictions), counts) - (counts.sum() + 1) / 2
    return (ranks * rank_sums).sum(-1) / (counts * ranks.square()).sum(-1).sqrt()
