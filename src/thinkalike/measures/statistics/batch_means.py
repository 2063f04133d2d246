"""Means over batches of a measure of all layer pairs of two models, with jackknife intervals over batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from thinkalike.measures.kernels.rows import rows_of
from thinkalike.measures.statistics.estimate import Estimate
from thinkalike.measures.statistics.jackknifing import as_batches, jackknife, leave_one_out

States = Sequence[Float[Tensor, " ..."]]
Compare = Callable[[list[Tensor]], Float[Tensor, "k k"]]  # k layers, each (n, d), to their similarities


@dataclass(frozen=True, eq=False)
class LayerPairEstimate(Estimate):
    """A measure of l layers of a source with m of a target, (l, m), and of the layers within each.

    `rows_used` is the share of the rows that stood in groups of one token, if rows were compared within such groups.
    """

    within_source: Estimate  # (l, l)
    within_target: Estimate  # (m, m)
    batches: int
    rows_used: float | None = field(default=None, kw_only=True)

    def widest_interval(self) -> float:
        """Return the width of the widest interval of `value`, `within_source` and `within_target`."""
        estimates = (self, self.within_source, self.within_target)
        return max(float((estimate.high - estimate.low).max()) for estimate in estimates)


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

    @torch.no_grad()
    def update(self, source: States, target: States, mask: Bool[Tensor, " ..."] | None = None, number: int = 0) -> None:
        """Add one batch: the same tokens, or rows, in both models.

        Args:
            source, target: per layer (b, t, d), or (n, d).
            mask: the tokens that count.
            number: of this batch in the whole run.

        Raises:
            ValueError: another number of layers came than was announced; see the measure.
        """
        counts = len(source), len(target)
        if counts != (self.source_layers, self.target_layers):
            raise ValueError(f"{self.source_layers} and {self.target_layers} layers were announced, but {counts} came")
        itself = target is source
        layers = [rows_of(layer, "token", mask) for layer in (source if itself else [*source, *target])]
        matrix = self.compare(layers).double()
        self._matrices[number] = matrix.repeat(2, 2) if itself else matrix

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
        """Add the batches of another that compares the same layers."""
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
