"""What a job of steering vectors prints."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Any

import pandas as pd

from thinkalike.instruments.transfer.trial import CARRIED, MATCHED, NATIVE, NEGATED, RANDOM
from thinkalike.screen import Column, Table, number_column, show_table, show_text
from thinkalike.store import Result

SHOWN = {"native": NATIVE, "carried": CARRIED, "matched": MATCHED, "random": RANDOM, "negated": NEGATED}
LEGEND = (
    "share of what the counterpart does; native: the target's own vector; carried: the source's, through φ; matched: "
    "with the norm of the native one; random: of that norm; negated: carried, with the other sign; cosine: of carried "
    "and native"
)


def best_rows(table: pd.DataFrame) -> dict[Any, Any]:
    """Return the rows by condition at the layers where the native vector has the greatest effect.

    They are of the first position and strength.
    """
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
