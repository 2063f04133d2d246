"""How often verdicts on the sources of a court are right."""

from __future__ import annotations

import math

import pandas as pd

from thinkalike.contrib.court import verdicts
from thinkalike.contrib.court.ranking import COURT_COLUMNS

# The verdicts that are right for a kind. For separately trained models it is an open question.
RIGHT_VERDICTS = {
    "same": (verdicts.SAME,),
    "near": (verdicts.SAME, verdicts.SIMILAR),
    "part": (verdicts.PART,),
    # Beside large noise, ridge finds less than 95 % of the target's states.
    "superset": (verdicts.SUPERSET, verdicts.SIMILAR),
    "leak": (verdicts.LEAK,),
    "distorted": (verdicts.SIMILAR,),
    "answers": (verdicts.SIMILAR,),
    "layer": (verdicts.PART, verdicts.SIMILAR),
    "mixture": (verdicts.PART, verdicts.SIMILAR),
    "scaled": (verdicts.BEYOND,),
    "wrong tokens": (verdicts.BEYOND,),
    "n-gram": (verdicts.MIXING, verdicts.SIMILAR),
    "delay": (verdicts.MIXING, verdicts.SIMILAR),
    "token": (verdicts.MIXING,),
    "position": (verdicts.MIXING,),
    "bag": (verdicts.MIXING,),
    "untrained": (verdicts.MIXING,),
    "shortcut": (verdicts.MIXING,),
}


def verdict_table(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each source of a table, with its verdict and whether that is right.

    The table has the measured numbers of sources whose similarity to a target model is known; the
    `kind` of a source says what is known. `right` is None if the right verdict for this kind is an
    open question, and for the verdict "undecided".
    """
    rows = []
    for row in table.to_dict("records"):
        verdict = verdicts.verdict(row)
        right = None
        if row["kind"] in RIGHT_VERDICTS and verdict != verdicts.UNDECIDED:
            right = verdict in RIGHT_VERDICTS[row["kind"]]
        # COURT_COLUMNS are target, layer and seed.
        identifiers = {name: row[name] for name in (*COURT_COLUMNS, "source", "kind")}
        rows.append({**identifiers, "verdict": verdict, "right": right})
    return pd.DataFrame(rows)


def shares_by_kind(with_verdicts: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each kind of source: how often its verdicts are decided and right.

    `sources` is the number of sources, and `verdicts` lists how many of them have each verdict.
    `decided` is the share of verdicts that are not "undecided". `right` is the share of right
    verdicts among the decided ones, and NaN if none is decided. Kinds without a known right
    verdict are left out.

    Args:
        with_verdicts: The table of `verdict_table`: a row for each source.
    """
    rows = []
    has_known_verdict = with_verdicts["kind"].isin(RIGHT_VERDICTS)
    for kind, sources in with_verdicts[has_known_verdict].groupby("kind", sort=False):
        decided = sources[sources["verdict"] != verdicts.UNDECIDED]
        share_right = math.nan
        if len(decided):
            share_right = float(decided["right"].astype(float).mean())
        counts = sources["verdict"].value_counts()
        row = {
            "kind": kind,
            "sources": len(sources),
            "decided": len(decided) / len(sources),
            "right": share_right,
            "verdicts": ", ".join(f"{verdict} {count}" for verdict, count in counts.items()),
        }
        rows.append(row)
    return pd.DataFrame(rows, columns=["kind", "sources", "decided", "right", "verdicts"])
