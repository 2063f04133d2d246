"""measure=transfer_maps: closed-form maps between two models in both directions, and what is lost on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
from torch import Tensor

from thinkalike import figures
from thinkalike.config import AnalyzeConfig, MeasureConfig, pairs_of_layers, ranged
from thinkalike.config.ranges import COUNTS
from thinkalike.data import Corpus
from thinkalike.evaluation import (
    LayerPair,
    ResidualSums,
    document_numbers,
    document_sums,
    report_share,
    residual_sums,
    rows_at_once,
    rows_of_moments,
    state_moments,
    unexplained_variance,
    with_ends,
)
from thinkalike.instruments.operations.transfer_maps import bytes_of_maps, phases_of
from thinkalike.instruments.stitching.shared import check_stitchable, shared_text
from thinkalike.instruments.transfer_maps.screen import LEFT, PENALTIES, show_maps
from thinkalike.job import Instrument, Outcome, Phase, Shapes, Work, check_memory
from thinkalike.measures import RIDGE, AffineMap, BothDirections, Moments, both_directions
from thinkalike.memory import Budget
from thinkalike.models import FrozenModel, load_models
from thinkalike.stitches import write_stitches
from thinkalike.store import Headline, Result


@dataclass
class Config(MeasureConfig):
    """The settings of maps between two models."""

    kind: str = "transfer_maps"
    fit_tokens: int = ranged(2**17, least=2, most=COUNTS)  # that the maps are fitted on
    ridge: float = ranged(RIDGE, least=0, most=1e6)  # in units of the mean variance of the states that predict


class TransferMaps(Instrument, kind="transfer_maps", reads=("model", "target", "layers", "data", "measure")):
    """Fits φ from `model` to `model@target` and ψ back at every layer pair; leaves the maps, a table and a figure."""

    of_models: ClassVar[str] = "pairs"

    def inputs(self, config: AnalyzeConfig) -> Mapping[str, Any]:
        check_stitchable(config.model, config.target, config.layers, "measure=transfer_maps")
        return super().inputs(config)

    def operations(self, config: AnalyzeConfig, shapes: Shapes) -> list[Phase]:
        return phases_of(config, shapes)

    def holds(self, config: AnalyzeConfig, shapes: Shapes) -> float:
        return bytes_of_maps(config, shapes)

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        measure: Any = config.measure
        with work.phase("loading"):
            source, target = load_models(config.model, config.target)
            pairs = pairs_of_layers(config.layers, source.n_layers, target.n_layers)
            corpus, back = _texts(config, source, target)
        with work.phase("fit"):
            moments = _moments_of(source, target, pairs, corpus)
            maps = [both_directions(moments.of(pair), measure.ridge) for pair in pairs]
        with work.phase("report"):
            batch = _rows_of_states(source, target, corpus)
            residuals = residual_sums(source, target, pairs, maps, moments, corpus.report, batch)
            onward = _losses(source, target, pairs, [each.phi for each in maps], corpus)
            reverse = [(depth, layer) for layer, depth in pairs]
            backward = _losses(target, source, reverse, [each.psi for each in maps], back)
        write_stitches(work.job.aside, _tensors_of(maps), pairs, "least_squares")
        table = _table(source, target, pairs, maps, moments, residuals) | _penalties(onward, backward)
        arrays = {"left": residuals.left, "whole": residuals.whole, **onward}
        arrays |= {f"back_{name}": sums for name, sums in backward.items()}
        return Outcome(
            pd.DataFrame(table),
            _means(table) | document_numbers(onward["tokens"]),
            {name: sums.numpy() for name, sums in arrays.items()},
            models=[source.describe(), target.describe()],
            facts={"data": {"name": config.data.name, **corpus.facts()}},
        )

    def draw(self, result: Result, folder: Path) -> None:
        figures.transfer_maps(result.table, folder, LEFT, PENALTIES)

    def headlines(self, result: Result) -> list[Headline]:
        """Return means over layer pairs: unexplained shares of variance, and penalties in nats per token."""
        return [Headline(name, value) for name, value in result.scalars.items() if name.startswith("mean_")]

    def show(self, result: Result) -> None:
        show_maps(result)


def _texts(config: AnalyzeConfig, source: FrozenModel, target: FrozenModel) -> tuple[Corpus, Corpus]:
    """Return the text of stitches into the target, and of those back: another one only if its tokens are others."""
    measure: Any = config.measure
    onward = shared_text(config.data, source, target, measure.fit_tokens)
    if not onward.report.layout.source:
        return onward, onward
    return onward, shared_text(config.data, target, source, measure.fit_tokens)


def _moments_of(source: FrozenModel, target: FrozenModel, pairs: Sequence[LayerPair], corpus: Corpus) -> Moments:
    """Return the statistics of both models' states, from one pass over the rows to fit on."""
    budget, d, e = Budget.of(target.device), source.d_model, target.d_model
    within = len({layer for layer, _ in pairs}) * d**2 + len({depth for _, depth in pairs}) * e**2
    needed = 8.0 * (within + 3 * len(pairs) * d * e)
    check_memory(f"maps of {len(pairs)} layer pairs need", needed, budget, "choose fewer in layers=")
    return state_moments(
        source, target, pairs, corpus.fit.tokens, _rows_of_states(source, target, corpus), corpus.fit.layout
    )


