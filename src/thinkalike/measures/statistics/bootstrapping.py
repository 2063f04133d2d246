"""Intervals that resample documents, because the tokens of one document are not independent.

A mean per token is a ratio R = Σ s / Σ n over documents with sums s and counts n, in which a document weighs
w = n / Σ n. Its interval is R - q₊ σ to R - q₋ σ:

- σ² = Σ (s - R n)² / (1 - 2 w + Σ w²) / (Σ n)² is the linearised variance of a ratio, corrected so that it is unbiased
  where means of documents scatter alike, however they weigh (Bell & McCaffrey 2002).
- q are quantiles of the *studentised* bootstrap (Efron & Tibshirani 1993, section 12.5): each resample of documents
  gives t, the distance of its ratio from R in its own standard errors. Where means of documents are skewed, so is t.
- Resamples know too little of the few documents that weigh most. So q is multiplied by t(m - 1) / t(n - 1) with n
  documents that weigh as m of equal length (`effective_number`) and t the quantile of Student's distribution with so
  many degrees of freedom, and is t(m - 1) at least. That is no theorem, but what `benchmarks/coverage.py` found to
  cover, where percentiles of the resampled ratios and Student's t alone do not.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from thinkalike.arguments import seeded
from thinkalike.measures.statistics.estimate import Estimate
from thinkalike.measures.statistics.student import student_t

AT_ONCE = 2**24  # numbers of drawn documents in memory at once
ROUNDING = 1e-9  # relative


def sum_by_document(
    values: Float[Tensor, "*b n"], documents: Int[Tensor, " n"], count: int
) -> Float[Tensor, "*b documents"]:
    """Return the sum of `values` over the tokens of each document, in float64.

    Args:
        documents: The number of each token's document, below `count`.
        count: How many documents there are.
    """
    sums = values.new_zeros(*values.shape[:-1], count, dtype=torch.float64)
    return sums.index_add_(-1, documents.long(), values.double())


def effective_number(counts: Shaped[Tensor, " documents"]) -> float:
    """Return how many documents of equal length weigh as much as these: (Σ n)² / Σ n², in [1, documents].

    See Kish 1965, section 11.7.

    Args:
        counts: The number of tokens of each document.

    Raises:
        ValueError: No document has tokens.
    """
    if not (counts > 0).any():
        raise ValueError("no document has tokens, so there is no effective number of documents")
    return float(counts.double().sum().square() / counts.double().square().sum())


def bootstrap_interval(
    sums: Float[Tensor, "*b documents"],
    counts: Float[Tensor, " documents"],
    *,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
    together: bool = False,
) -> Estimate:
    """Return the mean per token with a studentised bootstrap interval over documents, of shape (*b).

    The mean is a ratio, the sum of sums over the sum of counts. Every entry of the leading axes sees the same
    resamples, so the interval of a difference is that of the paired differences when `sums` holds them.

    Args:
        sums: The sum of the values of each document's tokens.
        counts: The number of tokens of each document; documents without any are left out.
        together: Whether the intervals hold for all means together, and not only one by one: their quantiles are those
            of the largest and of the smallest t of each resample (max-t; Westfall & Young 1993, section 2.5).

    Raises:
        ValueError: Fewer than two documents have tokens, a count is no number or below 0, the level does not lie
            between 0 and 1, or there are no resamples.
    """
    return _studentised([_Ratio.of(sums, counts, _counted(counts))], level, resamples, seed, together)


def bootstrap_difference(
    first: Float[Tensor, "*b documents"],
    first_counts: Float[Tensor, " documents"],
    second: Float[Tensor, "*b documents"],
    second_counts: Float[Tensor, " documents"],
    *,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
    together: bool = False,
) -> Estimate:
    """Return the difference of two means over the same documents with a studentised bootstrap interval, of shape (*b).

    Each mean is a ratio as in `bootstrap_interval`, with counts of its own; both see the same resamples. Documents
    without a count on either side are left out. `together` is that of `bootstrap_interval`.

    Raises:
        ValueError: Fewer than two documents have counts on both sides; see `bootstrap_interval`.
    """
    kept = _counted(first_counts) & _counted(second_counts)
    ratios = [_Ratio.of(first, first_counts, kept), _Ratio.of(second, second_counts, kept, sign=-1)]
    return _studentised(ratios, level, resamples, seed, together)


def _counted(counts: Tensor) -> Tensor:
    """Return which documents have tokens."""
    if not (counts >= 0).all():
        raise ValueError("the counts of documents hold a number below 0, or NaN: give how many tokens each has")
    return counts > 0


class _Ratio(NamedTuple):
    """A mean per token that is added or subtracted: what its documents' sums have beyond it, and their counts."""

    sign: int
    mean: Float[Tensor, "*b 1"]
    sums: Float[Tensor, "*b n"]  # s - R n
    counts: Float[Tensor, " n"]

    @classmethod
    def of(cls, sums: Tensor, counts: Tensor, kept: Tensor, sign: int = 1) -> _Ratio:
        sums, counts = sums[..., kept].double(), counts[kept].double()
        mean = sums.sum(-1, keepdim=True) / counts.sum()
        return cls(sign, mean, sums - mean * counts, counts)


