"""measure=cka: CKA of every layer pair of two models, batch by batch.

It is the unbiased CKA of Brown et al. (2023), appendix C.1.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import pandas as pd
from torch import Tensor

from thinkalike.advice import named_setting
from thinkalike.config import AnalyzeConfig, RecipeJob, SettingValues
from thinkalike.errors import ConfigError, DataError, listed
from thinkalike.instruments.layer_pairs.equal_depth import rows_between_models
from thinkalike.instruments.layer_pairs.instrument import LayerPairs
from thinkalike.instruments.layer_pairs.settings import BATCHES, OF_STATES, WithNull
from thinkalike.measures.kernel_alignment import CKAMeasure
from thinkalike.measures.layer_pair_estimate import LayerPairEstimate
from thinkalike.measures.metric import CKA, CKAResult
from thinkalike.screen import show_text, span
from thinkalike.states.batches import ModelRuns, StateBatches
from thinkalike.states.source import StateSource
from thinkalike.store import Result

log = logging.getLogger(__name__)

LARGE_LEVERAGE = 0.2
"""A row that carries a larger share of a layer's variance is warned of."""

BATCHES_OF_PAPER = 1000
"""The batches of Brown et al. (2023)."""

FEWEST_ROWS = 4
"""The unbiased estimator divides by n - 3."""


@dataclass
class CKAConfig(WithNull):
    """The settings of CKA."""

    compares_within_groups: ClassVar[bool] = True
    kind: str = "cka"
    # estimator of HSIC; biased is larger where rows are few
    estimator: Literal["unbiased", "biased"] = "unbiased"
    # how batches are aggregated: the ratio of the mean HSICs, or the mean of the ratios as in
    # Brown et al. (2023)
    aggregate: Literal["ratio_of_means", "mean_of_ratios"] = "ratio_of_means"
    # kernel of HSIC: linear, or rbf with the median distance as bandwidth
    kernel: Literal["linear", "rbf"] = "linear"
    # how text is flattened into the rows that are compared: each token, a whole row of text
    # (sample), or its mean over tokens
    flatten: Literal["token", "sample", "mean"] = "token"

    def by_recipe(self, job: RecipeJob) -> SettingValues:
        """Return the settings that the recipe decides: the number of batches.

        It is 1,000 as in Brown et al. (2023), or 64 for the small models that this project ships.
        """
        if job.is_mini:
            return {"batches": BATCHES}
        return {"batches": BATCHES_OF_PAPER}

    def __post_init__(self) -> None:
        """Refuse `conditional_on` except for single tokens and the linear kernel."""
        super().__post_init__()
        contrary = []
        if self.kernel != "linear":
            contrary.append(named_setting("measure.kernel", self.kernel))
        if self.flatten != "token":
            contrary.append(named_setting("measure.flatten", self.flatten))
        if self.conditional_on != "none" and contrary:
            raise ConfigError(
                f"{named_setting('measure.conditional_on', self.conditional_on)} compares "
                f"single tokens by the linear kernel: leave out {' and '.join(contrary)}, or "
                f"{named_setting('measure.conditional_on')}"
            )


