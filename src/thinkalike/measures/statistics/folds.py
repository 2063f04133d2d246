"""Folds over stimuli, never over pairs of them, and the interval of a mean over folds."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.arguments import seeded
from thinkalike.measures.statistics.estimate import Estimate, interval_around
from thinkalike.measures.statistics.student import student_t


def stimulus_folds(n: int, folds: int = 5, seed: int = 0, groups: Int[Tensor, " n"] | None = None) -> Int[Tensor, " n"]:
    """Return the fold of each stimulus, drawn at random; the sizes of folds differ by one stimulus at most.

    With `groups` (the sentence of each word, say) no group is in two folds: the largest group that is left goes into
    the fold that is smallest so far.

    Raises:
        ValueError: There are fewer than two folds, or fewer stimuli or groups than folds, or not one group for each
            stimulus.
    """
    units, inverse = torch.arange(n), torch.arange(n)
    if groups is not None:
        check_groups(groups, n)
        units, inverse = torch.unique(groups.cpu(), return_inverse=True)
    if not 2 <= folds <= len(units):
        what = "stimuli" if groups is None else "groups"
        raise ValueError(f"{folds} folds of {len(units)} {what}: there must be at least 2, and as many {what}")
    order = torch.randperm(len(units), generator=seeded(seed))
    if groups is None:
        return torch.empty(n, dtype=torch.long).index_copy_(0, order, torch.arange(n) % folds)
    sizes = torch.bincount(inverse)
    filled, fold_of = [0] * folds, torch.empty(len(units), dtype=torch.long)
    for unit in sorted(order.tolist(), key=lambda unit: -int(sizes[unit])):
        fold = filled.index(min(filled))
        fold_of[unit] = fold
        filled[fold] += int(sizes[unit])
    return fold_of[inverse]


def check_groups(groups: Tensor, n: int) -> None:
    """Raise a ValueError unless these are the groups of n stimuli."""
    if groups.shape != (n,):
        raise ValueError(f"groups has shape {tuple(groups.shape)}: give the group of each of the {n} stimuli")


def splits(fold_of: Int[Tensor, " n"]) -> Iterator[tuple[Int[Tensor, " train"], Int[Tensor, " test"]]]:
    """Yield the training and the test stimuli of each fold in turn."""
    for fold in range(int(fold_of.max()) + 1):
        test = fold_of == fold
        yield (~test).nonzero()[:, 0], test.nonzero()[:, 0]


def fold_interval(values: Float[Tensor, "*b k"], level: float = 0.95) -> Estimate:
    """Return the mean over k folds, (*b), with a t interval of k - 1 degrees of freedom.

    Training sets overlap, so the variance of the mean is (1/k + 1/(k - 1)) times that of the folds, with 1/(k - 1) the
    ratio of test to training stimuli (Nadeau & Bengio 2003, eq. 8).

    Raises:
        ValueError: There is only one fold.
    """
    k = values.shape[-1]
    if k < 2:
        raise ValueError("an interval over folds needs two of them")
    return interval_around(values.mean(-1), student_t(level, k - 1) * values.std(-1) * math.sqrt(1 / k + 1 / (k - 1)))
