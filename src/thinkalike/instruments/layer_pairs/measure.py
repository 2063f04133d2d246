"""What a measure of layer pairs says of itself: its metric, settings, columns and comparison."""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypeVar, cast

import pandas as pd
from jaxtyping import Float, Shaped
from torch import Tensor

from thinkalike.config import AnalyzeConfig, SettingValues
from thinkalike.config.parts import AFTER
from thinkalike.instruments.layer_pairs.comparison import (
    ComparedSide,
    LayerPairComparison,
)
from thinkalike.instruments.layer_pairs.matrix import LayerMatrix
from thinkalike.instruments.layer_pairs.settings import BATCHES, LayerPairsConfig
from thinkalike.job import Work
from thinkalike.measures.accumulator import Accumulator
from thinkalike.measures.layer_pair_estimate import LayerPairEstimate
from thinkalike.measures.sample_size import FEWEST_GROUPS
from thinkalike.states.batches import ModelRuns, StateBatches, text_batches
from thinkalike.states.source import StateSource

if TYPE_CHECKING:
    pass

log = logging.getLogger(__name__)

Settings = TypeVar("Settings", bound=LayerPairsConfig)
"""The settings of the measure of an instrument."""


class PairMeasure(LayerMatrix, Generic[Settings]):
    """What a measure of layer pairs says of itself, and the comparison of a job."""

    same_layers: ClassVar[bool] = False
    """Whether only layers of one number have a value."""

    for_stimuli: ClassVar[Mapping[str, object]] = {
        "unit": "auto",
        "skip_special_tokens": False,
        "conditional_on": "none",
    }
    """The values of settings that have no meaning for stimuli."""

    takes_activations: ClassVar[bool] = True
    is_shared: ClassVar[bool] = True
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
        """Return how many rows a batch must have at least; fewer cannot be compared."""
        return 2

    def columns(self, estimate: LayerPairEstimate) -> dict[str, Shaped[Tensor, "l m"]]:
        """Return further columns of the rows across the two models, by name: those of the null."""
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
        """Return whether the embedding is compared like a layer."""
        return self.measure_settings(config).embed

    def unread(self, config: AnalyzeConfig) -> SettingValues:
        """Return the settings that this job does not read: of readings, or beside a recording."""
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

    # ---- the comparison

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
        if batches.level == "word" and measure.conditional_on == "token_position":
            log.info("words have no common position: compared conditional on the token alone")
            measure = replace(measure, conditional_on="token")

        sides: dict[int, ComparedSide] = {}
        for model, sites in zip(models, sites_by_model, strict=True):
            describe = partial(_described_model, model, runs)
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
        if measure.conditional_on != "none":
            # The means of positions have been removed from the states of the batches already.
            of_metric = replace(measure, conditional_on="token")
        source, target = sides
        new_metric = partial(self.metric, of_metric, len(source.layers), len(target.layers))
        return LayerPairComparison(new_metric, measure, sides, batches, work)


AnyPairMeasure: TypeAlias = PairMeasure[Any]


def null_columns(estimate: LayerPairEstimate) -> dict[str, Float[Tensor, "l m"]]:
    """Return the columns of the null, which only the rows across the two models have.

    There are none without a null.
    """
    chance = estimate.chance
    if chance is None:
        return {}
    return {
        "null_mean": chance.null,
        "calibrated": chance.calibrated.value,
        "calibrated_low": chance.calibrated.low,
        "calibrated_high": chance.calibrated.high,
        "p": chance.p,
        "p_corrected": chance.p_of_largest,
    }


def sample_scalars(estimate: LayerPairEstimate) -> dict[str, float]:
    """Return how many documents and rows were compared, after the numbers of the null.

    Numbers that are not known are left out.
    """
    scalars = {}
    chance = estimate.chance
    if chance is not None and not math.isnan(chance.largest):
        scalars["largest_calibrated"] = chance.largest
        scalars["lowest_p_corrected"] = float(chance.p_of_largest.min())
    scalars["documents"] = float(estimate.documents)
    if estimate.rows is not None:
        scalars["rows"] = float(estimate.rows)
    if estimate.effective is not None:
        scalars["effective_sample_size"] = estimate.effective
    return scalars


def _described_model(model: StateSource, runs: ModelRuns) -> dict[str, str]:
    """Return what the provenance says of a model, under the name that it has in this job.

    Args:
        model: The model.
        runs: Where jobs of one pass keep what they share, here the description of the weights.
    """
    described: dict[str, str] = runs.text(("provenance", model.identity), model.describe)
    return {**described, "name": model.name}
