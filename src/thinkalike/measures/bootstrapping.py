"""Intervals that resample documents, because the tokens of one document are not independent.

A mean per token is a ratio R = Σ s / Σ n over documents with sums s and counts n, in which a document has the weight
w = n / Σ n. Its interval is R - q₊ σ to R - q₋ σ:

- σ² = Σ (s - R n)² / (1 - 2 w + Σ w²) / (Σ n)² is the linearised variance of a ratio, corrected so that it is unbiased
  if all documents' means have the same variance, whatever their weights (Bell & McCaffrey 2002).
- q are quantiles of the *studentised* bootstrap (Efron & Tibshirani 1993, section 12.5): each resample of documents
  gives t, the distance of its ratio from R in its own standard errors. If documents' means are skewed, so is t.
- Resamples vary too little in the few documents of greatest weight. So q is multiplied by t(m - 1) / t(n - 1), and at
  least t(m - 1), where the n documents are worth m of equal length (`effective_number`) and t(k) is Student's quantile.
  `benchmarks/coverage.py` found that this covers, and that percentiles of the ratios and Student's t alone do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from thinkalike.arguments import refuse_nan
from thinkalike.measures.estimates import (
    FEWEST_GROUPS,
    PARTS,
    Estimate,
    interval_around,
    jackknife,
    numbered_by_part,
    student_t,
)

AT_ONCE = 2**24  # numbers of drawn documents in memory at once
ROUNDING = 1e-9  # relative


def sum_by_document(
    values: Float[Tensor, "*b n"], documents: Int[Tensor, " n"], count: int
) -> Float[Tensor, "*b documents"]:
    """Return the sum of `values` over the tokens of each document, in float64, from each token's document number."""
    sums = values.new_zeros(*values.shape[:-1], count, dtype=torch.float64)
    return sums.index_add_(-1, documents.long(), values.double())


