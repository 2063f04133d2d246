"""Balanced accuracy of held-out answers, what a carried probe keeps of it, and intervals over sentences.

Balanced accuracy is the mean over levels of the share of their stimuli that are answered right: a probe that knows
nothing has 1/k with k levels, however rare some of them are. Words of one sentence are not independent, so intervals
resample sentences, the same ones for everything that is compared.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from thinkalike.measures.statistics.bootstrapping import percentile_interval, resampled_counts
from thinkalike.measures.statistics.estimate import Estimate


@dataclass(frozen=True, eq=False)
class Accuracy:
    """A balanced accuracy, in [0, 1], and those of r resamples of the sentences.

    Accuracies on the same stimuli have the same resamples, so that what is computed of two of them is paired.
    """

    value: Float[Tensor, ""]
    draws: Float[Tensor, " r"]
    levels: int

    @property
    def chance(self) -> float:
        """The balanced accuracy of answers that do not depend on the stimulus."""
        return 1 / self.levels

    def interval(self, level: float = 0.95) -> Estimate:
        """Return the accuracy with its percentile interval over sentences."""
        return percentile_interval(self.value, self.draws, level)

    def share_of(self, other: Accuracy, above: float = 0.0, level: float = 0.95) -> Estimate:
        """Return (a - above) / (b - above) of this accuracy a and another b, with its percentile interval.

        It is nan where the interval of b reaches down to `above`: there is nothing of which it could be a share.
        """
        if other.interval(level).low <= above:
            unknown = torch.full_like(self.value, torch.nan)
            return Estimate(unknown, unknown, unknown)
        value = (self.value - above) / (other.value - above)
        return percentile_interval(value, (self.draws - above) / (other.draws - above), level)


def balanced_accuracies(
    right: Shaped[Tensor, "c n"],
    labels: Int[Tensor, " n"],
    sentences: Int[Tensor, " n"],
    levels: int,
    resamples: int,
    seed: int,
) -> list[Accuracy]:
    """Return the balanced accuracy of each of c conditions on the same stimuli, with the same resamples.

    Args:
        right: Whether each stimulus was answered right, or the share of several answers that were.
        labels: The number of each stimulus's level; each below `levels` occurs.

    Raises:
        ValueError: There are fewer than two sentences.
    """
    sentences = sentences.unique(return_inverse=True)[1]
    count = int(sentences.max()) + 1
    cell = labels * count + sentences
    totals = torch.bincount(cell, minlength=levels * count).double().view(levels, count)
    sums = torch.zeros(len(right), levels * count, dtype=torch.float64).index_add_(1, cell, right.double())
    sums = sums.view(len(right), levels, count)
    weights = resampled_counts(count, resamples, seed)
    drawn = torch.cat([_mean_recall(sums @ each.T, totals @ each.T) for each in weights], -1)
    values = _mean_recall(sums.sum(-1), totals.sum(-1))
    return [Accuracy(value, draws, levels) for value, draws in zip(values, drawn, strict=True)]


def _mean_recall(right: Float[Tensor, "c k *r"], total: Float[Tensor, "k *r"]) -> Float[Tensor, "c *r"]:
    """Return the mean over the levels that a resample has."""
    there = total > 0
    return (right / total.masked_fill(~there, 1)).sum(1) / there.sum(0)
