"""Intervals that resample whole documents, as tokens of one document are not independent."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.arguments import MOST_REPETITIONS, Level, Seed, Size, Within, shown
from thinkalike.measures.estimates import Estimate, student_t
from thinkalike.measures.powers_of_two import power_of_two_below
from thinkalike.measures.sample_size import (
    RELATIVE_ROUNDING,
    effective_number,
)
from thinkalike.measures.seeds import seeded

# The ends of a 95 % interval are the quantiles of 2.5 and 97.5 %, which fewer resamples do not
# tell.
FEWEST_RESAMPLES = 100
Resamples = Annotated[int, Within(least=FEWEST_RESAMPLES, most=MOST_REPETITIONS)]

# Resamples are drawn in blocks of at most this many counts of documents, to bound the memory.
COUNTS_IN_MEMORY = 2**24


def sum_by_document(
    values: Annotated[Float[Tensor, "*b n"], Within()],
    documents: Annotated[Int[Tensor, " n"], Within(least=0)],
    count: Size,
) -> Float[Tensor, "*b documents"]:
    """Return the sum of the values of each document's tokens, in float64.

    Args:
        values: A value for each token, which must be finite, as `Within` demands.
        documents: The number of each token's document.
        count: How many documents there are.

    Raises:
        ValueError: A document's number is not below `count`.
    """
    if documents.numel() and int(documents.max()) >= count:
        raise ValueError(
            f"documents holds {int(documents.max())}, and count={count}: number documents from 0"
        )
    sums = values.new_zeros(*values.shape[:-1], count, dtype=torch.float64)
    return sums.index_add_(-1, documents.long(), values.double())


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
    """Return the mean per token with a studentised bootstrap interval over documents, shape (*b).

    A mean per token is a ratio R = Σ s / Σ n over documents with sums s and counts n, in which a
    document has the weight w = n / Σ n. Its interval is R - q₊ σ to R - q₋ σ:

    - σ² = Σ (s - R n)² / (1 - 2 w + Σ w²) / (Σ n)² is the linearised variance of a ratio,
      corrected so that it is unbiased if all documents' means have the same variance, whatever
      their weights (Bell & McCaffrey 2002).
    - q are quantiles of the *studentised* bootstrap (Efron & Tibshirani 1993, section 12.5): each
      resample of documents gives t, the distance of its ratio from R in its own standard errors.
    - Resamples vary too little in the few documents of greatest weight. So q is multiplied by
      t(m - 1) / t(n - 1), and is at least t(m - 1), where the n documents are worth m of equal
      length (`effective_number`) and t(k) is Student's quantile. `benchmarks/coverage.py` found
      that this covers, and that percentiles and Student's t alone do not.

    Every entry of the leading axes sees the same resamples.

    Args:
        sums: The sum s of the values of each document's tokens.
        counts: The number n of tokens of each document; documents without any are left out.
        level: The probability with which the interval covers the mean.
        resamples: How many resamples are drawn.
        seed: The seed of the resamples.
        together: Whether the intervals hold for all means simultaneously, with the quantiles of
            the largest and the smallest t of each resample (max-t; Westfall & Young 1993, section
            2.5).
        bounds: The least and the greatest value that a token can have. With a least value of 0, as
            of KL, the lower end is that of log R, studentised by σ / R, so that it is above 0 for
            a mean above 0. An upper end stops at the greatest value.

    Raises:
        ValueError: Fewer than two documents have tokens, `bounds` are not two rising numbers, or a
            mean is beyond them.

    >>> bootstrap_interval([10.0, 30.0, 20.0], [10, 10, 10]).value.item()
    2.0
    """
    least_value, greatest_value = _checked_bounds(bounds)
    has_tokens = counts > 0
    n = int(has_tokens.sum())
    if n < 2:
        raise ValueError(f"counts: an interval over documents needs two of them, not {n}")
    sums = sums[..., has_tokens].double()
    counts = counts[has_tokens].double()

    # Squares of very small or very large numbers leave the range of float64. Powers of two change
    # no other digits.
    sums_unit = power_of_two_below(sums.abs().amax(-1, keepdim=True))
    counts_unit = power_of_two_below(counts.max())
    sums = sums / sums_unit
    counts = counts / counts_unit
    unit = sums_unit[..., 0] / counts_unit

    mean = sums.sum(-1, keepdim=True) / counts.sum()  # R, (*b, 1)
    value = mean[..., 0]
    _refuse_means_beyond(value * unit, least_value, greatest_value)

    # σ, the linearised standard error
    residuals = sums - mean * counts  # s - R n
    weights = counts / counts.sum()
    correction = (1 - 2 * weights + weights.square().sum()).rsqrt()
    error = (residuals * correction / counts.sum()).square().sum(-1).sqrt()
    error = error.where(error > RELATIVE_ROUNDING * value.abs(), 0.0)

    # the resamples, in blocks
    generator = seeded(seed)
    block_size = max(COUNTS_IN_MEMORY // n, 1)
    block_deviations = []
    block_errors = []
    for block in torch.arange(resamples).split(block_size):
        drawn = drawn_counts(n, len(block), generator).to(counts.device)
        deviations_of_block, errors_of_block = _deviations_and_errors(residuals, counts, drawn)
        block_deviations.append(deviations_of_block)
        block_errors.append(errors_of_block)
    deviations = torch.cat(block_deviations, -1)  # (*b, r)
    errors = torch.cat(block_errors, -1)  # (*b, r)

    # t is unbounded if the documents of a resample hardly differ. It is cut at the quantile of
    # Student's distribution with one degree of freedom, which is exact for two documents of equal
    # length.
    widest = student_t(level, 1)
    effective_freedom = max(int(effective_number(counts) - 1 + RELATIVE_ROUNDING), 1)
    narrowest = student_t(level, effective_freedom)
    widening = narrowest / student_t(level, n - 1)
    t = (deviations / errors).nan_to_num(0.0, widest, -widest)
    if together:
        t = t.where(error[..., None] > 0, 0.0).reshape(-1, t.shape[-1])
        largest_t = t.amax(0)
        smallest_t = t.amin(0)
    else:
        largest_t = t
        smallest_t = t
    tail = (1 - level) / 2
    upper_quantile = largest_t.quantile(1 - tail, dim=-1) * widening
    lower_quantile = smallest_t.quantile(tail, dim=-1) * widening

    high = (value - lower_quantile.clamp(-widest, -narrowest) * error) * unit
    high = high.clamp(max=greatest_value)
    if least_value != 0:
        low = (value - upper_quantile.clamp(narrowest, widest) * error) * unit
        return Estimate(value * unit, low, high)

    # A studentised interval of a skewed mean reaches below 0, where the mean cannot be. Its
    # logarithm can be anywhere.
    resampled_means = (mean + deviations).clamp(min=0)
    t_of_log = (resampled_means.log() - mean.log()) / (errors / resampled_means)
    t_of_log = t_of_log.nan_to_num(0.0, widest, -widest)
    if together:
        t_of_log = t_of_log.where(error[..., None] > 0, 0.0)
        t_of_log = t_of_log.reshape(-1, t_of_log.shape[-1]).amax(0)
    upper_quantile = t_of_log.quantile(1 - tail, dim=-1) * widening
    relative_error = (error / value).nan_to_num(0.0)
    low = value * unit * (-upper_quantile.clamp(narrowest, widest) * relative_error).exp()
    return Estimate(value * unit, low, high)


def _checked_bounds(bounds: object) -> tuple[float, float]:
    """Return `bounds`, the least and the greatest value that a token can have, as two floats.

    Either may be infinite, if values have no such bound.

    Raises:
        ValueError: The bounds are not two rising numbers.
    """
    try:
        # A wrong number of bounds is a ValueError here.
        least, greatest = (float(end) for end in bounds)  # type: ignore[attr-defined]
        is_rising = least < greatest
    except (TypeError, ValueError, OverflowError):
        is_rising = False
    # Text of two digits can be unpacked into two numbers as well.
    if isinstance(bounds, str) or not is_rising:
        raise ValueError(
            f"bounds={shown(bounds)} must be two numbers, the least value of a token and then the "
            "greatest one"
        )
    return least, greatest


def _refuse_means_beyond(means: Float[Tensor, "*b"], least: float, greatest: float) -> None:
    """Raise a ValueError if a mean over tokens lies outside of the bounds of single tokens.

    A small share of the largest mean is allowed for rounding.

    Args:
        means: The means.
        least: The least value that a token can have; may be -∞.
        greatest: The greatest value that a token can have; may be ∞.
    """
    if not means.numel():
        return
    slack = RELATIVE_ROUNDING * means.abs().max()
    if least > -math.inf and (means < least - slack).any():
        raise ValueError(
            f"a mean of {float(means.min()):g} is below the least value in bounds, {least:g}: "
            "correct them"
        )
    if greatest < math.inf and (means > greatest + slack).any():
        raise ValueError(
            f"a mean of {float(means.max()):g} is above the greatest value in bounds, "
            f"{greatest:g}: correct them"
        )


def _deviations_and_errors(
    residuals: Float[Tensor, "*b n"], counts: Float[Tensor, " n"], drawn: Float[Tensor, "r n"]
) -> tuple[Float[Tensor, "*b r"], Float[Tensor, "*b r"]]:
    """Return each resample's mean per token minus that of all documents, and its standard error.

    With s the sum of the values of a document, n its tokens, d how often a resample has it and R
    the mean per token of all documents, ε = s - R n is the residual of a document and the mean of
    a resample differs from R by m = Σ d ε / Σ d n. Its standard error is
    √(Σ d (ε - m n)²) / Σ d n. The square is expanded, so that matrix products give it without a
    tensor of resamples x documents x entries.

    Args:
        residuals: ε of each document.
        counts: n of each document.
        drawn: d of each document in each resample.
    """
    total = drawn @ counts  # Σ d n, (r,)
    deviation = residuals @ drawn.T / total  # m, (*b, r)
    squares = residuals.square() @ drawn.T  # Σ d ε²
    squared_counts = counts.square() @ drawn.T  # Σ d n²
    crossed = (residuals * counts) @ drawn.T  # Σ d ε n
    # Σ d (ε - m n)² = Σ d ε² + m² Σ d n² - 2 m Σ d ε n
    squared_residuals = squares + deviation * deviation * squared_counts
    squared_residuals = squared_residuals - deviation * crossed - deviation * crossed
    return deviation, (squared_residuals / (total * total)).clamp(min=0).sqrt()


def drawn_counts(n: int, resamples: int, generator: torch.Generator) -> Float[Tensor, "r n"]:
    """Return how often each of n units is drawn in each of r resamples of n with replacement.

    The counts of a resample are whole numbers that sum to n. They are in float64, on the CPU.
    """
    drawn_units = torch.randint(n, (resamples, n), generator=generator)
    ones = torch.ones(drawn_units.shape).double()
    counts = torch.zeros(resamples, n, dtype=torch.float64)
    return counts.scatter_add_(1, drawn_units, ones)


def documents_and_seeds_interval(
    sums: Annotated[Float[Tensor, "*b seeds documents"], Within(fewest=1)],
    counts: Annotated[Float[Tensor, " documents"], Within(least=0)],
    *,
    level: Level = 0.95,
    resamples: Resamples = 2000,
    seed: Seed = 0,
) -> Estimate:
    """Return the mean over seeds and tokens with an interval over documents and seeds, shape (*b).

    Every seed is evaluated on the same documents, so the variance of the mean is that over
    documents plus that of the seeds' own effects (Cornfield & Tukey 1956). Both intervals are
    joined by the method of variance estimates recovery (MOVER; Zou & Donner 2008, eq. 4):

        low = R - √((R - low_d)² + h²),  high = R + √((high_d - R)² + h²),  h² = t² max(v / S - u,
        0)

    with R the mean of the S seeds' means per token, low_d and high_d the ends of its
    `bootstrap_interval` over documents, v the variance of the seeds' means, and t of Student's
    distribution with S - 1 degrees of freedom. The interaction of seeds and documents,
    e = (s - R_s n) minus its mean over seeds, is in the interval over documents already:
    u = Σ e² / (S (S - 1) (Σ n)²) takes it from the variance over seeds. With one seed the interval
    is that over documents.

    Args:
        sums: For each seed, the sum s of the values of each document's tokens.
        counts: The number n of tokens of each document.
        level, resamples, seed: See `bootstrap_interval`.

    Raises:
        ValueError: See `bootstrap_interval`.
    """
    seeds = sums.shape[-2]
    sums = sums.double()
    over_documents = bootstrap_interval(
        sums.mean(-2), counts, level=level, resamples=resamples, seed=seed
    )
    if seeds < 2:
        return over_documents

    has_tokens = counts > 0
    sums = sums[..., has_tokens]
    counts = counts[has_tokens].double()
    sums_unit = power_of_two_below(sums.abs().amax((-2, -1)))  # squares stay within float64
    counts_unit = power_of_two_below(counts.max())
    sums = sums / sums_unit[..., None, None]
    counts = counts / counts_unit

    means = sums.sum(-1) / counts.sum()  # R_s, (*b, seeds)
    residuals = sums - means[..., None] * counts  # s - R_s n
    interaction = residuals - residuals.mean(-2, keepdim=True)
    interaction_squares = interaction.square().sum((-2, -1)) / counts.sum().square()
    # v / S - u, the variance of the mean over seeds
    variance = means.var(-1) / seeds - interaction_squares / (seeds * (seeds - 1))
    unit = sums_unit / counts_unit
    half_width = student_t(level, seeds - 1) * variance.clamp(min=0).sqrt() * unit  # h

    value, low, high = over_documents
    return Estimate(
        value, value - (value - low).hypot(half_width), value + (high - value).hypot(half_width)
    )
