"""measure=jsd, measure=disagreement: how far apart two models' next-token predictions are, on the same tokens.

    python analyze.py measure=jsd model=gelu-3l-mini model@target=solu-3l-mini

Each model has one layer here, its logits. Both need one vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from thinkalike.config import AnalyzeConfig
from thinkalike.errors import ConfigError
from thinkalike.instruments.layer_pairs.chance import WithNull
from thinkalike.instruments.layer_pairs.declared import Declared, OfLayerMeasure, declare
from thinkalike.job import check_memory
from thinkalike.measures import layer_measures
from thinkalike.memory import Budget
from thinkalike.models import FrozenModel
from thinkalike.states import ModelRuns, StateBatch, StateBatches

COPIES = 6  # of the logits of a batch that exist at the same time


@dataclass
class OutputConfig(WithNull):
    """The settings of a measure of outputs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.level == "word" or self.embed:
            wrong = "level=word" if self.level == "word" else "embed=true"
            raise ConfigError(f"measure={self.kind} compares predictions of the next token: leave measure.{wrong} out")


class Outputs(OfLayerMeasure):
    """A measure of the logits of two models."""

    takes_activations: ClassVar[bool] = False

    def layers(self, measure: Any, model: FrozenModel) -> list[Any]:
        return ["logits"]

    def batches(
        self, measure: Any, config: AnalyzeConfig, models: Sequence[FrozenModel], runs: ModelRuns
    ) -> StateBatches:
        size = measure.tokens_per_batch
        needed = 4.0 * COPIES * size * max(model.vocabulary for model in models)
        remedy = "lower measure.tokens_per_batch"
        check_memory(
            f"measure={measure.kind} of {size} tokens at once needs", needed, Budget.of(models[0].device), remedy
        )
        batches = super().batches(replace(measure, level="token"), config, models, runs)

        def logits(model: FrozenModel, content: Hashable, state: Tensor) -> list[Tensor]:
            return runs.once(model, (content, "logits"), lambda model: [model.finish(state)])

        def starting(number: int, step: int) -> Iterator[StateBatch]:
            for batch in batches.starting(number, step):
                both = zip(models, batch.states, strict=True)
                yield batch._replace(states=[logits(model, batch.content, own[-1]) for model, own in both])

        return replace(batches, starting=starting)


def _declared(title: str, name: str, high: float) -> Declared:
    reads = ("model", "target", "data", "measure")
    return Declared(title, lambda measure: layer_measures()[name], (0.0, high), True, OutputConfig, (Outputs,), reads)


CONFIGS: dict[str, type] = declare(
    {
        "jsd": _declared("Jensen-Shannon divergence, nats", "jsd", math.log(2)),
        "disagreement": _declared("disagreement of the top token", "disagreement", 1.0),
    },
    __name__,
)
