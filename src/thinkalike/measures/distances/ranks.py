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

    Neighbours in the order of the values have the same level if they differ by rounding alone.

    Args:
        values: The values, along the last axis.
        rounding: What counts as rounding, in one of two ways.

            - A number is relative: the share of the larger one of two neighbours.
            - A tensor is absolute: by how much rounding may have changed each value. If a chain of
              values, each near the next, spans more than twice their rounding, the values are not
              equal but lie densely: then only exactly equal ones have the same level.
    """
    if not values.shape[-1]:
        return torch.zeros_like(values, dtype=torch.long)
    ordered, order = in_ascending_order(values)
    if isinstance(rounding, Tensor):
        begins_level = _level_beginnings(ordered, rounding.gather(-1, order))
    else:
        gaps = ordered.diff()  # between neighbours
        sizes = torch.maximum(ordered[..., 1:].abs(), ordered[..., :-1].abs())
        # An infinite value is not near a finite one, although ∞ ≤ rounding * ∞ holds.
        is_near = (gaps <= rounding * sizes) & gaps.isfinite()
        begins_level = (ordered[..., 1:] != ordered[..., :-1]) & ~is_near
    levels = begins_level.cumsum(-1)  # of all values but the least, whose level is 0
    return torch.zeros_like(order).scatter_(-1, order[..., 1:], levels)


def _level_beginnings(
    ordered: Float[Tensor, "*b n"], rounding: Float[Tensor, "*b n"]
) -> Bool[Tensor, "*b m"]:
    """Return for every value but the first whether it begins a new level.

    A level is a chain of values each of which is above the one before by no more than rounding. If
    a chain spans more than twice the rounding, its values are not equal up to rounding but lie
    densely, a continuum. Then each value that differs from the one before begins a level.

    Args:
        ordered: The n values in ascending order.
        rounding: By how much rounding may have changed each of them.

    Returns:
        One entry for each of the last m = n - 1 values.
    """
    differs = ordered[..., 1:] != ordered[..., :-1]
    begins_chain = differs & ~(ordered.diff() <= rounding[..., 1:])

    with_first = torch.nn.functional.pad(begins_chain, (1, 0), value=True)
    indices = torch.arange(ordered.shape[-1], device=ordered.device).expand_as(with_first)
    # for each value the index of the first value of its chain
    chain_start = torch.where(with_first, indices, 0).cummax(-1).values
    is_far_from_start = ordered - ordered.gather(-1, chain_start) > 2 * rounding
    # To look at this on a GPU would make the CPU wait for it.
    if is_far_from_start.is_cpu and not is_far_from_start.any():
        return begins_chain
    # 1 at the start of each chain that has a value far from it
    starts_continuum = torch.zeros_like(indices)
    starts_continuum.scatter_reduce_(-1, chain_start, is_far_from_start.long(), "amax")
    is_in_continuum = starts_continuum.gather(-1, chain_start).bool()
    return begins_chain | (differs & is_in_continuum[..., 1:])


def with_ties(values: Float[Tensor, " n"], rounding: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Return the values, in which those that differ by rounding alone are made equal.

    In ascending order, a value that is above the one before by no more than its rounding is in the
    same group, and all values of a group become the least of them. Values of a group that spans
    more than twice the rounding stay as they are, since `levels_of` then gives each its own level.

    Args:
        values: The values.
        rounding: By how much rounding may have changed each of them.
    """
    levels = levels_of(values, rounding)
    least_of_level = values.new_full((len(values),), torch.inf)
    least_of_level.scatter_reduce_(0, levels, values, "amin")
    return least_of_level[levels]


def in_ascending_order(
    values: Float[Tensor, "*b n"],
) -> tuple[Float[Tensor, "*b n"], Int[Tensor, "*b n"]]:
    """Return `values.sort()`: the values in ascending order, and the index that each had before.

    They are sorted along the last axis. On a CPU NumPy sorts, which takes a third of the time. The
    order of equal values is undefined.
    """
    if not values.is_cpu:
        return values.sort()
    plain = values.float() if values.dtype == torch.bfloat16 else values  # NumPy has no bfloat16
    order = torch.from_numpy(np.argsort(plain.detach().numpy()))
    return values.gather(-1, order), order


