"""Values with intervals: Student's t, the jackknife, means over subjects, and means over folds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.arguments import seeded


class Estimate:
    """A value with the lower and the upper end of its interval: three tensors of one shape.

    It iterates as (value, low, high), `estimate[index]` indexes all three, and f"{estimate:+.3f}" of a single number is
    "+0.037 [+0.032, +0.043]".
    """

    def __init__(self, value: Tensor, low: Tensor, high: Tensor):
        self.value, self.low, self.high = value, low, high

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.value, self.low, self.high))

    def __getitem__(self, index: Any) -> Estimate:
        return Estimate(*(part[index] for part in self))

    def __format__(self, spec: str) -> str:
        if not spec:
            return str(self)
        value, low, high = (f"{end.item():{spec}}" for end in self)
        return value if "nan" in (low, high) else f"{value} [{low}, {high}]"


def interval_around(value: Float[Tensor, "..."], half: Float[Tensor, "..."] | float) -> Estimate:
    """Return the estimate value ± half."""
    return Estimate(value, value - half, value + half)


def student_t(level: float, freedom: int) -> float:
    """Return the t with P(|T| < t) = level for T of Student's distribution with this many degrees of freedom."""
    from scipy.special import stdtrit  # takes half a second to import

    return float(stdtrit(freedom, (1 + level) / 2))


ROUNDING = 1e-12  # of scores in [-1, 1]
PARTS = 10  # that documents, sentences or the like are drawn into; intervals leave out one at a time
EVERY = 4  # batches, of which one says how much the rows of documents depend on each other
FEWEST_GROUPS = 8  # documents, sentences or the like, of which an interval or a p-value is
FEWEST_EQUAL = 15  # of equal length, of which a measure has an interval whose value depends on the number of rows


def two_sided(value: Tensor, error: Tensor, freedom: int) -> Float[Tensor, "*b"]:
    """Return the p-value of a value that is 0, by Student's t of value / error; 1 where both are 0 up to rounding."""
    from scipy.special import stdtr

    value, error = (part.where(part.abs() > ROUNDING, 0.0) for part in (value, error))
    t = (value / error).nan_to_num(0.0, math.inf, -math.inf)
    return 2 * torch.as_tensor(stdtr(freedom, -t.abs().double().cpu().numpy()))


def jackknife(
    value: Float[Tensor, "*s"],
    replicates: Float[Tensor, " b *s"],
    reference: Float[Tensor, "*s"] | None = None,
    *,
    is_drawn: bool = False,
    level: float = 0.95,
    together: bool = False,
) -> Estimate:
    """Return value ± t √((b-1)/b Σ (replicate - mean)²), t of Student's distribution with b - 1 degrees of freedom.

    Fewer than two groups say nothing about the spread: the interval is (-∞, ∞).

    Args:
        replicates: The same statistic without each of b groups of rows in turn (Tukey 1958).
        reference: What the replicates would average if rows did not depend on each other. The distance from their mean,
            times b - 1, is the bias of the value by rows that do (Quenouille 1956). The interval is around the value
            less this bias, and reaches the value itself.
        is_drawn: Whether the reference is of rows drawn at random, so that the bias has an error of its own. The
            interval then also holds that of the same width around the value.
        together: Whether the intervals hold for all values along the first axis simultaneously, see `simultaneous_t`.
    """
    b = len(replicates)
    if b < 2:
        return interval_around(value, math.inf)
    t = simultaneous_t(replicates, level) if together else student_t(level, b - 1)
    half = t * replicates.var(0, correction=0).mul(b - 1).sqrt()
    middle = value if reference is None else value - (b - 1) * (replicates.mean(0) - reference)
    reach = half if is_drawn else 0
    return Estimate(value, torch.minimum(value - reach, middle - half), torch.maximum(value + reach, middle + half))


def simultaneous_t(replicates: Float[Tensor, "b s *r"], level: float = 0.95, draws: int = 4000) -> Float[Tensor, " *r"]:
    """Return the t with which the intervals of s values hold for all of them together, for each of r such families.

    It is the quantile of maxₛ |Tₛ| for T of the multivariate t distribution with b - 1 degrees of freedom, whose
    correlation is that of the replicates: Tₛ = Σ g d / √(Σ d²) / √(χ² / (b - 1)) over b, with normal g and the
    deviations d of a value's replicates from their mean (Hothorn, Bretz & Westfall 2008). Of one value it is Student's
    t up to the error of drawing. A value without deviations takes no part.
    """
    generator, (b, s, *rest) = seeded(0), replicates.shape
    families = (replicates - replicates.mean(0)).double().cpu().reshape(b, s, -1).unbind(2)
    normal = torch.randn(draws, b, generator=generator, dtype=torch.float64)
    chi = torch.randn(draws, b - 1, generator=generator, dtype=torch.float64).square().mean(1).sqrt()
    found = [(normal @ each / each.square().sum(0).sqrt()).nan_to_num(0.0).abs().amax(1) / chi for each in families]
    return torch.stack([t.quantile(level) for t in found]).view(rest).to(replicates)


