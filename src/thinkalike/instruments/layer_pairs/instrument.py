"""The instrument of all measures of layer pairs: the loop from batches of states to a table.

A measure says which metric gathers its batches: an `Accumulator`.
"""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypeVar, cast

import pandas as pd
from jaxtyping import Shaped
from torch import Tensor

from thinkalike import figures
from thinkalike.config import AnalyzeConfig, SettingValues
from thinkalike.config.parts import AFTER
from thinkalike.instruments.layer_pairs import forecast
from thinkalike.instruments.layer_pairs.comparison import (
    ComparedSide,
    LayerPairComparison,
    rounds,
)
from thinkalike.instruments.layer_pairs.matrix import LayerMatrix
from thinkalike.instruments.layer_pairs.one_pass import run_together
from thinkalike.instruments.layer_pairs.settings import BATCHES, LayerPairsConfig
from thinkalike.instruments.layer_pairs.table import (
    null_columns,
    outcome_of_comparison,
    sample_scalars,
)
from thinkalike.job.instrument import LADDER, Outcome, Work
from thinkalike.measures.accumulator import Accumulator
from thinkalike.measures.layer_pair_estimate import LayerPairEstimate
from thinkalike.measures.sample_size import FEWEST_GROUPS
from thinkalike.states.batches import ModelRuns, StateBatches, text_batches
from thinkalike.states.folder import load_sources
from thinkalike.states.source import StateSource
from thinkalike.store import Result

if TYPE_CHECKING:
    from thinkalike.models.shapes import Passes, Shape, Shapes

log = logging.getLogger(__name__)

Settings = TypeVar("Settings", bound=LayerPairsConfig)
"""The settings of the measure of an instrument."""