def _rows_of_states(source: FrozenModel, target: FrozenModel, corpus: Corpus) -> int:
    """Return how many rows at a time fit into memory."""
    budget, rows = Budget.of(target.device), corpus.report
    return rows_of_moments(source, target, rows.tokens, rows_at_once(corpus), budget, rows.layout)


def _losses(
    source: FrozenModel, target: FrozenModel, pairs: Sequence[LayerPair], maps: Sequence[AffineMap], corpus: Corpus
) -> dict[str, Tensor]:
    """Return what `document_sums` sums of the stitched models of one direction."""
    rows, budget = corpus.report, Budget.of(target.device)
    share = report_share(source, target, pairs, rows.tokens, rows_at_once(corpus), budget, rows.layout)
    found = document_sums(
        source, target, pairs, {"stitch": maps}, rows.tokens, rows.documents, *share, layout=rows.layout
    )  # fmt: skip
    return {name: sums.cpu() for name, sums in found.items()}


def _tensors_of(maps: Sequence[BothDirections]) -> dict[str, Tensor]:
    """Return the weights of all maps by the names that a file of stitches has for them, in float32."""
    return {
        f"{way}{number}.map.{part}": getattr(fit, part).float().cpu().contiguous()
        for number, both in enumerate(maps)
        for way, fit in (("", both.phi), ("back.", both.psi))
        for part in ("weight", "bias")
    }


def _table(
    source: FrozenModel,
    target: FrozenModel,
    pairs: Sequence[LayerPair],
    maps: Sequence[BothDirections],
    moments: Moments,
    residuals: ResidualSums,
) -> dict[str, Any]:
    """Return columns with a row per layer pair: what is unexplained, held out and where the maps were fitted."""
    names = source.name, target.name
    fitted = [unexplained_variance(both, moments, pair, names) for both, pair in zip(maps, pairs, strict=True)]
    return {
        "source": source.name,
        "target": target.name,
        "source_layer": [layer for layer, _ in pairs],
        "target_layer": [depth for _, depth in pairs],
        **residuals.columns(),
        "fitted_unexplained": [each.phi for each in fitted],
        "fitted_unexplained_back": [each.psi for each in fitted],
        "condition": [both.phi.condition for both in maps],
    }


def _penalties(onward: Mapping[str, Tensor], backward: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return columns of the losses of the stitched models of both directions, in nats per token of their targets."""
    columns: dict[str, Any] = {}
    for end, own, sums in (("", "target_loss", onward), ("_back", "source_loss", backward)):
        counts = sums["tokens"]
        columns |= with_ends(f"stitching_loss{end}", sums["stitch"], counts)
        columns |= with_ends(own, sums["target"], counts)
        columns |= with_ends(f"penalty{end}", sums["stitch"] - sums["target"], counts)
    return columns


def _means(table: Mapping[str, Any]) -> dict[str, float]:
    names = ("unexplained", "unexplained_back", "penalty", "penalty_back")
    return {f"mean_{name}": sum(table[name]) / len(table[name]) for name in names}
