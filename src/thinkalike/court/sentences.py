"""What the rules of `verdict` say of sources of known likeness."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from thinkalike.evaluation import STATED, Thresholds, verdict

COLUMNS = {  # of a stitching table, by the judge that says the same
    "r2_given_token": "R² given the token, to the target",
    "r2_given_token_back": "R² given the token, to the source",
    "cka_given_token": "CKA given the token",
    "future": "future",
}
ALONE = "token mean"  # the source that says what the current token alone costs
COURT = ["target", "layer", "seed"]
RIGHT = {  # the verdicts that are right of a kind; of other trained models it is an open question
    "same": ("same up to an affine map",),
    "answers": ("same answers",),
    "part": ("part of", "related"),
    "superset": ("superset of",),
    "token": ("token only", "different"),
    "leak": ("leak",),
    "untrained": ("different", "token only"),
    "shortcut": ("different", "token only"),
}


class _Rule(NamedTuple):
    """What a threshold of the verdict has to part: sources that it is meant for, by kind or name, from others."""

    meant: tuple[str, ...]
    others: tuple[str, ...]
    higher: bool = True  # whether those that it is meant for lie above it


ONE_TOKEN = (ALONE, "token code", "other context", "Gaussian given the token", "token alone")
RULES = {  # by the field of `Thresholds`
    "leak": _Rule(("leak",), ("same", "answers", "part", "superset", "token", "untrained", "shortcut", "real")),
    "same": _Rule(("same",), ("answers", "part", "superset", "token", "leak", "untrained", "shortcut", "real")),
    "related": _Rule(("real",), ("answers", "token", "untrained", "shortcut")),
    "token": _Rule(ONE_TOKEN, ("same", "answers", "part", "superset", "leak", "untrained", "real"), higher=False),
    "answers": _Rule(("answers",), ("token", "leak", "untrained", "shortcut"), higher=False),
}


def fitted_thresholds(table: pd.DataFrame) -> Thresholds:
    """Return thresholds that lie halfway between the sources that a rule is meant for and the nearest others.

    A threshold whose sources a table lacks is the stated one.
    """
    seen = pd.DataFrame(_rows(table), index=table.index)
    forth, back, cka = (seen[f"{name}_low"] for name in ("r2_given_token", "r2_given_token_back", "cka_given_token"))
    least, largest = pd.concat([forth, back], axis=1).min(axis=1), pd.concat([forth, back, cka], axis=1).max(axis=1)
    numbers = {
        "leak": seen["future_low"],
        "same": least,
        "related": least.clip(lower=0) * cka.clip(lower=0),
        "token": largest,
        "answers": seen["kl"] / seen["token_mean_penalty"],
    }
    found = {}
    for name, rule in RULES.items():
        sides = [numbers[name][table["kind"].isin(each) | table["source"].isin(each)] for each in rule[:2]]
        if len(sides[0]) and len(sides[1]):
            meant, other = sides if rule.higher else sides[::-1]
            found[name] = float(meant.min() + other.max()) / 2
    return STATED._replace(**found)


def sentenced(table: pd.DataFrame, thresholds: Thresholds = STATED) -> pd.DataFrame:
    """Return a row for each source of each court, with its verdict, and whether that is right of its kind.

    Points are judged, as intervals of a court's few tokens would leave much undecided.
    """
    rows = []
    for row, seen in zip(table.to_dict("records"), _rows(table), strict=True):
        found = verdict(seen, thresholds)
        right = found in RIGHT[row["kind"]] if row["kind"] in RIGHT else None
        rows.append({**{name: row[name] for name in (*COURT, "source", "kind")}, "verdict": found, "right": right})
    return pd.DataFrame(rows)


def _rows(table: pd.DataFrame) -> list[dict[str, float]]:
    """Return what `verdict` reads of each source."""
    alone = table[table["source"] == ALONE].set_index(COURT)["penalty"]
    rows = []
    for row in table.to_dict("records"):
        seen = {column: row[judge] for column, judge in COLUMNS.items()}
        ends = {f"{column}_{end}": value for column, value in seen.items() for end in ("low", "high")}
        rows.append({**ends, "kl": row["KL"], "token_mean_penalty": alone[tuple(row[name] for name in COURT)]})
    return rows
