"""Values with intervals: the jackknife, means over folds and over documents; rows of one group; and massive rows."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Annotated, Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from thinkalike.arguments import MOST_REPETITIONS, Count, Level, Seed, Size, Within, shown, takes_arrays

log = logging.getLogger(__name__)

ROUNDING = 1e-12  # of scores in [-1, 1]
PARTS = 10  # that documents, sentences or the like are drawn into; intervals leave out one at a time
EVERY = 4  # batches, of which one says how much the rows of documents depend on each other
FEWEST_GROUPS = 8  # documents, sentences or the like for a p-value; worth as many of equal length for an interval
FEWEST_EQUAL = 15  # of equal length, of which a measure has an interval whose value depends on the number of rows
AT_ONCE = 2**24  # numbers of drawn documents in memory at once
EQUAL = 1e-9  # share of a mean up to which documents are equal but for rounding
FEWEST = 4  # rows that are compared, as the unbiased estimator of HSIC divides by n - 3
ROUNDINGS = 8  # what a sum may be off by, in units of its terms' last digit
ROUNDED = 1e-9  # of the largest eigenvalue: directions of positions that the groups decide have less
RUNGS = (2, 3, 4, 5, 6, 8)  # bits of the copies of a model that a ruler has
START = 4  # the first rung: real models that are alike read 3 to 5
MASSIVE = 3  # times the median norm of a layer; few states are beyond it, and may carry most variance (Sun et al. 2024)
DECIDES, TIMES = 0.25, 10  # of the variance, and times their share of the rows, beyond which such rows decide a layer
ALONE = 0.9  # of the variance, beyond which rows that begin their text decide a layer, however many there are
RESAMPLES = 100  # documents are drawn at least as often, as the interval ends at quantiles of 2.5 and 97.5 %
Resamples = Annotated[int, Within(least=RESAMPLES, most=MOST_REPETITIONS)]
FEW = 0.5  # share of the rows; where fewer stand in groups, what is found is of frequent tokens alone


def seeded(seed: int) -> torch.Generator:
    """Return a generator of random numbers; the seed may be a whole number of NumPy's, too."""
    return torch.Generator().manual_seed(int(seed))


class Estimate:
    """A value with the lower and the upper end of its interval: three tensors of one shape, of which it iterates.

    `estimate[index]` indexes all three, and f"{estimate:+.3f}" of a single number is "+0.037 [+0.032, +0.043]".
    `uncorrected` is the value with its bias, where one is known and taken off.
    """

    def __init__(self, value: Tensor, low: Tensor, high: Tensor, *, uncorrected: Tensor | None = None):
        self.value, self.low, self.high, self.uncorrected = value, low, high, uncorrected

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.value, self.low, self.high))

    def __getitem__(self, index: Any) -> Estimate:
        uncorrected = None if self.uncorrected is None else self.uncorrected[index]
        return Estimate(*(part[index] for part in self), uncorrected=uncorrected)

    @property
    def as_found(self) -> Tensor:
        """The value with whatever bias it has, as `jackknife` takes it."""
        return self.value if self.uncorrected is None else self.uncorrected

    def __format__(self, spec: str) -> str:
        if not spec:
            return str(self)
        value, low, high = (f"{end.item():{spec}}" for end in self)
        return value if "nan" in (low, high) else f"{value} [{low}, {high}]"


def interval_around(
    value: Annotated[Float[Tensor, "*s"], Within()],
    half: Annotated[Float[Tensor, "*#s"] | float, Within(least=0, is_finite=False)],
) -> Estimate:
    """Return value ± half, with one half for all values, or one for each."""
    return Estimate(value, value - half, value + half)


def student_t(level: Level, freedom: Annotated[float | int, Within(above=0)]) -> float:
    """Return the t with P(|T| < t) = level for T of Student's distribution with these degrees of freedom."""
    from scipy.special import stdtrit  # takes half a second to import

    share_below = (1 + level) / 2
    if share_below in (0.5, 1):
        raise ValueError(f"level={level} is closer to {round(level)} than float64 distinguishes: give one such as 0.95")
    return float(stdtrit(freedom, share_below))


