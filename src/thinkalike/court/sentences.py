"""What the rules of `verdict` say of sources of known likeness."""

from __future__ import annotations

import pandas as pd

from thinkalike.evaluation import STATED, Thresholds, verdict

COLUMNS = {  # of a stitching table, by the judge that says the same
    "r2_given_token": "R² given the token, to the target",
    "r2_given_token_back": "R² given the token, to the source",
    "cka_given_token": "CKA given the token",
    "future": "future",
}
ALONE = "token mean"  # the source that says what the current token alone costs
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


def sentenced(table: pd.DataFrame, thresholds: Thresholds = STATED) -> pd.DataFrame:
    """Return a row for each source of each court, with its verdict, and whether that is right of its kind.

    Points are judged, as intervals of a court's few tokens would leave much undecided.
    """
    alone = table[table["source"] == ALONE].set_index(["target", "layer", "seed"])["penalty"]
    rows = []
    for row in table.to_dict("records"):
        seen = {column: row[judge] for column, judge in COLUMNS.items()}
        ends = {f"{column}_{end}": value for column, value in seen.items() for end in ("low", "high")}
        costs = {"kl": row["KL"], "token_mean_penalty": alone[row["target"], row["layer"], row["seed"]]}
        found = verdict({**ends, **costs}, thresholds)
        right = found in RIGHT[row["kind"]] if row["kind"] in RIGHT else None
        court = {name: row[name] for name in ("target", "layer", "seed", "source", "kind")}
        rows.append({**court, "verdict": found, "right": right})
    return pd.DataFrame(rows)
