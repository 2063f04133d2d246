"""Intervals in which documents and training seeds both vary: every seed reports on the same documents."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from thinkalike.measures.statistics.bootstrapping import bootstrap_interval
from thinkalike.measures.statistics.estimate import Estimate
from thinkalike.measures.statistics.student import student_t


def documents_and_seeds_interval(
    sums: Float[Tensor, "*b seeds documents"],
    counts: Float[Tensor, " documents"],
    *,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Estimate:
    """Return the mean over seeds and tokens with an interval over documents and seeds, of shape (*b).

    Documents are crossed with seeds, so the variance of the mean is that over documents plus that of the seeds' own
    effects (Cornfield & Tukey 1956). The ends of both intervals are joined as if each stood alone (MOVER; Zou & Donner
    2008, eq. 4):

        low = R - √((R - low_d)² + h²),    high = R + √((high_d - R)² + h²),    h² = t² max(v / S - u, 0)

    with R the mean of the S seeds' means per token, low_d and high_d the ends of its `bootstrap_interval` over
    documents, v the variance of the seeds' means, and t of Student's distribution with S - 1 degrees of freedom. What
    is peculiar to a seed and a document, e = (s - R_s n) minus its mean over seeds, is in the interval over documents
    already: u = Σ e² / (S (S - 1) (Σ n)²) takes it from the variance over seeds. With two seeds t is 12.7, since two
    values say little of their spread. With one seed the interval is that over documents, and says nothing of other
    seeds. `benchmarks/coverage.py` has what it covers.

    Args:
        sums: The sum of the values of each document's tokens, of each seed.
        counts: The number of tokens of each document; documents without any are left out.
        seed: Of the resamples of documents.

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
