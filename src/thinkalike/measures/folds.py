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
    """Return the fold, 0 to folds - 1, of each of n stimuli, drawn at random.

    The sizes of folds differ by at most one stimulus. With `groups`, such as the sentence of each
    word, all stimuli of a group are in one fold: group after group, the largest first, goes into
    the fold that is smallest so far.

    Args:
        n: How many stimuli there are.
        folds: How many folds there are.
        seed: The seed of the random order.
        groups: The group of each stimulus; None: each is one.

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
    """Number the groups of rows so that number % 10 is the part of a group, and return each row's.

    The jackknife leaves out one of `JACKKNIFE_PARTS` = 10 parts at a time. They have nearly equal
    numbers of rows. If there are fewer than 10 groups, each is a part. Rows have the same number
    if and only if they are of one group.

    Args:
        groups: The group of each row, as any numbers.
    """
    distinct_groups, group_of_row = torch.unique(groups.cpu(), return_inverse=True)
    group_count = len(distinct_groups)
    if group_count >= JACKKNIFE_PARTS:
        part_of_row = stimulus_folds(len(groups), JACKKNIFE_PARTS, groups=groups)
    else:
        part_of_row = group_of_row
    part_of_group = torch.zeros(group_count, dtype=torch.long)
    part_of_group.scatter_(0, group_of_row, part_of_row)

    # The groups of part p are numbered p, p + 10, p + 20, ... The rank is the number of groups of
    # the same part that come before a group.
    is_in_part = part_of_group[:, None] == torch.arange(JACKKNIFE_PARTS)  # (groups, parts)
    rank_in_part = is_in_part.cumsum(0).gather(1, part_of_group[:, None])[:, 0] - 1
    number_of_group = rank_in_part * JACKKNIFE_PARTS + part_of_group
    return number_of_group[group_of_row].to(groups.device)


def check_groups(groups: Tensor, n: int, name: str = "groups") -> None:
    """Raise a ValueError unless `groups` has the group of each of n stimuli: the shape (n,).

    Args:
        groups: The numbers of groups.
        n: How many stimuli there are.
        name: The argument that has the groups, which the error names.
    """
    if groups.shape != (n,):
        shape = tuple(groups.shape)
        raise ValueError(f"{name} has shape {shape}: give the group of each of the {n} stimuli")


def splits(
    fold_of: Annotated[Int[Tensor, " n"], Within(fewest=1)],
) -> Iterator[tuple[Int[Tensor, " train"], Int[Tensor, " test"]]]:
    """Yield the indices of the training and of the test stimuli, for each fold in turn.

    Folds come in rising order of their numbers. The stimuli of the fold are the test stimuli, and
    all others the training stimuli.

    Args:
        fold_of: The fold of each stimulus.
    """
    for fold in fold_of.unique():
        is_test = fold_of == fold
        yield (~is_test).nonzero()[:, 0], is_test.nonzero()[:, 0]