class LayerCKA(LayerPairs[CKAConfig], kind="cka", version=15, reads=OF_STATES):
    """Compares all layers of `model` with all of `model@target`, and within each model."""

    measure_class = CKAMeasure
    in_atlas = True
    for_stimuli: ClassVar[Mapping[str, object]] = {**LayerPairs.for_stimuli, "flatten": "token"}

    def fewest(self, settings: CKAConfig) -> int:
        """Return the fewest rows of a batch that CKA can compare."""
        return FEWEST_ROWS

    def metric(self, settings: CKAConfig, source_layers: int, target_layers: int) -> CKA:
        """Return an empty metric, which computes CKA from batches of states.

        Args:
            settings: The settings of CKA. Permutations are only for the null distribution; without
                one there are none.
            source_layers, target_layers: How many layers of the source and target are compared.
        """
        permutations = 0
        if settings.null:
            permutations = settings.permutations
        return CKA(
            source_layers,
            target_layers,
            estimator=settings.estimator,
            aggregate=settings.aggregate,
            kernel=settings.kernel,
            flatten=settings.flatten,
            conditional_on=settings.conditional_on,
            permutations=permutations,
        )

    def batches(
        self,
        settings: CKAConfig,
        config: AnalyzeConfig,
        models: Sequence[StateSource],
        runs: ModelRuns,
    ) -> StateBatches:
        """Return the batches of both models' states that are compared.

        Raises:
            DataError: Words are compared (the tokenizers differ), and `flatten` asks for whole
                rows of text or their means.
        """
        batches = super().batches(settings, config, models, runs)
        if batches.level == "word" and settings.flatten != "token":
            raise DataError(
                "words are compared one by one, so "
                f"{named_setting('measure.flatten', settings.flatten)} is for tokens only"
            )
        return batches

    def arrays(self, estimate: LayerPairEstimate) -> dict[str, Tensor]:
        """Return the arrays that a result stores, by name.

        `hsics` is the HSIC of every layer pair in each batch. `without` is the CKA when one part
        of the documents is left out, for each part. `convergence` is the CKA of the first k
        batches, for every k.
        """
        assert isinstance(estimate, CKAResult)  # the CKA metric computes no other estimate
        return {
            "hsics": estimate.hsics,
            "without": estimate.without,
            "convergence": estimate.convergence(),
        }

    def scalars(self, estimate: LayerPairEstimate) -> dict[str, float]:
        """Return the headline numbers of CKA, and then those of every measure of layer pairs.

        Those of CKA are there if the models have equally many layers. They are the distance
        between the models, √Σ arccos²(CKA) over corresponding layers (Brown et al. 2023, equation
        2), its interval if there is one, and "clipped": in how many of these layers rounding has
        brought the CKA out of [-1, 1], so that it is taken as -1 or 1.
        """
        assert isinstance(estimate, CKAResult)
        source_layers, target_layers = estimate.value.shape
        if source_layers != target_layers:
            return super().scalars(estimate)

        scalars = {}
        distance = estimate.distance()
        numbers_of_distance = {
            "distance": distance.value,
            "distance_low": distance.low,
            "distance_high": distance.high,
        }
        for name, number in numbers_of_distance.items():
            if number.isfinite():  # the ends are infinite where documents are too few
                scalars[name] = float(number)
        scalars["clipped"] = float(estimate.clipped)
        return scalars | super().scalars(estimate)

    def warn(
        self,
        estimate: LayerPairEstimate,
        source: pd.DataFrame,
        target: pd.DataFrame,
        level: str,
    ) -> None:
        """Warn of missing intervals and p-values, and of layers that a single token decides.

        The leverage of a token is its share of a layer's variance in a batch. A token decides the
        CKA of a layer if its leverage is above `LARGE_LEVERAGE`. The same is said of words or
        stimuli if these are compared.

        Args:
            estimate: The values of all layer pairs, with the largest leverage in each layer.
            source, target: Tables of the layers of either model, with the columns `model` and
                `layer`.
            level: What is compared: "token", "word" or "stimulus".
        """
        super().warn(estimate, source, target, level)
        assert isinstance(estimate, CKAResult)
        large_leverages: defaultdict[str, dict[object, float]] = defaultdict(dict)
        sides = [(source, estimate.leverage_source), (target, estimate.leverage_target)]
        for layers, leverages in sides:
            for layer, leverage in zip(layers.itertuples(), leverages.tolist(), strict=True):
                if leverage > LARGE_LEVERAGE:
                    large_leverages[str(layer.model)][layer.layer] = leverage
        if not large_leverages:
            return

        layers_in_words = []
        largest = 0.0
        for model, leverage_of_layer in large_leverages.items():
            word = "layer" if len(leverage_of_layer) == 1 else "layers"
            layers_in_words.append(f"{word} {listed(leverage_of_layer)} of {model}")
            largest = max(largest, *leverage_of_layer.values())
        log.warning(
            f"warning: {' and '.join(layers_in_words)}: in some batch one {level} carries "
            f"up to {100 * largest:.0f} % of the variance, which decides CKA"
        )

    def show(self, result: Result) -> None:
        """Print the most and least similar layers, and the models' distance if it is known.

        The distance of a single layer pair is the arccos of the printed CKA, and is left out.
        """
        super().show(result)
        scalars = result.scalars
        is_one_pair = len(rows_between_models(result.details)) == 1
        if "distance" in scalars and not is_one_pair:
            low = scalars.get("distance_low", math.nan)
            high = scalars.get("distance_high", math.nan)
            distance = span(scalars["distance"], low, high, ".4f")
            show_text(
                "The distance between the models, √Σ arccos²(CKA) over pairs of corresponding "
                f"layers, is {distance} radians (Brown et al. 2023, equation 2)."
            )
