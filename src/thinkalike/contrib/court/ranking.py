"""How well the judges (measures of similarity) of a court rank similar sources above decoys.

A table of a court has a row for each target, layer, seed and source, its `kind`, and a column for
each judge. Only sources of one target, layer and seed are compared with each other. A decoy is a
source that only looks similar to the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from thinkalike.contrib.court.judges import JUDGES, Judge
from thinkalike.measures.distances.ranks import spearman

SAME_KINDS = ("same",)
REAL_KINDS = ("real",)
COURT_COLUMNS = ["target", "layer", "seed"]  # the columns that tell courts apart


class Margin(NamedTuple):
    """How far a judge puts similar sources above decoys.

    Attributes:
        smallest: The smallest difference, over courts, of the worst similar source and the best
            decoy, in the judge's unit. It is positive where every similar source is above every
            decoy.
        fooled_by: The names of the decoys that the judge does not rank below the worst similar
            source in some court.
    """

    smallest: float
    fooled_by: list[str]


def judges_of(table: pd.DataFrame, kinds: Sequence[str] = ()) -> list[Judge]:
    """Return the judges (similarity measures) that a table has a column for.

    Args:
        table: A row for each source, with its kind and a column for each judge.
        kinds: If given, a judge is returned only if the table has sources of these kinds and also
            decoys: sources that this judge should put below them, of the kinds `judge.against`. If
            empty, each judge with a column is returned.
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


def scores_by_court(table: pd.DataFrame, judge: Judge, kinds: Sequence[str]) -> pd.DataFrame:
    """Return a judge's values with a row for each court and a column for each source.

    A court is one target, layer and seed, with which all sources are compared. Values of a
    distance are negated, so that a higher value always means more similar. Sources without a value
    in some court are left out.

    Args:
        table: A row for each court and source, with a column for each judge.
        judge: The similarity measure.
        kinds: The kinds of sources that are returned.
    """
    rows = table[table["kind"].isin(kinds)]
    values = rows.pivot(index=COURT_COLUMNS, columns="source", values=judge.name)
    values = values.dropna(axis="columns")
    if judge.higher:  # whether a higher value means more similar
        return values
    return -values


def margin_above_decoys(table: pd.DataFrame, judge: Judge, kinds: Sequence[str]) -> Margin:
    """Return by how much a similarity measure puts similar sources above decoys.

    A decoy is a source that only looks similar to the target. A court is one target, layer and
    seed, with which all sources are compared. In each court, the margin is the lowest value of the
    similar sources minus the highest value of the decoys; the smallest margin of all courts is
    returned. A decoy fools the measure if, in any court, its value is at least as high as the
    lowest value of the similar sources. Values of distances are negated first.

    Args:
        table: A row for each court and source, with a column for each judge.
        judge: The measure. Its decoys are the sources of the kinds in `judge.against`.
        kinds: The kinds of the similar sources.
    """
    similar_scores = scores_by_court(table, judge, kinds)  # (court, source)
    decoy_scores = scores_by_court(table, judge, judge.against)
    worst_similar = similar_scores.min(axis="columns")  # one value for each court
    best_decoy = decoy_scores.max(axis="columns")
    fooled_by = [str(name) for name in decoy_scores if (decoy_scores[name] >= worst_similar).any()]
    smallest = float((worst_similar - best_decoy).min())
    return Margin(smallest, fooled_by)


