"""Means over batches of any measure of layer pairs, beside what permuted documents give by chance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.arguments import takes_arrays
from thinkalike.measures.calibration.chance import CalibratedEstimate, Chance, chance_of
from thinkalike.measures.calibration.contract import LayerMeasure
from thinkalike.measures.calibration.documents import count_documents, documents_of_rows, permutations_of
from thinkalike.measures.kernels.rows import rows_of
from thinkalike.measures.statistics.batch_means import BatchMeans, States, batch_number
from thinkalike.measures.statistics.jackknifing import leave_one_out
from thinkalike.progress import counted

NO_ROOM = 1e-6  # between chance and the best value, in its unit: then the value says nothing
SIDES = ("source", "target")


class LayerMeans(BatchMeans):
    """The mean over batches of a measure of layer pairs, with jackknife intervals over batches and, if asked, a null.

    All layer pairs see the same permutations, so that the largest of them has a null as well. Each batch has its own;
    the p-th value by chance is the mean over batches of the p-th permutation of each.

    Args:
        source_layers, target_layers: How many layers a batch brings.
        measure: What is compared.
        permutations: How many; 0: no null. A p-value is at least 1 / (permutations + 1).
        left_out: See `BatchMeans`; then the null is of the first batch, which has all rows.
    """

    def __init__(
        self,
        source_layers: int,
        target_layers: int,
        measure: LayerMeasure,
        permutations: int = 0,
        left_out: bool = False,
    ):
        super().__init__(source_layers, target_layers, lambda layers: measure.matrix(layers, layers), left_out)
        self.measure, self.permutations = measure, permutations
        self._nulls: dict[int, Tensor] = {}  # by the number of the batch: (permutations, l, m)
        self._levels: dict[int, Tensor] = {}  # of each batch, (l, m)
        self._documents: dict[int, int] = {}

    @takes_arrays
    def update(
        self,
        source: States,
        target: States,
        mask: Bool[Tensor, " ..."] | None = None,
        number: int | None = None,
        documents: Int[Tensor, " ..."] | None = None,
    ) -> None:
        """Add one batch; see `BatchMeans.update`.

        Args:
            documents: The document of each state, (b, t) or (n,), which permutations move as blocks; by default each
                row is one of its own.

        Raises:
            ValueError: There is not one document for each state, or by chance alone layers are as close as can be;
                see `BatchMeans.update` and the measure.
        """
        self.update_pairs([self], [(0, 1)], [source, target], mask, batch_number(number, self._matrices), documents)

    @staticmethod
    @torch.no_grad()
    def update_pairs(  # type: ignore[override]
        metrics: Sequence[LayerMeans],
        sides: Sequence[tuple[int, int]],
        states: Sequence[States],
        mask: Bool[Tensor, " ..."] | None = None,
        number: int = 0,
        documents: Int[Tensor, " ..."] | None = None,
    ) -> None:
        """Add one batch of several models to a metric for each pair of them, with each layer prepared once.

        Models are compared two by two, so that a pair has the same bits alone and in company.

        Args:
            documents: See `update`. For the others see `BatchMeans.update_pairs`.

        Raises:
            ValueError: See `update`.
        """
        BatchMeans.check_layers(metrics, sides, states)
        first = states[sides[0][0]][0]
        owners = documents_of_rows(first, mask, documents)
        measure = metrics[0].measure
        prepared = _prepared(measure, sides, states, mask)
        within = {key: measure.compare(layers, layers).double() for key, layers in prepared.items()}
        for metric, side in zip(metrics, sides, strict=True):
            mine, theirs = (id(states[model]) for model in side)
            across = within[mine] if mine == theirs else measure.compare(prepared[mine], prepared[theirs]).double()
            rows = torch.cat([within[mine], across], 1), torch.cat([across.T, within[theirs]], 1)
            metric._add_null(number, prepared[mine], prepared[theirs], owners, first.device)
            metric._matrices[number] = torch.cat(rows)

    def compute(self) -> CalibratedEstimate:
        """Return the mean over all batches so far, with intervals and the null.

        Raises:
            ValueError: There was no batch.
        """
        plain = super().compute()
        chance = self._chance() if self.permutations else None
        within = plain.within_source, plain.within_target
        return CalibratedEstimate(plain.value, plain.low, plain.high, *within, plain.batches, chance=chance)

    def merge_state(self, other: BatchMeans) -> None:
        """Add the batches of another that compares the same layers, see `BatchMeans.merge_state`."""
        super().merge_state(other)
        assert isinstance(other, LayerMeans)
        for name, parts in self._own().items():
            parts |= other._own()[name]

    def state_dict(self) -> dict[str, Any]:
        """Return the batches so far, to go on from."""
        own = {name: {str(number): part for number, part in parts.items()} for name, parts in self._own().items()}
        return {"values": super().state_dict(), **own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the batches of a `state_dict`."""
        super().load_state_dict(state["values"])
        for name, parts in self._own().items():
            parts.update({int(number): part for number, part in state[name].items()})

    def _own(self) -> dict[str, dict[int, Any]]:
        return {"nulls": self._nulls, "levels": self._levels, "documents": self._documents}

    def _add_null(
        self, number: int, sources: list[Any], targets: list[Any], owners: Int[Tensor, " n"], place: torch.device
    ) -> None:
        """Keep the values of permuted rows of a batch, if they are asked for."""
        if not self.permutations or (self.left_out and number):
            return
        null, level = self._permuted(sources, targets, number, owners, place)
        if (room := (self.measure.best - level).abs()).min() < NO_ROOM:
            row, column = divmod(int(room.argmin()), room.shape[1])
            raise ValueError(
                f"by chance alone layers {row} and {column} are as close as can be, at {self.measure.best:g}: give "
                "more rows, as by measure.tokens_per_batch"
            )
        self._documents[number] = count_documents(owners)
        self._nulls[number], self._levels[number] = null, level

    def _permuted(
        self, sources: list[Any], targets: list[Any], number: int, owners: Int[Tensor, " n"], place: torch.device
    ) -> tuple[Float[Tensor, "p l m"], Float[Tensor, "l m"]]:
        """Return the values of all permutations, and their mean over those that leave next to no row in its place."""
        moves = permutations_of(owners, self.permutations, number)
        found = []
        for order in counted(moves.orders.to(place), "permutation"):
            found.append(self.measure.compare(sources, [self.measure.moved(each, order) for each in targets]))
        null = torch.stack(found).double().cpu()
        return null, null[moves.away].mean(0)

    def _chance(self) -> Chance:
        depth, best = self.source_layers, self.measure.best
        values = self._stacked()[:, :depth, depth:].cpu()
        nulls = torch.stack([self._nulls[number] for number in sorted(self._nulls)]).cpu()
        levels = torch.stack([self._levels[number] for number in sorted(self._levels)]).cpu()
        levels = levels.expand(len(values), -1, -1)  # of each batch
        own, chance = ((each.mean(0), leave_one_out(each)) for each in (values, levels))
        sign = 1 if self.measure.higher_is_closer else -1
        return chance_of(own, chance, nulls.mean(0), min(self._documents.values()), best, sign)


def _prepared(
    measure: LayerMeasure, sides: Sequence[tuple[int, int]], states: Sequence[States], mask: Tensor | None
) -> dict[int, list[Any]]:
    """Return the prepared layers of each model, by its list."""
    called = {
        id(states[model]): (name, states[model]) for side in sides for name, model in zip(SIDES, side, strict=True)
    }
    rows = [rows_of(layer, "token", mask) for _, own in called.values() for layer in own]
    names = [f"{name} layer {index}" for name, own in called.values() for index in range(len(own))]
    prepared = iter(measure.prepared(rows, names))
    return {key: [next(prepared) for _ in own] for key, (_, own) in called.items()}