def jackknife(
    value: Annotated[Float[Tensor, "*s"], Within()],
    replicates: Annotated[Float[Tensor, " b *s"], Within()],
    reference: Annotated[Float[Tensor, "*s"] | None, Within()] = None,
    *,
    is_drawn: bool = False,
    level: Level = 0.95,
    t: Annotated[Float[Tensor, "*#s"] | float | None, Within(least=0, is_finite=False)] = None,
) -> Estimate:
    """Return value ± t √((b-1)/b Σ (replicate - mean)²), t of Student's distribution with b - 1 degrees of freedom.

    It is computed in float64 and has this dtype.

    Fewer than two groups say nothing about the spread or a bias: the interval is (-∞, ∞).

    Args:
        replicates: The same statistic without each of b groups of rows in turn (Tukey 1958).
        reference: What the replicates would average if rows did not depend on each other. The distance from their mean,
            times b - 1, is the bias of the value by rows that do (Quenouille 1956). It is taken off the value, which
            remains as `uncorrected`; the interval is around the rest, and reaches both.
        is_drawn: Whether the reference is of rows drawn at random. The bias is then less certain than the value: it
            stays in, and the interval also holds that around the value.
        t: Takes the place of Student's, as where the intervals hold for several values simultaneously.
    """
    b = len(replicates)
    value = value.double()
    replicates = replicates.double()
    if b < 2:
        return interval_around(value, math.inf)
    # Squares of very small or very large numbers leave the range of float64. Powers of two change no other digits.
    unit = power_of_two_below(replicates.detach().abs().amax(0))
    spread = (replicates / unit).var(0, correction=0).mul(b - 1).sqrt() * unit
    half = (student_t(level, b - 1) if t is None else t) * spread
    if reference is None:
        return interval_around(value, half)
    middle, reach = value - (b - 1) * (replicates.mean(0) - reference), half if is_drawn else 0
    low, high = torch.minimum(value - reach, middle - half), torch.maximum(value + reach, middle + half)
    return Estimate(value, low, high) if is_drawn else Estimate(middle, low, high, uncorrected=value)


def without_parts(sums: Float[Tensor, " parts *s"], documents: Int[Tensor, " n"]) -> Float[Tensor, " r *s"]:
    """Return the totals without each part that has rows; none if the documents are too few for an interval.

    Args:
        documents: The number of the document of each row.
    """
    different, counts = documents.unique(return_counts=True)
    parts = (different % PARTS).unique() if has_interval(effective_number(counts)) else different[:0]
    return sums.sum(0) - sums[parts]


def next_rung(values: Sequence[float], known: Mapping[int, Sequence[float]]) -> int | None:
    """Return the bits of the rung to measure next, None once each value is between two in a row, or beyond an end."""
    for place, value in enumerate(values):
        low = max((bits for bits, each in known.items() if each[place] <= value), default=0)
        high = min((bits for bits, each in known.items() if each[place] > value and bits > low), default=math.inf)
        if between := [bits for bits in RUNGS if low < bits < high]:
            return START if not known else between[0 if low else -1]
    return None


