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
class Accuracies:
    """Balanced accuracies of c conditions on the same stimuli, in [0, 1], and those of r resamples of the sentences."""

    value: Float[Tensor, " c"]
    draws: Float[Tensor, "c r"]
    levels: int

    @property
    def chance(self) -> float:
        """The balanced accuracy of answers that do not depend on the stimulus."""
        return 1 / self.levels

    def interval(self, level: float = 0.95) -> Estimate:
        """Return the accuracies with percentile intervals over sentences."""
        return percentile_interval(self.value, self.draws, level)

    def shares(self, of: Int[Tensor, " c"], above: float = 0.0, level: float = 0.95) -> Estimate:
        """Return (a - above) / (b - above) of each accuracy a and that of another condition, b, with intervals.

        It is nan where the interval of b reaches down to `above`: there is nothing of which it could be a share.

        Args:
            of: The place of the condition that each is a share of.
        """
        value, draws = self.shared(of, above)
        found = percentile_interval(value, draws, level)
        unknown = self.interval(level).low[of] <= above
        return Estimate(*(part.masked_fill(unknown, torch.nan) for part in found))

    def shared(self, of: Int[Tensor, " c"], above: float = 0.0) -> tuple[Tensor, Tensor]:
        """Return these shares (c) and those of the resamples (c, r), whatever they are shares of."""
        return (self.value - above) / (self.value[of] - above), (self.draws - above) / (self.draws[of] - above)


def balanced_accuracies(
    right: Shaped[Tensor, "c n"],
    labels: Int[Tensor, " n"],
    sentences: Int[Tensor, " n"],
    levels: int,
    resamples: int,
    seed: int,
) -> Accuracies:
    """Return the balanced accuracy of each condition, of all sentences and of resamples of them.

    Args:
        right: Whether each stimulus was answered right, or the share of several answers that were.
        labels: The number of each stimulus's level; each below `levels` occurs.

    Raises:
        ValueError: There are fewer than two sentences.
    """
    count = int(sentences.max()) + 1
    cell = labels * count + sentences
    totals = torch.bincount(cell, minlength=levels * count).double().view(levels, count)
    sums = torch.zeros(len(right), levels * count, dtype=torch.float64).index_add_(1, cell, right.double())
    sums = sums.view(len(right), levels, count)
    drawn = [
        _mean_recall(sums @ weights.T, totals @ weights.T) for weights in resampled_counts(count, resamples, seed)
    ]
    return Accuracies(_mean_recall(sums.sum(-1), totals.sum(-1)), torch.cat(drawn, -1), levels)


def _mean_recall(right: Float[Tensor, "c k *r"], total: Float[Tensor, "k *r"]) -> Float[Tensor, "c *r"]:
    """Return the mean over the levels that a resample has."""
    there = total > 0
    return (right / total.masked_fill(~there, 1)).sum(1) / there.sum(0)
