"""Measures of the outputs of two models with one vocabulary: their logits, which have no layers.

python analyze.py measure=jsd model=gelu-3l-mini model@target=solu-3l-mini
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from thinkalike.advice import named_setting
from thinkalike.config import AnalyzeConfig
from thinkalike.errors import ConfigError
from thinkalike.instruments.layer_pairs.by_measure import ByMeasure, LayerMeasureConfig
from thinkalike.instruments.layer_pairs.equal_depth import LayerName
from thinkalike.models.families import Layer
from thinkalike.models.frozen import FrozenModel
from thinkalike.states.batches import ModelRuns, StateBatch, StateBatches
from thinkalike.states.source import StateSource, with_weights


@dataclass
class OutputConfig(LayerMeasureConfig):
    """The settings of a measure of outputs."""

    def settings_read(self) -> frozenset[str]:
        """Return the names of all settings but `massive`: outputs have no massive activations."""
        return super().settings_read() - {"massive"}

    def __post_init__(self) -> None:
        """Refuse settings that have no meaning for predictions: words, and the embedding."""
        super().__post_init__()
        unusable = None
        if self.unit == "word":
            unusable = named_setting("measure.unit", "word")
        elif self.embed:
            unusable = named_setting("measure.embed", True)
        if unusable:
            raise ConfigError(
                f"{named_setting('measure', self.kind)} compares predictions of the next token: "
                f"leave {unusable} out"
            )


class OutputsByMeasure(ByMeasure):
    """Compares the logits of `model` with those of `model@target`, and within each."""

    common_settings = OutputConfig
    parts = ("model", "target", "data", "measure")
    takes_activations: ClassVar[bool] = False
    takes_sites: ClassVar[bool] = False

    def named(self, sites: Sequence[Layer]) -> list[LayerName]:
        """Return one name, whatever the sites are: a model's outputs are like a single layer."""
        return ["logits"]

    def batches(
        self,
        settings: LayerMeasureConfig,
        config: AnalyzeConfig,
        models: Sequence[StateSource],
        runs: ModelRuns,
    ) -> StateBatches:
        """Return the batches that are compared: the logits of both models at the same tokens.

        They are the batches of states that the parent class reads, with each state replaced by the
        logits that the model computes from it.

        Args:
            settings: The settings of the measure.
            config: The job.
            models: The source and the target.
            runs: The states and logits that jobs of one pass share.

        Raises:
            DataError: A model is a folder of states, which has no weights.
        """
        frozen_models = with_weights(
            models, f"{named_setting('measure', self.kind)} compares what models predict"
        )
        # Outputs have no massive activations (very long states), so none are looked for.
        settings = replace(settings, unit="token", massive="keep")
        batches = super().batches(settings, config, models, runs)

        def pool(number: int) -> Iterator[StateBatch]:
            """Yield the batches of a pool (some batches that are read together), with logits."""
            for batch in batches.pool(number):
                yield _batch_of_logits(batch, frozen_models, runs)

        return replace(batches, pool=pool)


def _batch_of_logits(
    batch: StateBatch, models: Sequence[FrozenModel], runs: ModelRuns
) -> StateBatch:
    """Return a batch with the logits of each model in place of its states.

    Args:
        batch: The states of each model by layer, the last of which is that after the last block.
        models: The models, which turn these states into logits.
        runs: Keeps the logits for other jobs that read the same batch.
    """
    logits_of_models: list[list[Tensor]] = []
    for model, states in zip(models, batch.states, strict=True):
        content = (batch.content, "logits")
        run = partial(_logits_as_layer, model, states[-1])
        # `once` calls `run` unless another job has computed the logits of this content already.
        # With `of_batch`, they are freed with the states of this batch.
        logits_of_models.append(runs.once(model, content, run, of_batch=True))
    return batch._replace(states=logits_of_models)


def _logits_as_layer(
    model: FrozenModel, last_states: Float[Tensor, "*n d"]
) -> list[Float[Tensor, "*n v"]]:
    """Return the logits of a model's last states, as a single layer."""
    return [model.finish(last_states)]
