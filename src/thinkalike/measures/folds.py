"""Folds over stimuli, never over pairs of them, and the interval of a mean over folds."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor


def stimulus_folds(n: int, folds: int = 5, seed: int = 0, groups: Int[Tensor, " n"] | None = None) -> Int[Tensor, " n"]:
    """The fold of each stimulus, drawn at random; folds differ in size by one stimulus at most.

    With `groups` (the sentence of each word, say) no group is in two folds, and a fold is filled with the largest group
    left while it is the smallest.

    Raises:
        ValueError: fewer than two folds, or fewer stimuli or groups than folds.
    """
    units, inverse = torch.arange(n), torch.arange(n)
    if groups is not None:
        units, inverse = torch.unique(groups.cpu(), return_inverse=True)
    if not 2 <= folds <= len(units):
        what = "stimuli" if groups is None else "groups"
        raise ValueError(f"{folds} folds of {len(units)} {what}: there must be at least 2, and as many {what}")
    order = torch.randperm(len(units), generator=torch.Generator().manual_seed(seed))
    if groups is None:
        return torch.empty(n, dtype=torch.long).index_copy_(0, order, torch.arange(n) % folds)
    sizes = torch.bincount(inverse)
    filled, fold_of = [0] * folds, torch.empty(len(units), dtype=torch.long)
    for unit in sorted(order.tolist(), key=lambda unit: -int(sizes[unit])):
        fold = filled.index(min(filled))
        fold_of[unit] = fold
        filled[fold] += int(sizes[unit])
    return fold_of[inverse]


def splits(fold_of: Int[Tensor, " n"]) -> Iterator[tuple[Int[Tensor, " train"], Int[Tensor, " test"]]]:
    """Training and test stimuli of each fold in turn."""
    for fold in range(int(fold_of.max()) + 1):
        test = fold_of == fold
        yield (~test).nonzero()[:, 0], test.nonzero()[:, 0]


def fold_interval(
    values: Float[Tensor, "*b k"], level: float = 0.95
) -> tuple[Float[Tensor, "*b"], Float[Tensor, "*b"], Float[Tensor, "*b"]]:
    """Mean over k folds, and a t interval of k - 1 degrees of freedom around it.

    Training sets overlap, so the variance of the mean is (1/k + 1/(k - 1)) times that of the folds, with 1/(k - 1) the
    ratio of test to training stimuli (Nadeau & Bengio 2003, eq. 8).

    Returns:
        Mean, lower and upper end.

    Raises:
        ValueError: there is only one fold.
    """
    k = values.shape[-1]
    if k < 2:
        raise ValueError("an interval over folds needs two of them")
    half = t_quantile((1 + level) / 2, k - 1) * values.std(-1) * math.sqrt(1 / k + 1 / (k - 1))
    mean = values.mean(-1)
    return mean, mean - half, mean + half


def t_quantile(probability: float, degrees: int) -> float:
    """Quantile in (1/2, 1) of Student's t, by bisection of its distribution (Abramowitz & Stegun 26.7.3, 26.7.4)."""
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_within(middle, degrees) < 2 * probability - 1 else (low, middle)
    return math.sqrt(degrees) * math.tan(low)


def _t_within(angle: float, degrees: int) -> float:
    """P(|t| < √ν tan θ)."""
    cosine, odd = math.cos(angle), degrees % 2
    term, total = (cosine if odd else 1.0), 0.0
    for step in range(2 + odd, degrees + 1, 2):
        total += term
        term *= cosine**2 * (step - 1) / step
    return (2 / math.pi) * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
