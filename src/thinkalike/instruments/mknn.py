"""measure=mknn: mutual k-nearest neighbours of every layer pair of two models (Huh et al. 2024, appendix A)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from thinkalike.config import ranged
from thinkalike.config.ranges import TOKENS_AT_ONCE
from thinkalike.errors import ConfigError
from thinkalike.instruments.layer_pairs import LayerPairs, LayerPairsConfig
from thinkalike.instruments.operations.layer_pairs import Widths, of_neighbours
from thinkalike.measures import BatchMeans, NeighbourEstimate, NeighboursGivenToken, mutual_knn_matrix


@dataclass
class Config(LayerPairsConfig):
    """The settings of mutual nearest neighbours."""

    kind: str = "mknn"
    neighbours: int = ranged(10, least=1, most=TOKENS_AT_ONCE)  # k; by chance k / (n - 1) of n tokens are shared

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.neighbours > self.tokens_per_batch - 2:
            raise ConfigError(
                f"measure.neighbours={self.neighbours} must lie between 1 and measure.tokens_per_batch - 2"
            )


class MutualNeighbours(LayerPairs, kind="mknn", reads=("model", "target", "data", "measure", "stimuli")):
    """Counts the nearest neighbours that all layers of `model` share with all of `model@target`, and within each."""

    name = "mutual nearest neighbours"

    def fewest(self, measure: Any) -> int:
        return int(measure.neighbours) + 2

    def metric(self, measure: Any, source_layers: int, target_layers: int, left_out: bool) -> BatchMeans:
        if measure.given == "token":
            return NeighboursGivenToken(source_layers, target_layers, measure.neighbours)
        return BatchMeans(source_layers, target_layers, partial(mutual_knn_matrix, k=measure.neighbours), left_out)

    def comparing(self, measure: Any, source: Widths, target: Widths | None) -> float:
        return float(measure.batches * of_neighbours(measure.tokens_per_batch, source, target))

    def columns(self, estimates: Any) -> dict[str, torch.Tensor]:
        given = isinstance(estimates, NeighbourEstimate)
        return {"calibrated": estimates.calibrated.value} if given else {}

    def scalars(self, estimates: Any) -> dict[str, float]:
        return {"chance": estimates.chance} if isinstance(estimates, NeighbourEstimate) else {}
