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

    A job is a court: it compares sources of known similarity with one layer of the target, by all
    similarity measures. The user's settings take precedence over those of `TARGETS`:
    `measure.layer` is one layer for all targets, and `measure.siblings` names separately trained
    models. A model that `TARGETS` does not list is tested at layer 1, without siblings.
    `measure.seeds` is how many seeds there are; they count up from the setting `seed`.
    """
    court_settings = experiment.config.measure_as(CourtConfig)
    all_targets = TARGETS["paper"] | TARGETS["mini"]
    first_seed = experiment.config.seed
    seeds = range(first_seed, first_seed + court_settings.seeds)
    jobs = []
    for name, model in experiment.models.items():
        target = all_targets.get(str(model.name), UNKNOWN_TARGET)
        layers = target.layers
        if court_settings.layer is not None:
            layers = [court_settings.layer]
        siblings = court_settings.siblings or dict(target.siblings)
        for layer, seed in itertools.product(layers, seeds):
            label = f"{name}, layer {layer}, seed {seed}"
            settings = replace(court_settings, layer=layer, siblings=siblings)
            jobs.append(InnerJob(label, (model,), changes={"seed": seed, "measure": settings}))
    return jobs


def _conclude(experiment: ExperimentRun) -> Conclusion:
    """Return the table of all sources, with claims about each measure and about the verdicts.

    A court compares sources of known similarity with one layer of a target, by several measures
    (judges). The table has the values of each source. Further tables summarise each measure, its
    values for mixtures of the target with something unrelated (doses), and the verdicts. A verdict
    says in a word how similar a source is; there are none if the table lacks the columns that they
    are based on. Empty tables are left out.
    """
    table = pd.concat(
        [result.details for result in experiment.results.values()], ignore_index=True
    )
    units = f"{table['source'].nunique()} sources in {len(experiment.results)} courts"
    judges = ranking.summary_of_judges(table)
    doses = ranking.dose_table(table)
    further_tables = {"judges": judges, "doses": doses}
    claims = _ranking_claims(judges, units)
    has_columns_of_verdicts = set(COLUMNS) <= set(table)
    if has_columns_of_verdicts:
        verdicts = verdict_tables.verdict_table(table)
        kinds = verdict_tables.shares_by_kind(verdicts)
        further_tables |= {"sentences": verdicts, "kinds": kinds}
        claims += [_verdict_claim(row, units) for row in kinds.to_dict("records")]

    def draw(folder: Path) -> None:
        """Draw all sources by each measure, and the doses if there are some."""
        judges_drawn = [judge.name for judge in ranking.judges_of(table)]
        draw_court(table, judges_drawn, folder, units)
        if len(doses):
            draw_doses(ranking.doses_by_court(table), folder)

    not_empty = {name: rows for name, rows in further_tables.items() if len(rows)}
    return Conclusion(table, claims, draw, tables=not_empty)


def _ranking_claims(judges: pd.DataFrame, units: str) -> list[Claim]:
    """Judge for each measure that it ranks similar sources above decoys, which only look similar.

    A source is compared with a layer of a target model. There are two claims about each measure,
    for two kinds of similar sources: those that have exactly the target's information (columns
    without a prefix), and separately trained models (columns that begin with "real_"). If the
    table lacks the columns of one kind, there is no claim about it.

    Args:
        judges: A row for each measure, with how well it ranks the sources, such as its `auc`.
        units: The number of sources and courts (target, layer and seed), in words.
    """
    claims = []
    for prefix, subject in (
        ("", "everything that is the same"),
        ("real_", "every other trained model"),
    ):
        for row in judges.to_dict("records"):
            if f"{prefix}auc" in row:
                claims.append(_ranking_claim(row, subject, prefix, units))
    return claims


def _ranking_claim(row: Mapping[Hashable, object], subject: str, prefix: str, units: str) -> Claim:
    """Judge the claim that a measure ranks all similar sources above all decoys in every court.

    A court compares sources of known similarity with one layer of a target model. A decoy is a
    source that only looks similar to it.

    Args:
        row: The row of the measure in the summary of all measures: the area under the ROC curve,
            the least margin between a similar source and a decoy, and the decoys that fool it.
        subject: The similar sources in words.
        prefix: The beginning of the columns about these sources: "" for sources that are the same
            as the target by construction, "real_" for separately trained models.
        units: The number of sources and courts, in words.
    """
    fooled_by = row[f"{prefix}fooled_by"]  # names of decoys, or ""
    finding = f"AUC {row[f'{prefix}auc']:.3f}, least margin {row[f'{prefix}margin']:+.3f}"
    if fooled_by:
        finding += f"; fooled by {fooled_by}"
    claim = f"{row['judge']} ranks {subject} above {row['decoys']}"
    return exact_claim(claim, not fooled_by, finding, units)


def _verdict_claim(row: Mapping[Hashable, object], units: str) -> Claim:
    """Judge the claim that verdicts on sources of one kind are mostly decided and mostly right.

    A verdict says in a word how similar a source is to a target, or is "undecided". The claim
    holds if at least `LEAST_DECIDED` of them are decided, and `LEAST_RIGHT` of these right.

    Args:
        row: The shares for one kind of source: of verdicts that are decided (`decided`), and of
            these that are right (`right`); and which verdicts there are, in words (`verdicts`).
        units: What the numbers are over, in words.
    """
    # By way of text, as a cell of a data frame may be of any type.
    right = float(str(row["right"]))
    decided = float(str(row["decided"]))
    return exact_claim(
        f"verdicts are right for sources of kind {row['kind']}",
        right >= LEAST_RIGHT and decided >= LEAST_DECIDED,
        finding=f"{right:.0%} of {decided:.0%} decided are right: {row['verdicts']}",
        units=units,
    )


EXPERIMENTS = [
    Experiment(
        "validity/court",
        _conclude,
        MODELS,
        _court_jobs,
        measure="court",
        accepted_model_counts=(1, 2),
    )
]
