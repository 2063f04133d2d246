"""How far the states of a changed model are from those of its base, layer by layer."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.measures.accumulator import Accumulator
from thinkalike.measures.changes import relative_distance
from thinkalike.measures.contract import Batch
from thinkalike.measures.estimates import Estimate, jackknife, without_parts
from thinkalike.measures.folds import JACKKNIFE_PARTS
from thinkalike.measures.layer_pair_estimate import LayerPairEstimate, document_counts
from thinkalike.measures.rows import labels_of_rows, rows_of


class ShiftEstimate(LayerPairEstimate):
    """The mean of ‖x - y‖ / ‖x‖ over tokens, on the diagonal of (l, l); elsewhere NaN."""

    def __init__(self, cosine: Tensor, norm_source: Tensor, norm_target: Tensor, **estimates: Any):
        super().__init__(**estimates)
        # (l, l) each
        self.cosine, self.norm_source, self.norm_target = cosine, norm_source, norm_target


def _means(sums: Float[Tensor, "*b l 5"]) -> Float[Tensor, "*b 4 l"]:
    return (sums[..., :-1] / sums[..., -1:]).movedim(-1, -2)


def _on_diagonal(values: Float[Tensor, " l"]) -> Float[Tensor, "l l"]:
    return values.new_full((len(values), len(values)), torch.nan).diagonal_scatter(values)


class LayerShifts(Accumulator):
    """Gathers ‖x - y‖ / ‖x‖ for the states x and y of each layer in two models.

    It means something between models of one basis alone, such as a model and its copy that was
    changed.
    """

    batch_states: ClassVar[tuple[str, ...]] = ("sums",)

    def gather(self, batch: Batch) -> None:
        (source, target), mask = batch.states, batch.mask
        self.check(source, target, batch.groups)
        assert batch.documents is not None
        sums, owners = [], labels_of_rows(batch.documents, mask, source[0], "documents")
        belongs = (
            torch.nn.functional.one_hot(owners.long() % JACKKNIFE_PARTS, JACKKNIFE_PARTS)
            .double()
            .T
        )
        for layer, sides in enumerate(zip(source, target, strict=True)):
            x, y = (rows_of(side, "token", mask).double() for side in sides)
            if x.shape != y.shape:
                raise ValueError(
                    f"layer {layer} has states of {tuple(x.shape)} and {tuple(y.shape)}: "
                    "no distances"
                )
            norms, distance = (
                [torch.linalg.vector_norm(side, dim=1) for side in (x, y)],
                relative_distance(x, y),
            )
            cosine = torch.nn.functional.cosine_similarity(x, y)
            sums.append(
                belongs @ torch.stack([distance, cosine, *norms, torch.ones_like(distance)], 1)
            )
        self.add(batch.number, owners, sums=torch.stack(sums, 1))

    def compute(self) -> ShiftEstimate:
        """Return the means over all batches so far, with intervals; a ValueError of no batch."""
        found = self.gathered()
        sums, documents = found["sums"].sum(0), found["documents"]
        means, rest = _means(sums.sum(0)), _means(without_parts(sums, documents))
        value, low, high = jackknife(means[0], rest[:, 0])
        low = torch.where(low.isfinite(), low.clamp(min=0), low)
        distance = Estimate(*map(_on_diagonal, (value, low, high)))
        return ShiftEstimate(
            *map(_on_diagonal, means[1:]),
            across=distance,
            batches=len(found["sums"]),
            **document_counts(documents),
        )
