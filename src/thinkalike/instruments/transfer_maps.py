"""measure=transfer_maps: stitches by least squares in both directions, and what they lose on the way."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from thinkalike.config import AnalyzeConfig, MeasureConfig, StitchConfig, TrainConfig, ranged
from thinkalike.config.schema import COUNTS
from thinkalike.instruments import operations
from thinkalike.job import Instrument, Outcome, Phase, Shapes, Work
from thinkalike.screen import Column, Table, number_column, show_table
from thinkalike.store import Headline, Result

log = logging.getLogger(__name__)

LEFT = {
    "φ": "unexplained",
    "ψ": "unexplained_back",
    "ψφ": "round_trip_unexplained",
    "φψ": "round_trip_unexplained_back",
}
PENALTIES = {"φ": "penalty", "ψ": "penalty_back"}
OVERFITTED = 0.05  # of the variance: how much more may be unexplained of held-out states than of those fitted on


@dataclass
class TransferMapsConfig(MeasureConfig):
    """The settings of maps between two models."""

    kind: str = "transfer_maps"
    fit_tokens: int = ranged(2**17, least=2, most=COUNTS)  # that the maps are fitted on
    ridge: float = ranged(1e-9, least=0, most=1e6)  # in units of the mean variance of the states that predict


class TransferMaps(Instrument, kind="transfer_maps", reads=("model", "target", "layers", "data", "measure")):
    """Fits φ from `model` to `model@target` and ψ back at every layer pair; leaves the maps, a table and a figure."""

    of_models: ClassVar[str] = "pairs"

    def inputs(self, config: AnalyzeConfig) -> Mapping[str, Any]:
        from thinkalike.models.foresight import check_stitchable

        check_stitchable(config.model, config.target, config.layers, "measure=transfer_maps")
        return super().inputs(config)

    def operations(self, config: AnalyzeConfig, shapes: Shapes) -> list[Phase]:
        return operations.transfer_maps(config, shapes)

    def holds(self, config: AnalyzeConfig, shapes: Shapes) -> float:
        return operations.bytes_of_maps(config, shapes)

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        from thinkalike.evaluation.language import document_numbers
        from thinkalike.evaluation.stitches import residual_sums
        from thinkalike.instruments.stitching.setting import Setting
        from thinkalike.measures.closed_forms import both_directions
        from thinkalike.stitches.results import write_stitches

        with work.phase("loading"):
            onward = Setting.of(_as_stitches(config))
            backward = onward.reversed(config.data)
        with work.phase("fit"):
            moments = onward.moments
            maps = [both_directions(moments.of(pair), onward.config.ridge) for pair in onward.layer_pairs]
        with work.phase("report"):
            models, rows = (onward.source, onward.target, onward.layer_pairs), onward.corpus.report
            residuals = residual_sums(*models, maps, moments, rows, onward.rows_at_once(rows.tokens))
            there = onward.sums({"stitch": [each.phi for each in maps]})
            back = backward.sums({"stitch": [each.psi for each in maps]})
        weights = {
            f"{way}{number}.map.{part}": getattr(each, part).float().cpu().contiguous()
            for number, both in enumerate(maps)
            for way, each in (("", both.phi), ("back.", both.psi))
            for part in ("weight", "bias")
        }
        write_stitches(work.job.aside, weights, onward.layer_pairs, "least_squares")
        table = _columns(onward, maps, residuals) | _losses(there, back)
        arrays = {"left": residuals.left, "whole": residuals.whole, **there}
        arrays |= {f"back_{name}": sums for name, sums in back.items()}
        shown = (*list(LEFT.values())[:2], *PENALTIES.values())
        means = {f"mean_{name}": sum(table[name]) / len(maps) for name in shown}
        return Outcome(
            pd.DataFrame(table),
            means | document_numbers(there["tokens"]),
            {name: sums.cpu().numpy() for name, sums in arrays.items()},
            models=[onward.source.describe(), onward.target.describe()],
            facts={"data": {"name": config.data.name, **onward.corpus.facts()}},
        )

    def draw(self, result: Result, folder: Path) -> None:
        from thinkalike import figures

        figures.transfer_maps(result.table, folder, LEFT, PENALTIES)

    def headlines(self, result: Result) -> list[Headline]:
        """Return means over layer pairs: unexplained shares of variance, and penalties in nats per token."""
        return [Headline(name, value) for name, value in result.scalars.items() if name.startswith("mean_")]

    def show(self, result: Result) -> None:
        show_maps(result)


def _as_stitches(config: AnalyzeConfig) -> TrainConfig:
    """Return the job that stitches the same layers by least squares."""
    measure: Any = config.measure
    stitch = StitchConfig(kind="least_squares", ridge=measure.ridge, steps=1, tokens_per_step=measure.fit_tokens)
    parts = {name: getattr(config, name) for name in ("model", "target", "layers", "data", "seed")}
    return TrainConfig(stitch=stitch, **parts)


def _columns(setting: Any, maps: Sequence[Any], residuals: Any) -> dict[str, Any]:
    """Return columns with a row per layer pair: variance left unexplained of held-out states, and of those fitted."""
    from thinkalike.evaluation.stitches import unexplained_variance

    pairs, names = setting.layer_pairs, (setting.source.name, setting.target.name)
    fitted = [unexplained_variance(both, setting.moments, pair, names) for both, pair in zip(maps, pairs, strict=True)]
    return {
        "source": names[0],
        "target": names[1],
        "source_layer": [layer for layer, _ in pairs],
        "target_layer": [depth for _, depth in pairs],
        **residuals.columns(),
        "fitted_unexplained": [each.phi for each in fitted],
        "fitted_unexplained_back": [each.psi for each in fitted],
        "condition": [both.phi.condition for both in maps],
    }


def _losses(onward: Mapping[str, Any], backward: Mapping[str, Any]) -> dict[str, Any]:
    """Return the losses of the stitched models of both directions, in nats per token of their targets."""
    from thinkalike.evaluation.language import with_ends

    columns: dict[str, Any] = {}
    for end, own, sums in (("", "target_loss", onward), ("_back", "source_loss", backward)):
        counts = sums["tokens"]
        columns |= with_ends(f"stitching_loss{end}", sums["stitch"], counts)
        columns |= with_ends(own, sums["target"], counts)
        columns |= with_ends(f"penalty{end}", sums["stitch"] - sums["target"], counts)
    return columns


# --------------------------------------------------------------------------------------------------------------- screen


def show_maps(result: Result) -> None:
    """Print what both maps leave unexplained and cost at each layer pair, and say where they are overfitted."""
    from thinkalike.screen import number_of_documents

    rows, counts = result.table, result.provenance["data"]
    first = rows.iloc[0]
    title = (
        f"{first['source']} → {first['target']} by φ and back by ψ, fitted on {counts['fit_tokens']:,} tokens: share "
        f"of variance unexplained, penalty in nats per token, 95 % intervals over {number_of_documents(result.scalars)}"
    )
    layers = [f"{source}→{target}" for source, target in zip(rows["source_layer"], rows["target_layer"], strict=True)]
    costs = [
        Column(f"penalty of {sign}", [_cost(row, name) for row in rows.to_dict("records")])
        for sign, name in PENALTIES.items()
    ]
    left = [number_column(sign, rows[name], ".3f") for sign, name in LEFT.items()]
    condition = number_column("condition of φ", rows["condition"], ".3g")
    show_table(Table(title, [Column("layer", layers), *left, *costs, condition]))
    _warn_of_overfitting(rows)


def _cost(row: dict[Any, Any], name: str) -> str:
    from thinkalike.measures.estimates import span

    return span(row[name], row[f"{name}_low"], row[f"{name}_high"])


def _warn_of_overfitting(table: pd.DataFrame) -> None:
    for end in ("", "_back"):
        held_out, fitted = (f"{name}unexplained{end}" for name in ("", "fitted_"))
        row = max(table.to_dict("records"), key=lambda row: row[held_out] - row[fitted])
        if row[held_out] - row[fitted] > OVERFITTED:
            log.warning(
                "warning: %s→%s leaves %.3f of held-out states unexplained, and %.3f of those that it was fitted on: "
                "raise measure.fit_tokens, or measure.ridge",
                row["source_layer"], row["target_layer"], row[held_out], row[fitted],
            )  # fmt: skip