def ranks_of_levels(
    levels: Int[Tensor, "*b n"], counts: Float[Tensor, "*c n"], most_levels: int | None = None
) -> Float[Tensor, "*b n"]:
    """Return the mid-ranks, from 1, of n values, each of which may stand for several copies.

    Equal values share the mean of the ranks of all their copies. In place of the values, their
    levels are given: whole numbers from 0 that have the order of the values, such as 0, 2, 2 for
    1.5, 7.0, 7.0.

    Args:
        levels: The levels. Not all numbers need to occur.
        counts: How many copies there are of each value. Its shape expands to that of `levels`.
        most_levels: An upper bound on the number of levels. None: it is one more than the largest
            level, which a GPU must first compute and hand over.
    """
    if most_levels is None:
        most_levels = int(levels.max()) + 1 if levels.numel() else 0
    copies_of_level = counts.new_zeros(*levels.shape[:-1], most_levels)
    copies_of_level.scatter_add_(-1, levels, counts.expand(levels.shape))
    # A level's copies have the ranks from cumsum - copies + 1 to cumsum; this is their mean.
    rank_of_level = copies_of_level.cumsum(-1) - (copies_of_level - 1) / 2
    return rank_of_level.gather(-1, levels)


def mid_ranks(
    values: Annotated[Float[Tensor, "*b n"], Within(allows_infinity=True)],
    rounding: Annotated[float | Float[Tensor, "*b n"], Within(least=0)] = 0.0,
) -> Float[Tensor, "*b n"]:
    """Return ranks from 1 along the last axis, in float64; ties share the mean of their ranks.

    Args:
        values: The values, which may be infinite.
        rounding: Values that differ by no more than rounding are ties. A tensor is absolute: by
            how much rounding may have changed each value. A number is relative: the share of a
            value that rounding may make up.
    """
    # Tied values have the same level, a whole number in the order of the values.
    levels = levels_of(values, rounding)
    copies_of_value = torch.ones_like(values, dtype=torch.float64)  # each value counts once
    n_values = values.shape[-1]  # there are at most as many levels
    return ranks_of_levels(levels, copies_of_value, most_levels=n_values)


def unit_ranks(
    rows_of_ranks: Iterable[Float[Tensor, " n"]], count: int, name: str = "row"
) -> Float[Tensor, "l n"]:
    """Return the ranks in each row, centred and of norm 1.

    Spearman's ρ of two rows is the inner product of their results.

    Args:
        rows_of_ranks: The ranks from 1 to n of the values in each row, in which ties share the
            mean of their ranks, see `mid_ranks`. The rows may come one at a time, to save memory.
        count: How many rows there are, which an iterator does not tell.
        name: What errors call a row, before its index.

    Raises:
        ValueError: All values of a row are equal.
    """
    unit_vectors = torch.empty(0)  # (l, n) from the first row on, whose device it takes
    for index, ranks in enumerate(rows_of_ranks):
        mean_rank = (len(ranks) + 1) / 2
        centred_ranks = ranks - mean_rank
        norm = centred_ranks.norm()
        if norm == 0:
            raise ValueError(
                f"{name} {index}: all {len(ranks)} values are equal and have no ranks"
            )
        if index == 0:
            unit_vectors = centred_ranks.new_empty(count, len(ranks))
        torch.div(centred_ranks, norm, out=unit_vectors[index])
    return unit_vectors


def spearman(x: Float[Tensor, "*b n"], y: Float[Tensor, "*b n"]) -> Float[Tensor, "*b"]:
    """Return Spearman's ρ along the last axis, in [-1, 1], as `scipy.stats.spearmanr` does.

    Ties share the mean of their ranks.

    Raises:
        ValueError: Values are constant, NaN or fewer than two.
    """
    refuse_nan(x, "x")
    refuse_nan(y, "y")
    row_count = x.shape[:-1].numel()  # all axes but the last become one axis of rows
    x_ranks = unit_ranks(mid_ranks(x.reshape(row_count, -1)), count=row_count, name="x, row")
    y_ranks = unit_ranks(mid_ranks(y.reshape(row_count, -1)), count=row_count, name="y, row")
    return (x_ranks * y_ranks).sum(-1).view(x.shape[:-1])


def spearman_of_patterns(
    predictions: Float[Tensor, "*b l q"],
    counts: Float[Tensor, " q"],
    rank_sums: Float[Tensor, "l q"],
) -> Float[Tensor, "*b l"]:
    """Return Spearman's ρ of predicted and measured distances over all pairs of stimuli.

    Pairs whose features differ in the same way, in one of q patterns, have the same prediction. So
    this needs only sums over the pairs of each pattern. ρ is NaN for constant predictions.

    Args:
        predictions: The predicted distance of the pairs of each pattern, in each of l layers.
        counts: The number of pairs of each pattern.
        rank_sums: The sum, over the pairs of each pattern, of the ranks of the measured distances
            in each layer. These ranks are centred and of norm 1 over all pairs.
    """
    mean_rank = (counts.sum() + 1) / 2
    # The centred rank that all pairs of a pattern have. `levels_of` numbers predictions in order.
    ranks = ranks_of_levels(levels_of(predictions), counts) - mean_rank
    norms = (counts * ranks.square()).sum(-1).sqrt()  # over all pairs
    # ρ is the inner product over all pairs of both centred ranks, which have the norms `norms` and
    # 1.
    return (ranks * rank_sums).sum(-1) / norms
