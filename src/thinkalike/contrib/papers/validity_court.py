"""A court for similarity: sources of known similarity to a target, judged by every measure."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from thinkalike.contrib.court import ranking, verdict_tables
from thinkalike.contrib.court.job import CourtConfig
from thinkalike.contrib.court.verdicts import COLUMNS
from thinkalike.contrib.figures.court import draw_court, draw_doses
from thinkalike.contrib.papers.claims import Claim, exact_claim
from thinkalike.contrib.papers.experiment import Conclusion, Experiment, ExperimentRun, InnerJob


class Target(NamedTuple):
    """A model whose layers have courts.

    Attributes:
        layers: The layers that have a court each.
        siblings: Models that were trained on the same text, by how they differ.
    """

    layers: Sequence[int]
    siblings: Mapping[str, str]


TARGETS = {
    "paper": {
        "gelu-3l": Target([1], {"other activation": "solu-3l", "other depth": "gelu-4l"}),
        "solu-3l": Target([1], {"other activation": "gelu-3l", "other depth": "solu-4l"}),
    },
    "mini": {
        "gelu-3l-mini": Target(
            [0, 1],
            {
                "other seed": "gelu-3l-mini-s1",
                "other activation": "solu-3l-mini",
                "other depth": "gelu-4l-mini",
                "other seed and activation": "solu-3l-mini-s1",
                "other family": "neox-6l-mini",
            },
        ),
        "solu-3l-mini": Target(
            [1],
            {
                "other seed": "solu-3l-mini-s1",
                "other activation": "gelu-3l-mini",
                "other depth": "solu-4l-mini",
                "other seed and activation": "gelu-3l-mini-s1",
                "other family": "neox-5l-mini",
            },
        ),
        "neox-4l-mini": Target(
            [1],
            {
                "smaller": "neox-3l-mini",
                "larger": "neox-5l-mini",
                "other family": "gelu-4l-mini",
            },
        ),
        "neox-5l-mini": Target(
            [2],
            {
                "smaller": "neox-4l-mini",
                "larger": "neox-6l-mini",
                "other heads": "neox-5l-odd-mini",
                "other family": "solu-4l-mini",
            },
        ),
        "gpt2-mini": Target(
            [2],
            {
                "other seed": "gpt2-mini-s1",
                "other family": "mamba-mini",
                "other seed and family": "mamba-mini-s1",
            },
        ),
        "mamba-mini": Target(
            [2],
            {
                "other seed": "mamba-mini-s1",
                "other family": "gpt2-mini",
                "other seed and family": "gpt2-mini-s1",
            },
        ),
    },
}
UNKNOWN_TARGET = Target([1], {})
MODELS = {scale: list(targets) for scale, targets in TARGETS.items()}

# Verdicts on a kind of source are right if at least these shares are right among those decided,
# and decided.
LEAST_RIGHT = 0.9
LEAST_DECIDED = 0.75


def _court_jobs(experiment: ExperimentRun) -> list[InnerJob]:
    """Return one job for each target model, layer and seed.

    A job is a court: it compares sources of known similarity with one layer of the target, by
    every measure. The setting `seed` is the first of the seeds. The setting `measure.layer`
    chooses one layer for all targets. Without it, layers are those of `TARGETS`, or layer 1 for a
    model that is not listed there.
    """
    measure = experiment.config.measure_as(CourtConfig)
    all_targets = TARGETS["paper"] | TARGETS["mini"]
    seeds = range(experiment.config.seed, experiment.config.seed + measure.seeds)
    jobs = []
    for name, model in experiment.models.items():
        target = all_targets.get(str(model.name), UNKNOWN_TARGET)
        layers = target.layers
        if measure.layer is not None:
            layers = [measure.layer]
        siblings = measure.siblings or dict(target.siblings)
        for layer, seed in itertools.product(layers, seeds):
            settings = replace(measure, layer=layer, siblings=siblings)
            jobs.append(
                InnerJob(
                    f"{name}, layer {layer}, seed {seed}",
                    (model,),
                    changes={"seed": seed, "measure": settings},
                )
            )
    return jobs


def _conclude(experiment: ExperimentRun) -> Conclusion:
    """Return the table of all courts, with claims about each measure and about the verdicts.

    A court compares sources of known similarity with a target; a judge is a measure that ranks
    these sources. It is claimed that each measure ranks copies of the target above all decoys
    (which only look similar), and that it does the same with separately trained models (the
    columns that begin with "real_").
    """
    table = pd.concat(
        [result.details for result in experiment.results.values()], ignore_index=True
    )
    units = f"{table['source'].nunique()} sources in {len(experiment.results)} courts"
    judges = ranking.summary_of_judges(table)
    doses = ranking.dose_table(table)
    tables = {"judges": judges, "doses": doses}

    rows = judges.to_dict("records")
    claims = []
    for prefix, subject in (
        ("", "everything that is the same"),
        ("real_", "every other trained model"),
    ):
        for row in rows:
            if f"{prefix}auc" in row:
                claims.append(_ranking_claim(row, subject, prefix, units))
    if set(COLUMNS) <= set(table):
        tables["sentences"] = verdict_tables.verdict_table(table)
        tables["kinds"] = verdict_tables.shares_by_kind(tables["sentences"])
        for row in tables["kinds"].to_dict("records"):
            claims.append(_verdict_claim(row, units))

    def draw(folder: Path) -> None:
        """Draw all sources by each measure, and the doses if there are some."""
        draw_court(table, [judge.name for judge in ranking.judges_of(table)], folder)
        if len(doses):
            curves = {str(judge): curve for judge, curve in doses.groupby("judge", sort=False)}
            draw_doses(curves, folder)

    not_empty = {
        name: further_table for name, further_table in tables.items() if len(further_table)
    }
    return Conclusion(table, claims, draw, not_empty)


def _ranking_claim(row: Mapping[Hashable, object], subject: str, prefix: str, units: str) -> Claim:
    """Judge the claim that a measure ranks all similar sources above all decoys in every court.

    A court compares sources of known similarity with one layer of a target model.

    Args:
        row: The row of the measure in the summary of all measures.
        subject: The similar sources in words.
        prefix: The beginning of the columns about these sources: "" or "real_".
        units: The number of sources and courts, in words.
    """
    fooled_by = row[f"{prefix}fooled_by"]
    numbers = f"AUC {row[f'{prefix}auc']:.3f}, least margin {row[f'{prefix}margin']:+.3f}"
    if fooled_by:
        numbers += f"; fooled by {fooled_by}"
    claim = f"{row['judge']} ranks {subject} above {row['decoys']}"
    return exact_claim(claim, not fooled_by, numbers, units)


def _verdict_claim(row: Mapping[Hashable, object], units: str) -> Claim:
    """Judge the claim that verdicts on sources of one kind are mostly decided and mostly right.

    Args:
        row: The shares of one kind of source: how many verdicts are decided (not "undecided"),
            and how many of these are right.
        units: What the numbers are over, in words.
    """
    right = float(str(row["right"]))
    decided = float(str(row["decided"]))
    return exact_claim(
        f"verdicts are right for sources of kind {row['kind']}",
        right >= LEAST_RIGHT and decided >= LEAST_DECIDED,
        f"{right:.0%} of {decided:.0%} decided are right: {row['verdicts']}",
        units,
    )


EXPERIMENTS = [
    Experiment("validity/court", _conclude, MODELS, _court_jobs, measure="court", takes=(1, 2))
]
