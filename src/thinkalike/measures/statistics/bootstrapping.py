"""Intervals that resample documents, because the tokens of one document are not independent."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from thinkalike.measures.statistics.estimate import Estimate


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


def bootstrap_interval(
    sums: Float[Tensor, "*b documents"],
    counts: Float[Tensor, " documents"],
    *,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Estimate:
    """Return the mean per token with a percentile bootstrap interval over documents, of shape (*b).

    The mean is a ratio, the sum of sums over the sum of counts. Every entry of the leading axes sees the same
    resamples, so the interval of a difference is that of the paired differences when `sums` holds them.

    Args:
        sums: The sum of the values of each document's tokens.
        counts: The number of tokens of each document; documents without any are left out.

    Raises:
        ValueError: Fewer than two documents have tokens.
    """
    kept = counts > 0
    sums, counts = sums[..., kept].double(), counts[kept].double()
    weights = _draws(counts.numel(), resamples, seed)
    return percentile_interval(sums.sum(-1) / counts.sum(), (sums @ weights.T) / (weights @ counts), level)


def bootstrap_difference(
    first: Float[Tensor, "*b documents"],
    first_counts: Float[Tensor, " documents"],
    second: Float[Tensor, "*b documents"],
    second_counts: Float[Tensor, " documents"],
    *,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Estimate:
    """Return the difference of two means over the same documents with a percentile bootstrap interval, of shape (*b).

    Each mean is a ratio as in `bootstrap_interval`, with counts of its own; both see the same resamples. Documents
    without a count on either side are left out.

    Raises:
        ValueError: Fewer than two documents have counts on both sides.
    """
    kept = (first_counts > 0) & (second_counts > 0)
    weights = _draws(int(kept.sum()), resamples, seed)
    value, draws = torch.zeros(()), torch.zeros(())
    for sign, sums, counts in ((1, first, first_counts), (-1, second, second_counts)):
        sums, counts = sums[..., kept].double(), counts[kept].double()
        value = value + sign * sums.sum(-1) / counts.sum()
        draws = draws + sign * (sums @ weights.T) / (weights @ counts)
    return percentile_interval(value, draws, level)


def _draws(n: int, resamples: int, seed: int) -> Float[Tensor, "resamples n"]:
    """Return how often each of n documents is drawn in each resample."""
    if n < 2:
        raise ValueError(f"an interval over documents needs two of them, not {n}")
    generator = torch.Generator().manual_seed(seed)
    draws = torch.randint(n, (resamples, n), generator=generator)
    weights = torch.zeros(resamples, n, dtype=torch.float64)
    return weights.scatter_add_(1, draws, torch.ones_like(draws, dtype=torch.float64))


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
