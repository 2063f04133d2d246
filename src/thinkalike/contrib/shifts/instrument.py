"""measure=distance: how far the states of a changed model are from those of the model that it was made of, by layer."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.config import AnalyzeConfig, left_open
from thinkalike.contrib import figures
from thinkalike.errors import ConfigError
from thinkalike.instruments.layer_pairs import screen as words
from thinkalike.instruments.layer_pairs.frame import BATCHES, LayerPairs, LayerPairsConfig
from thinkalike.measures.changes import relative_distance
from thinkalike.measures.contract import Batch
from thinkalike.measures.estimates import PARTS, Estimate, jackknife, without_parts
from thinkalike.measures.layer_means import Accumulator, LayerPairEstimate, numbers_of
from thinkalike.measures.rows import labels_of_rows, rows_of
from thinkalike.models.families import Layer
from thinkalike.screen import Column, Table, few, number_column, show_table, show_text, span
from thinkalike.states.batches import ModelRuns, StateBatches
from thinkalike.states.source import StateSource
from thinkalike.store import Headline, Result


class ShiftEstimate(LayerPairEstimate):
    """The mean of ‖x - y‖ / ‖x‖ over tokens, on the diagonal of (l, l); layers that differ are NaN."""

    def __init__(self, cosine: Tensor, norm_source: Tensor, norm_target: Tensor, **estimates: Any):
        super().__init__(**estimates)
        self.cosine, self.norm_source, self.norm_target = cosine, norm_source, norm_target  # (l, l) each


def _means(sums: Float[Tensor, "*b l 5"]) -> Float[Tensor, "*b 4 l"]:
    return (sums[..., :-1] / sums[..., -1:]).movedim(-1, -2)


def _on_diagonal(values: Float[Tensor, " l"]) -> Float[Tensor, "l l"]:
    return values.new_full((len(values), len(values)), torch.nan).diagonal_scatter(values)


class LayerShifts(Accumulator):
    """Gathers how far each layer's states y are from those x of the same layer in another model: ‖x - y‖ / ‖x‖.

    It means something between models of one basis alone, such as a model and its copy that was changed.
    """

    parts: ClassVar[tuple[str, ...]] = ("sums",)

    def gather(self, batch: Batch) -> None:
        (source, target), mask = batch.states, batch.mask
        self.check(source, target, batch.groups)
        assert batch.documents is not None
        sums, owners = [], labels_of_rows(batch.documents, mask, source[0], "documents")
        belongs = torch.nn.functional.one_hot(owners.long() % PARTS, PARTS).double().T
        for layer, sides in enumerate(zip(source, target, strict=True)):
            x, y = (rows_of(side, "token", mask).double() for side in sides)
            if x.shape != y.shape:
                raise ValueError(f"layer {layer} has states of {tuple(x.shape)} and {tuple(y.shape)}: no distances")
            norms, distance = [torch.linalg.vector_norm(side, dim=1) for side in (x, y)], relative_distance(x, y)
            cosine = torch.nn.functional.cosine_similarity(x, y)
            sums.append(belongs @ torch.stack([distance, cosine, *norms, torch.ones_like(distance)], 1))
        self.add(batch.number, owners, sums=torch.stack(sums, 1))

    def compute(self) -> ShiftEstimate:
        """Return the means over all batches so far, with intervals; a ValueError of no batch."""
        found = self.gathered()
        sums, documents = found["sums"].sum(0), found["documents"]
        means, rest = _means(sums.sum(0)), _means(without_parts(sums, documents))
        value, low, high = jackknife(means[0], rest[:, 0])
        low = torch.where(low.isfinite(), low.clamp(min=0), low)
        distance = Estimate(*map(_on_diagonal, (value, low, high)))
        return ShiftEstimate(
            *map(_on_diagonal, means[1:]), across=distance, batches=len(found["sums"]), **numbers_of(documents)
        )


@dataclass
class DistanceConfig(LayerPairsConfig):
    """The settings of distances of states."""

    kind: str = "distance"
    batches: int = left_open(BATCHES // 32, least=1, most=10**9)  # over which the mean is taken

    @property
    def unused(self) -> Collection[str]:
        return {*super().unused, "massive"}  # long states decide no mean of distances that are relative to them


class Distance(LayerPairs, kind="distance", version=5, reads=("model", "target", "layers", "data", "measure")):
    """Measures the relative distance of the states of `model@target` from those of `model`, layer by layer."""

    name = "relative distance of states"
    is_distance: ClassVar[bool] = True
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
