"""measure=cka: unbiased CKA of every layer pair of two models, batch by batch (Brown et al. 2023, appendix C.1)."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pandas as pd
import torch

from thinkalike.config import AnalyzeConfig, RecipeJob, SettingValues
from thinkalike.errors import ConfigError, DataError, listed
from thinkalike.instruments.layer_pairs.frame import BATCHES, OF_STATES, LayerPairs, WithNull
from thinkalike.measures.kernel_alignment import CKAMeasure
from thinkalike.measures.metric import CKA
from thinkalike.screen import show_text, span
from thinkalike.states.batches import ModelRuns, StateBatches
from thinkalike.states.source import StateSource
from thinkalike.store import Result

log = logging.getLogger(__name__)

LEVERAGE = 0.2  # share of one row in a layer's variance that is warned of


@dataclass
class CKAConfig(WithNull):
    """The settings of CKA."""

    compares_within_groups: ClassVar[bool] = True
    kind: str = "cka"
    estimator: Literal["unbiased", "biased"] = "unbiased"  # of HSIC
    aggregate: Literal["ratio_of_means", "mean_of_ratios"] = "ratio_of_means"  # brown2023: the second
    kernel: Literal["linear", "rbf"] = "linear"  # rbf has the median distance as bandwidth
    flatten: Literal["token", "sample", "mean"] = "token"  # what a row is; mean: over the tokens of a row of text

    def by_recipe(self, job: RecipeJob) -> SettingValues:
        return {"batches": BATCHES if job.is_mini else 1000}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.given != "none" and (self.kernel, self.flatten) != ("linear", "token"):
            others = f"measure.kernel={self.kernel} and measure.flatten={self.flatten}"
            found = f"measure.given={self.given} compares single tokens by the linear kernel"
            raise ConfigError(f"{found}: leave out {others}, or measure.given")


class LayerCKA(LayerPairs, kind="cka", version=14, reads=OF_STATES):
    """Compares all layers of `model` with all of `model@target`, and those of each with each other."""

    measure_class = CKAMeasure
    in_atlas = True
    for_stimuli: ClassVar[Mapping[str, Any]] = {**LayerPairs.for_stimuli, "flatten": "token"}

    def fewest(self, measure: Any) -> int:
        return 4  # the unbiased estimator divides by n - 3

    def metric(self, measure: Any, source_layers: int, target_layers: int) -> Any:
        options = {key: getattr(measure, key) for key in ("estimator", "aggregate", "kernel", "flatten", "given")}
        options["permutations"] = measure.permutations if measure.null else 0
        return CKA(source_layers, target_layers, **options)

    def batches(
        self, measure: Any, config: AnalyzeConfig, models: Sequence[StateSource], runs: ModelRuns
    ) -> StateBatches:
        batches = super().batches(measure, config, models, runs)
        if batches.level == "word" and measure.flatten != "token":
            raise DataError(f"words are compared one by one, so measure.flatten={measure.flatten} is for tokens only")
        return batches

    def arrays(self, estimates: Any) -> dict[str, torch.Tensor]:
        return {"hsics": estimates.hsics, "without": estimates.without, "convergence": estimates.convergence()}

    def scalars(self, estimates: Any) -> dict[str, float]:
        chance = super().scalars(estimates)
        if estimates.value.shape[0] != estimates.value.shape[1]:
            return chance
        ends = zip(("distance", "distance_low", "distance_high"), estimates.distance(), strict=True)
        finite = {name: float(end) for name, end in ends if end.isfinite()}  # of few documents there is no interval
        return finite | {"clipped": float(estimates.clipped)} | chance

    def warn(self, estimates: Any, rows: pd.DataFrame, columns: pd.DataFrame, level: str) -> None:
        super().warn(estimates, rows, columns, level)
        sides = [(rows, estimates.leverage_source), (columns, estimates.leverage_target)]
        found: dict[str, dict[Any, float]] = {}
        for layers, leverages in sides:
            for layer, value in zip(layers.itertuples(), leverages.tolist(), strict=True):
                if value > LEVERAGE:
                    found.setdefault(str(layer.model), {})[layer.layer] = value
        if found:
            where = " and ".join(f"{listed(own)} of {model}" for model, own in found.items())
            most = 100 * max(value for own in found.values() for value in own.values())
            carries = f"in some batch one {level} carries up to {most:.0f} % of the variance, which decides CKA"
            log.warning(f"warning: layers {where}: {carries}")

    def show(self, result: Result) -> None:
        super().show(result)
        if "distance" in result.scalars:
            low, high = (result.scalars.get(f"distance_{end}", math.nan) for end in ("low", "high"))
            distance = span(result.scalars["distance"], low, high, ".4f")
            show_text(f"distance between the models (equation 2): {distance}", indent=2)
