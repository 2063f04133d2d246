"""A court for likeness: sources whose likeness to a target is known, judged by every measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from thinkalike.contrib import figures
from thinkalike.contrib.court import judges as court
from thinkalike.contrib.court.verdicts import COLUMNS
from thinkalike.contrib.papers.claims import Claim, counted
from thinkalike.contrib.papers.experiment import Case, Conclusion, Experiment, Part

Siblings = dict[str, str]  # models that were trained on the same text, by what is other about them
TARGETS: dict[str, dict[str, tuple[Sequence[int], Siblings]]] = {  # by scale and model: its layers, and its siblings
    "paper": {
        "gelu-3l": ([1], {"other activation": "solu-3l", "other depth": "gelu-4l"}),
        "solu-3l": ([1], {"other activation": "gelu-3l", "other depth": "solu-4l"}),
    },
    "mini": {
        "gelu-3l-mini": ([0, 1], {
            "other seed": "gelu-3l-mini-s1", "other activation": "solu-3l-mini", "other depth": "gelu-4l-mini",
            "other seed and activation": "solu-3l-mini-s1", "other family": "neox-6l-mini",
        }),
        "solu-3l-mini": ([1], {
            "other seed": "solu-3l-mini-s1", "other activation": "gelu-3l-mini", "other depth": "solu-4l-mini",
            "other seed and activation": "gelu-3l-mini-s1", "other family": "neox-5l-mini",
        }),
        "neox-4l-mini": ([1], {
            "smaller": "neox-3l-mini", "larger": "neox-5l-mini", "other family": "gelu-4l-mini",
        }),
        "neox-5l-mini": ([2], {
            "smaller": "neox-4l-mini", "larger": "neox-6l-mini", "other heads": "neox-5l-odd-mini",
            "other family": "solu-4l-mini",
        }),
        "gpt2-mini": ([2], {
            "other seed": "gpt2-mini-s1", "other family": "mamba-mini", "other seed and family": "mamba-mini-s1",
        }),
        "mamba-mini": ([2], {
            "other seed": "mamba-mini-s1", "other family": "gpt2-mini", "other seed and family": "gpt2-mini-s1",
        }),
    },
}  # fmt: skip
MODELS = {scale: list(targets) for scale, targets in TARGETS.items()}

RIGHT_SHARE, DECIDED_SHARE = 0.9, 0.75  # of verdicts on a kind: right among those decided, and decided


def _parts(case: Case) -> list[Part]:
    """Return a court for each target, layer and seed, the seeds from `seed` on; `measure.layer=` chooses one layer."""
    measure: Any = case.config.measure
    parts, known = [], TARGETS["paper"] | TARGETS["mini"]
    for name, model in case.models.items():
        layers, siblings = known.get(model.name, ([1], {}))
        layers = layers if measure.layer is None else [measure.layer]
        for layer, seed in product(layers, range(case.config.seed, case.config.seed + measure.seeds)):
            changes = {"seed": seed, "measure": replace(measure, layer=layer, siblings=measure.siblings or siblings)}
            parts.append(Part(f"{name}, layer {layer}, seed {seed}", (model,), changes=changes))
    return parts


def _court(case: Case) -> Conclusion:
    table = pd.concat([result.table for result in case.results.values()], ignore_index=True)
    judges, curves = court.summary(table), court.doses(table)
    units = f"{table['source'].nunique()} sources in {len(case.results)} courts"
    rows = judges.to_dict("records")
    claims = [_claim(row, units, prefix) for prefix in ("", "real_") for row in rows if f"{prefix}auc" in row]
    tables = {"judges": judges, "doses": curves}
    if {*COLUMNS} <= {*table}:
        tables["sentences"] = court.sentenced(table)
        tables["kinds"] = court.shares(tables["sentences"])
        for row in tables["kinds"].to_dict("records"):
            claim = f"verdicts are right for sources of kind {row['kind']}"
            holds = row["right"] >= RIGHT_SHARE and row["decided"] >= DECIDED_SHARE
            numbers = f"{row['right']:.0%} of {row['decided']:.0%} decided are right: {row['verdicts']}"
            claims.append(counted(claim, holds, numbers, units))

    def draw(folder: Path) -> None:
        figures.court(table, [judge.name for judge in court.judges_of(table)], folder)
        if len(curves):
            figures.doses(dict(list(curves.groupby("judge", sort=False))), folder)

    return Conclusion(table, claims, draw, {name: each for name, each in tables.items() if len(each)})


def _claim(row: Mapping[Any, Any], units: str, prefix: str = "") -> Claim:
    """Return whether a judge ranks all sources of a kind above all decoys that it is meant for, in every court."""
    what = "every other trained model" if prefix else "everything that is the same"
    by, area = row[f"{prefix}fooled_by"], row[f"{prefix}auc"]
    numbers = f"AUC {area:.3f}, least margin {row[f'{prefix}margin']:+.3f}" + (f"; fooled by {by}" if by else "")
    return counted(f"{row['judge']} ranks {what} above {row['decoys']}", not by, numbers, units)


EXPERIMENTS = [Experiment("validity/court", _court, MODELS, _parts, measure="court", takes=(1, 2))]
