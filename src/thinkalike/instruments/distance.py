"""measure=distance: how far the states of a changed model are from those of its original."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from jaxtyping import Float
from torch import Tensor

from thinkalike import figures
from thinkalike.advice import named_setting
from thinkalike.config import AnalyzeConfig, setting
from thinkalike.errors import ConfigError
from thinkalike.instruments.layer_note import show_layer_note
from thinkalike.instruments.layer_pairs.components import ROUNDING
from thinkalike.instruments.layer_pairs.instrument import LayerPairs
from thinkalike.instruments.layer_pairs.screen import (
    amount_compared_in_words,
    beyond_next_in_words,
    show_what_was_read,
)
from thinkalike.instruments.layer_pairs.settings import BATCHES, LayerPairsConfig
from thinkalike.measures.layer_pair_estimate import LayerPairEstimate
from thinkalike.measures.shifts import LayerShifts, ShiftEstimate
from thinkalike.models.families import Layer
from thinkalike.ranking import ranked_rows
from thinkalike.screen import (
    Column,
    Table,
    few,
    number_column,
    number_text,
    show_table,
    show_text,
    span,
    with_share,
)
from thinkalike.states.batches import ModelRuns, StateBatches
from thinkalike.states.source import StateSource
from thinkalike.store import Headline, Result

if TYPE_CHECKING:
    import pandas as pd

UNRELATED_DISTANCE = 1.2
"""States that differ by less than this, relative to their norm, are not called unrelated: two
unrelated states of equal norm differ by √2."""

UNRELATED_COSINE = 0.1
"""Nor are states whose cosine is greater than this."""


@dataclass
class DistanceConfig(LayerPairsConfig):
    """The settings of distances of states."""

    kind: str = "distance"
    # number of batches whose mean is the value
    batches: int = setting(BATCHES // 32, by_recipe=True, least=1, most=10**9)

    def settings_read(self) -> frozenset[str]:
        """Return the names of all settings but `massive`, which has no effect here."""
        # Distances are relative to the states themselves, so long states decide no mean of them.
        return super().settings_read() - {"massive"}


class Distance(
    LayerPairs[DistanceConfig],
    kind="distance",
    version=5,
    reads=("model", "target", "layers", "data", "measure"),
):
    """Measures the relative distance of the states of `model@target` from those of `model`."""

    is_distance = True
    same_layers: ClassVar[bool] = True
    takes_activations: ClassVar[bool] = False

    def sites(self, config: AnalyzeConfig, models: Sequence[StateSource]) -> list[list[Layer]]:
        """Return the layers (hook points) of both models that are compared, the same for both.

        Raises:
            ConfigError: The models differ in depth or width, or different hook points are asked
                for.
        """
        source, target = models
        if (source.n_layers, source.d_model) != (target.n_layers, target.d_model):
            raise ConfigError(
                f"{named_setting('measure', 'distance')} compares a model with a changed copy "
                f"of it, but {source.name} has {source.n_layers} layers of width "
                f"{source.d_model} and {target.name} {target.n_layers} of {target.d_model}: "
                f"{named_setting('measure', 'cka')} compares any two models"
            )
        source_sites, target_sites = super().sites(config, models)
        if source_sites != target_sites:
            raise ConfigError(
                f"{named_setting('measure', 'distance')} compares each place with itself: "
                "layers= or sites differ"
            )
        return [source_sites, target_sites]

    def batches(
        self,
        settings: DistanceConfig,
        config: AnalyzeConfig,
        models: Sequence[StateSource],
        runs: ModelRuns,
    ) -> StateBatches:
        """Return the batches of both models' states, including massive (very long) states.

        They need not be left out: a distance is relative to the norm of the state, so that no long
        state decides a mean.
        """
        return super().batches(replace(settings, massive="keep"), config, models, runs)

    def metric(
        self, settings: DistanceConfig, source_layers: int, target_layers: int
    ) -> LayerShifts:
        """Return an empty metric, which computes from batches how far each layer moved."""
        return LayerShifts(source_layers, target_layers, conditional_on=settings.conditional_on)

    def columns(self, estimate: LayerPairEstimate) -> dict[str, Float[Tensor, "l l"]]:
        """Return further columns of the table, by name: mean cosines, and norms in both models."""
        assert isinstance(estimate, ShiftEstimate)
        return {
            "cosine": estimate.cosine,
            "norm_source": estimate.norm_source,
            "norm_target": estimate.norm_target,
        }

    def draw(self, result: Result, folder: Path) -> None:
        """Draw distances by layer, or by component and layer if the result compares those."""
        if "components" in result.tables:
            super().draw(result, folder)  # draws components by layer
        else:
            subtitle = f"{amount_compared_in_words(result)}\nbars: 95 % intervals over documents"
            figures.shifts(result.details, folder, subtitle)

    def ranked(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the layers first whose states differ most."""
        return ranked_rows(table, "value")

    def headlines(self, result: Result) -> Sequence[Headline]:
        """Return the highest distance of any layer as the only headline."""
        row = result.details.iloc[int(result.details["value"].argmax())]
        return [Headline.with_ends("highest_distance", row["value"], row["low"], row["high"])]

    def show(self, result: Result) -> None:
        """Print by how much states differ, and distances and cosines at some layers.

        If components of layers were compared, these are printed instead.
        """
        if "components" in result.tables:
            super().show(result)
            return

        table = result.details
        source = table["source"].iloc[0]
        target = table["target"].iloc[0]
        show_text(sentence_of_distances(table))
        rows = table.iloc[few(len(table))]  # some layers, evenly spaced, where there are many
        distances = []
        for row in rows.itertuples():
            distances.append(span(row.value, row.low, row.high, ".4f"))
        columns = [
            number_column("layer", rows["source_layer"]),
            Column("distance", distances),
            number_column("cosine", rows["cosine"], ".4f"),
        ]
        title = (
            f"Distance, ‖state of {target} - state of {source}‖ / ‖state of {source}‖, and "
            "cosine, means over tokens"
        )
        title = with_share(title, {"layers": (len(rows), len(table))})
        show_table(Table(title, columns))
        show_layer_note(result)
        show_what_was_read(result)


