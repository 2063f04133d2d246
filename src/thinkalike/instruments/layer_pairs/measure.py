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

from thinkalike.advice import named_setting
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
from thinkalike.measures.sample_size import FEWEST_GROUPS, FEWEST_GROUPS_IF_BIASED
from thinkalike.states.batches import ModelRuns, StateBatches, text_batches
from thinkalike.states.source import StateSource
from thinkalike.store import Result

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
    def metric(self, settings: Settings, source_layers: int, target_layers: int) -> Accumulator:
        """Return an empty metric, which computes the measure from batches of states.

        Args:
            settings: The settings of the measure.
            source_layers, target_layers: How many layers of the source and target are compared.
        """

    def fewest(self, settings: Settings) -> int:
        """Return the fewest rows of a batch that the measure can compare."""
        return 2

    def columns(self, estimate: LayerPairEstimate) -> dict[str, Shaped[Tensor, "l m"]]:
        """Return further columns of the table, by name: by default those of the null distribution.

        Each has a value for every layer pair across the two models (not for pairs within a model).
        """
        return null_columns(estimate)

    def scalars(self, estimate: LayerPairEstimate) -> dict[str, float]:
        """Return further headline numbers: by default the sample's size and those of the null."""
        return sample_scalars(estimate)

    def arrays(self, estimate: LayerPairEstimate) -> dict[str, Tensor]:
        """Return further arrays of the result, by name; by default none."""
        return {}

    def warn(
        self,
        estimate: LayerPairEstimate,
        source: pd.DataFrame,
        target: pd.DataFrame,
        level: str,
    ) -> None:
        """Log why values have no interval, or why layer pairs have no p-value.

        Args:
            estimate: The values of all layer pairs.
            source, target: The names of the models and of their layers, a row for each layer.
            level: What a row of a batch is: "token", "word" or "stimulus".
        """
        if not math.isfinite(estimate.widest_interval()):
            reason = estimate.why_no_interval or (
                f"{estimate.documents} documents have no intervals: without some of them there is "
                "no value"
            )
            log.warning("warning: %s", reason)
        reason_without_p = why_no_p(estimate)
        if reason_without_p:
            log.warning("warning: no p-value: %s", reason_without_p)

    # ---- the settings of a job

    def measure_settings(self, config: AnalyzeConfig) -> Settings:
        """Return the settings of the measure of a job."""
        return cast(Settings, config.measure_as(LayerPairsConfig))

    def has_embedding(self, config: AnalyzeConfig) -> bool:
        """Return whether the embedding is compared like a layer."""
        return self.measure_settings(config).embed

    def unread(self, config: AnalyzeConfig) -> SettingValues:
        """Return the settings that this job ignores, with the values that enter its hash.

        `ruler` is ignored if no equivalent bit widths are computed. A job on text ignores the
        stimuli. A job with a recording compares stimuli, and ignores all settings about text.
        """
        unread: dict[str, object] = {}
        if not self.has_bit_widths(config):
            unread["ruler"] = None
        if not config.activations:
            return {**unread, **super().unread(config), "stimuli": None}

        unread |= config.unread_beside_recordings()
        unread |= {"data": None, "layers": "same"}
        # Stimuli are one batch, but keys of such jobs have always had CKA's number of batches.
        unread["measure.batches"] = BATCHES
        # The settings of the measure that concern text alone, with their defaults.
        for name, value in self.for_stimuli.items():
            unread[f"measure.{name}"] = value
        return unread

    def has_bit_widths(self, config: AnalyzeConfig) -> bool:
        """Return whether equivalent bit widths of layer pairs are computed (`ruler=bits`).

        The equivalent bit width of a layer pair is the number of bits to which a model's weights
        are rounded in a copy that is as similar to it as the other model. It is computed only if
        the measure is no distance, both sides are models (no recordings), and their states are the
        residual stream after each block.
        """
        # Distances do not read the setting `ruler`, and `activations` are recordings.
        if config.ruler is None or "ruler" not in self.reads or config.activations:
            return False
        return config.model.site == AFTER and config.target.site == AFTER

    def uncomputed_controls(self, result: Result) -> Sequence[str]:
        """Return what the layers could have been compared with, and were not.

        These are the null distribution, and local mixing of tokens, with which equivalent bit
        widths are computed. None of them is returned if the result has equivalent bit widths.
        """
        config = result.config
        measure = config.get("measure") or {}
        if "equivalent_bits" in result.tables:
            return ()
        uncomputed = []
        has_null = getattr(self.settings, "has_null", False)
        if has_null and measure.get("null") is False:
            uncomputed.append(f"by chance ({named_setting('measure.null', True)})")
        models = [config.get("model") or {}, config.get("target") or {}]
        is_of_stream = all(model.get("site", AFTER) == AFTER for model in models)
        is_of_text = "stimuli" not in result.provenance
        if "ruler" in self.reads and is_of_stream and is_of_text:
            uncomputed.append(f"by local mixing of tokens ({named_setting('ruler', 'bits')})")
        return uncomputed

    # ---- the comparison

    def comparison_on_text(
        self,
        config: AnalyzeConfig,
        work: Work,
        models: Sequence[StateSource],
        runs: ModelRuns,
    ) -> LayerPairComparison:
        """Return the comparison of two models on text; no batch has been read yet.

        If words are compared (the tokenizers differ), a word has no token position that is the
        same in both models. `conditional_on=token_position` is then replaced by `token`.

        Args:
            config: The job.
            work: The context of the running job.
            models: The source and the target.
            runs: The states that jobs of one pass over the text share. It also keeps the
                descriptions of models, so that the weights of a model are read once.
        """
        measure = self.measure_settings(config)
        sites_by_model = self.sites(config, models)
        batches = self.batches(measure, config, models, runs)
        if batches.level == "word" and measure.conditional_on == "token_position":
            log.info("words have no common position: compared conditional on the token alone")
            measure = replace(measure, conditional_on="token")

        # A model that is compared with itself is one object on both sides. A side has the name of
        # its model, the names of its layers, and a function that describes the model.
        side_of_model: dict[int, ComparedSide] = {}
        for model, sites in zip(models, sites_by_model, strict=True):
            describe = partial(_described_model, model, runs)
            side_of_model[id(model)] = ComparedSide(model.name, self.named(sites), describe)
        source, target = models
        sides = (side_of_model[id(source)], side_of_model[id(target)])
        return self.comparison(measure, sides, batches, work)

    def batches(
        self,
        settings: Settings,
        config: AnalyzeConfig,
        models: Sequence[StateSource],
        runs: ModelRuns,
    ) -> StateBatches:
        """Return the batches of both models' states that are compared.

        Args:
            settings: The settings of the measure.
            config: The job.
            models: The source and the target.
            runs: The states that jobs of one pass share.
        """
        return text_batches(models, self.sites(config, models), config.data, settings, runs)

    def comparison(
        self,
        settings: Settings,
        sides: tuple[ComparedSide, ComparedSide],
        batches: StateBatches,
        work: Work,
    ) -> LayerPairComparison:
        """Return the comparison of two models or recordings; no batch has been added yet.

        Args:
            settings: The settings of the measure.
            sides: The source and the target, one object where a model is compared with itself.
            batches: The batches of states of both sides.
            work: The context of the running job.
        """
        settings_of_metric = settings
        if settings.conditional_on != "none":
            # It is "token" or "token_position". For the latter, the batches have removed the mean
            # state of each position already, so that only the token is left to the metric.
            settings_of_metric = replace(settings, conditional_on="token")
        source, target = sides
        new_metric = partial(
            self.metric, settings_of_metric, len(source.layers), len(target.layers)
        )
        return LayerPairComparison(new_metric, settings, sides, batches, work)


