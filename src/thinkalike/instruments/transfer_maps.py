"""measure=transfer_maps: stitches by least squares in both directions, and what they leave unexplained."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from thinkalike import figures
from thinkalike.config import AnalyzeConfig, MeasureConfig, StitchConfig, TrainConfig, ranged
from thinkalike.config.schema import COUNTS
from thinkalike.evaluation.language import document_numbers, with_ends
from thinkalike.evaluation.maps import UNEXPLAINED, unexplained_variance
from thinkalike.job import Instrument, Outcome, Work
from thinkalike.measures.closed_forms import both_directions
from thinkalike.measures.estimates import span
from thinkalike.models.foresight import check_stitchable
from thinkalike.screen import Column, Table, few, number_column, number_of_documents, show_table, show_text
from thinkalike.stitches.results import write_stitches
from thinkalike.store import Headline, Result

log = logging.getLogger(__name__)

LEFT = dict(zip(("φ", "ψ", "ψφ", "φψ"), UNEXPLAINED, strict=True))
PENALTIES = {"φ": "penalty", "ψ": "penalty_back"}
OVERFITTED = 0.05  # more unexplained variance of held-out states than of fitted ones is warned of


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
        check_stitchable(config.model, config.target, config.layers, "measure=transfer_maps")
        return super().inputs(config)

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        from thinkalike.instruments.stitching.setting import Setting  # which imports Lightning

        with work.phase("loading"):
            onward = Setting.of(_as_stitches(config))
            backward = onward.reversed(config.data)
        with work.phase("fit"):
            moments = onward.moments
            maps = [both_directions(moments.of(pair), onward.config.ridge) for pair in onward.layer_pairs]
        with work.phase("report"):
            residuals = onward.residuals(maps)
            there = onward.sums({"stitch": [each.phi for each in maps]})
            back = backward.sums({"stitch": [each.psi for each in maps]})
        weights = {
            f"{way}{number}.map.{part}": getattr(each, part).float().cpu().contiguous()
            for number, both in enumerate(maps)
            for way, each in (("", both.phi), ("back.", both.psi))
            for part in ("weight", "bias")
        }
        write_stitches(work.job.aside, weights, onward.layer_pairs, "least_squares")
        names, pairs = (onward.source.name, onward.target.name), zip(maps, onward.layer_pairs, strict=True)
        fitted = [unexplained_variance(both, moments, pair, names) for both, pair in pairs]
        columns = {**onward.columns(), **residuals.columns()}
        columns["fitted_unexplained"] = [each.phi for each in fitted]
        columns["fitted_unexplained_back"] = [each.psi for each in fitted]
        columns["condition"] = [both.phi.condition for both in maps]
        table = pd.DataFrame(columns | _losses(there, "", "target_loss") | _losses(back, "_back", "source_loss"))
        arrays = {**residuals._asdict(), **there, **{f"back_{name}": sums for name, sums in back.items()}}
        _warn_of_overfitting(table)
        means = {f"mean_{name}": float(table[name].mean()) for name in (*UNEXPLAINED[:2], *PENALTIES.values())}
        return Outcome(
            table,
            means | document_numbers(there["tokens"]),
            {name: sums.cpu().numpy() for name, sums in arrays.items()},
            models=[onward.source.describe(), onward.target.describe()],
            facts={"data": {"name": config.data.name, **onward.corpus.facts()}},
        )

    def draw(self, result: Result, folder: Path) -> None:
        figures.transfer_maps(result.table, folder, LEFT, PENALTIES)

    def headlines(self, result: Result) -> list[Headline]:
        """Return means over layer pairs: unexplained shares of variance, and penalties in nats per token."""
        return [Headline(name, value) for name, value in result.scalars.items() if name.startswith("mean_")]

    def show(self, result: Result) -> None:
        """Print the unexplained variance and the penalty of both maps at each layer pair."""
        table, counts = result.table, result.provenance["data"]
        rows, first = table.iloc[few(len(table), 12)], table.iloc[0]
        title = (
            f"{first['source']} → {first['target']} by φ and back by ψ, fitted on {counts['fit_tokens']:,} tokens: "
            "share of variance unexplained, extra loss in nats per token, 95 % intervals over "
            f"{number_of_documents(result.scalars)}"
        )
        layers = [f"{layer}→{depth}" for layer, depth in zip(rows["source_layer"], rows["target_layer"], strict=True)]
        columns = [Column("layer", layers)]
        for sign, name in PENALTIES.items():
            ends = rows[[name, f"{name}_low", f"{name}_high"]].to_numpy()
            columns.append(number_column(f"{sign} leaves", rows[LEFT[sign]], ".3f"))
            columns.append(
                Column(
                    f"extra loss by {sign}", [span(value, low, high, ".2f") for value, low, high in ends], follows=True
                )
            )
        show_table(Table(title, columns))
        for sign, name in PENALTIES.items():
            own = table[LEFT[sign]], table[name]
            left, cost = (f"{each.min():.2f} to {each.max():.2f}" for each in own)
            show_text(f"{sign} leaves {left} of the variance unexplained, and costs {cost} nats per token.")


def _as_stitches(config: AnalyzeConfig) -> TrainConfig:
    """Return the job that stitches the same layers by least squares."""
    measure: Any = config.measure
    stitch = StitchConfig(kind="least_squares", ridge=measure.ridge, steps=1, tokens_per_step=measure.fit_tokens)
    parts = {name: getattr(config, name) for name in ("model", "target", "layers", "data", "seed")}
    return TrainConfig(stitch=stitch, **parts)


def _losses(sums: Mapping[str, Any], end: str, own: str) -> dict[str, Any]:
    """Return the losses of the stitched models of one direction, in nats per token of their target."""
    counts = sums["tokens"]
    columns = with_ends(f"stitching_loss{end}", sums["stitch"], counts) | with_ends(own, sums["target"], counts)
    return columns | with_ends(f"penalty{end}", sums["stitch"] - sums["target"], counts)


def _warn_of_overfitting(table: pd.DataFrame) -> None:
    for held_out in UNEXPLAINED[:2]:
        excess = table[held_out] - table[f"fitted_{held_out}"]
        row = table.iloc[int(excess.argmax())]
        if excess.max() > OVERFITTED:
            log.warning(
                "warning: %d→%d leaves %.3f of held-out states unexplained, and %.3f of those that it was fitted on: "
                "raise measure.fit_tokens, or measure.ridge",
                row["source_layer"], row["target_layer"], row[held_out], row[f"fitted_{held_out}"],
            )  # fmt: skip
