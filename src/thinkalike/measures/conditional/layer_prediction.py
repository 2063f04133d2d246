"""R² between all layers of two models, and within each, gathered batch by batch: the first to fit on, then to judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from thinkalike.arguments import takes_arrays
from thinkalike.measures.conditional.groups import RowGroups, groups_of
from thinkalike.measures.conditional.linear import LinearPrediction
from thinkalike.measures.kernels.hsic import FEWEST
from thinkalike.measures.kernels.rows import rows_of
from thinkalike.measures.statistics.batch_means import LayerPairEstimate, States, batch_number
from thinkalike.measures.statistics.estimate import Estimate
from thinkalike.measures.stitching.moments import RIDGE


@dataclass(frozen=True, eq=False, repr=False)
class PredictionEstimate(LayerPairEstimate):
    """Held-out R² of each target layer from each source layer, (l, m); within a model, of its columns from its rows.

    `back` is that of each source layer from each target layer, (l, m).
    """

    back: Estimate


class LayerPredictions:
    """`LinearPrediction` of every layer from every other of both models; batches come in the order of their numbers.

    Args:
        source_layers, target_layers: How many layers a batch brings.
        fit_batches: How many batches, from the first, the maps are fitted on; the others judge.
        given: "token" takes the mean of its token from every state, in each batch; "none" takes states as they are.
        ridge: See `LinearPrediction`.
    """

    def __init__(
        self, source_layers: int, target_layers: int, *, fit_batches: int, given: str = "none", ridge: float = RIDGE
    ):
        self.source_layers, self.target_layers = source_layers, target_layers
        self.fit_batches, self.given, self.ridge = fit_batches, given, ridge
        self._prediction: LinearPrediction | None = None
        self._used: dict[int, list[int]] = {}  # by batch: rows in groups, rows

    @property
    def update_called(self) -> bool:
        """Whether there is a batch that judges."""
        return any(number >= self.fit_batches for number in self._used)

    @takes_arrays
    @torch.no_grad()
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
            groups: The token of each state, (b, t) or (n,), for given="token" only.

        Raises:
            ValueError: Groups are missing or not wanted, or none has 4 rows; see `LinearPrediction`.
        """
        if (groups is None) != (self.given == "none"):
            raise ValueError(f"groups, the token of each state, come with given=token alone, and this is {self.given}")
        layers = list(source) if target is source else [*source, *target]
        within = None if groups is None else groups_of(groups, mask, layers[0], FEWEST)
        rows = [_rows(layer, mask, within) for layer in layers]
        if self._prediction is None:
            self._prediction = LinearPrediction(combinations_with_replacement(range(len(rows)), 2), ridge=self.ridge)
        number = batch_number(number, self._used)
        if number < self.fit_batches:
            self._prediction.fit(rows, rows)
        else:
            self._prediction.judge(rows, rows, number)
        self._used[number] = [len(within.order), within.rows] if within else [1, 1]

    @staticmethod
    def update_pairs(
        metrics: Sequence[LayerPredictions],
        sides: Sequence[tuple[int, int]],
        states: Sequence[States],
        mask: Bool[Tensor, " ..."] | None = None,
        number: int = 0,
        groups: Int[Tensor, " ..."] | None = None,
    ) -> None:
        """Add one batch of several models to a metric for each pair of them, pair by pair.

        Args:
            metrics: One for each pair.
            sides: The numbers of the source and of the target of each metric; both may be the same.
            states: Of each model, as `update` takes those of one.
            mask, number, groups: See `update`.

        Raises:
            ValueError: See `update`.
        """
        for metric, (source, target) in zip(metrics, sides, strict=True):
            metric.update(states[source], states[target], mask, number, groups)

    def compute(self) -> PredictionEstimate:
        """Return R² over all batches that judged so far, with intervals.

        Raises:
            ValueError: No batch judged; see `LinearPrediction.compute`.
        """
        if self._prediction is None or not self.update_called:
            raise ValueError("there is no R² of no rows: give batches that judge")
        onward, backward = self._prediction.compute()
        matrices = Estimate(*(self._matrix(*parts) for parts in zip(onward, backward, strict=True)))
        depth = self.source_layers
        first, second = matrices[:depth, :depth], matrices[depth:, depth:]
        across, back = matrices[:depth, depth:], matrices[depth:, :depth]
        judged = [used for number, used in self._used.items() if number >= self.fit_batches]
        kept, rows = map(sum, zip(*judged, strict=True))
        return PredictionEstimate(
            across.value,
            across.low,
            across.high,
            first,
            second,
            len(judged),
            back=Estimate(*(part.T for part in back)),
            rows_used=kept / rows if self.given == "token" else None,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the batches so far, to go on from."""
        prediction = self._prediction and (self._prediction.pairs, self._prediction.state_dict())
        return {"prediction": prediction, "used": {str(number): used for number, used in self._used.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the batches of a `state_dict`."""
        self._used = {int(number): used for number, used in state["used"].items()}
        if state["prediction"]:
            pairs, gathered = state["prediction"]
            self._prediction = LinearPrediction([tuple(pair) for pair in pairs], ridge=self.ridge)
            self._prediction.load_state_dict(gathered)

    def _matrix(self, onward: Tensor, backward: Tensor) -> Tensor:
        """Return what each pair of layers has as a matrix: row i is what layer i predicts of the others."""
        assert self._prediction is not None
        first, second = torch.tensor(self._prediction.pairs).T
        size = int(second.max()) + 1
        matrix = onward.new_zeros(size, size)
        matrix[second, first] = backward
        matrix[first, second] = onward
        alone = size < self.source_layers + self.target_layers  # a model with itself
        return matrix.repeat(2, 2) if alone else matrix


def _rows(states: Tensor, mask: Tensor | None, within: RowGroups | None) -> Tensor:
    rows = rows_of(states, "token", mask)
    return rows if within is None else within.without_means(rows)
