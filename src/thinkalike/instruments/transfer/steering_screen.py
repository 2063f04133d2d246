"""What a job of steering vectors prints, in 80 columns."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

import pandas as pd

from thinkalike.instruments.transfer.trial import CARRIED, MATCHED, NATIVE, NEGATED, RANDOM
from thinkalike.store import Result

SHOWN = {"native": NATIVE, "carried": CARRIED, "matched": MATCHED, "random": RANDOM, "negated": NEGATED}
INTERVAL = 16  # columns of the interval beside the share of carried vectors
LEGEND = (
    "share of what the counterpart does; native: the target's own vector; carried:\n"
    "the source's, through φ; matched: with the norm of the native one; random: of\n"
    "that norm; negated: carried, with the other sign; cosine: of carried and native"
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
    print(f"steering of {first['target']} by vectors of {first['source']}")
    pairs = f"{scalars['pairs']:.0f} pairs of {Path(result.provenance['contrasts']['source']).name}"
    print(f"{pairs}; natural effect {scalars['natural_effect']:.2f} nats")
    labels = [label.rjust(9) + " " * INTERVAL * (label == "carried") for label in SHOWN]
    for position, rows in result.table.groupby("position", sort=False):
        print("\nadded at the word's last token" + ("" if position == "word" else " and all later ones"))
        print(f"{'layer':>7}{'x':>5}{''.join(labels)}{'cosine':>7}")
        for at, own in rows.groupby(["source_layer", "target_layer", "strength"], sort=False):
            print(_place(*at) + _cells(own.set_index("condition").to_dict("index")))
    print(LEGEND)


def _place(layer: Any, depth: Any, strength: Any) -> str:
    return f"{layer}→{depth}".rjust(7) + f"{strength:g}".rjust(5)


def _cells(rows: Mapping[Any, Any]) -> str:
    """Return the shares of all conditions, or their effects in nats where there is no share."""
    names = ("share", "low", "high") if isfinite(rows[NATIVE]["share"]) else ("effect", "effect_low", "effect_high")
    cells = [f"{rows[condition][names[0]]:9.3f}" for condition in SHOWN.values()]
    low, high = (rows[CARRIED][name] for name in names[1:])
    cells.insert(list(SHOWN).index("carried") + 1, f" [{low:.2f}, {high:.2f}]".ljust(INTERVAL))
    return "".join(cells) + f"{rows[CARRIED]['cosine']:7.2f}"
