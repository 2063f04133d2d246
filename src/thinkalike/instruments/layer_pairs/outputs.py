"""Measures of the outputs of two models with one vocabulary: their logits, which have no layers.

python analyze.py measure=jsd model=gelu-3l-mini model@target=solu-3l-mini
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from thinkalike import measures
from thinkalike.config import AnalyzeConfig
from thinkalike.errors import ConfigError
from thinkalike.instruments.layer_pairs.declared import ComparedAgain, Declared, OfLayerMeasure, declare
from thinkalike.measures.contract import LayerMeasure
from thinkalike.models.families import Layer
from thinkalike.states.batches import ModelRuns, StateBatch, StateBatches
from thinkalike.states.source import StateSource, with_weights


@dataclass
class OutputConfig(ComparedAgain):
    """The settings of a measure of outputs."""

    def settings_read(self) -> frozenset[str]:
        return super().settings_read() - {"massive"}  # outputs have no massive states

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.level == "word" or self.embed:
            wrong = "level=word" if self.level == "word" else "embed=true"
            raise ConfigError(f"measure={self.kind} compares predictions of the next token: leave measure.{wrong} out")


class Outputs(OfLayerMeasure):
    """A measure of the logits of two models."""

    takes_activations: ClassVar[bool] = False
    takes_sites: ClassVar[bool] = False

    def named(self, sites: Sequence[Layer]) -> list[Any]:
        return ["logits"]

    def batches(
        self, measure: Any, config: AnalyzeConfig, models: Sequence[StateSource], runs: ModelRuns
    ) -> StateBatches:
        with_weights(models, f"measure={self.kind} compares what models predict")
        measure = replace(measure, level="token", massive="keep")  # outputs have no massive states
        batches = super().batches(measure, config, models, runs)

        def logits_of(batch: StateBatch) -> StateBatch:
            last = {model: own[-1] for model, own in zip(models, batch.states, strict=True)}
            key, run = (batch.content, "logits"), lambda model: [model.finish(last[model])]
            return batch._replace(states=[runs.once(model, key, run, of_batch=True) for model in models])

        return replace(batches, pool=lambda number: map(logits_of, batches.pool(number)))


def of_outputs(title: str, measure: Callable[[Any], LayerMeasure], greatest: float) -> Declared:
    """Declare a distance of outputs, from 0 to its greatest value."""
    return Declared(
        title,
        measure,
        scale=(0.0, greatest),
        is_distance=True,
        settings=OutputConfig,
        bases=(Outputs,),
        reads=("model", "target", "data", "measure"),
        version=9,
    )


OUTPUTS = {
    "jsd": of_outputs("Jensen-Shannon divergence in nats", lambda _: measures.JENSEN_SHANNON, math.log(2)),
    "disagreement": of_outputs("disagreement of the top token", lambda _: measures.DISAGREEMENT, 1.0),
}
globals().update(declare(OUTPUTS, __name__))  # where entry points find them
