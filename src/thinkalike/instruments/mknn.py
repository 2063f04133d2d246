"""measure=mknn: mutual k-nearest neighbours of every layer pair of two models (Huh et al. 2024, appendix A)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from thinkalike.errors import ConfigError
from thinkalike.instruments.layer_pairs.declared import OfLayerMeasure, WithNeighbours
from thinkalike.instruments.operations.layer_pairs import Widths, of_neighbours
from thinkalike.measures import (
    BatchMeans,
    LayerMeasure,
    NeighbourEstimate,
    NeighboursGivenToken,
    layer_measures,
    mutual_knn_matrix,
)


@dataclass
class Config(WithNeighbours):
    """The settings of mutual nearest neighbours; by chance k / (n - 1) of n tokens are shared."""

    kind: str = "mknn"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.null and self.given == "token":
            raise ConfigError("measure.given=token has its chance in closed form: leave measure.null=true out")


class MutualNeighbours(OfLayerMeasure, kind="mknn", reads=("model", "target", "data", "measure", "stimuli")):
    """Counts the nearest neighbours that all layers of `model` share with all of `model@target`, and within each."""

    name = "mutual nearest neighbours"

    def measure_of(self, measure: Any) -> LayerMeasure:
        return layer_measures(measure.neighbours)["mknn"]

    def metric(self, measure: Any, source_layers: int, target_layers: int, left_out: bool) -> Any:
        if measure.null:
            return super().metric(measure, source_layers, target_layers, left_out)
        if measure.given == "token":
            return NeighboursGivenToken(source_layers, target_layers, measure.neighbours)
        return BatchMeans(source_layers, target_layers, partial(mutual_knn_matrix, k=measure.neighbours), left_out)

    def comparing(self, measure: Any, source: Widths, target: Widths | None) -> float:
        return float(measure.batches * of_neighbours(measure.tokens_per_batch, source, target))

    def columns(self, estimates: Any) -> dict[str, torch.Tensor]:
        given = isinstance(estimates, NeighbourEstimate)
        return {"calibrated": estimates.calibrated.value} if given else super().columns(estimates)

    def scalars(self, estimates: Any) -> dict[str, float]:
        given = isinstance(estimates, NeighbourEstimate)
        return {"chance": estimates.chance} if given else super().scalars(estimates)
