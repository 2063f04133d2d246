"""measure=r2: how much of each layer a linear map of each other one predicts on held-out text, in both directions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, Optional

import torch

from thinkalike.config import AnalyzeConfig, left_open, ranged
from thinkalike.errors import ConfigError
from thinkalike.instruments.layer_pairs.frame import LayerPairs, LayerPairsConfig, layers_compared
from thinkalike.measures.prediction import KEPT, READING, LayerPredictions, pairs_at_once
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.shapes import Passes, Shapes
from thinkalike.states.batches import ModelRuns, StateBatch, StateBatches


# ruff: noqa: UP045
@dataclass
class R2Config(LayerPairsConfig):
    """The settings of linear prediction; `batches` judge, after those that maps are fitted on."""

    kind: str = "r2"
    fit_batches: int = left_open(64, least=1, most=10**9)  # of other text, before those that judge
    ridge: Optional[float] = ranged(None, above=0, most=1e6)  # in units of the mean variance of the states; null: it is
    # chosen by cross-validation over documents


class LayerR2(LayerPairs, kind="r2", version=11, reads=("model", "target", "layers", "data", "measure", "ruler")):
    """Predicts all layers of `model@target` from all of `model`, and back."""

    name = "R²"
    takes_activations: ClassVar[bool] = False
    is_shared: ClassVar[bool] = False  # what judges waits for all that fits

    def metric(self, measure: Any, source_layers: int, target_layers: int) -> Any:
        options = {key: getattr(measure, key) for key in ("fit_batches", "given", "ridge")}
        return LayerPredictions(source_layers, target_layers, **options)

    def passes(self, config: AnalyzeConfig, shapes: Shapes) -> list[Passes]:
        compared = layers_compared(config, shapes)
        both = shapes["model"], shapes.get("target", shapes["model"])
        readings = readings_of(*((compared[each], each.width) for each in both))
        found = super().passes(config, shapes)
        return [replace(each, tokens=readings * each.tokens) if each.is_shared else each for each in found]

    def batches(
        self, measure: Any, config: AnalyzeConfig, models: Sequence[FrozenModel], runs: ModelRuns
    ) -> StateBatches:
        both = replace(measure, batches=measure.fit_batches + measure.batches)
        batches = super().batches(both, config, models, runs)
        if batches.batches <= measure.fit_batches:
            left = f"none of the {batches.batches} batches of held-out text to judge"
            raise ConfigError(f"measure.fit_batches={measure.fit_batches} leaves {left}: lower it, or tokens_per_batch")
        layers = [(len(own), model.d_model) for model, own in zip(models, self.sites(config, models), strict=True)]
        readings, floats = readings_of(*layers), sum(count * width for count, width in layers)
        stay = readings > 1 and 4 * batches.batches * measure.tokens_per_batch * floats <= KEPT
        read = cache(lambda own: [*batches.pool(own)]) if stay else batches.pool

        def pool(number: int) -> Iterator[StateBatch]:
            reading, own = divmod(number, batches.total)
            return (each._replace(number=reading * READING + each.number) for each in read(own))

        return replace(batches, pool=pool, total=readings * batches.total)

    def columns(self, estimates: Any) -> dict[str, torch.Tensor]:
        columns = dict(zip(("back", "back_low", "back_high"), estimates.back, strict=True))
        if (gain := estimates.left_to_gain).value.isfinite().all():
            columns |= dict(zip(("left_to_gain", "left_to_gain_low", "left_to_gain_high"), gain, strict=True))
        return columns


def readings_of(source: tuple[int, int], target: tuple[int, int]) -> int:
    """Return how often text is read for the maps of all layer pairs, given number and width of both models' layers."""
    (layers, d), (depths, e) = source, target
    return -(-layers * depths // pairs_at_once(d, e))
