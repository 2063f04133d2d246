"""measure=atlas: all pairs of several models by all measures, and how far the measures agree.

    python analyze.py measure=atlas 'models=[gelu-3l-mini,solu-3l-mini,neox-5l-mini]'
    python analyze.py measure=atlas 'measure.measures=[cka,r2]' 'models=[gelu-3l,solu-3l]'

Its inner jobs are jobs like any other, of `measure=cka` and so on, with their own keys and
folders. Those that the store lacks run in one pass, in which each model runs once for each
input. What follows from them is the atlas's own: rank correlations over layer pairs, and where
ranks differ most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from thinkalike.config import AnalyzeConfig
from thinkalike.contrib.atlas.agreement import (
    agreement_table,
    correlations_by_model_pair,
    disagreements,
    mean_agreement,
    oriented,
    relative_ranks,
)
from thinkalike.contrib.atlas.inner_jobs import (
    FinishedJobs,
    columns_of,
    inner_jobs,
    is_distance,
    joined_table,
    model_names,
)
from thinkalike.instruments import run_jobs
from thinkalike.job import Instrument, Outcome, Work
from thinkalike.screen import show_text, span
from thinkalike.store import Result

ROWS_SHOWN = 3  # of the least and the best agreements, and of the largest disagreements


class Atlas(Instrument[AnalyzeConfig], kind="atlas", version=3, reads=("models", "measure")):
    """Compares all pairs of several models by all measures, and the measures with each other."""

    of_models: ClassVar[str] = "all"

    def settings_read(self, config: AnalyzeConfig) -> frozenset[str]:
        """Return the names of the settings that apply to the atlas or to its inner jobs.

        An atlas compares all pairs of several models. Each inner job compares one pair by one
        measure, and reads settings of models, text and seeds that the atlas itself does not. Both
        read settings of the measure, which `super()` returns.
        """
        keys_of_inner_jobs = [
            self.keys_of_part(config, part) for part in ("model", "target", "data", "seed")
        ]
        return super().settings_read(config).union(*keys_of_inner_jobs)

    def inputs(self, config: AnalyzeConfig) -> Mapping[str, str | FinishedJobs]:
        """Run a job for each measure and pair of models; return the results and the model names.

        These are the inputs of an atlas, which compares the measures with each other. Jobs that
        the store has already are not run again.
        """
        jobs = inner_jobs(config)
        # Results of inner jobs are not printed (`shown`).
        results = run_jobs([job.config for job in jobs], shown=False)
        return {"labels": ", ".join(model_names(jobs)), "parts": FinishedJobs(jobs, results)}

    def prepared_jobs(self, config: AnalyzeConfig) -> list[AnalyzeConfig]:
        """Return the jobs that `inputs` runs: one for each measure and each pair of models."""
        return [job.config for job in inner_jobs(config)]

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        """Join the values of all measures, and correlate the measures over layer pairs.

        The table of the result has a row for each pair of layers of each pair of models. Further
        tables say how well each two measures agree, and on which layer pairs they disagree most.
        """
        jobs, results = work.input("parts", FinishedJobs)  # what `inputs` returned
        table = joined_table(jobs, results)
        measures = columns_of(jobs)
        correlations = correlations_by_model_pair(table, measures)

        mean = mean_agreement(correlations)
        scalars = {
            "mean_agreement": float(mean.value),
            "mean_agreement_low": float(mean.low),
            "mean_agreement_high": float(mean.high),
        }
        # With two models the ends of the interval are infinite, and are left out.
        scalars = {name: value for name, value in scalars.items() if math.isfinite(value)}
        scalars["models"] = float(len(model_names(jobs)))
        scalars["layer_pairs"] = float(len(table))

        # Each model is in several results, but is described once.
        descriptions = {}
        for result in results:
            for model in result.provenance["models"]:
                descriptions[str(sorted(model.items()))] = model
        keys = {job.label: result.key for job, result in zip(jobs, results, strict=True)}
        return Outcome(
            table,
            scalars,
            tables={
                "agreement": agreement_table(correlations),
                "agreement_by_pair": correlations,
                "disagreements": disagreements(table, measures),
            },
            models=list(descriptions.values()),
            facts={"parts": keys},
            blank=(*table.columns, "rho"),  # these columns may have empty cells (NaN)
        )

    def draw(self, result: Result, folder: Path) -> None:
        """Draw how well measures agree, and how each measure ranks all layer pairs.

        The layer pairs of two models are ranked among themselves, from 0 for the least similar to
        1 for the most similar.
        """
        from thinkalike.contrib.figures.agreement import (  # imports matplotlib
            draw_agreement,
            draw_ranks,
        )

        table = result.tables["agreement"]  # a row for each two measures
        names = list(dict.fromkeys([*table["measure"], *table["other"]]))  # each measure once
        scalars = result.scalars
        about = f"{scalars['models']:.0f} models, {scalars['layer_pairs']:.0f} layer pairs"
        draw_agreement(table, names, folder, about)
        # Distances are negated, so that a higher value means more similar.
        similarities = oriented(result.details, {name: is_distance(name) for name in names})
        ranks = relative_ranks(similarities, names)
        table_of_ranks = result.details.assign(**{name: ranks[name] for name in names})
        draw_ranks(table_of_ranks, names, folder)

    def show(self, result: Result) -> None:
        """Print how well the measures of an atlas agree.

        These are the mean agreement, the pairs of measures that agree most and least, and the
        layer pairs on which measures differ most. The agreement of two measures is Spearman's ρ
        over layer pairs.
        """
        table = result.tables["agreement"]
        scalars = result.scalars
        mean = span(
            scalars.get("mean_agreement", math.nan),
            scalars.get("mean_agreement_low", math.nan),
            scalars.get("mean_agreement_high", math.nan),
            "+.2f",
        )
        # Each pair of measures is listed once, so one measure is only in the column "other".
        n_measures = table["measure"].nunique() + 1
        show_text(
            f"Agreement of {n_measures} measures, {scalars['models']:.0f} models, "
            f"{scalars['layer_pairs']:.0f} layer pairs: mean Spearman's ρ {mean}."
        )

        ascending = table.sort_values("rho", kind="stable")
        # Both in descending order.
        highest = ascending[::-1][:ROWS_SHOWN]
        lowest = ascending[:ROWS_SHOWN][::-1]
        for rows in (highest, lowest):
            for _, row in rows.iterrows():
                rho = span(row["rho"], row["low"], row["high"], "+.2f")
                show_text(
                    f"{row['measure']} and {row['other']} agree by {rho}; least "
                    f"{row['least']:+.2f}, {row['least_source']} and {row['least_target']}",
                    indent=2,
                )
        for _, row in result.tables["disagreements"][:ROWS_SHOWN].iterrows():
            show_text(
                f"{row['source']} layer {row['source_layer']} with {row['target']} layer "
                f"{row['target_layer']}: rank {row['rank']:.2f} by {row['measure']}, "
                f"{row['other_rank']:.2f} by {row['other']} (0 is the farthest, 1 the closest)",
                indent=2,
            )
