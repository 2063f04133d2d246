"""Measures of the outputs of two models with one vocabulary: their logits, which have no layers.

python analyze.py measure=jsd model=gelu-3l-mini model@target=solu-3l-mini
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from thinkalike.config import AnalyzeConfig
from thinkalike.errors import ConfigError
from thinkalike.instruments.layer_pairs.by_measure import ByMeasure, ComparedAgain
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


class OutputsByMeasure(ByMeasure):
    """Compares the logits of `model` with those of `model@target`, and within each."""

    common_settings = OutputConfig
    parts = ("model", "target", "data", "measure")
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
