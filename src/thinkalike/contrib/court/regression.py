"""Ridge regressions of layer pairs from streamed sums, for the measures of a court that judge other rows.

They are the maps of `thinkalike.measures.closed_forms`, of states or of what a matrix reads of them. A penalty is that
with which maps of each half of the documents predict the other half best.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.measures.closed_forms import (
    Basis,
    HalvedMoments,
    LayerPair,
    ModelLayer,
    PairStatistics,
    bases_of,
    penalty_of,
)


class Regression(NamedTuple):
    """The map of states x, less their mean, to states y, less theirs, and as `read`, a matrix, has them."""

    mean_x: Float[Tensor, " d"]
    mean_y: Float[Tensor, " e"]
    weight: Float[Tensor, "d k"]
    read: Float[Tensor, "e k"] | None = None


def regression(
    parts: Sequence[PairStatistics], bases: Sequence[Basis] | None = None, read: Float[Tensor, "e k"] | None = None
) -> Regression:
    """Return the regression of y on x over all parts of the documents; it is 0 where x does not vary.

    Args:
        bases: Those `bases_of` these parts, if they are known.
    """
    whole = reduce(PairStatistics.joined, parts)
    xy = whole.xy if read is None else whole.xy @ read
    if whole.is_constant:
        return Regression(whole.mean_x, whole.mean_y, torch.zeros_like(xy), read)
    bases = bases or bases_of(parts)
    weight = bases[0].ridge(xy, penalty_of(parts, bases, read))
    return Regression(whole.mean_x, whole.mean_y, weight, read)


class RegressionMoments(HalvedMoments):
    """`HalvedMoments` that know the basis of each layer whose regressions were asked for."""

    def __init__(self, *pairs: Any, **options: Any):
        super().__init__(*pairs, **options)
        self.bases: dict[ModelLayer, list[Basis]] = {}

    def update(self, *rows: Any) -> None:
        """Add rows, see `HalvedMoments.update`."""
        self.bases = {}
        super().update(*rows)

    def ridge(self, pair: LayerPair, *, back: bool = False, read: Tensor | None = None) -> Regression:
        """Return the regression of the target's states on the source's, or back; see `regression`."""
        parts = self.parts(pair, back)
        layer = ("target", pair[1]) if back else ("source", pair[0])
        self.bases[layer] = self.bases.get(layer) or bases_of(parts)
        return regression(parts, self.bases[layer], read)