class LayerPairs(LayerMatrix, Generic[Settings]):
    """A measure of every layer of `model` with every layer of `model@target`, and within each.

    `activations` takes the place of `model`. Then stimuli are compared instead of tokens of text.
    """

    same_layers: ClassVar[bool] = False
    """Whether only layers of one number have a value."""

    for_stimuli: ClassVar[Mapping[str, object]] = {
        "level": "auto",
        "skip_special_tokens": False,
        "given": "none",
    }
    """The values of settings that have no meaning for stimuli."""

    takes_activations: ClassVar[bool] = True
    is_shared: ClassVar[bool] = True
    run_all = staticmethod(run_together)
    smallest: ClassVar[Mapping[str, object]] = {
        "measure.batches": 2,
        "measure.tokens_per_batch": 256,
    }

    # ---- what a measure says

    @abstractmethod
    def metric(self, measure: Settings, source_layers: int, target_layers: int) -> Accumulator:
        """Return the metric that gathers the batches.

        Args:
            measure: The settings of the measure.
            source_layers, target_layers: How many layers the models have.
        """

    def fewest(self, measure: Settings) -> int:
        """Return how many rows a batch must have."""
        return 2

    def columns(self, estimate: LayerPairEstimate) -> dict[str, Shaped[Tensor, "l m"]]:
        """Return further columns of the rows across the two models: those of the null."""
        return null_columns(estimate)

    def scalars(self, estimate: LayerPairEstimate) -> dict[str, float]:
        """Return further headline numbers: those of the null, and how much was compared."""
        return sample_scalars(estimate)

    def arrays(self, estimate: LayerPairEstimate) -> dict[str, Tensor]:
        """Return further arrays of the result."""
        return {}

    def warn(
        self,
        estimate: LayerPairEstimate,
        source: pd.DataFrame,
        target: pd.DataFrame,
        level: str,
    ) -> None:
        """Warn of what makes the numbers doubtful.

        Args:
            estimate: The values.
            source, target: The layers of the source and of the target.
            level: What a row of a batch is: a token, a word or a stimulus.
        """
        if not math.isfinite(estimate.widest_interval()):
            reason = estimate.why_no_interval or (
                f"{estimate.documents} documents have no intervals: without some of them there is "
                "no value"
            )
            log.warning("warning: %s", reason)
        if estimate.chance is not None and estimate.chance.documents < FEWEST_GROUPS:
            log.warning(
                "warning: p is missing: %d documents of a batch have as many rows as others",
                estimate.chance.documents,
            )

    # ---- the settings of a job

    def measure_settings(self, config: AnalyzeConfig) -> Settings:
        """Return the settings of the measure of a job."""
        return cast(Settings, config.measure_as(LayerPairsConfig))

    def has_embedding(self, config: AnalyzeConfig) -> bool:
        return self.measure_settings(config).embed

    def inputs(self, config: AnalyzeConfig) -> Mapping[str, Any]:
        if not config.activations:
            return super().inputs(config)
        from thinkalike.instruments.of_stimuli import stimuli_inputs

        return stimuli_inputs(config)

    def unread(self, config: AnalyzeConfig) -> SettingValues:
        unread: dict[str, object] = {}
        if not self.has_readings(config):
            unread["ruler"] = None
        if not config.activations:
            return {**unread, **super().unread(config), "stimuli": None}

        unread |= config.unread_beside_recordings()
        unread |= {"data": None, "layers": "same"}
        # Stimuli are one batch, but keys of such jobs have always had CKA's number of batches.
        unread["measure.batches"] = BATCHES
        for name, value in self.for_stimuli.items():
            unread[f"measure.{name}"] = value
        return unread

    def has_readings(self, config: AnalyzeConfig) -> bool:
        """Return whether values have readings in bits of both models.

        Readings are of the residual stream after each block.
        """
        if config.ruler is None or "ruler" not in self.reads or config.activations:
            return False
        return config.model.site == AFTER and config.target.site == AFTER

    # ---- what a job will take

    def passes(self, config: AnalyzeConfig, shapes: Shapes) -> list[Passes]:
        """Return the passes of both models over all batches, which jobs of one pass share."""
        measure = self.measure_settings(config)
        has_readings = self.has_readings(config)
        return forecast.passes_over_batches(config, measure, shapes, has_readings=has_readings)

    def seconds(self, config: AnalyzeConfig, shapes: Shapes) -> float:
        """Return the time that comparing takes, from that of a batch of one and of two layers."""
        measure = self.measure_settings(config)
        layer_counts = self._layer_counts(config, shapes)
        width = max(shape.width for shape in layer_counts)

        def seconds_of_batch(layers: int) -> float:
            return forecast.time_batch(measure, self.metric, layers, width)

        return forecast.seconds_of_comparing(
            measure,
            layer_counts,
            seconds_of_batch,
            same_layers=self.same_layers,
            has_readings=self.has_readings(config),
        )

    def smaller(
        self, config: AnalyzeConfig, shapes: Shapes, chosen: Collection[str]
    ) -> Iterator[dict[str, object]]:
        """Yield fewer layers of equal relative depth, and then fewer batches."""
        batches = self.measure_settings(config).batches
        for layers, share in LADDER:
            settings = forecast.fewer_layers(layers, shapes)
            if share > 1:
                settings["measure.batches"] = max(batches // share, 1)
            if "ruler" in self.reads:
                settings["ruler"] = "bits"
            yield settings

    def holds(self, config: AnalyzeConfig, shapes: Shapes) -> float:
        """Return the bytes of the states of a pool and of a batch in all layers of both models."""
        return forecast.bytes_of_states(
            config,
            self.measure_settings(config),
            self._layer_counts(config, shapes),
            has_readings=self.has_readings(config),
        )

    def _layer_counts(self, config: AnalyzeConfig, shapes: Shapes) -> dict[Shape, int]:
        return forecast.count_layers(config, shapes, has_embedding=self.has_embedding(config))

    # ---- the run

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        runs = ModelRuns()
        models: Sequence[StateSource] = ()
        with work.phase("loading"):
            if config.activations:
                from thinkalike.instruments.of_stimuli import comparison_of_stimuli

                comparison = comparison_of_stimuli(self, config, work)
            else:
                models = load_sources(config.model, config.target)
                comparison = self.of_text(config, work, models, runs)

        for number in rounds([comparison], runs):
            for batch in comparison.pool(number):
                for metric, batch_of_metric in comparison.metrics_of(batch):
                    comparison.update(metric, batch_of_metric)
                runs.forget(of_batch=True)
        outcome = self.outcome(comparison)
        level = comparison.batches.level
        work.processes.end_of_share()
        if not self.has_readings(config):
            return outcome

        # The states and metrics make room for copies of the models.
        runs.forget()
        del comparison
        return self.with_readings(outcome, config, models, level, work)

    def of_text(
        self,
        config: AnalyzeConfig,
        work: Work,
        models: Sequence[StateSource],
        runs: ModelRuns,
    ) -> LayerPairComparison:
        """Return the comparison of two models on text.

        Args:
            config: The job.
            work: The context of the running job.
            models: The source and the target.
            runs: The states that the jobs of one pass share. It also keeps the descriptions of
                models, so that the weights of a model are read once.
        """
        measure = self.measure_settings(config)
        sites_by_model = self.sites(config, models)
        batches = self.batches(measure, config, models, runs)
        if batches.level == "word" and measure.given == "token_position":
            log.info("words have no common position: compared given the token alone")
            measure = replace(measure, given="token")

        sides: dict[int, ComparedSide] = {}
        for model, sites in zip(models, sites_by_model, strict=True):
            describe = partial(_described, model, runs)
            sides[id(model)] = ComparedSide(model.name, self.named(sites), describe)
        source, target = models
        return self.comparison(measure, (sides[id(source)], sides[id(target)]), batches, work)

    def batches(
        self,
        measure: Settings,
        config: AnalyzeConfig,
        models: Sequence[StateSource],
        runs: ModelRuns,
    ) -> StateBatches:
        """Return the batches of states that are compared; see `of_text`."""
        return text_batches(models, self.sites(config, models), config.data, measure, runs)

    def comparison(
        self,
        measure: Settings,
        sides: tuple[ComparedSide, ComparedSide],
        batches: StateBatches,
        work: Work,
    ) -> LayerPairComparison:
        """Return the comparison of two sides.

        Args:
            measure: The settings of the measure.
            sides: The source and the target, one object where a model is compared with itself.
            batches: The batches of states of both sides.
            work: The context of the running job.
        """
        of_metric = measure
        if measure.given != "none":
            # The means of positions have been removed from the states of the batches already.
            of_metric = replace(measure, given="token")
        source, target = sides
        new_metric = partial(self.metric, of_metric, len(source.layers), len(target.layers))
        return LayerPairComparison(new_metric, measure, sides, batches, work)

    def outcome(self, comparison: LayerPairComparison) -> Outcome:
        """Return the table and the numbers of all batches; see `outcome_of_comparison`."""
        return outcome_of_comparison(self, comparison)

    def with_readings(
        self,
        outcome: Outcome,
        config: AnalyzeConfig,
        models: Sequence[StateSource],
        level: str,
        work: Work,
    ) -> Outcome:
        """Return the outcome with readings of its values in bits of both models.

        Args:
            outcome: The outcome without readings.
            config: The job.
            models: The source and the target.
            level: What a row of a batch is: a token or a word.
            work: The context of the running job.
        """
        # Few jobs have readings, so that these modules are imported here.
        from thinkalike.instruments.layer_pairs.readings import readings_of_layer_pairs
        from thinkalike.instruments.ruler.table import BLANK

        tables, scalars = readings_of_layer_pairs(self, config, models, level, work)
        return replace(
            outcome,
            tables=outcome.tables | tables,
            scalars=outcome.scalars | scalars,
            blank=(*outcome.blank, *BLANK),
        )

    # ---- figures and screen

    def draw(self, result: Result, folder: Path) -> None:
        super().draw(result, folder)
        if "readings" in result.tables:
            figures.ruler(
                result.tables["readings"],
                result.tables["rungs"],
                result.scalars["documents_read"],
                folder,
                self.label(result),
            )

    def show(self, result: Result) -> None:
        super().show(result)
        if "readings" in result.tables:
            from thinkalike.instruments.layer_pairs.readings import show_read

            show_read(result, self.label(result))


AnyLayerPairs: TypeAlias = LayerPairs[Any]


def _described(model: StateSource, runs: ModelRuns) -> dict[str, str]:
    """Return what the provenance says of a model, under the name that it has in this job."""
    described: dict[str, str] = runs.text(("provenance", model.identity), model.describe)
    return {**described, "name": model.name}
