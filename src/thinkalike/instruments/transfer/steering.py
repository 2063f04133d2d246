"""measure=steering: the direction of a feature, carried from one model to another, and its effect there.

    python analyze.py measure=steering model=gpt2-mini model@target=gpt2-mini-s1

(Chen, Merullo, Stolfo & Pavlick 2025, arXiv 2506.06609.)
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, ClassVar, Optional

import pandas as pd
import torch

from thinkalike import figures
from thinkalike.config import AnalyzeConfig, not_in_key, pairs_of_layers, ranged
from thinkalike.data.contrasts import CONTRASTS, grammar_contrasts, read_contrasts
from thinkalike.errors import ConfigError, one_of
from thinkalike.instruments.operations import both_of, of_maps, of_steering, text_passes
from thinkalike.instruments.stitching.setting import shared_text
from thinkalike.instruments.transfer.maps import TransferConfig, fitted_maps, models_and_pairs
from thinkalike.instruments.transfer.probing import named
from thinkalike.instruments.transfer.trial import (
    CARRIED,
    MATCHED,
    NATIVE,
    NEGATED,
    NOT_RANDOM,
    POSITIONS,
    RANDOM,
    Trial,
)
from thinkalike.job import Instrument, Outcome, Phase, Shapes, Work, fingerprints
from thinkalike.models.foresight import check_layer_pairs
from thinkalike.progress import counted
from thinkalike.screen import Column, Table, number_column, show_table, show_text
from thinkalike.store import Headline, Result

log = logging.getLogger(__name__)


LENGTH = 8  # tokens of a text, about


# ruff: noqa: UP045
@dataclass
class SteeringConfig(TransferConfig):
    """The settings of steering vectors and of their report."""

    paths: ClassVar[tuple[str, ...]] = ("path",)

    kind: str = "steering"
    contrast: str = "number"  # number, question: of the grammar | table: pairs of texts of your own
    path: Optional[str] = not_in_key(None)  # contrast=table: .csv .tsv .parquet
    pairs: int = ranged(400, least=2, most=10**7)  # of the grammar
    strengths: list[float] = ranged(lambda: [1.0, 2.0], above=0, most=1e6)  # 1: the difference of means itself
    positions: list[str] = field(default_factory=lambda: list(POSITIONS))  # the word's last token | also all later ones
    folds: int = ranged(5, least=2, most=10**4)  # of the words: vectors are judged on others than they are made of
    draws: int = ranged(5, least=1, most=10**4)  # of random vectors

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("measure.contrast", self.contrast, (*CONTRASTS, "table"))
        for position in self.positions:
            one_of("measure.positions", position, POSITIONS)
        if (self.contrast == "table") != bool(self.path):
            raise ConfigError(
                f"measure.contrast={self.contrast} measure.path={self.path}: pairs of your own need "
                "measure.contrast=table measure.path=FILE"
            )


class Steering(Instrument, kind="steering", reads=("model", "target", "layers", "data", "measure", "seed")):
    """Adds the direction of a feature to the states of `model@target`: its own, and that of `model`, carried over.

    Leaves a row per layer pair, position, strength and condition in table.csv, and the maps' unexplained variance in
    maps.csv.
    """

    of_models: ClassVar[str] = "pairs"

    def inputs(self, config: AnalyzeConfig) -> Mapping[str, Any]:
        measure: Any = config.measure
        check_layer_pairs(config.model, config.target, config.layers)
        own = {"contrasts": read_contrasts(measure.path)} if measure.contrast == "table" else {}
        return {**own, **fingerprints(config, ("model", "target", "data"))}

    def operations(self, config: AnalyzeConfig, shapes: Shapes) -> Sequence[Phase]:
        measure: Any = config.measure
        both = both_of(shapes)
        count = len(read_contrasts(measure.path)) if measure.contrast == "table" else measure.pairs
        pairs = pairs_of_layers(config.layers, *(shape.layers for shape in both))
        passes = (len(NOT_RANDOM) + measure.draws) * len(measure.strengths) * len(measure.positions)
        steered = of_steering(both[1].operations, [depth for _, depth in pairs], count, LENGTH, passes)
        maps = len(pairs) * of_maps(measure.fit_tokens, *(shape.width for shape in both))
        return [*text_passes(config, shapes), Phase("maps", maps), Phase("steering", steered)]

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        measure: Any = config.measure
        with work.phase("loading"):
            source, target, pairs = models_and_pairs(config)
            contrasts = work.inputs.get("contrasts") or grammar_contrasts(
                measure.contrast, target.tokenizer, measure.pairs, config.seed
            )
            trial = Trial(source, target, contrasts, measure, config.seed)
            corpus = shared_text(config.data, source, target, measure.fit_tokens)
        with work.phase("maps"):
            maps = fitted_maps(source, target, pairs, corpus, measure.ridge)
        rows, effects = [], []
        for pair in counted(pairs, "layer pair"):
            for row, effect in trial.rows(pair, maps[pair]):
                rows.append(named(source, target, pair) | row)
                effects.append(effect)
        if pd.DataFrame(rows)["share"].isna().any():
            log.warning(
                "warning: the counterparts move the gap by %.2f nats in %s, not significantly, so there is no share of "
                "it; check up and down", float(trial.natural.mean()), target.name,
            )  # fmt: skip
        arrays = {"effects": torch.stack(effects), "natural": trial.natural, "groups": trial.groups}
        return Outcome(
            pd.DataFrame(rows),
            {"pairs": float(len(contrasts)), "natural_effect": float(trial.natural.mean())},
            {name: values.numpy() for name, values in arrays.items()},
            {"maps": pd.DataFrame([named(source, target, pair) | maps[pair].unexplained._asdict() for pair in pairs])},
            models=[model.describe() for model in dict.fromkeys((source, target))],
            facts={
                "contrasts": {"source": contrasts.source, "fingerprint": contrasts.fingerprint()},
                "data": {"name": config.data.name, **corpus.facts()},
            },
            blank=("share", "low", "high"),
        )

    def draw(self, result: Result, folder: Path) -> None:
        figures.steering(result.table, folder)

    def headlines(self, result: Result) -> list[Headline]:
        """Return shares of the natural effect, native and carried, at the layer where the native vector does most."""
        best = best_rows(result.table)
        shares = {"carried_share": best[CARRIED], "native_share": best[NATIVE]}
        found = [Headline.with_ends(name, row["share"], row["low"], row["high"]) for name, row in shares.items()]
        return [each for each in found if isfinite(each.value)]

    def show(self, result: Result) -> None:
        show_steering(result)


# ---- Screen


SHOWN = {"native": NATIVE, "carried": CARRIED, "matched": MATCHED, "random": RANDOM, "negated": NEGATED}
LEGEND = (
    "share of what the counterpart does; native: the target's own vector; carried: the source's, through φ; matched: "
    "with the norm of the native one; random: of that norm; negated: carried, with the other sign; cosine: of carried "
    "and native"
)


def best_rows(table: pd.DataFrame) -> dict[Any, Any]:
    """Return the rows by condition of the layers where the native vector does most, at the first position."""
    first = table[(table["position"] == table["position"].iloc[0]) & (table["strength"] == table["strength"].iloc[0])]
    native = first[first["condition"] == NATIVE]
    best = native.loc[native["effect"].idxmax()]
    at = (first["source_layer"] == best["source_layer"]) & (first["target_layer"] == best["target_layer"])
    return first[at].set_index("condition").to_dict("index")


def show_steering(result: Result) -> None:
    """Print the shares of the natural effect, by position, layer pair and strength."""
    first, scalars = result.table.iloc[0], result.scalars
    pairs = f"{scalars['pairs']:.0f} pairs of {Path(result.provenance['contrasts']['source']).name}"
    effect = f"{pairs}; natural effect {scalars['natural_effect']:.2f} nats"
    show_text(f"steering of {first['target']} by vectors of {first['source']}; {effect}")
    for position, rows in result.table.groupby("position", sort=False):
        title = "added at the word's last token" + ("" if position == "word" else " and all later ones")
        show_table(_table(title, rows))
    show_text(LEGEND)


def _table(title: str, rows: pd.DataFrame) -> Table:
    """Return the shares of all conditions, or their effects in nats where there is no share."""
    own = {label: rows[rows["condition"] == name] for label, name in SHOWN.items()}
    carried = own["carried"].to_dict("records")
    has_share = isfinite(own["native"]["share"].iloc[0])
    value, low, high = ("share", "low", "high") if has_share else ("effect", "effect_low", "effect_high")
    columns = [Column("layer", [f"{row['source_layer']}→{row['target_layer']}" for row in carried])]
    columns.append(number_column("x", own["carried"]["strength"], "g"))
    for label, each in own.items():
        columns.append(number_column(label, each[value], ".3f"))
        if label == "carried":
            ends = [f"[{row[low]:.2f}, {row[high]:.2f}]" for row in carried]
            columns.append(Column("interval", ends, follows=True))
    return Table(title, [*columns, number_column("cosine", own["carried"]["cosine"], ".2f")], keys=2)
