"""measure=lineage: which blocks of a model derive from another one? An exact test."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pandas as pd

from thinkalike import figures
from thinkalike.config import (
    AnalyzeConfig,
    MeasureConfig,
    ModelConfig,
    SettingValues,
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
from thinkalike.job.listed_jobs import jobs_of_model_pairs
from thinkalike.job.setting_groups import OF_READING, left_in_key
from thinkalike.models.fingerprints import checkpoint_fingerprint
from thinkalike.models.labels import distinct_labels
from thinkalike.models.shapes import Passes, Shapes
from thinkalike.models.units import open_units
from thinkalike.ranking import ranked_rows
from thinkalike.store import Headline, Result


@dataclass
class LineageConfig(MeasureConfig):
    """The settings of lineage."""

    kind: str = "lineage"
    # also look for copies whose hidden units were reordered, by how similar their units are
    similar_units: bool = True


class LineageInstrument(
    Instrument[AnalyzeConfig],
    kind="lineage",
    version=4,
    reads=("models", "model", "target", "measure"),
):
    """Tests which blocks of `model@target`, or of each of `models`, share a training history."""

    of_models: ClassVar[str] = "all"
    smallest: ClassVar[Mapping[str, object]] = {"measure.similar_units": False}

    def completed(self, config: AnalyzeConfig) -> AnalyzeConfig:
        """Return the configuration with all settings filled in.

        With a list of models (`models=`), the settings `model=` and `target=` are not read, and
        stay as they are.
        """
        reads = self.reads  # the parts of the configuration in which settings are filled in
        if config.models is not None:
            reads = ("models", "measure")
        return completed(config, reads)

    def unread(self, config: AnalyzeConfig) -> SettingValues:
        """Return the settings of how models read text, which this job ignores, with their values.

        Weights alone are read. Keys of jobs have always contained these settings.
        """
        return left_in_key(config, OF_READING)

    def inputs(self, config: AnalyzeConfig) -> Inputs:
        """Return what decides the numbers besides settings, by name.

        For a list of models, these are the hashes of all models, and their names in tables.
        """
        if config.models is None:
            return super().inputs(config)
        models = listed_models(config)
        digests = ", ".join(checkpoint_fingerprint(model) for model in models)
        return {"models": digests, "labels": ", ".join(distinct_labels(models))}

    def models_of(self, config: AnalyzeConfig) -> Mapping[str, ModelConfig]:
        """Return the configurations of a job's models by name.

        The models of a list have their labels as names, and else the names are "model" and
        "target".
        """
        if config.models is None:
            return super().models_of(config)
        models = listed_models(config)
        return dict(zip(distinct_labels(models), models, strict=True))

    def model_passes(self, config: AnalyzeConfig, shapes: Shapes) -> Sequence[Passes]:
        """Return none, as weights alone are read."""
        return []

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        """Compare the hidden units of two models, or of every two of several, block by block."""
        configs = [config.model, config.target]
        if config.models is not None:
            configs = listed_models(config)
        with work.phase("loading"):
            models = []
            for model_config, label in zip(configs, distinct_labels(configs), strict=True):
                models.append(open_units(model_config, label))

        pairs = list(itertools.combinations(models, 2))
        # The p-values are corrected for all pairs of blocks, of all pairs of models.
        tests = sum(len(source.units) * len(target.units) for source, target in pairs)
        n_head_tests = sum(len(source.heads) * len(target.heads) for source, target in pairs)
        n_head_tests = max(n_head_tests, 1)  # there are 0 if heads are not known
        # Whether to count the units with similar weights in blocks that come from no other block.
        similar_units = config.measure_as(LineageConfig).similar_units
        comparisons = []
        for source, target in pairs:
            comparisons.append(
                compare_models(
                    source, target, tests, similar_units=similar_units, n_head_tests=n_head_tests
                )
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
            blank=("similar_units", "source_layer", "explained"),  # they may have empty cells
        )

    def draw(self, result: Result, folder: Path) -> None:
        """Draw for each pair of blocks the share of hidden units in place.

        A unit is in place if the unit of the other block whose weights are most similar has the
        same position. For a list of models, a figure of which models are related is drawn instead.
        """
        if "relations" in result.tables:  # the result of a list of models
            figures.family(result.tables["relations"], folder)
            return
        blocks = result.details[result.details["target_layer"] != EMBEDDING_LAYER]
        share_in_place = blocks["in_place"] / blocks["units"]
        columns_of_pair = ["source", "target", "source_layer", "target_layer"]
        with_share = blocks.assign(value=share_in_place)
        by_layers = with_share.groupby(columns_of_pair, sort=False)["value"]
        # A block with experts has several groups of units, of which the largest share counts.
        shares: pd.DataFrame = by_layers.max().reset_index()
        most_units = int(blocks["units"].max())
        subtitle = f"of up to {most_units:,} hidden units of a block"
        label = "share of units in place"
        figures.layer_heatmaps(shares, folder, "units_in_place", label, about=subtitle)

    def ranked(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the pairs of blocks with the lowest p-value first."""
        return ranked_rows(table, "p", smallest_first=True)

    def headlines(self, result: Result) -> Sequence[Headline]:
        """Return the number of blocks with an origin, and the lowest p-value, as headlines."""
        names = ("blocks_with_origin", "lowest_p_corrected")
        return [Headline(name, result.scalars[name]) for name in names]

    def show(self, result: Result) -> None:
        """Print which blocks of two models, or of several, have a common history."""
        if "relations" in result.tables:  # a row for each pair of models, if several are compared
            show_family(result)
        else:
            show_lineage(result)


def listed_models(config: AnalyzeConfig) -> list[ModelConfig]:
    """Return the configurations of the different models that the setting `models=[...]` lists.

    They are taken from the jobs of each two of them, in which the list has been checked, and the
    settings of models that were left open have values.

    Raises:
        ConfigError: There are fewer than two, one is not known, or `model=` is given as well.
    """
    models: list[ModelConfig] = []
    for job in jobs_of_model_pairs(config):
        models += [model for model in (job.model, job.target) if model not in models]
    return models


def _scalars_of_lineage(comparisons: list[Comparison], origins: pd.DataFrame) -> dict[str, float]:
    """Return the headline numbers of a result.

    They are the number of target blocks, how many of these have an origin (a source block that
    they come from, by a test), the lowest corrected p-value, and the number of pairs of blocks
    that p-values are corrected for.

    Args:
        comparisons: The comparisons of every two models, at least one.
        origins: A row for each block of a target, with its origin.
    """
    return {
        "blocks": float(len(origins)),
        "blocks_with_origin": float(origins["source_layer"].notna().sum()),
        "lowest_p_corrected": float(origins["p_corrected"].min()),
        "pairs_of_blocks": float(comparisons[0].tests),
    }


def _facts_of_streams(comparison: Comparison) -> dict[str, object]:
    """Return a table row about two models: how their residual streams and heads are compared.

    `heads` is the number of attention heads of the model with fewer, and 0 if it is not known.
    """
    heads = 0
    if comparison.source.heads and comparison.target.heads:
        # The first block gives the number of heads of each block.
        heads = min(comparison.source.heads[0].heads, comparison.target.heads[0].heads)
    return {
        "source": comparison.source.name,
        "target": comparison.target.name,
        "basis": comparison.streams.basis,
        "reason": comparison.streams.reason,
        "tokens": comparison.streams.tokens,
        "heads": heads,
        "pairs_of_heads": comparison.n_head_tests,
    }