def reading_of(value: Float[Tensor, " r"], marks: Sequence[int], rungs: Float[Tensor, "k r"]) -> Float[Tensor, " r"]:
    """Return where a value stands among those of rungs, in the unit of their marks, by linear interpolation.

    Rungs are made to rise with their marks: one below that of a lower mark takes its value. A value outside of them has
    the first or the last mark.

    Args:
        value: With its replicates, as of `HeldOut.shares`.
        marks: Of the rungs, rising.
        rungs: The value of each rung, with the same replicates.
    """
    rising, found = rungs.cummax(0).values, torch.full_like(value, float(marks[0]))
    for number in range(1, len(marks)):
        low, high, first, last = rising[number - 1], rising[number], marks[number - 1], marks[number]
        place = ((value - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)
        found = torch.where(value > low, first + place * (last - first), found)
    return found


def stimulus_folds(
    n: Size, folds: Count = 5, seed: Seed = 0, groups: Int[Tensor, " n"] | None = None
) -> Int[Tensor, " n"]:
    """Return the fold of each stimulus, drawn at random; the sizes of folds differ by at most one stimulus.

    With `groups`, such as the sentence of each word, no group is in two folds: the largest one left goes into the
    smallest fold so far. Fewer than two folds, or fewer stimuli or groups than folds, are a ValueError.
    """
    units, inverse = torch.arange(n), torch.arange(n)
    if groups is not None:
        check_groups(groups, n)
        units, inverse = torch.unique(groups.cpu(), return_inverse=True)
    if not 2 <= folds <= len(units):
        name = "stimuli" if groups is None else "groups"
        raise ValueError(f"{folds} folds of {len(units)} {name}: choose 2 folds or more, and at least as many {name}")
    order = torch.randperm(len(units), generator=torch.Generator().manual_seed(int(seed)))
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
    """Return other numbers for groups of rows, so that `number % PARTS` draws whole groups into parts of equal size."""
    units, inverse = torch.unique(groups.cpu(), return_inverse=True)
    count = min(PARTS, len(units))
    part_of = inverse if count < PARTS else stimulus_folds(len(groups), count, groups=groups)
    of_unit = torch.zeros(len(units), dtype=torch.long).scatter_(0, inverse, part_of)
    within = (of_unit[:, None] == torch.arange(PARTS)).cumsum(0).gather(1, of_unit[:, None])[:, 0] - 1
    return (within * PARTS + of_unit)[inverse].to(groups.device)


def check_groups(groups: Tensor, n: int) -> None:
    if groups.shape != (n,):
        raise ValueError(f"groups has shape {tuple(groups.shape)}: give the group of each of the {n} stimuli")


def splits(
    fold_of: Annotated[Int[Tensor, " n"], Within(fewest=1)],
) -> Iterator[tuple[Int[Tensor, " train"], Int[Tensor, " test"]]]:
    """Yield the training and the test stimuli of each fold in turn, in the order of their numbers."""
    for fold in fold_of.unique():
        test = fold_of == fold
        yield (~test).nonzero()[:, 0], test.nonzero()[:, 0]


# ---- intervals that resample documents, because the tokens of one document are not independent


def sum_by_document(
    values: Annotated[Float[Tensor, "*b n"], Within()],
    documents: Annotated[Int[Tensor, " n"], Within(least=0)],
    count: Size,
) -> Float[Tensor, "*b documents"]:
    """Return the sum of `values` over the tokens of each document, in float64, from each token's document number.

    A ValueError says that a number is not below `count`.
    """
    if documents.numel() and int(documents.max()) >= count:
        raise ValueError(f"documents holds {int(documents.max())}, and count={count}: number documents from 0")
    sums = values.new_zeros(*values.shape[:-1], count, dtype=torch.float64)
    return sums.index_add_(-1, documents.long(), values.double())


def effective_number(counts: Annotated[Shaped[Tensor, " documents"], Within(least=0, fewest=1)]) -> float:
    """Return how many documents of equal length are worth these: (Σ n)² / Σ n², in [1, documents] (Kish 1965, 11.7).

    Documents that are all empty are worth 0.
    """
    if not counts.any():
        return 0.0
    counts = counts.double() / power_of_two_below(counts.double().max())  # squares stay within float64
    return float(counts.sum().square() / counts.square().sum())


def has_interval(worth: float | int, fewest: int = FEWEST_GROUPS) -> bool:
    """Return whether documents that are worth this many of equal length are enough for an interval.

    A jackknife learns the spread from whole documents. Where one document has half of the rows, that spread is hardly
    observed, however many short documents there are: 95 % intervals of CKA then cover 84 %
    (`benchmarks/unequal_coverage.py`).

    Args:
        worth: See `effective_number`.
    """
    return worth >= fewest * (1 - EQUAL)


def why_no_interval(worth: float | int, count: int, unit: str = "documents", fewest: int = FEWEST_GROUPS) -> str:
    """Return the reason why `count` documents, which are worth so many of equal length, have no interval."""
    return f"no intervals: effective sample size {worth:.1f} {unit} (of {count:,}); intervals need {fewest}"


def freedom_of_groups(counts: Shaped[Tensor, " groups"]) -> float:
    """Return the degrees of freedom of a variance that is estimated from groups of rows: (Σ n²)² / Σ n⁴.

    It is Satterthwaite's (1946) if rows of a group depend on each other fully, so that group i adds n_i² to the
    variance of a mean: as many as groups if they are equal, and next to 1 if one group outweighs all others.
    """
    squares = counts.double().square()
    return float(squares.sum().square() / squares.square().sum())


def bootstrap_interval(
    sums: Annotated[Float[Tensor, "*b documents"], Within(fewest=1)],
    counts: Annotated[Float[Tensor, " documents"], Within(least=0)],
    *,
    level: Level = 0.95,
    resamples: Resamples = 2000,
    seed: Seed = 0,
    together: bool = False,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> Estimate:
    """Return the mean per token with a studentised bootstrap interval over documents, of shape (*b).

    A mean per token is a ratio R = Σ s / Σ n over documents with sums s and counts n, in which a document has the
    weight w = n / Σ n. Its interval is R - q₊ σ to R - q₋ σ:

    - σ² = Σ (s - R n)² / (1 - 2 w + Σ w²) / (Σ n)² is the linearised variance of a ratio, corrected so that it is
      unbiased if all documents' means have the same variance, whatever their weights (Bell & McCaffrey 2002).
    - q are quantiles of the *studentised* bootstrap (Efron & Tibshirani 1993, section 12.5): each resample of documents
      gives t, the distance of its ratio from R in its own standard errors.
    - Resamples vary too little in the few documents of greatest weight. So q is multiplied by t(m - 1) / t(n - 1), and
      at least t(m - 1), where the n documents are worth m of equal length (`effective_number`) and t(k) is Student's
      quantile. `benchmarks/coverage.py` found that this covers, and that percentiles and Student's t alone do not.

    Every entry of the leading axes sees the same resamples.

    Args:
        sums: The sum s of the values of each document's tokens.
        counts: The number n of tokens of each document; documents without any are left out.
        together: Whether the intervals hold for all means simultaneously, with the quantiles of the largest and the
            smallest t of each resample (max-t; Westfall & Young 1993, section 2.5).
        bounds: The least and the greatest value that a token can have. With a least value of 0, as of KL, the lower end
            is that of log R, studentised by σ / R, so that it is above 0 for a mean above 0. An upper end stops at the
            greatest value.

    Raises:
        ValueError: Fewer than two documents have tokens, `bounds` are not two rising numbers, or a mean is beyond them.

    >>> bootstrap_interval([10.0, 30.0, 20.0], [10, 10, 10]).value.item()
    2.0
    """
    least_value, greatest_value = _checked_bounds(bounds)
    kept = counts > 0
    sums, counts, n = sums[..., kept].double(), counts[kept].double(), int(kept.sum())
    if n < 2:
        raise ValueError(f"counts: an interval over documents needs two of them, not {n}")
    # Squares of very small or very large numbers leave the range of float64. Powers of two change no other digits.
    sums_unit = power_of_two_below(sums.abs().amax(-1, keepdim=True))
    counts_unit = power_of_two_below(counts.max())
    sums, counts = sums / sums_unit, counts / counts_unit
    unit = sums_unit[..., 0] / counts_unit
    mean = sums.sum(-1, keepdim=True) / counts.sum()
    _refuse_means_beyond(mean[..., 0] * unit, least_value, greatest_value)
    residuals = sums - mean * counts  # s - R n
    weights = counts / counts.sum()
    unbiased = (1 - 2 * weights + weights.square().sum()).rsqrt()
    error = (residuals * unbiased / counts.sum()).square().sum(-1).sqrt()
    error = error.where(error > EQUAL * mean[..., 0].abs(), 0.0)
    generator = torch.Generator().manual_seed(int(seed))
    draws = (drawn_counts(n, len(part), generator) for part in torch.arange(resamples).split(max(AT_ONCE // n, 1)))
    parts = [_beyond(residuals, counts, drawn.to(counts.device)) for drawn in draws]
    beyond, errors = (torch.cat(part, -1) for part in zip(*parts, strict=True))
    # t is unbounded if the documents of a resample hardly differ; the quantile of Student's distribution with one
    # degree of freedom, at which it is cut, is exact for two documents of equal length
    widest, least = student_t(level, 1), student_t(level, max(int(effective_number(counts) - 1 + EQUAL), 1))
    t = (beyond / errors).nan_to_num(0.0, widest, -widest)
    if together:
        t = t.where(error[..., None] > 0, 0.0).reshape(-1, t.shape[-1])
    ends = (t.amax(0), t.amin(0)) if together else (t, t)
    tail, wider = (1 - level) / 2, least / student_t(level, n - 1)
    upper, lower = (end.quantile(share, dim=-1) * wider for end, share in zip(ends, (1 - tail, tail), strict=True))
    value = mean[..., 0]
    high = ((value - lower.clamp(-widest, -least) * error) * unit).clamp(max=greatest_value)
    if least_value != 0:
        return Estimate(value * unit, (value - upper.clamp(least, widest) * error) * unit, high)

    # A studentised interval of a skewed mean reaches below 0, where the mean cannot be. Its logarithm can be anywhere.
    resampled = (mean + beyond).clamp(min=0)
    t_of_log = (resampled.log() - mean.log()) / (errors / resampled)
    t_of_log = t_of_log.nan_to_num(0.0, widest, -widest)
    if together:
        t_of_log = t_of_log.where(error[..., None] > 0, 0.0).reshape(-1, t_of_log.shape[-1]).amax(0)
    upper = t_of_log.quantile(1 - tail, dim=-1) * wider
    relative_error = (error / value).nan_to_num(0.0)
    return Estimate(value * unit, value * unit * (-upper.clamp(least, widest) * relative_error).exp(), high)


def power_of_two_below(size: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """Return the power of two below a size, 1 for 0: to divide by it is exact."""
    return (size / (2 * torch.frexp(size).mantissa)).where(size > 0, 1.0)


def _checked_bounds(bounds: Any) -> tuple[float, float]:
    """Return the least and the greatest value of a token; a ValueError if they are not two rising numbers."""
    try:
        least, greatest = (float(end) for end in bounds)
        is_rising = least < greatest
    except (TypeError, ValueError, OverflowError):
        is_rising = False
    if isinstance(bounds, str) or not is_rising:
        raise ValueError(
            f"bounds={shown(bounds)} must be two numbers, the least value of a token and then the greatest one"
        )
    return least, greatest


def _refuse_means_beyond(means: Float[Tensor, "*b"], least: float, greatest: float) -> None:
    slack = EQUAL * (means.abs().max() if means.numel() else 0.0)  # of rounding
    if least > -math.inf and (means < least - slack).any():
        raise ValueError(
            f"a mean of {float(means.min()):g} is below the least value in bounds, {least:g}: correct them"
        )
    if greatest < math.inf and (means > greatest + slack).any():
        raise ValueError(
            f"a mean of {float(means.max()):g} is above the greatest value in bounds, {greatest:g}: correct them"
        )


def _beyond(
    residuals: Float[Tensor, "*b n"], counts: Float[Tensor, " n"], weights: Float[Tensor, "r n"]
) -> tuple[Float[Tensor, "*b r"], Float[Tensor, "*b r"]]:
    """Return the mean in each resample minus that of all documents, and its standard error.

    The error is √(Σ w e²), with e = (s - r n) / Σ w n, r the ratio in the resample, and w how often it has each
    document. Products of sums and counts give it without resamples x documents x entries in memory.
    """
    total = weights @ counts
    mean = residuals @ weights.T / total
    spread = residuals.square() @ weights.T + mean * mean * (counts.square() @ weights.T)
    crossed = (residuals * counts) @ weights.T
    spread = spread - mean * crossed - mean * crossed
    return mean, (spread / (total * total)).clamp(min=0).sqrt()


def drawn_counts(n: int, resamples: int, generator: torch.Generator) -> Float[Tensor, "r n"]:
    """Return how often each of n units is drawn in each resample of n with replacement."""
    draws = torch.randint(n, (resamples, n), generator=generator)
    return torch.zeros(resamples, n, dtype=torch.float64).scatter_add_(1, draws, torch.ones(draws.shape).double())


def documents_and_seeds_interval(
    sums: Annotated[Float[Tensor, "*b seeds documents"], Within(fewest=1)],
    counts: Annotated[Float[Tensor, " documents"], Within(least=0)],
    *,
    level: Level = 0.95,
    resamples: Resamples = 2000,
    seed: Seed = 0,
) -> Estimate:
    """Return the mean over seeds and tokens with an interval over documents and seeds, of shape (*b).

    Every seed is evaluated on the same documents, so the variance of the mean is that over documents plus that of the
    seeds' own effects (Cornfield & Tukey 1956). Both intervals are joined by MOVER (Zou & Donner 2008, eq. 4):

        low = R - √((R - low_d)² + h²),    high = R + √((high_d - R)² + h²),    h² = t² max(v / S - u, 0)

    with R the mean of the S seeds' means per token, low_d and high_d the ends of its `bootstrap_interval` over
    documents, v the variance of the seeds' means, and t of Student's distribution with S - 1 degrees of freedom. The
    interaction of seeds and documents, e = (s - R_s n) minus its mean over seeds, is in the interval over documents
    already: u = Σ e² / (S (S - 1) (Σ n)²) takes it from the variance over seeds. With one seed the interval is that
    over documents. For arguments and errors see `bootstrap_interval`; sums are of each seed.
    """
    seeds = sums.shape[-2]
    sums = sums.double()
    over_documents = bootstrap_interval(sums.mean(-2), counts, level=level, resamples=resamples, seed=seed)
    if seeds < 2:
        return over_documents
    sums, counts = sums[..., counts > 0], counts[counts > 0].double()
    sums_unit = power_of_two_below(sums.abs().amax((-2, -1)))  # squares stay within float64
    counts_unit = power_of_two_below(counts.max())
    sums, counts = sums / sums_unit[..., None, None], counts / counts_unit
    means = sums.sum(-1) / counts.sum()
    beyond = sums - means[..., None] * counts
    peculiar = (beyond - beyond.mean(-2, keepdim=True)).square().sum((-2, -1)) / counts.sum().square()
    spread = means.var(-1) / seeds - peculiar / (seeds * (seeds - 1))
    half = student_t(level, seeds - 1) * spread.clamp(min=0).sqrt() * (sums_unit / counts_unit)
    value, low, high = over_documents
    return Estimate(value, value - (value - low).hypot(half), value + (high - value).hypot(half))


# ---- groups of rows, such as those of one token: within them all that the token alone decides is constant


def common_dtype(features: Iterable[Tensor]) -> torch.dtype:
    """Return the widest dtype, and at least float32."""
    return reduce(torch.promote_types, (x.dtype for x in features), torch.float32)


def all_alike(spread: Float[Tensor, "*b"], offset: Float[Tensor, "*b"], dtype: torch.dtype) -> Bool[Tensor, "*b"]:
    """Return whether squared distances from the mean are what rounding leaves of the squared offset of that mean."""
    return spread <= (ROUNDINGS * torch.finfo(dtype).eps) ** 2 * offset


@dataclass(frozen=True, eq=False)
class RowGroups:
    """Which rows of a batch belong together."""

    order: Int[Tensor, " kept"]  # the rows that are in a group, those of one side by side, the smallest groups first
    shapes: Sequence[tuple[int, int]]  # the number of groups of each size, and this size
    rows: int  # how many rows the batch has, those without a group included
    _last: list[Any] = field(default_factory=list)  # positions, and what `_of_positions` returned for them

    @classmethod
    @takes_arrays
    def of(cls, tokens: Annotated[Int[Tensor, " n"], Within(fewest=1)], fewest: Count) -> RowGroups:
        """Group rows by their token; one of fewer than `fewest` rows makes no group, and a ValueError if all do so."""
        _, labels, counts = tokens.unique(return_inverse=True, return_counts=True)
        sizes, numbers = counts[counts >= fewest].unique(return_counts=True)
        if not len(sizes):
            found = f"no group or token has {fewest} of the {len(tokens)} rows, so nothing can be compared within one"
            raise ValueError(f"{found}: give more rows, on a command line by measure.tokens_per_batch")
        kept = int((sizes * numbers).sum())
        order = (counts[labels] * len(counts) + labels).argsort(stable=True)[len(tokens) - kept :]
        return cls(order, list(zip(numbers.tolist(), sizes.tolist(), strict=True)), len(tokens))

    @classmethod
    def whole(cls, n: int, device: torch.device) -> RowGroups:
        return cls(torch.arange(n, device=device), [(1, n)], n)

    def blocks(self, rows: Shaped[Tensor, " kept *d"]) -> Iterator[Shaped[Tensor, "g s *d"]]:
        """Yield views of rows that stand in `order`: for each size s, its g groups."""
        start = 0
        for count, size in self.shapes:
            yield rows[start : start + count * size].unflatten(0, (count, size))
            start += count * size

    def without_means(
        self, rows: Float[Tensor, "n d"], positions: Int[Tensor, " n"] | None = None, dtype: torch.dtype = torch.float64
    ) -> Float[Tensor, "kept d"]:
        """Return the rows in `order`, in this dtype, less the mean of their group, and of their position if given.

        With positions these are the residuals of least squares on both: what the groups leave of the positions'
        indicators is taken out of what they leave of the rows. What is left of a row may be nothing but rounding, as
        where the token decides the state; then it is set to 0.
        """
        whole = rows[self.order].to(dtype)
        kept = self._centre(whole.clone())
        if positions is not None:
            places, inverse = self._of_positions(positions)
            sums = kept.new_zeros(len(inverse), kept.shape[1]).index_add_(0, places, kept)
            kept = self._centre(kept.sub_((inverse @ sums.double()).to(dtype)[places]))
        apart, offset = (each.square().sum(1, keepdim=True) for each in (kept, whole.sub_(kept)))
        narrow = common_dtype([rows]) if positions is None else torch.float32  # the last digits are still on their way
        return kept.masked_fill_(all_alike(apart, offset, narrow), 0)

    def _of_positions(self, positions: Int[Tensor, " n"]) -> tuple[Int[Tensor, " kept"], Float[Tensor, "p p"]]:
        """Return positions in `order`, and the pseudo-inverse of their indicators' products; the last are kept."""
        if self._last and self._last[0] is positions:
            return self._last[1], self._last[2]
        _, places = positions[self.order].unique(return_inverse=True)
        sizes = torch.tensor([size for count, size in self.shapes for _ in range(count)], device=places.device)
        groups = torch.arange(len(sizes), device=places.device).repeat_interleave(sizes)
        counts = torch.zeros(len(sizes), int(places.max()) + 1, dtype=torch.float64, device=places.device)
        counts.index_put_((groups, places), counts.new_ones(()), accumulate=True)
        products = counts.sum(0).diag() - counts.T @ (counts / sizes[:, None])
        self._last[:] = positions, places, torch.linalg.pinv(products, rtol=ROUNDED, hermitian=True)
        return self._last[1], self._last[2]

    def _centre(self, kept: Float[Tensor, "kept d"]) -> Float[Tensor, "kept d"]:
        for block in self.blocks(kept):
            block -= block.mean(1, keepdim=True)
        return kept


def massive(
    layers: Iterable[Float[Tensor, "n _"]], begins: Bool[Tensor, " n"] | None = None
) -> Bool[Tensor, " n"] | None:
    """Return which rows are among the few that decide what is found of some layer; None: no row is.

    These are the rows whose norm is more than `MASSIVE` times the median of the layer, where they carry more than
    `DECIDES` of its variance about the mean of all others, and more than `TIMES` their share of the rows.

    Rows that begin their text, each of which attention may rest on, are judged by themselves, and are left out where
    they carry more than `ALONE` of the variance, although they may be many.

    All layers together may name no more than 1 / `TIMES` of the rows, which is the most that one layer can name. Norms
    at a head of attention vary so much that each of many heads names a few rows of its own, and all of them most rows.
    These are not the same few rows at layer after layer, as massive ones are, and so none of them is left out.
    """
    beginning: Tensor | None = None
    inside: Tensor | None = None
    for layer in layers:
        norms = torch.linalg.vector_norm(layer, dim=1)
        long = norms > MASSIVE * norms.median()
        if not long.any():
            continue
        first = torch.zeros_like(long) if begins is None else long & begins.to(long.device)
        apart = (layer.float() - layer[~long].float().mean(0)).square().sum(1)

        def decides(outliers: Tensor, enough: float, long: Tensor = long, apart: Tensor = apart) -> bool:
            compared = outliers | ~long
            share = float(outliers.sum() / compared.sum())
            carried = apart[outliers].sum() / apart[compared].sum()
            return bool(carried > min(max(DECIDES, TIMES * share), enough))

        if decides(first, ALONE):
            beginning = _either(beginning, first.cpu())
        if decides(long & ~first, 1.0):
            inside = _either(inside, (long & ~first).cpu())
    share_inside = 0.0 if inside is None else float(inside.float().mean())
    if share_inside > 1 / TIMES:
        log.warning(
            f"warning: {share_inside:.0%} of the rows are more than {MASSIVE} times as long as the median at some "
            "layer or head; as these are not few, none of them is left out"
        )
        inside = None
    return beginning if inside is None else _either(beginning, inside)


def _either(rows: Bool[Tensor, " n"] | None, more: Bool[Tensor, " n"]) -> Bool[Tensor, " n"]:
    return more if rows is None else rows | more
