"""How far measures agree about pairs of layers: rank correlations, and where ranks differ most.

Tables have a row for each layer pair and a column for each measure, and `measures` says of each
column whether it is a distance.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch

from thinkalike.contrib.atlas.inner_jobs import MODEL_COLUMNS, PAIR_COLUMNS
from thinkalike.errors import DataError
from thinkalike.measures.estimates import Estimate, interval_around, jackknife

FEWEST_LAYER_PAIRS = 3  # that a rank correlation is over


def oriented(table: pd.DataFrame, measures: Mapping[str, bool]) -> pd.DataFrame:
    """Return the table with distances negated, so that higher is more similar in every column."""
    negated = {name: -table[name] for name, is_distance in measures.items() if is_distance}
    return table.assign(**negated)


def correlations_by_model_pair(table: pd.DataFrame, measures: Mapping[str, bool]) -> pd.DataFrame:
    """Return Spearman's ρ of each two measures, over the layer pairs of each pair of models.

    The table has a row for each pair of models and each two measures. ρ is NaN if a measure has
    the same value for all layer pairs, or if fewer than three layer pairs have values of both
    measures.

    Args:
        table: A row for each layer pair, with a column for each measure.
        measures: For each measure, whether it is a distance.

    Raises:
        DataError: All ρ are NaN.
    """
    rows = []
    # Values of distances are negated, so that a higher value means more similar everywhere.
    by_models = oriented(table, measures).groupby(MODEL_COLUMNS, sort=False)
    for (source, target), values in by_models:
        rhos = values[list(measures)].corr("spearman", min_periods=FEWEST_LAYER_PAIRS)
        for measure, other in itertools.combinations(measures, 2):
            has_both_values = values[[measure, other]].notna().all(axis=1)
            rho = rhos.at[measure, other]
            rows.append((source, target, measure, other, rho, int(has_both_values.sum())))
    columns = [*MODEL_COLUMNS, "measure", "other", "rho", "layer_pairs"]
    correlations = pd.DataFrame(rows, columns=columns)
    if correlations["rho"].isna().all():
        raise DataError(
            f"no two measures rank {FEWEST_LAYER_PAIRS} or more different layer pairs: "
            "take models of more layers"
        )
    return correlations


def agreement_table(correlations: pd.DataFrame) -> pd.DataFrame:
    """Return for each two measures the mean ρ over pairs of models, and the pair of least ρ.

    Rows whose ρ is NaN are left out.

    Args:
        correlations: A row for each two measures ("measure" and "other") and each pair of models,
            with Spearman's ρ ("rho") of both measures over the layer pairs of these models.
    """
    rows = []
    correlations = correlations.dropna(subset="rho")
    for (measure, other), model_pairs in correlations.groupby(["measure", "other"], sort=False):
        least = model_pairs.iloc[int(model_pairs["rho"].argmin())]
        rho, low, high = (float(number) for number in mean_over_models(model_pairs))
        rows.append(
            {
                "measure": measure,
                "other": other,
                "rho": rho,
                "low": low,
                "high": high,
                "pairs": len(model_pairs),
                "least": least["rho"],
                "least_source": least["source"],
                "least_target": least["target"],
            }
        )
    return pd.DataFrame(rows)


def mean_agreement(correlations: pd.DataFrame) -> Estimate:
    """Return the mean ρ over all pairs of measures and all pairs of models, with an interval.

    The interval is a jackknife that leaves out one model at a time, with all its pairs. Pairs of
    models whose ρ is NaN for some measures count with the mean of the others.

    Args:
        correlations: A row for each two measures and each pair of models (the columns
            `MODEL_COLUMNS`), with their `rho`.
    """
    correlations = correlations.dropna(subset="rho")
    mean_rho_of_models = correlations.groupby(MODEL_COLUMNS, sort=False)["rho"].mean()
    return mean_over_models(mean_rho_of_models.reset_index())


def mean_over_models(correlations: pd.DataFrame) -> Estimate:
    """Return the mean of `rho` over pairs of models, with a 95 % jackknife interval over models.

    Pairs that share a model are not independent, so a replicate leaves out one model with all its
    pairs. The interval is Student's t with one degree of freedom less than there are models,
    clipped to [-1, 1]. It has the right width if differences between pairs come from the models,
    and is up to √2 too wide if they come from the pairs. It does not cover the choice of the text.
    It is unbounded with two models, or if one model is in every pair.

    Args:
        correlations: A row for each pair of models (the columns `MODEL_COLUMNS`), with its `rho`.
    """
    value = torch.tensor(correlations["rho"].mean(), dtype=torch.float64)
    models = pd.unique(correlations[MODEL_COLUMNS].to_numpy().ravel())
    replicates = []
    for model in models:
        has_other_models = (correlations[MODEL_COLUMNS] != model).all(axis=1)
        if not has_other_models.any():
            return interval_around(value, torch.inf)
        replicates.append(correlations[has_other_models]["rho"].mean())
    estimate = jackknife(value, torch.tensor(replicates, dtype=torch.float64))
    return Estimate(value, low=estimate.low.clamp(min=-1), high=estimate.high.clamp(max=1))


def relative_ranks(table: pd.DataFrame, measures: Sequence[str]) -> pd.DataFrame:
    """Return the rank of each layer pair among those of the same models, scaled to [0, 1].

    1 is the most similar. Equal values have the mean of their ranks. Missing values stay NaN, and
    so do all ranks of a measure with fewer than three layer pairs.

    Args:
        table: A row for each layer pair, with values that are higher if more similar.
        measures: The columns that are ranked.
    """
    by_models = table.groupby(MODEL_COLUMNS, sort=False)[list(measures)]
    counts = by_models.transform("count")
    ranks = (by_models.rank() - 1) / (counts - 1)
    return ranks.where(counts >= FEWEST_LAYER_PAIRS)


def disagreements(table: pd.DataFrame, measures: Mapping[str, bool]) -> pd.DataFrame:
    """Return for each two measures the layer pair that they rank most differently.

    Layer pairs are ranked from 0 (least similar) to 1 among those of the same two models. Rows are
    sorted from the largest difference of ranks to the smallest. Two measures without a layer pair
    that has ranks by both are left out.

    Args:
        table: A row for each layer pair, with a column for each measure.
        measures: For each measure, whether it is a distance.
    """
    similarities = oriented(table, measures)  # distances are negated
    ranks = relative_ranks(similarities, list(measures))
    rows = []
    for measure, other in itertools.combinations(measures, 2):
        differences = (ranks[measure] - ranks[other]).dropna()
        if differences.empty:
            continue
        index = differences.index[int(np.argmax(differences.abs().to_numpy()))]
        layer_pair = table.loc[index]
        row = {"measure": measure, "other": other}
        row |= {name: layer_pair[name] for name in PAIR_COLUMNS}
        row |= {
            "value": layer_pair[measure],
            "other_value": layer_pair[other],
            "rank": ranks.loc[index, measure],
            "other_rank": ranks.loc[index, other],
            "difference": abs(differences[index]),
        }
        rows.append(row)
    identifiers = ["measure", "other", *PAIR_COLUMNS]
    columns = [*identifiers, "value", "other_value", "rank", "other_rank", "difference"]
    unsorted = pd.DataFrame(rows, columns=columns)
    return unsorted.sort_values("difference", ascending=False, kind="stable", ignore_index=True)