AnyPairMeasure: TypeAlias = PairMeasure[Any]


def null_columns(estimate: LayerPairEstimate) -> dict[str, Float[Tensor, "l m"]]:
    """Return columns that compare each value with its values after documents were permuted.

    `null_mean` is the mean value over permutations. `calibrated` is (value - null_mean) /
    (best - null_mean), where best is the value of a layer with itself: 0 by chance, 1 for equal
    layers. `p` is the share of permutations in which the two layers are at least as similar, where
    the value itself counts as one of them; NaN if there are too few documents. `p_corrected`
    compares with the most similar of all layer pairs in each permutation, which corrects for the
    number of pairs. There are no columns if permutations were not asked for.
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


def why_no_p(estimate: LayerPairEstimate) -> str:
    """Return why the null of an estimate has no p-values; "" if it has, or if there is no null.

    Documents are permuted within one batch. The number of those that can be permuted is 0 where
    they are too few in effect, in which case the reason depends on what is compared.

    Args:
        estimate: The values of all layer pairs.
    """
    chance = estimate.chance
    if chance is None or chance.documents >= FEWEST_GROUPS:
        return ""
    if chance.documents:
        return f"p needs {FEWEST_GROUPS} documents in a batch, and this one has {chance.documents}"
    size = f"{estimate.documents} documents"
    if estimate.effective is not None:
        size = f"effective sample size {estimate.effective:.1f} of {size}"
    if estimate.rows_used is not None:  # rows are compared within tokens
        return (
            f"within tokens p needs an effective sample size of {FEWEST_GROUPS_IF_BIASED} in a "
            f"batch, which has less (all batches: {size})"
        )
    return f"p needs more rows in documents of equal length than a batch has (all batches: {size})"


def sample_scalars(estimate: LayerPairEstimate) -> dict[str, float]:
    """Return the headline numbers of the null, if there is one, and the size of the sample.

    The numbers of the null are about the most similar of all layer pairs: by how much its value is
    above chance, and the smallest of the p-values that all layer pairs have, each of which is
    corrected for the number of pairs. Numbers that are not known are left out.
    """
    scalars = {}
    chance = estimate.chance
    if chance is not None and not math.isnan(chance.largest):
        scalars["largest_calibrated"] = chance.largest
        corrected_p = chance.p_of_largest  # a p-value for each of l x m layer pairs
        scalars["lowest_p_corrected"] = float(corrected_p.min())
    scalars["documents"] = float(estimate.documents)
    if estimate.rows is not None:
        scalars["rows"] = float(estimate.rows)
    if estimate.effective is not None:
        scalars["effective_sample_size"] = estimate.effective
    return scalars


def _described_model(model: StateSource, runs: ModelRuns) -> dict[str, str]:
    """Return what the provenance of a result says of a model, such as a checksum of its weights.

    Args:
        model: The model.
        runs: Keeps the description for other jobs that run together. They may call the model by a
            different name; the returned description has the name of this job.
    """
    # `text` calls `describe` unless it has a description under this key already.
    described = runs.text(("provenance", model.identity), model.describe)
    return {**described, "name": model.name}