def effective_number(counts: Shaped[Tensor, " documents"]) -> float:
    """Return how many documents of equal length are worth these: (Σ n)² / Σ n², in [1, documents] (Kish 1965, 11.7)."""
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

    The mean is the sum of sums over the sum of counts. Every entry of the leading axes sees the same resamples, so
    `sums` of paired differences give the interval of their mean.

    Args:
        sums: The sum of the values of each document's tokens.
        counts: The number of tokens of each document; documents without any are left out.
        together: Whether the intervals hold for all means simultaneously, with the quantiles of the largest and the
            smallest t of each resample (max-t; Westfall & Young 1993, section 2.5).

    Raises:
        ValueError: Fewer than two documents have tokens.
    """
    kept = counts > 0
    sums, counts = sums[..., kept].double(), counts[kept].double()
    mean = sums.sum(-1, keepdim=True) / counts.sum()
    residuals = sums - mean * counts  # s - R n
    error = _standard_error(mean[..., 0], residuals, counts)
    parts = [_beyond(residuals, counts, weights) for weights in resampled_counts(counts.numel(), resamples, seed)]
    beyond, errors = (torch.cat(part, -1) for part in zip(*parts, strict=True))
    # t is unbounded if the documents of a resample hardly differ; the quantile of Student's distribution with one
    # degree of freedom, at which it is cut, is exact for two documents of equal length
    widest, least = student_t(level, 1), student_t(level, max(int(effective_number(counts) - 1 + ROUNDING), 1))
    t = (beyond / errors).nan_to_num(0.0, widest, -widest)
    if together:
        t = t.where(error[..., None] > 0, 0.0).reshape(-1, t.shape[-1])
    ends = (t.amax(0), t.amin(0)) if together else (t, t)
    tail, wider = (1 - level) / 2, least / student_t(level, counts.numel() - 1)
    upper, lower = (end.quantile(share, dim=-1) * wider for end, share in zip(ends, (1 - tail, tail), strict=True))
    low, high = upper.clamp(least, widest) * error, lower.clamp(-widest, -least) * error
    return Estimate(mean[..., 0], mean[..., 0] - low, mean[..., 0] - high)


def _standard_error(
    mean: Float[Tensor, "*b"], residuals: Float[Tensor, "*b n"], counts: Float[Tensor, " n"]
) -> Float[Tensor, "*b"]:
    """Return the standard error of the mean, 0 if documents are equal up to rounding."""
    weights = counts / counts.sum()
    unbiased = (1 - 2 * weights + weights.square().sum()).rsqrt()
    error = (residuals * unbiased / counts.sum()).square().sum(-1).sqrt()
    return error.where(error > ROUNDING * mean.abs(), 0.0)


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


def without_each_part(values: Float[Tensor, "*b n"], groups: Int[Tensor, " n"]) -> Float[Tensor, "*b r"]:
    """Return the sum of all values, and the sums without each of up to `PARTS` parts, which groups are drawn into."""
    part_of = numbered_by_part(groups) % PARTS
    sums = sum_by_document(values, part_of, int(part_of.max()) + 1)
    total = sums.sum(-1, keepdim=True)
    return torch.cat([total, total - sums], -1)


@dataclass(frozen=True, eq=False)
class Jackknifed:
    """Values, and those without each of r parts that groups are drawn into; see `without_each_part`."""

    value: Float[Tensor, "*b"]
    replicates: Float[Tensor, "*b r"]

    def interval(self, level: float = 0.95) -> Estimate:
        """Return the values with their `jackknife` intervals; the ends are NaN of fewer than `FEWEST_GROUPS` groups."""
        if self.replicates.shape[-1] < FEWEST_GROUPS:
            return interval_around(self.value, torch.nan)
        return jackknife(self.value, self.replicates.movedim(-1, 0), level=level)

    def share_of(self, other: Jackknifed, above: float = 0.0, level: float = 0.95) -> Estimate:
        """Return (a - above) / (b - above) of these values a and another one, b, of the same groups.

        It is NaN where the interval of b is not above `above`.
        """
        if other.interval(level).low <= above:
            return interval_around(torch.full_like(self.value, torch.nan), torch.nan)
        value = (self.value - above) / (other.value - above)
        return Jackknifed(value, (self.replicates - above) / (other.replicates - above)).interval(level)


def resampled_counts(n: int, resamples: int, seed: int) -> Iterator[Float[Tensor, "r n"]]:
    """Yield how often each of n documents is drawn in each resample, for some resamples at a time."""
    if n < 2:
        raise ValueError(f"an interval over documents needs two of them, not {n}")
    generator = torch.Generator().manual_seed(int(seed))
    for part in torch.arange(resamples).split(max(AT_ONCE // n, 1)):
        yield drawn_counts(n, len(part), generator)


def drawn_counts(n: int, resamples: int, generator: torch.Generator) -> Float[Tensor, "r n"]:
    """Return how often each of n units is drawn in each resample of n with replacement."""
    draws = torch.randint(n, (resamples, n), generator=generator)
    return torch.zeros(resamples, n, dtype=torch.float64).scatter_add_(1, draws, torch.ones(draws.shape).double())


def percentile_interval(value: Shaped[Tensor, "*b"], draws: Shaped[Tensor, "*b r"], level: float) -> Estimate:
    """Return the value with the interval of this share of its r draws; of whole numbers the ends are draws."""
    tail = (1 - level) / 2
    sides = ("linear", "linear") if draws.is_floating_point() else ("lower", "higher")
    low, high = (
        draws.double().quantile(share, dim=-1, interpolation=side).to(draws.dtype)
        for share, side in zip((tail, 1 - tail), sides, strict=True)
    )
    return Estimate(value, low, high)


def documents_and_seeds_interval(
    sums: Float[Tensor, "*b seeds documents"],
    counts: Float[Tensor, " documents"],
    *,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Estimate:
    """Return the mean over seeds and tokens with an interval over documents and seeds, of shape (*b).

    Every seed is evaluated on the same documents, so the variance of the mean is that over documents plus that of the
    seeds' own effects (Cornfield & Tukey 1956). Both intervals are joined by MOVER (Zou & Donner 2008, eq. 4):

        low = R - √((R - low_d)² + h²),    high = R + √((high_d - R)² + h²),    h² = t² max(v / S - u, 0)

    with R the mean of the S seeds' means per token, low_d and high_d the ends of its `bootstrap_interval` over
    documents, v the variance of the seeds' means, and t of Student's distribution with S - 1 degrees of freedom. The
    interaction of seeds and documents, e = (s - R_s n) minus its mean over seeds, is in the interval over documents
    already: u = Σ e² / (S (S - 1) (Σ n)²) takes it from the variance over seeds. With one seed the interval is that
    over documents. `benchmarks/coverage.py` measures its coverage.

    Args:
        sums, counts: See `bootstrap_interval`, with sums of each seed.
        seed: Seed of the resamples of documents.

    Raises:
        ValueError: Fewer than two documents have tokens.
    """
    seeds = sums.shape[-2]
    over_documents = bootstrap_interval(sums.mean(-2), counts, level=level, resamples=resamples, seed=seed)
    if seeds < 2:
        return over_documents
    sums, counts = sums[..., counts > 0].double(), counts[counts > 0].double()
    means = sums.sum(-1) / counts.sum()
    beyond = sums - means[..., None] * counts
    peculiar = (beyond - beyond.mean(-2, keepdim=True)).square().sum((-2, -1)) / counts.sum().square()
    spread = means.var(-1) / seeds - peculiar / (seeds * (seeds - 1))
    half = student_t(level, seeds - 1) * spread.clamp(min=0).sqrt()
    value, low, high = over_documents
    return Estimate(value, value - (value - low).hypot(half), value + (high - value).hypot(half))


def auc(upper: Float[Tensor, "c p"], lower: Float[Tensor, "c n"]) -> Float[Tensor, ""]:
    """Return the share of pairs in which a member of the upper group has the greater value; ties count as half.

    It is the area under the ROC curve, 1/(p n) Σᵢⱼ [uᵢ > lⱼ] + ½ [uᵢ = lⱼ] (Hanley & McNeil 1982), in [0, 1], ½ by
    chance, averaged over c repetitions. A group that somebody listed is no sample, so there is no interval.

    Raises:
        ValueError: A value is NaN.
    """
    refuse_nan(upper, "upper")
    refuse_nan(lower, "lower")
    above = upper[:, :, None] - lower[:, None, :]
    return ((above > 0).double() + 0.5 * (above == 0).double()).mean()
