"""A value with the ends of its interval: what everything returns here that says how sure it is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.arguments import seeded


@dataclass(frozen=True, eq=False)
class Estimate:
    """A value with the lower and the upper end of its interval: three tensors of one shape.

    It iterates as (value, low, high), `estimate[index]` indexes all three, and the format of a single number writes it
    with its interval: f"{estimate:+.3f}" is "+0.037 [+0.032, +0.043]".

    Raises:
        ValueError: The three tensors differ in shape.
    """

    value: Tensor
    low: Tensor
    high: Tensor

    def __post_init__(self) -> None:
        shapes = [tuple(part.shape) for part in (self.value, self.low, self.high)]
        if len(set(shapes)) > 1:
            raise ValueError(f"a value and the ends of its interval have one shape, not {shapes}")

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.value, self.low, self.high))

    def __getitem__(self, index: Any) -> Estimate:
        return Estimate(*(part[index] for part in self))

    def __format__(self, spec: str) -> str:
        """Write a single number with its interval; without a format the estimate is written as any dataclass is."""
        if not spec:
            return str(self)
        return span(self.value.item(), self.low.item(), self.high.item(), spec)


def interval_around(value: Float[Tensor, "..."], half: Float[Tensor, "..."] | float) -> Estimate:
    """Return the estimate value ± half."""
    return Estimate(value, value - half, value + half)


def span(value: Any, low: Any, high: Any, spec: str = "+.3f") -> str:
    """Return a number with its interval as everything writes it: "+0.037 [+0.032, +0.043]"."""
    return f"{value:{spec}} [{low:{spec}}, {high:{spec}}]"


# ---- Student's distribution


def student_t(level: float, freedom: int) -> float:
    """Return the t with P(|T| < t) = level for T with this many degrees of freedom."""
    from scipy.special import stdtrit  # takes half a second to import

    return float(stdtrit(freedom, (1 + level) / 2))


def student_p(t: float, freedom: int) -> float:
    """Return P(|T| ≥ |t|), the two-sided p-value, in [0, 1], for T with this many degrees of freedom."""
    from scipy.special import stdtr

    return float(2 * stdtr(freedom, -abs(t)))


# ---- Intervals from leaving out one batch at a time (Tukey 1958)


def leave_one_out(values: Float[Tensor, " b *s"]) -> Float[Tensor, " b *s"]:
    """Return, for every batch, the mean of all the others."""
    return (values.sum(0) - values) / (len(values) - 1)


def as_batches(records: Float[Tensor, " a *s"]) -> Float[Tensor, " b *s"]:
    """Turn a statistic of all rows, and of all but each of b parts of them, into values of b batches.

    Their mean is the statistic of all rows, s, and their means without each batch spread as those without each part, r:
    s + (b - 1) (mean(r) - r), Tukey's pseudo-values without his correction of the bias.

    Args:
        records: s, and then r; b = a - 1.
    """
    whole, without = records[:1], records[1:]
    return whole + (len(without) - 1) * (without.mean(0, keepdim=True) - without)


def jackknife(value: Float[Tensor, "*s"], replicates: Float[Tensor, " b *s"], *, level: float = 0.95) -> Estimate:
    """Return value ± t √((b-1)/b Σ (replicate - mean)²), t of Student's distribution with b - 1 degrees of freedom.

    A single batch says nothing about the spread: its interval is (-∞, ∞).

    Args:
        replicates: The same statistic without each of the b batches in turn.
    """
    b = len(replicates)
    if b < 2:
        return interval_around(value, math.inf)
    error = replicates.var(0, correction=0).mul(b - 1).sqrt()
    return interval_around(value, student_t(level, b - 1) * error)


# ---- The mean over subjects as a sample of all subjects there could be: random effects (Holmes & Friston 1998)

ROUNDING = 1e-12  # of scores in [-1, 1]


def random_effects(values: Float[Tensor, "*b s"], *, level: float = 0.95) -> Estimate:
    """Return the mean over s subjects, (*b), ± t √(Σ (v - mean)² / (s - 1) / s), t of s - 1 degrees of freedom.

    The variance between subjects holds each one's own noise already, so that noisy subjects widen the interval. It is
    of subjects alone: of the same stimuli, see `two_factor` for both.

    Raises:
        ValueError: There are fewer than two subjects.
    """
    s = values.shape[-1]
    if s < 2:
        raise ValueError(f"an interval over subjects needs two of them, not {s}")
    return interval_around(values.mean(-1), student_t(level, s - 1) * values.std(-1) / math.sqrt(s))


def two_sided(value: Tensor, error: Tensor, freedom: int) -> Float[Tensor, "*b"]:
    """Return the p-value of a value that is 0, by Student's t of value / error; 1 where both are 0 up to rounding."""
    value, error = (part.where(part.abs() > ROUNDING, 0.0) for part in (value, error))
    t = (value / error).nan_to_num(0.0, math.inf, -math.inf)
    found: Any = [student_p(each, freedom) for each in t.flatten().tolist()]
    return torch.tensor(found, dtype=torch.float64).reshape(t.shape)


# ---- Folds over stimuli, never over pairs of them, and the interval of a mean over folds


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
