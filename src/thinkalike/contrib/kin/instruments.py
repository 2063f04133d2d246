"""The declarations of SVCCA, soft matching, Jaccard index, second-order cosine, and of measures of outputs.

    python analyze.py measure=jaccard measure.neighbours=20 measure.null=true model=gpt2 model@target=mamba-130m
    python analyze.py measure=jsd model=gelu-3l-mini model@target=solu-3l-mini

Outputs are the logits of two models of one vocabulary, and have no layers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from thinkalike.config import AnalyzeConfig, ranged
from thinkalike.contrib.kin.measures import (
    DISAGREEMENT,
    JENSEN_SHANNON,
    SOFT_MATCHING,
    jaccard_measure,
    second_order_measure,
    svcca_measure,
)
from thinkalike.errors import ConfigError
from thinkalike.instruments.layer_pairs.declared import ComparedAgain, Declared, OfLayerMeasure, WithNeighbours, declare
from thinkalike.models.families import Layer
from thinkalike.states.batches import ModelRuns, StateBatch, StateBatches
from thinkalike.states.source import StateSource, with_weights


@dataclass
class WithKept(ComparedAgain):
    """The settings of a measure of principal components."""

    kept: float = ranged(0.99, above=0, most=1)  # share of the variance that components hold


@dataclass
class OutputConfig(ComparedAgain):
    """The settings of a measure of outputs."""

    @property
    def unused(self) -> Collection[str]:
        return {*super().unused, "massive"}  # outputs have no massive states

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

        def of_outputs(batch: StateBatch) -> StateBatch:
            last = {model: own[-1] for model, own in zip(models, batch.states, strict=True)}
            key, run = (batch.content, "logits"), lambda model: [model.finish(last[model])]
            return batch._replace(states=[runs.once(model, key, run, of_batch=True) for model in models])

        return replace(batches, pool=lambda number: map(of_outputs, batches.pool(number)))


DECLARED = {
    "svcca": Declared("SVCCA", lambda measure: svcca_measure(measure.kept), settings=WithKept),
    "soft_matching": Declared("soft matching", lambda _: SOFT_MATCHING),
    "jaccard": Declared(
        "Jaccard index of neighbours", lambda measure: jaccard_measure(measure.neighbours), settings=WithNeighbours
    ),
    "second_order_cosine": Declared(
        "second-order cosine", lambda measure: second_order_measure(measure.neighbours), settings=WithNeighbours
    ),
}
OF_OUTPUTS: tuple[Any, ...] = (True, OutputConfig, (Outputs,), ("model", "target", "data", "measure"), 9)
OUTPUTS = {
    "jsd": Declared("Jensen-Shannon divergence in nats", lambda _: JENSEN_SHANNON, (0.0, math.log(2)), *OF_OUTPUTS),
    "disagreement": Declared("disagreement of the top token", lambda _: DISAGREEMENT, (0.0, 1.0), *OF_OUTPUTS),
}
globals().update(declare(DECLARED | OUTPUTS, __name__))  # where entry points find them