def sentence_of_distances(table: pd.DataFrame) -> str:
    """Return in words by how much states differ, and from which layer on.

    States count as unrelated if at all layers their distance is at least `UNRELATED_DISTANCE` and
    the absolute value of their cosine is at most `UNRELATED_COSINE`.

    Args:
        table: The mean distance ("value") and cosine of each layer, in order of depth.
    """
    source = table["source"].iloc[0]
    target = table["target"].iloc[0]
    states = f"The states of {target} and {source}"
    differing = table[table["value"] > ROUNDING]
    if differing.empty:
        return f"{states} are the same up to rounding at all of these layers."

    least = number_text(differing["value"].min(), ".2g")
    greatest = number_text(differing["value"].max(), ".2g")
    distances = least if least == greatest else f"{least} to {greatest}"
    answer = f"{states} differ by {distances} times the norm of the state of {source}"
    is_far = table["value"].min() >= UNRELATED_DISTANCE
    if is_far and table["cosine"].abs().max() <= UNRELATED_COSINE:
        answer += ", as much as unrelated states do (√2, about 1.4)"

    # The distance grows from each layer to the next, and from 0 to that of the first layer.
    growth = table["value"].diff().fillna(table["value"]).to_numpy()
    first = differing["source_layer"].iloc[0]
    grows_most = table["source_layer"].iloc[int(growth.argmax())]
    begins = (
        f"They begin to differ at layer {first}; the distance grows most at layer {grows_most}"
    )
    if first == grows_most:
        begins = f"They begin to differ at layer {first}, where the distance grows most"
    beyond_next = beyond_next_in_words(table, is_distance=True, number_format=".2g")
    if not beyond_next:
        return f"{answer}. {begins}."
    most_similar = table["source_layer"].iloc[int(table["value"].argmin())]
    return f"{answer}. {begins}. They are most similar at layer {most_similar}, {beyond_next}."
