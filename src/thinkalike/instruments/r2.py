"""measure=r2: how much of each layer a linear map of each other one predicts on held-out text, in both directions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from thinkalike.config import AnalyzeConfig, left_open, ranged
from thinkalike.errors import ConfigError
from thinkalike.instruments.layer_pairs.frame import LayerPairs, LayerPairsConfig, layers_compared
from thinkalike.measures.closed_forms import RIDGE
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.shapes import Passes, Shapes, both_of
from thinkalike.states.batches import ModelRuns, StateBatch, StateBatches


@dataclass
class R2Config(LayerPairsConfig):
    """The settings of linear prediction; `batches` judge, after those that maps are fitted on."""

    kind: str = "r2"
    fit_batches: int = left_open(64, least=1, most=10**9)  # of other text, before those that judge
    ridge: float = ranged(RIDGE, above=0, most=1e6)  # of least squares, in units of the mean variance of the states


class LayerR2(LayerPairs, kind="r2", version=7, reads=("model", "target", "layers", "data", "measure")):
    """Predicts all layers of `model@target` from all of `model`, and back."""

    name = "R²"
    takes_activations: ClassVar[bool] = False
    is_shared: ClassVar[bool] = False  # what judges waits for all that fits

    def metric(self, measure: Any, source_layers: int, target_layers: int) -> Any:
        from thinkalike.measures.prediction import LayerPredictions

        options = {key: getattr(measure, key) for key in ("fit_batches", "given", "ridge")}
        return LayerPredictions(source_layers, target_layers, **options)

    def passes(self, config: AnalyzeConfig, shapes: Shapes) -> list[Passes]:
        readings = readings_of(*_widths(config, shapes))
        return [replace(each, tokens=readings * each.tokens) for each in super().passes(config, shapes)]

    def holds(self, config: AnalyzeConfig, shapes: Shapes) -> float:
        return super().holds(config, shapes) + bytes_of_maps(*_widths(config, shapes))

    def batches(
        self, measure: Any, config: AnalyzeConfig, models: Sequence[FrozenModel], runs: ModelRuns
    ) -> StateBatches:
        both = replace(measure, batches=measure.fit_batches + measure.batches)
        batches = super().batches(both, config, models, runs)
        if batches.batches <= measure.fit_batches:
            raise ConfigError(
                f"measure.fit_batches={measure.fit_batches} leaves none of the {batches.batches} batches of held-out "
                "text to judge: lower it, or measure.tokens_per_batch"
            )
        layers = self.sites(config, models)
        readings = readings_of(*([model.d_model] * len(own) for model, own in zip(models, layers, strict=True)))

        def pool(number: int) -> Iterator[StateBatch]:
            from thinkalike.measures.prediction import READING

            reading, own = divmod(number, batches.total)
            return (each._replace(number=reading * READING + each.number) for each in batches.pool(own))

        return replace(batches, pool=pool, total=readings * batches.total)

    def columns(self, estimates: Any) -> dict[str, torch.Tensor]:
        return dict(zip(("back", "back_low", "back_high"), estimates.back, strict=True))


Widths = Sequence[int]  # of every layer that is compared


def _widths(config: AnalyzeConfig, shapes: Shapes) -> tuple[Widths, Widths]:
    compared = layers_compared(config, shapes)
    source, target = ([each.width] * compared[each] for each in both_of(shapes))
    return source, target


def readings_of(source: Widths, target: Widths) -> int:
    """Return how often text is read for the maps of all layer pairs."""
    from thinkalike.measures.prediction import pairs_at_once

    return -(-len(source) * len(target) // pairs_at_once(max(source), max(target)))


def bytes_of_maps(source: Widths, target: Widths) -> float:
    """Return the most bytes that maps take: two of each pair at once, products of its layers, and their factors."""
    from thinkalike.measures.prediction import pairs_at_once

    pairs = min(pairs_at_once(max(source), max(target)), len(source) * len(target))
    rows = min(-(-pairs // len(target)) + 1, len(source))  # pairs go from row to row
    own = rows * source[0] ** 2 + min(pairs, len(target)) * target[0] ** 2
    return 8.0 * 2 * (pairs * source[0] * target[0] + own)