def summary_of_judges(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each judge (measure): how well it ranks similar sources above decoys.

    Sources of known similarity are compared with a target; a decoy is one that only looks similar.
    A row has the area under the ROC curve, the margin between similar sources and decoys, and the
    names of decoys that fool the judge. They are given once for sources of the kind "same" and
    once, in columns that begin with "real_", for separately trained models (kind "real"). The
    columns of a kind without sources are NaN, and a judge has a row only if it can be judged on
    one of both kinds. There are no intervals, as the sources are a fixed list and no sample.
    """
    rows: dict[Judge, dict[str, object]] = {}
    for prefix, kinds in (("", SAME_KINDS), ("real_", REAL_KINDS)):
        for judge in judges_of(table, kinds):
            if judge not in rows:
                rows[judge] = {
                    "judge": judge.name,
                    "higher_is_alike": judge.higher,
                    "decoys": _decoys_in_words(judge),
                }
            similar_scores = scores_by_court(table, judge, kinds).to_numpy(float)
            # `against` names the kinds of decoys that this judge should not be fooled by.
            decoy_scores = scores_by_court(table, judge, judge.against).to_numpy(float)
            margin = margin_above_decoys(table, judge, kinds)
            rows[judge] |= {
                f"{prefix}auc": auc(similar_scores, decoy_scores),
                f"{prefix}margin": margin.smallest,
                f"{prefix}fooled_by": ", ".join(margin.fooled_by),
            }
    return pd.DataFrame(list(rows.values()))


def _decoys_in_words(judge: Judge) -> str:
    """Return which decoys a judge should put below similar sources, in words."""
    if judge.is_general:
        return "every decoy"
    return f"every decoy of kind {', '.join(judge.against)}"


def dose_table(table: pd.DataFrame) -> pd.DataFrame:
    """Return the mean value that each similarity measure (judge) gives to each dose.

    A dose is a source that mixes the target's states with unrelated ones. The mean is over courts,
    each of which is one target, layer and seed; `DoseRow` has the columns. Judges that serve to
    detect a single kind of decoy, and measure no similarity, are left out. With fewer than two
    doses the table has no rows.

    Args:
        table: A row for each court and source, with a column for each judge.
    """
    rows: list[DoseRow] = []
    n_doses = table["source"][table["kind"] == "dose"].nunique()
    if n_doses > 1:
        for judge in judges_of(table):
            if judge.is_general:
                rows += _dose_rows(table, judge)
    return pd.DataFrame(rows, columns=list(DoseRow._fields))


class DoseRow(NamedTuple):
    """The value that a judge gives to one dose: a mixture of the target's and unrelated states.

    Attributes:
        judge: The name of the judge.
        own_share: The share of the variance that comes from the target.
        value: The mean of the judge's values over courts.
        rank_correlation: Spearman's ρ of dose and similarity, the same for all doses.
    """

    judge: str
    own_share: float
    value: float
    rank_correlation: float


def doses_by_court(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return what each general judge says of each dose in each court.

    The result has a table for each judge, by its name, with the columns court (its target, layer
    and seed, in words), own_share (the share of the variance that comes from the target) and
    value. Without doses, it is empty.

    Args:
        table: A row for each court and source, with a column for each judge.
    """
    doses = table[table["kind"] == "dose"]
    if doses.empty:
        return {}
    targets, layers, seeds = (doses[column].astype(str) for column in COURT_COLUMNS)
    courts = targets + ", layer " + layers + ", seed " + seeds
    places = pd.DataFrame({"court": courts, "own_share": doses["source"].map(_own_share)})
    values_of_judge = {}
    for judge in judges_of(table):
        if judge.is_general:
            rows = places.assign(value=doses[judge.name]).dropna()
            values_of_judge[judge.name] = rows.sort_values(["court", "own_share"])
    return values_of_judge


def _own_share(source: str) -> float:
    """Return the share of the target in a dose that is named such as "20 % own"."""
    return float(source.split()[0]) / 100


def _dose_rows(table: pd.DataFrame, judge: Judge) -> list[DoseRow]:
    """Return a row for each dose in rising order, with the judge's mean value over courts.

    A dose is a source named such as "20 % own", of whose variance 20 % come from the target. All
    rows have the same rank correlation, of the doses with the similarity by the judge.

    Args:
        table: A row for each court (a target, layer and seed) and source, with a column for each
            judge.
        judge: The similarity measure. The values of a distance are negated for the correlation
            alone.
    """
    # The mean over courts. The scores of a distance are its negated values.
    mean_scores = scores_by_court(table, judge, ["dose"]).mean()
    by_share = sorted((_own_share(str(source)), score) for source, score in mean_scores.items())

    shares, ordered_scores = torch.tensor(by_share, dtype=torch.float64).T
    rank_correlation = float(spearman(shares, ordered_scores))
    rows = []
    for share, score in by_share:
        value = score if judge.higher else -score  # of a distance, as before it was negated
        rows.append(DoseRow(judge.name, share, value, rank_correlation))
    return rows


def auc(upper: Float[np.ndarray, "rows m"], lower: Float[np.ndarray, "rows n"]) -> float:
    """Return the area under the ROC curve (Hanley & McNeil 1982), averaged over rows.

    In each row it is the share of pairs (a number of `upper` and a number of `lower`) in which the
    number of `upper` is greater; ties count as half. By chance it is ½. Here a row is a court, and
    the numbers are the scores of similar sources and of decoys.

    Raises:
        ValueError: A value is NaN.
    """
    from scipy.stats import mannwhitneyu  # the import takes half a second

    result = mannwhitneyu(upper, lower, axis=1, method="asymptotic", nan_policy="raise")
    # The statistic of a row counts its pairs with the greater number in `upper`.
    n_pairs_of_all_rows = upper.size * lower.shape[1]
    return float(result.statistic.sum() / n_pairs_of_all_rows)
