"""measure=lineage: which blocks of a model derive from another one? An exact test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pandas as pd

from thinkalike import figures
from thinkalike.config import AnalyzeConfig, MeasureConfig
from thinkalike.instruments.lineage.comparison import (
    EMBEDDING_LAYER,
    common_streams,
    compare_blocks,
    count_alike,
    table_of_origins,
    table_of_pairs,
)
from thinkalike.instruments.lineage.screen import show_lineage
from thinkalike.job import Instrument, Outcome, Work
from thinkalike.models.labels import told_apart
from thinkalike.models.shapes import Passes, Shapes
from thinkalike.models.units import open_units
from thinkalike.store import Headline, Result


@dataclass
class LineageConfig(MeasureConfig):
    """The settings of lineage."""

    kind: str = "lineage"
    likeness: bool = True  # look for copies with reordered units, too


class Lineage(Instrument[AnalyzeConfig], kind="lineage", reads=("model", "target", "measure")):
    """Tests which blocks of `model@target` share a training history with blocks of `model`."""

    of_models: ClassVar[str] = "pairs"
    smallest: ClassVar[Mapping[str, object]] = {"measure.likeness": False}

    def passes(self, config: AnalyzeConfig, shapes: Shapes) -> Sequence[Passes]:
        """Return none, as weights alone are read."""
        return []

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        configs = [config.model, config.target]
        with work.phase("loading"):
            source, target = (
                open_units(*side) for side in zip(configs, told_apart(configs), strict=True)
            )
        streams = common_streams(source, target)
        pairs = compare_blocks(source, target, streams)
        if config.measure_as(LineageConfig).likeness:
            count_alike(pairs, source, target, streams)

        table = table_of_pairs(pairs, source, target, streams)
        of_blocks = table_of_origins(pairs)
        scalars = {
            "blocks": float(len(of_blocks)),
            "blocks_with_origin": float(of_blocks["source_layer"].notna().sum()),
            "least_p_corrected": float(of_blocks["p_corrected"].min()),
        }
        return Outcome(
            table,
            scalars,
            tables={"origins": of_blocks},
            models=[source.facts, target.facts],
            facts={"streams": {"basis": streams.basis, "tokens": streams.tokens}},
            blank=("alike", "source_layer"),
        )

    def draw(self, result: Result, folder: Path) -> None:
        blocks = result.table[result.table["target_layer"] != EMBEDDING_LAYER]
        value = blocks["in_place"] / blocks["units"]
        sides = ["source", "target", "source_layer", "target_layer"]
        shares: pd.DataFrame = (
            blocks.assign(value=value).groupby(sides, sort=False)["value"].max().reset_index()
        )
        figures.layer_heatmaps(shares, folder, "units_in_place", "share of units in place")

    def headlines(self, result: Result) -> Sequence[Headline]:
        names = ("blocks_with_origin", "least_p_corrected")
        return [Headline(name, result.scalars[name]) for name in names]

    def show(self, result: Result) -> None:
        show_lineage(result)
