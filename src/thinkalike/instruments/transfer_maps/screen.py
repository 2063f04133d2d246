"""What a job of maps between two models prints."""

from __future__ import annotations

import logging
from typing import Any

import pandas as pd

from thinkalike.evaluation import UNEXPLAINED, number_of_documents
from thinkalike.measures import span
from thinkalike.screen import Column, Table, number_column, show_table
from thinkalike.store import Result

log = logging.getLogger(__name__)

LEFT = dict(zip(("φ", "ψ", "ψφ", "φψ"), UNEXPLAINED.values(), strict=True))
PENALTIES = {"φ": "penalty", "ψ": "penalty_back"}
OVERFITTED = 0.05  # of the variance: how much more may be unexplained of held-out states than of those fitted on


def show_maps(result: Result) -> None:
    """Print what both maps leave unexplained and cost at each layer pair, and say where they are overfitted."""
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
