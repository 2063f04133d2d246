"""How far the states of a changed model are from those of the model that it was made of, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.measures.accumulators import Accumulator, Batch, Record
from thinkalike.measures.chance import LayerPairEstimate
from thinkalike.measures.changes import relative_distance
from thinkalike.measures.contract import Pair
from thinkalike.measures.estimates import PARTS, jackknife, without_parts
from thinkalike.measures.rows import labels_of_rows, rows_of


@dataclass(frozen=True, eq=False, repr=False)
class ShiftEstimate(LayerPairEstimate):
    """The mean of ‖x - y‖ / ‖x‖ over tokens, on the diagonal of (l, l); layers that differ are NaN."""

    cosine: Float[Tensor, "l l"]
    norm_source: Float[Tensor, "l l"]
    norm_target: Float[Tensor, "l l"]


class LayerShifts(Accumulator):
    """Gathers how far each layer's states are from those of the same layer in another model, batch by batch.

    A state x of the source and y of the target, of one width, have the relative distance ‖x - y‖ / ‖x‖, which is at
    least 0; it means something between models of one basis alone, such as a model and its copy that was changed.
    Intervals leave out tenths of the documents, see `jackknife`.
    """

    def _compared(self, metrics: Sequence[Any], sides: Sequence[Pair], batch: Batch) -> list[Record]:
        return [self._shifted(batch.states[source], batch.states[target], batch) for source, target in sides]

    def _shifted(self, source: Sequence[Tensor], target: Sequence[Tensor], batch: Batch) -> Record:
        sums = []
        for number, (first, second) in enumerate(zip(source, target, strict=True)):
            x, y = (rows_of(layer, "token", batch.mask).double() for layer in (first, second))
            if x.shape != y.shape:
                raise ValueError(f"layer {number} has states of {tuple(x.shape)} and {tuple(y.shape)}: no distances")
            norms, distance = [torch.linalg.vector_norm(side, dim=1) for side in (x, y)], relative_distance(x, y)
            cosine = torch.nn.functional.cosine_similarity(x, y)
            sums.append(torch.stack([distance, cosine, *norms, torch.ones_like(distance)], 1))
        assert batch.documents is not None
        owners = labels_of_rows(batch.documents, batch.mask, source[0], "documents")
        belongs = torch.nn.functional.one_hot(owners.long() % PARTS, PARTS).double().T
        return {"sums": torch.stack([belongs @ each for each in sums], 1), "documents": owners}

    def compute(self) -> ShiftEstimate:
        """Return the means over all batches so far, with intervals; a ValueError of no batch."""
        columns = self._columns()
        sums, documents = columns["sums"].sum(0), columns["documents"]
        whole, rest = _means(sums.sum(0)), _means(without_parts(sums, documents))
        found = jackknife(whole[0], rest[:, 0])
        value, low, high, *others = (_on_diagonal(each) for each in (*found, *whole[1:]))
        counts = len(columns["sums"]), len(documents.unique())
        return ShiftEstimate(value, low, high, None, None, *counts, *others)


def _means(sums: Float[Tensor, "*b l 5"]) -> Float[Tensor, "*b 4 l"]:
    return (sums[..., :-1] / sums[..., -1:]).movedim(-1, -2)


def _on_diagonal(values: Float[Tensor, " l"]) -> Float[Tensor, "l l"]:
    off = torch.full((len(values), len(values)), torch.nan, dtype=values.dtype)
    return off.diagonal_scatter(values)