def without_parts(sums: Float[Tensor, " parts *s"], documents: Int[Tensor, " n"]) -> Float[Tensor, " r *s"]:
    """Return the totals without each part that has one of these documents, for a `jackknife`.

    Fewer than `FEWEST_GROUPS` documents have none, and so no interval.
    """
    different = documents.unique()
    parts = (different % PARTS).unique() if len(different) >= FEWEST_GROUPS else different[:0]
    return sums.sum(0) - sums[parts]


def random_effects(values: Float[Tensor, "*b s"], *, level: float = 0.95) -> Estimate:
    """Return the mean over s ≥ 2 subjects, (*b), ± t √(Σ (v - mean)² / (s - 1) / s), t of s - 1 degrees of freedom.

    The subjects are a sample of all subjects (Holmes & Friston 1998), and each one's own noise is in the variance
    between them. Stimuli are fixed; see `two_factor` for both.
    """
    s = values.shape[-1]
    return interval_around(values.mean(-1), student_t(level, s - 1) * values.std(-1) / math.sqrt(s))


def fold_interval(values: Float[Tensor, "*b k"], level: float = 0.95, *, together: bool = False) -> Estimate:
    """Return the mean over k ≥ 2 folds, (*b), with a t interval of k - 1 degrees of freedom.

    Training sets overlap, so the variance of the mean is (1/k + 1/(k - 1)) times that of the folds (Nadeau & Bengio
    2003, eq. 8).

    Args:
        together: Whether the intervals hold for all means along the first axis simultaneously, see `simultaneous_t`.
    """
    k = values.shape[-1]
    t = simultaneous_t(values.movedim(-1, 0), level) if together else student_t(level, k - 1)
    return interval_around(values.mean(-1), t * values.std(-1) * math.sqrt(1 / k + 1 / (k - 1)))


def stimulus_folds(n: int, folds: int = 5, seed: int = 0, groups: Int[Tensor, " n"] | None = None) -> Int[Tensor, " n"]:
    """Return the fold of each stimulus, drawn at random; the sizes of folds differ by at most one stimulus.

    With `groups`, such as the sentence of each word, no group is in two folds: the largest one left goes into the
    smallest fold so far.

    Raises:
        ValueError: There are fewer than two folds, fewer stimuli or groups than folds, or not one group per stimulus.
    """
    units, inverse = torch.arange(n), torch.arange(n)
    if groups is not None:
        check_groups(groups, n)
        units, inverse = torch.unique(groups.cpu(), return_inverse=True)
    if not 2 <= folds <= len(units):
        name = "stimuli" if groups is None else "groups"
        raise ValueError(f"{folds} folds of {len(units)} {name}: choose 2 folds or more, and at least as many {name}")
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


def numbered_by_part(groups: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Return other numbers for groups of rows, so that `number % PARTS` draws whole groups into parts of equal size.

    Fewer groups than `PARTS` are a part each. No part differs from another by more than the largest group.
    """
    units, inverse = torch.unique(groups.cpu(), return_inverse=True)
    count = min(PARTS, len(units))
    part_of = inverse if count < PARTS else stimulus_folds(len(groups), count, groups=groups)
    of_unit = torch.zeros(len(units), dtype=torch.long).scatter_(0, inverse, part_of)
    within = (of_unit[:, None] == torch.arange(PARTS)).cumsum(0).gather(1, of_unit[:, None])[:, 0] - 1
    return (within * PARTS + of_unit)[inverse].to(groups.device)


def check_groups(groups: Tensor, n: int) -> None:
    """Raise a ValueError unless there is one group for each of n stimuli."""
    if groups.shape != (n,):
        raise ValueError(f"groups has shape {tuple(groups.shape)}: give the group of each of the {n} stimuli")


def splits(fold_of: Int[Tensor, " n"]) -> Iterator[tuple[Int[Tensor, " train"], Int[Tensor, " test"]]]:
    """Yield the training and the test stimuli of each fold in turn."""
    for fold in range(int(fold_of.max()) + 1):
        test = fold_of == fold
        yield (~test).nonzero()[:, 0], test.nonzero()[:, 0]
