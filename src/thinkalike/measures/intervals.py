"""Intervals that resample documents, because the tokens of one document are not independent."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


def sum_by_document(
    values: Float[Tensor, "*b n"], documents: Int[Tensor, " n"], count: int
) -> Float[Tensor, "*b documents"]:
    """Sum of `values` over the tokens of each document, in float64.

    Args:
        documents: number of each token's document, below `count`.
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
) -> tuple[Float[Tensor, "*b"], Float[Tensor, "*b"], Float[Tensor, "*b"]]:
    """Mean per token, and a percentile bootstrap interval of it over documents.

    The mean is a ratio, sum of sums over sum of counts. Every entry of the leading axes sees the same resamples, so the
    interval of a difference is that of the paired differences when `sums` holds them.

    Returns:
        Mean, lower and upper end.

    Raises:
        ValueError: there are fewer than two documents with tokens.
    """
    kept = counts > 0
    sums, counts = sums[..., kept].double(), counts[kept].double()
    n = counts.numel()
    if n < 2:
        raise ValueError(f"an interval over documents needs two of them, not {n}")
    generator = torch.Generator().manual_seed(seed)
    draws = torch.randint(n, (resamples, n), generator=generator)
    weights = torch.zeros(resamples, n, dtype=torch.float64)
    weights.scatter_add_(1, draws, torch.ones_like(draws, dtype=torch.float64))
    means = (sums @ weights.T) / (weights @ counts)
    tail = (1 - level) / 2
    low, high = torch.quantile(means, torch.tensor([tail, 1 - tail], dtype=torch.float64), dim=-1)
    return sums.sum(-1) / counts.sum(), low, high
