"""Folds of stimuli, and parts of documents: which rows are held out together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import torch
from jaxtyping import Int
from torch import Tensor

from thinkalike.arguments import Count, Seed, Size, Within
from thinkalike.measures.seeds import seeded

# Documents, sentences or other groups are divided into this many parts. The jackknife leaves out
# one part at a time.
JACKKNIFE_PARTS = 10


def stimulus_folds(
    n: Size, folds: Count = 5, seed: Seed = 0, groups: Int[Tensor, " n"] | None = None
) -> Int[Tensor, " n"]:
    """Return the fold of each stimulus, drawn at random.

    The sizes of folds differ by at most one stimulus. With `groups`, such as the sentence of each
    word, no group is in two folds: the largest remaining group goes into the smallest fold so far.

    Raises:
        ValueError: There are fewer than two folds, or fewer stimuli or groups than folds.
    """
    if groups is not None:
        check_groups(groups, n)
        units, unit_of = torch.unique(groups.cpu(), return_inverse=True)
        unit_name = "groups"
    else:
        units = torch.arange(n)
        unit_of = units
        unit_name = "stimuli"
    if not 2 <= folds <= len(units):
        raise ValueError(
            f"{folds} folds of {len(units)} {unit_name}: "
            f"choose 2 folds or more, and at least as many {unit_name}"
        )

    order = torch.randperm(len(units), generator=seeded(seed))
    if groups is None:
        return torch.empty(n, dtype=torch.long).index_copy_(0, order, torch.arange(n) % folds)

    # Groups of equal size stay in their random order, as Python's sort is stable.
    sizes = torch.bincount(unit_of)
    largest_first = sorted(order.tolist(), key=lambda unit: -int(sizes[unit]))
    fold_sizes = [0] * folds
    fold_of_unit = torch.empty(len(units), dtype=torch.long)
    for unit in largest_first:
        smallest_fold = fold_sizes.index(min(fold_sizes))
        fold_of_unit[unit] = smallest_fold
        fold_sizes[smallest_fold] += int(sizes[unit])
    return fold_of_unit[unit_of]


def numbered_by_part(groups: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Return new numbers for groups of rows that divide them into parts of nearly equal size.

    The part of a row is its number modulo `JACKKNIFE_PARTS`. Rows of one group have one number,
    and rows of different groups have different ones.
    """
    units, unit_of = torch.unique(groups.cpu(), return_inverse=True)
    part_count = min(JACKKNIFE_PARTS, len(units))
    part_of_row = unit_of  # where groups are few, each is a part
    if part_count == JACKKNIFE_PARTS:
        part_of_row = stimulus_folds(len(groups), part_count, groups=groups)
    part_of_unit = torch.zeros(len(units), dtype=torch.long).scatter_(0, unit_of, part_of_row)

    # Count the groups of the same part up to each group.
    is_in_part = part_of_unit[:, None] == torch.arange(JACKKNIFE_PARTS)  # (units, parts)
    rank_in_part = is_in_part.cumsum(0).gather(1, part_of_unit[:, None])[:, 0] - 1
    number_of_unit = rank_in_part * JACKKNIFE_PARTS + part_of_unit
    return number_of_unit[unit_of].to(groups.device)


def check_groups(groups: Tensor, n: int) -> None:
    """Raise a ValueError unless `groups` has the group of each of n stimuli: the shape (n,)."""
    if groups.shape != (n,):
        shape = tuple(groups.shape)
        raise ValueError(f"groups has shape {shape}: give the group of each of the {n} stimuli")


def splits(
    fold_of: Annotated[Int[Tensor, " n"], Within(fewest=1)],
) -> Iterator[tuple[Int[Tensor, " train"], Int[Tensor, " test"]]]:
    """Yield the training and the test stimuli of each fold in turn, in order of number."""
    for fold in fold_of.unique():
        is_test = fold_of == fold
        yield (~is_test).nonzero()[:, 0], is_test.nonzero()[:, 0]