def _studentised(ratios: Sequence[_Ratio], level: float, resamples: int, seed: int, together: bool) -> Estimate:
    """Return the signed sum of the ratios' means with its interval, as the docstring of this module says.

    Where resamples hardly differ within, as of two or three documents, t is without bounds. It is cut at the quantile
    of Student's distribution with one degree of freedom, which is exact for two documents of equal length.
    """
    if not 0 < level < 1:
        raise ValueError(f"level={level} must lie between 0 and 1, such as 0.95")
    if resamples < 1:
        raise ValueError(f"resamples={resamples}: an interval needs at least one")
    value, error = _with_error(ratios)
    n = ratios[0].counts.numel()
    parts = [_beyond(ratios, weights) for weights in resampled_counts(n, resamples, seed)]
    beyond, errors = (torch.cat(part, -1) for part in zip(*parts, strict=True))
    fewest = min(effective_number(ratio.counts) for ratio in ratios)
    widest, least = student_t(level, 1), student_t(level, max(int(fewest - 1 + ROUNDING), 1))
    t = (beyond / errors).nan_to_num(0.0, widest, -widest)
    if together:
        t = t.where(error[..., None] > 0, 0.0).reshape(-1, t.shape[-1])
    ends = (t.amax(0), t.amin(0)) if together else (t, t)
    tail, wider = (1 - level) / 2, least / student_t(level, n - 1)
    upper, lower = (end.quantile(share, dim=-1) * wider for end, share in zip(ends, (1 - tail, tail), strict=True))
    low, high = upper.clamp(least, widest) * error, lower.clamp(-widest, -least) * error
    return Estimate(value, value - low, value - high)


def _with_error(ratios: Sequence[_Ratio]) -> tuple[Float[Tensor, "*b"], Float[Tensor, "*b"]]:
    """Return the signed sum of the ratios' means, and its standard error.

    The error is 0 where documents are alike up to rounding.
    """
    value, scale, influence = (torch.zeros(()) for _ in range(3))
    for ratio in ratios:
        weights = ratio.counts / ratio.counts.sum()
        unbiased = (1 - 2 * weights + weights.square().sum()).rsqrt()
        influence = influence + ratio.sign * ratio.sums * unbiased / ratio.counts.sum()
        value, scale = value + ratio.sign * ratio.mean[..., 0], scale + ratio.mean[..., 0].abs()
    error = influence.square().sum(-1).sqrt()
    return value, error.where(error > ROUNDING * scale, 0.0)


def _beyond(
    ratios: Sequence[_Ratio], weights: Float[Tensor, "r n"]
) -> tuple[Float[Tensor, "*b r"], Float[Tensor, "*b r"]]:
    """Return by how much the signed sum of the ratios is beyond that of all documents, and its standard error.

    The error is the root of Σ w e², with e the sum over ratios of sign (s - r n) / Σ w n, and r that of the resample.
    It is taken from products of sums and counts, so that nothing of size resamples x documents x entries is formed.

    Args:
        weights: How often each document is drawn in each of r resamples.
    """
    totals = [weights @ ratio.counts for ratio in ratios]
    means = [ratio.sums @ weights.T / total for ratio, total in zip(ratios, totals, strict=True)]
    squares = torch.zeros(())
    for (a, r, total), (b, q, other) in itertools.product(zip(ratios, means, totals, strict=True), repeat=2):
        spread = (a.sums * b.sums) @ weights.T + r * q * ((a.counts * b.counts) @ weights.T)
        spread = spread - r * ((a.counts * b.sums) @ weights.T) - q * ((a.sums * b.counts) @ weights.T)
        squares = squares + a.sign * b.sign * spread / (total * other)
    beyond = torch.stack([ratio.sign * mean for ratio, mean in zip(ratios, means, strict=True)]).sum(0)
    return beyond, squares.clamp(min=0).sqrt()


def resampled_counts(n: int, resamples: int, seed: int) -> Iterator[Float[Tensor, "r n"]]:
    """Yield how often each of n documents is drawn in each resample, for some resamples at a time."""
    if n < 2:
        raise ValueError(f"an interval over documents needs two of them, not {n}")
    generator = seeded(seed)
    for part in torch.arange(resamples).split(max(AT_ONCE // n, 1)):
        draws = torch.randint(n, (len(part), n), generator=generator)
        weights = torch.zeros(len(part), n, dtype=torch.float64)
        yield weights.scatter_add_(1, draws, torch.ones_like(weights))


def percentile_interval(value: Shaped[Tensor, "*b"], draws: Shaped[Tensor, "*b r"], level: float) -> Estimate:
    """Return the value with the interval that holds this share of its r draws.

    An end between two draws is interpolated, or, where draws are whole numbers, it is the outer one of the two.
    """
    tail = (1 - level) / 2
    sides = ("linear", "linear") if draws.is_floating_point() else ("lower", "higher")
    low, high = (
        draws.double().quantile(share, dim=-1, interpolation=side).to(draws.dtype)
        for share, side in zip((tail, 1 - tail), sides, strict=True)
    )
    return Estimate(value, low, high)
