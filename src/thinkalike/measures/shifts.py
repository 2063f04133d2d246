"""How far the states of a changed model are from those of its base, layer by layer."""

from __future__ import annotations

from typing import ClassVar, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.measures.accumulator import Accumulator
from thinkalike.measures.changes import relative_distance
from thinkalike.measures.contract import Batch
from thinkalike.measures.estimates import Estimate, jackknife, without_parts
from thinkalike.measures.folds import JACKKNIFE_PARTS
from thinkalike.measures.layer_pair_estimate import (
    EstimateArguments,
    LayerPairEstimate,
    sizes_of_documents,
)
from thinkalike.measures.rows import rows_of


class ShiftEstimate(LayerPairEstimate):
    """The mean of ‖x - y‖ / ‖x‖ over tokens, on the diagonal of (l, l); elsewhere NaN.

    Attributes:
        cosine: The mean cosine of x and y, on the diagonal of (l, l); elsewhere NaN.
        norm_source, norm_target: The mean ‖x‖ and the mean ‖y‖, likewise.
    """

    def __init__(
        self,
        cosine: Tensor,
        norm_source: Tensor,
        norm_target: Tensor,
        **estimates: Unpack[EstimateArguments],
    ):
        """Store how far apart the states of each layer are in two models, and their norms.

        `cosine` is the mean cosine of the states of a layer in both models, and `norm_source` and
        `norm_target` are their mean norms. These are matrices (l, l), with the value of a layer on
        the diagonal and NaN elsewhere. `estimates` are the mean distances with their intervals,
        and the other arguments of a `LayerPairEstimate`, such as the number of documents.
        """
        super().__init__(**estimates)
        self.cosine = cosine
        self.norm_source = norm_source
        self.norm_target = norm_target


def _means_of_sums(sums: Float[Tensor, "*b l 5"]) -> Float[Tensor, "*b 4 l"]:
    """Return the means of four quantities over the tokens, for each of l layers.

    They are ‖x - y‖ / ‖x‖, the cosine of x and y, ‖x‖ and ‖y‖.

    Args:
        sums: The sums of these four over the tokens, and as the last entry the number of tokens.
    """
    means = sums[..., :-1] / sums[..., -1:]  # (*b, l, 4)
    return means.movedim(-1, -2)


def _on_diagonal(values: Float[Tensor, " l"]) -> Float[Tensor, "l l"]:
    """Return a matrix with these values on its diagonal and NaN elsewhere."""
    return values.new_full((len(values), len(values)), torch.nan).diagonal_scatter(values)


class LayerShifts(Accumulator):
    """Gathers ‖x - y‖ / ‖x‖ for the states x and y of each layer in two models.

    The values are meaningful only between models with the same basis of the residual stream, such
    as a model and a changed copy of it.
    """

    batch_states: ClassVar[tuple[str, ...]] = ("sums",)

    def gather(self, batch: Batch) -> None:
        """Add a batch: sums of distances, cosines, norms and counts by part of the documents.

        The jackknife later leaves out one part of the documents at a time. The part of a document
        is its number modulo `JACKKNIFE_PARTS`.

        Raises:
            ValueError: The batch has a different number of layers than this metric was made for,
                states of a layer differ in shape, or documents do not fit.
        """
        source, target = batch.states
        self.check(source, target, batch.groups)
        document_of_row = batch.documents_of_rows(source[0], "token")
        part_of_row = document_of_row.long() % JACKKNIFE_PARTS
        is_in_part = torch.nn.functional.one_hot(part_of_row, JACKKNIFE_PARTS)
        part_indicators = is_in_part.double().T  # (parts, n)

        sums = []
        for layer, (source_states, target_states) in enumerate(zip(source, target, strict=True)):
            x = rows_of(source_states, "token", batch.mask).double()
            y = rows_of(target_states, "token", batch.mask).double()
            if x.shape != y.shape:
                raise ValueError(
                    f"layer {layer} has states of {tuple(x.shape)} and {tuple(y.shape)}: "
                    "no distances"
                )
            distance = relative_distance(x, y)
            cosine = torch.nn.functional.cosine_similarity(x, y)
            x_norm = torch.linalg.vector_norm(x, dim=1)
            y_norm = torch.linalg.vector_norm(y, dim=1)
            count = torch.ones_like(distance)
            values = torch.stack([distance, cosine, x_norm, y_norm, count], 1)  # (n, 5)
            sums.append(part_indicators @ values)  # (parts, 5)
        self.add(batch.number, document_of_row, sums=torch.stack(sums, 1))

    def compute(self) -> ShiftEstimate:
        """Return the means over all batches so far, with intervals.

        Raises:
            ValueError: There is no batch.
        """
        gathered = self.gathered()
        batch_sums = gathered["sums"]
        sums = batch_sums.sum(0)  # (parts, l, 5)
        documents = gathered["documents"]
        means = _means_of_sums(sums.sum(0))  # (4, l)
        means_without = _means_of_sums(without_parts(sums, documents))  # (r, 4, l)
        distances, cosine, norm_source, norm_target = means
        value, low, high = jackknife(distances, means_without[:, 0])
        low = torch.where(low.isfinite(), low.clamp(min=0), low)  # a distance is not below 0
        # As a matrix of layer pairs, which has values of each layer with itself alone.
        distance = Estimate(_on_diagonal(value), _on_diagonal(low), _on_diagonal(high))
        return ShiftEstimate(
            _on_diagonal(cosine),
            _on_diagonal(norm_source),
            _on_diagonal(norm_target),
            across=distance,
            batches=len(batch_sums),
            **sizes_of_documents(documents),
        )
