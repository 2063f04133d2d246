"""Mutual nearest neighbours among the rows of one token, gathered batch by batch, beside what chance gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from thinkalike.arguments import takes_arrays
from thinkalike.measures.conditional.groups import groups_of
from thinkalike.measures.neighbours.mutual import chance_share, mutual_knn_matrix
from thinkalike.measures.statistics.batch_means import BatchMeans, LayerPairEstimate, States, batch_number
from thinkalike.measures.statistics.estimate import Estimate
from thinkalike.measures.statistics.jackknifing import jackknife, leave_one_out


@dataclass(frozen=True, eq=False, repr=False)
class NeighbourEstimate(LayerPairEstimate):
    """Shares of neighbours given the token, and what is left of them beyond chance.

    `chance` is the mean share of features with nothing in common, in (0, 1); `calibrated` is
    (value - chance) / (1 - chance), (l, m): 0 by chance and at most 1.
    """

    chance: float
    calibrated: Estimate


class NeighboursGivenToken(BatchMeans):
    """The mean over batches of `mutual_knn_matrix` within groups of one token; each group has at least k + 2 rows.

    Args:
        source_layers, target_layers: how many layers a batch brings.
        k: how many neighbours.
    """

    def __init__(self, source_layers: int, target_layers: int, k: int = 10):
        super().__init__(source_layers, target_layers, partial(mutual_knn_matrix, k=k))
        self.k = k
        self._groups: dict[int, Tensor] = {}  # by the number of the batch: chance, rows in groups, rows

    @takes_arrays
    def update(
        self,
        source: States,
        target: States,
        mask: Bool[Tensor, " ..."] | None = None,
        number: int | None = None,
        groups: Int[Tensor, " ..."] | None = None,
    ) -> None:
        """Add one batch; see `BatchMeans.update`.

        Args:
            groups: the token of each state, (b, t) or (n,).

        Raises:
            ValueError: there are no groups, or none of k + 2 rows; see `BatchMeans.update`, `mutual_knn_matrix`.
        """
        self.update_pairs([self], [(0, 1)], [source, target], mask, batch_number(number, self._matrices), groups)

    @staticmethod
    def update_pairs(  # type: ignore[override]
        metrics: Sequence[NeighboursGivenToken],
        sides: Sequence[tuple[int, int]],
        states: Sequence[States],
        mask: Bool[Tensor, " ..."] | None = None,
        number: int = 0,
        groups: Int[Tensor, " ..."] | None = None,
    ) -> None:
        """Add one batch of several models to a metric for each pair of them; see `BatchMeans.update_pairs`.

        Args:
            groups: the token of each state, (b, t) or (n,).

        Raises:
            ValueError: see `update`.
        """
        if groups is None:
            raise ValueError("neighbours given the token need the token of each state: pass groups")
        k = metrics[0].k
        within = groups_of(groups, mask, states[0][0], k + 2)
        metrics[0].compare = partial(mutual_knn_matrix, k=k, groups=within)
        BatchMeans.update_pairs(metrics, sides, states, mask, number)
        facts = [chance_share(within, k), len(within.order), within.rows]
        for metric in metrics:
            metric._groups[number] = torch.tensor(facts, dtype=torch.float64)

    def compute(self) -> NeighbourEstimate:
        """Return the mean over all batches so far, with intervals.

        Raises:
            ValueError: there was no batch.
        """
        plain, shares, depth = super().compute(), self._stacked(), self.source_layers
        chances, kept, rows = torch.stack([self._groups[number] for number in sorted(self._groups)]).T
        across = [part[..., :depth, depth:].cpu() for part in (shares.mean(0), leave_one_out(shares))]
        levels = chances.mean(), leave_one_out(chances)[:, None, None]
        calibrated = [(share - level) / (1 - level) for share, level in zip(across, levels, strict=True)]
        return NeighbourEstimate(
            plain.value,
            plain.low,
            plain.high,
            plain.within_source,
            plain.within_target,
            plain.batches,
            rows_used=float(kept.sum() / rows.sum()),
            chance=float(levels[0]),
            calibrated=jackknife(*calibrated),
        )

    def merge_state(self, other: BatchMeans) -> None:
        """Add the batches of another that compares the same layers, see `BatchMeans.merge_state`."""
        super().merge_state(other)
        assert isinstance(other, NeighboursGivenToken)
        self._groups |= other._groups

    def state_dict(self) -> dict[str, Any]:
        """Return the batches so far, to go on from."""
        return {"shares": super().state_dict(), "groups": {str(key): facts for key, facts in self._groups.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the batches of a `state_dict`."""
        super().load_state_dict(state["shares"])
        self._groups = {int(number): facts for number, facts in state["groups"].items()}
