"""measure=distance: how far the states of a changed model are from those of the model that it was made of, by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from thinkalike import figures
from thinkalike.config import AnalyzeConfig, setting
from thinkalike.errors import ConfigError
from thinkalike.instruments.layer_pairs import screen as words
from thinkalike.instruments.layer_pairs.frame import BATCHES, LayerPairs, LayerPairsConfig
from thinkalike.measures.shifts import LayerShifts
from thinkalike.models.families import Layer
from thinkalike.screen import Column, Table, few, number_column, show_table, show_text, span
from thinkalike.states.batches import ModelRuns, StateBatches
from thinkalike.states.source import StateSource
from thinkalike.store import Headline, Result


@dataclass
class DistanceConfig(LayerPairsConfig):
    """The settings of distances of states."""

    kind: str = "distance"
    # over which the mean is taken
    batches: int = setting(BATCHES // 32, by_recipe=True, least=1, most=10**9)

    def settings_read(self) -> frozenset[str]:
        # Long states decide no mean of distances that are relative to them.
        return super().settings_read() - {"massive"}


class Distance(LayerPairs, kind="distance", version=5, reads=("model", "target", "layers", "data", "measure")):
    """Measures the relative distance of the states of `model@target` from those of `model`, layer by layer."""

    is_distance = True
    same_layers: ClassVar[bool] = True
    takes_activations: ClassVar[bool] = False

    def sites(self, config: AnalyzeConfig, models: Sequence[StateSource]) -> list[list[Layer]]:
        source, target = models
        if (source.n_layers, source.d_model) != (target.n_layers, target.d_model):
            raise ConfigError(
                f"measure=distance compares a model with a changed copy of it, but {source.name} has {source.n_layers} "
                f"layers of width {source.d_model} and {target.name} {target.n_layers} of {target.d_model}: "
                "measure=cka compares any two models"
            )
        own = super().sites(config, models)
        if own[0] != own[1]:
            raise ConfigError("measure=distance compares each place with itself: layers= or sites differ")
        return own

    def batches(
        self, measure: Any, config: AnalyzeConfig, models: Sequence[StateSource], runs: ModelRuns
    ) -> StateBatches:
        return super().batches(replace(measure, massive="keep"), config, models, runs)

    def metric(self, measure: Any, source_layers: int, target_layers: int) -> Any:
        return LayerShifts(source_layers, target_layers, given=measure.given)

    def columns(self, estimates: Any) -> dict[str, torch.Tensor]:
        return {name: getattr(estimates, name) for name in ("cosine", "norm_source", "norm_target")}

    def draw(self, result: Result, folder: Path) -> None:
        if "components" in result.tables:
            super().draw(result, folder)
        else:
            figures.shifts(result.table, folder, words.rows_of(result))

    def headlines(self, result: Result) -> Sequence[Headline]:
        ends = result.table.iloc[int(result.table["value"].argmax())][["value", "low", "high"]]
        return [Headline.with_ends("greatest_distance", *ends)]

    def show(self, result: Result) -> None:
        table = result.table
        if "components" in result.tables:
            super().show(result)
            return
        source, target = table["source"].iloc[0], table["target"].iloc[0]
        rows = table.iloc[few(len(table))]
        ends = rows[["value", "low", "high"]].to_numpy(float)
        columns = [
            number_column("layer", rows["source_layer"]),
            Column("distance", [span(value, low, high, ".4f") for value, low, high in ends]),
            number_column("cosine", rows["cosine"], ".4f"),
        ]
        title = f"‖state of {target} - state of {source}‖ / ‖state of {source}‖, mean over tokens, 95 % intervals"
        show_table(Table(title, columns))
        differ = table[table["value"] > words.ROUNDING]
        if differ.empty:
            show_text("The states are the same up to rounding at all of these layers.")
            return
        grows = table["value"].diff().fillna(table["value"]).to_numpy()
        first, most = differ["source_layer"].iloc[0], table["source_layer"].iloc[int(grows.argmax())]
        show_text(f"The states begin to differ at layer {first}; the distance grows most at layer {most}.")
