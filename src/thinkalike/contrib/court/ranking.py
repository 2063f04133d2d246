"""How well the judges of a court rank similar sources above decoys.

A table of a court has a row for each target, layer, seed and source, its `kind`, and a column for
each judge. Only sources of one target, layer and seed are compared with each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from thinkalike.contrib.court.judges import DECOYS, JUDGES, Judge
from thinkalike.measures.distances.ranks import spearman

SAME_KINDS = ("same",)
REAL_KINDS = ("real",)
COURT = ["target", "layer", "seed"]  # the columns that tell courts apart


class Margin(NamedTuple):
    """How far a judge puts similar sources above decoys.

    Attributes:
        least: The least difference, over courts, of the worst similar source and the best decoy,
            in the judge's unit. It is positive where every similar source is above every decoy.
        fooled_by: The decoys that the judge ranks above the worst source in some court.
    """

    least: float
    fooled_by: list[str]


def judges_of(table: pd.DataFrame, kinds: Sequence[str] = ()) -> list[Judge]:
    """Return the judges that a table has columns of; a court may hear some sources only.

    Args:
        table: The table of some courts.
        kinds: If given, the table must also have sources of these kinds, and decoys of the judge.
    """
    judges = []
    for judge in JUDGES:
        if judge.name not in table:
            continue
        has_sources = table["kind"].isin(kinds).any()
        has_decoys = table["kind"].isin(judge.against).any()
        if not kinds or (has_sources and has_decoys):
            judges.append(judge)
    return judges


def scores(table: pd.DataFrame, judge: Judge, kinds: Sequence[str]) -> pd.DataFrame:
    """Return what a judge says of sources of some kinds: a row a court, a column a source.

    Higher always means more similar: the sign of a judge for whom lower does is turned. Sources
    that the judge has no value of in some court are left out.

    Args:
        table: The tables of some courts, one below the other.
        judge: The judge.
        kinds: The kinds of sources that are wanted.
    """
    of_kinds = table[table["kind"].isin(kinds)]
    values = of_kinds.pivot(index=COURT, columns="source", values=judge.name).dropna(axis=1)
    if judge.higher:
        return values
    return -values


def margin(table: pd.DataFrame, judge: Judge, kinds: Sequence[str]) -> Margin:
    """Return how far a judge puts all sources of some kinds above its decoys.

    The least of these sources is compared with the greatest decoy of the same court, and the court
    with the smallest difference counts. A decoy fools the judge if it is as high in any court.

    Args:
        table: The tables of some courts, one below the other.
        judge: The judge, whose decoys are the sources of the kinds in `judge.against`.
        kinds: The kinds of sources that should be above them.
    """
    worst = scores(table, judge, kinds).min(axis=1)  # of each court
    decoys = scores(table, judge, judge.against)
    fooled_by = [str(name) for name in decoys if (decoys[name] >= worst).any()]
    least = float((worst - decoys.max(axis=1)).min())
    return Margin(least, fooled_by)


def summary_of_judges(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each judge: areas under the ROC curve, margins, and who fools the judge.

    The areas are of `same` and of `real` sources against decoys. They have no intervals, as
    sources are listed and not sampled.
    """
    rows: dict[Judge, dict[str, object]] = {}
    for prefix, kinds in (("", SAME_KINDS), ("real_", REAL_KINDS)):
        for judge in judges_of(table, kinds):
            if judge not in rows:
                decoys = "every decoy"
                if judge.against != DECOYS:
                    decoys = f"every decoy of kind {', '.join(judge.against)}"
                rows[judge] = {
                    "judge": judge.name,
                    "higher_is_alike": judge.higher,
                    "decoys": decoys,
                }
            similar_scores = scores(table, judge, kinds).to_numpy(float)
            decoy_scores = scores(table, judge, judge.against).to_numpy(float)
            of_kinds = margin(table, judge, kinds)
            rows[judge][f"{prefix}auc"] = auc(similar_scores, decoy_scores)
            rows[judge][f"{prefix}margin"] = of_kinds.least
            rows[judge][f"{prefix}fooled_by"] = ", ".join(of_kinds.fooled_by)
    return pd.DataFrame(list(rows.values()))


def doses(table: pd.DataFrame) -> pd.DataFrame:
    """Return what each judge says of each dose of the target, as the mean over courts.

    Beside it stands Spearman's ρ of dose and similarity. There are no rows without two doses.
    """
    rows: list[tuple[str, float, float, float]] = []
    n_doses = table["source"][table["kind"] == "dose"].nunique()
    if n_doses > 1:
        for judge in judges_of(table):
            if judge.against == DECOYS:
                rows += _doses_of(table, judge)
    return pd.DataFrame(rows, columns=["judge", "own_share", "value", "rank_correlation"])


def _doses_of(table: pd.DataFrame, judge: Judge) -> list[tuple[str, float, float, float]]:
    """Return for each dose, in rising order, the judge, the dose, its mean value and Spearman's ρ.

    ρ, of dose and similarity, is the same in all rows.
    """
    mean_scores = scores(table, judge, ["dose"]).mean()
    by_percentage = []
    for source, score in mean_scores.items():
        percentage = float(str(source).split()[0])  # a source is called "20 % own"
        by_percentage.append((percentage, score))
    by_percentage.sort()

    percentages, ordered_scores = torch.tensor(by_percentage, dtype=torch.float64).T
    rank_correlation = float(spearman(percentages, ordered_scores))
    sign = 1 if judge.higher else -1
    rows = []
    for percentage, score in by_percentage:
        rows.append((judge.name, percentage / 100, score * sign, rank_correlation))
    return rows


def auc(upper: Float[np.ndarray, "rows m"], lower: Float[np.ndarray, "rows n"]) -> float:
    """Return the share of pairs in a row in which the upper group's member is higher, in [0, 1].

    Ties count as half. It is the area under the ROC curve (Hanley & McNeil 1982), ½ by chance,
    averaged over the rows. A group that somebody listed is no sample, so there is no interval.

    Raises:
        ValueError: A value is NaN.
    """
    from scipy.stats import mannwhitneyu  # the import takes half a second

    result = mannwhitneyu(upper, lower, axis=1, method="asymptotic", nan_policy="raise")
    n_pairs = upper.size * lower.shape[1]
    return float(result.statistic.sum() / n_pairs)
