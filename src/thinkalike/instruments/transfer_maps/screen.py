"""What a job of maps between two models prints."""

from __future__ import annotations

import logging

import pandas as pd
from rich.console import Console
from rich.table import Table

from thinkalike.evaluation import number_of_documents
from thinkalike.measures import span
from thinkalike.store import Result

log = logging.getLogger(__name__)

LEFT = {
    "φ": "unexplained",
    "ψ": "unexplained_back",
    "ψφ": "round_trip_unexplained",
    "φψ": "round_trip_unexplained_back",
}
PENALTIES = ("penalty", "penalty_back")
OVERFITTED = 0.05  # of the variance: how much more may be unexplained of held-out states than of those fitted on


def show_maps(result: Result) -> None:
    """Print what both maps leave unexplained and cost at each layer pair, and say where they are overfitted."""
    rows, counts = result.table, result.provenance["data"]
    first = rows.iloc[0]
    title = (
        f"{first['source']} → {first['target']} by φ and back by ψ, fitted on {counts['fit_tokens']:,} tokens: share "
        f"of variance unexplained, penalty in nats per token, 95 % intervals over {number_of_documents(result.scalars)}"
    )
    printed = Table(title=title)
    for name in ("layer", *LEFT, "penalty of φ", "penalty of ψ", "condition of φ"):
        printed.add_column(name, justify="right")
    for row in rows.to_dict("records"):
        left = [f"{row[column]:.3f}" for column in LEFT.values()]
        costs = [span(row[name], row[f"{name}_low"], row[f"{name}_high"]) for name in PENALTIES]
        printed.add_row(f"{row['source_layer']}→{row['target_layer']}", *left, *costs, f"{row['condition']:.3g}")
    Console(width=max(Console().width, 120)).print(printed)
    _warn_of_overfitting(rows)


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
