"""Means over batches of a measure of all layer pairs of two models, with jackknife intervals over batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from thinkalike.arguments import takes_arrays
from thinkalike.measures.kernels.rows import rows_of
from thinkalike.measures.statistics.estimate import Estimate
from thinkalike.measures.statistics.jackknifing import as_batches, jackknife, leave_one_out
from thinkalike.plots import plot

States = Sequence[Float[Tensor, " ..."]]
Compare = Callable[[list[Tensor]], Float[Tensor, "k k"]]  # k layers, each (n, d), to their similarities


@dataclass(frozen=True, eq=False, repr=False)
class LayerPairEstimate(Estimate):
    """A measure of l layers of a source with m of a target, (l, m), and of the layers within each.

    `rows_used` is the share of the rows that stood in groups of one token, if rows were compared within such groups.
    """

    within_source: Estimate  # (l, l)
    within_target: Estimate  # (m, m)
    batches: int
    rows_used: float | None = field(default=None, kw_only=True)

    label: ClassVar[str] = "value"  # what plots call a value

    def __repr__(self) -> str:
        l, m = self.value.shape  # noqa: E741
        closest = f"{float(self.value.min()):.3f} to {float(self.value.max()):.3f}"
        width = f"intervals at most {self.widest_interval():.3g} wide"
        return f"{type(self).__name__}({l} x {m} layers, {self.batches} batches: {closest}, {width})"

    def plot(self, ax: Any = None) -> tuple[Any, Any]:
        """Draw `value` as a matrix, into axes or a new figure; returns figure and axes."""
        return plot("layer pairs", self.value.cpu().numpy(), self.label, (0.0, 1.0), ax)

    def widest_interval(self) -> float:
        """Return the width of the widest interval of `value`, `within_source` and `within_target`."""
        estimates = (self, self.within_source, self.within_target)
        return max(float((estimate.high - estimate.low).max()) for estimate in estimates)


def batch_number(given: int | None, known: Iterable[int]) -> int:
    """Return the number of a batch: the one that is given, or the next after those that are there."""
    return max(known, default=-1) + 1 if given is None else given


class BatchMeans:
    """Gathers a measure batch by batch; the order of the batches does not matter.

    Args:
        source_layers, target_layers: how many layers a batch brings.
        compare: the similarities of all layers with all. Where both sides are the same list, it sees each layer once.
        left_out: whether the first batch has all rows, and the others have all but a part of them, see `as_batches`.
    """

    def __init__(self, source_layers: int, target_layers: int, compare: Compare, left_out: bool = False):
        self.source_layers, self.target_layers, self.compare = source_layers, target_layers, compare
        self.left_out = left_out
        self._matrices: dict[int, Tensor] = {}  # by the number of the batch

    @property
    def update_called(self) -> bool:
        """Whether there is a batch."""
        return bool(self._matrices)

    @takes_arrays
    def update(
        self, source: States, target: States, mask: Bool[Tensor, " ..."] | None = None, number: int | None = None
    ) -> None:
        """Add one batch: the same tokens, or rows, in both models.

        Args:
            source, target: per layer (b, t, d), or (n, d).
            mask: the tokens that count.
            number: of this batch in the whole run; by default the next one. A batch takes the place of one that has
                its number.

        Raises:
            ValueError: another number of layers came than was announced; see the measure.
        """
        self.update_pairs([self], [(0, 1)], [source, target], mask, batch_number(number, self._matrices))

    @staticmethod
    @torch.no_grad()
    def update_pairs(
        metrics: Sequence[BatchMeans],
        sides: Sequence[tuple[int, int]],
        states: Sequence[States],
        mask: Bool[Tensor, " ..."] | None = None,
        number: int = 0,
    ) -> None:
        """Add one batch of several models to a metric for each pair of them.

        All layers are compared in one go, by the first metric's `compare`: what it says of two layers must not depend
        on which others there are, as counts of shared neighbours do not.

        Args:
            metrics: one for each pair; they compare in the same way.
            sides: the numbers of the source and of the target of each metric; both may be the same.
            states: of each model, as `update` takes those of one.
            mask, number: see `update`.

        Raises:
            ValueError: see `update`. Nothing is added to any of them.
        """
        BatchMeans.check_layers(metrics, sides, states)
        asked = [states[model] for side in sides for model in side]
        starts: dict[int, int] = {}  # of the layers of each model among all, by the model's list
        layers: list[Tensor] = []
        for model in asked:
            if id(model) not in starts:
                starts[id(model)] = len(layers)
                layers += [rows_of(layer, "token", mask) for layer in model]
        matrix = metrics[0].compare(layers).double()
        for metric, side in zip(metrics, sides, strict=True):
            places = [starts[id(states[model])] + layer for model in side for layer in range(len(states[model]))]
            metric._matrices[number] = matrix[places][:, places]

    @staticmethod
    def check_layers(metrics: Sequence[BatchMeans], sides: Sequence[tuple[int, int]], states: Sequence[States]) -> None:
        """Raise a ValueError if a pair has another number of layers than its metric was told."""
        for metric, (source, target) in zip(metrics, sides, strict=True):
            announced, counts = (metric.source_layers, metric.target_layers), (len(states[source]), len(states[target]))
            if counts != announced:
                raise ValueError(f"{announced[0]} and {announced[1]} layers were announced, but {counts} came")

    def compute(self) -> LayerPairEstimate:
        """Return the mean over all batches so far, with intervals.

        Raises:
            ValueError: there was no batch.
        """
        matrices = self._stacked()
        depth, estimate = self.source_layers, jackknife(matrices.mean(0), leave_one_out(matrices))
        across, first, second = estimate[:depth, depth:], estimate[:depth, :depth], estimate[depth:, depth:]
        return LayerPairEstimate(across.value, across.low, across.high, first, second, len(matrices))

    def merge_state(self, other: BatchMeans) -> None:
        """Add the batches of another that compares the same layers.

        Raises:
            ValueError: both have a batch of one number.
        """
        if both := sorted(self._matrices.keys() & other._matrices.keys()):
            raise ValueError(f"both have a batch {both[0]}: number the batches of one run, update(..., number=)")
        self._matrices |= other._matrices

    def _stacked(self) -> Float[Tensor, "b k k"]:
        if not self._matrices:
            raise ValueError("there is no mean of no batches: call update first")
        matrices = torch.stack([self._matrices[number] for number in sorted(self._matrices)])
        return as_batches(matrices) if self.left_out else matrices

    def state_dict(self) -> dict[str, Any]:
        """Return the batches so far, to go on from."""
        return {str(number): matrix.cpu() for number, matrix in self._matrices.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the batches of a `state_dict`."""
        self._matrices = {int(number): matrix for number, matrix in state.items()}
