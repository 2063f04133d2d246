"""measure=lineage: which blocks of a model derive from another one? An exact test."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pandas as pd

from thinkalike import figures
from thinkalike.config import (
    AnalyzeConfig,
    MeasureConfig,
    ModelConfig,
    measure_schema,
)
from thinkalike.config.completing import completed
from thinkalike.instruments.lineage.comparison import (
    EMBEDDING_LAYER,
    Comparison,
    compare_models,
    table_of_heads,
    table_of_origins,
    table_of_pairs,
)
from thinkalike.instruments.lineage.family import table_of_relations
from thinkalike.instruments.lineage.merges import table_of_merges
from thinkalike.instruments.lineage.screen import show_family, show_lineage
from thinkalike.job import Instrument, Outcome, Work
from thinkalike.job.inputs import Inputs
from thinkalike.job.listed_jobs import asked_for
from thinkalike.models.fingerprints import checkpoint_fingerprint
from thinkalike.models.labels import told_apart
from thinkalike.models.shapes import Passes, Shapes
from thinkalike.models.units import open_units
from thinkalike.ranking import ranked_rows
from thinkalike.store import Headline, Result


@dataclass
class LineageConfig(MeasureConfig):
    """The settings of lineage."""

    kind: str = "lineage"
    # also look for copies whose hidden units were reordered, by the likeness of their units
    likeness: bool = True


class LineageInstrument(
    Instrument[AnalyzeConfig],
    kind="lineage",
    version=2,
    reads=("models", "model", "target", "measure"),
):
    """Tests which blocks of `model@target`, or of each of `models`, share a training history."""

    of_models: ClassVar[str] = "all"
    smallest: ClassVar[Mapping[str, object]] = {"measure.likeness": False}

    def completed(self, config: AnalyzeConfig) -> AnalyzeConfig:
        """Complete two models, or leave them open beside a list of models."""
        reads = self.reads
        if config.models is not None:
            reads = ("models", "measure")
        return completed(config, reads)

    def inputs(self, config: AnalyzeConfig) -> Inputs:
        if config.models is None:
            return super().inputs(config)
        models = listed_models(config)
        digests = ", ".join(checkpoint_fingerprint(model) for model in models)
        return {"models": digests, "labels": ", ".join(told_apart(models))}

    def models_of(self, config: AnalyzeConfig) -> Mapping[str, ModelConfig]:
        if config.models is None:
            return super().models_of(config)
        models = listed_models(config)
        return dict(zip(told_apart(models), models, strict=True))

    def model_passes(self, config: AnalyzeConfig, shapes: Shapes) -> Sequence[Passes]:
        """Return none, as weights alone are read."""
        return []

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        configs = [config.model, config.target]
        if config.models is not None:
            configs = listed_models(config)
        with work.phase("loading"):
            models = [
                open_units(*named) for named in zip(configs, told_apart(configs), strict=True)
            ]

        pairs = list(itertools.combinations(models, 2))
        tests = sum(len(source.units) * len(target.units) for source, target in pairs)
        tests_of_heads = sum(len(source.heads) * len(target.heads) for source, target in pairs)
        likeness = config.measure_as(LineageConfig).likeness
        comparisons = []
        for source, target in pairs:
            comparisons.append(
                compare_models(source, target, tests, likeness, max(tests_of_heads, 1))
            )

        origins = pd.concat([table_of_origins(comparison) for comparison in comparisons])
        streams = pd.DataFrame([_facts_of_streams(comparison) for comparison in comparisons])
        tables = {"origins": origins, "streams": streams}
        heads = pd.concat([table_of_heads(comparison) for comparison in comparisons])
        if len(heads):
            tables["heads"] = heads
        if config.models is not None:
            tables["relations"] = table_of_relations(comparisons)
            merges = table_of_merges(comparisons)
            if len(merges):
                tables["merges"] = merges
        return Outcome(
            pd.concat([table_of_pairs(comparison) for comparison in comparisons]),
            _scalars_of_lineage(comparisons, origins),
            tables=tables,
            models=[model.facts for model in models],
            blank=("similar_units", "source_layer", "explained"),
        )

    def draw(self, result: Result, folder: Path) -> None:
        if "relations" in result.tables:
            figures.family(result.tables["relations"], folder)
            return
        blocks = result.details[result.details["target_layer"] != EMBEDDING_LAYER]
        value = blocks["in_place"] / blocks["units"]
        sides = ["source", "target", "source_layer", "target_layer"]
        by_layer = blocks.assign(value=value).groupby(sides, sort=False)["value"]
        shares: pd.DataFrame = by_layer.max().reset_index()
        most_units = int(blocks["units"].max())
        about = f"of up to {most_units:,} hidden units of a block"
        label = "share of units in place"
        figures.layer_heatmaps(shares, folder, "units_in_place", label, about=about)

    def ranked(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the blocks first that are most surely of one origin."""
        return ranked_rows(table, "p", smallest_first=True)

    def headlines(self, result: Result) -> Sequence[Headline]:
        names = ("blocks_with_origin", "lowest_p_corrected")
        return [Headline(name, result.scalars[name]) for name in names]

    def show(self, result: Result) -> None:
        if "relations" in result.tables:
            show_family(result)
        else:
            show_lineage(result)


def listed_models(config: AnalyzeConfig) -> list[ModelConfig]:
    """Return the different models of `models=[...]`.

    Raises:
        ConfigError: There are fewer than two, one is not known, or a model is also named apart.
    """
    # A measure of pairs stands for the jobs of every two models.
    jobs = asked_for(replace(config, measure=measure_schema("cka")()))
    models: list[ModelConfig] = []
    for job in jobs:
        assert isinstance(job, AnalyzeConfig)
        models += [side for side in (job.model, job.target) if side not in models]
    return models


def _scalars_of_lineage(comparisons: list[Comparison], origins: pd.DataFrame) -> dict[str, float]:
    return {
        "blocks": float(len(origins)),
        "blocks_with_origin": float(origins["source_layer"].notna().sum()),
        "lowest_p_corrected": float(origins["p_corrected"].min()),
        "pairs_of_blocks": float(comparisons[0].tests),
    }


def _facts_of_streams(comparison: Comparison) -> dict[str, object]:
    heads = 0
    if comparison.source.heads and comparison.target.heads:
        heads = min(comparison.source.heads[0].heads, comparison.target.heads[0].heads)
    return {
        "source": comparison.source.name,
        "target": comparison.target.name,
        "basis": comparison.streams.basis,
        "reason": comparison.streams.reason,
        "tokens": comparison.streams.tokens,
        "heads": heads,
        "pairs_of_heads": comparison.tests_of_heads,
    }
