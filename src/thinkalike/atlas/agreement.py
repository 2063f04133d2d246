"""How far measures agree in which layers are close: rank correlations over layer pairs, and where ranks differ most."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch

from thinkalike.errors import DataError
from thinkalike.measures.statistics.estimate import Estimate, interval_around
from thinkalike.measures.statistics.jackknifing import jackknife

PAIR = ["source", "target"]
PLACE = [*PAIR, "source_layer", "target_layer"]
FEWEST = 3  # layer pairs that a rank correlation is of


def oriented(table: pd.DataFrame, measures: Mapping[str, bool]) -> pd.DataFrame:
    """Return a table in which more is closer in every column.

    Args:
        table: `source`, `target`, `source_layer`, `target_layer`, and a column for each measure.
        measures: whether each is a distance.
    """
    return table.assign(**{name: -table[name] for name, is_distance in measures.items() if is_distance})


def by_pair(table: pd.DataFrame, measures: Mapping[str, bool]) -> pd.DataFrame:
    """Return Spearman's ρ of each two measures over the layer pairs of each pair of models, in [-1, 1].

    It is blank where a measure has the same value for all layer pairs, or where fewer than three have both.

    Args:
        table, measures: see `oriented`.

    Raises:
        DataError: all are blank.
    """
    rows = []
    for (source, target), cells in oriented(table, measures).groupby(PAIR, sort=False):
        ranks = cells[list(measures)].corr("spearman", min_periods=FEWEST)
        for measure, other in itertools.combinations(measures, 2):
            both = int(cells[[measure, other]].notna().all(axis=1).sum())
            rows.append((source, target, measure, other, ranks.at[measure, other], both))
    found = pd.DataFrame(rows, columns=[*PAIR, "measure", "other", "rho", "layer_pairs"])
    if found["rho"].isna().all():
        raise DataError(
            f"no two measures rank {FEWEST} or more different layer pairs of two models: take models of more layers, "
            "or other measures"
        )
    return found


def agreement(pairs: pd.DataFrame) -> pd.DataFrame:
    """Return for each two measures the mean ρ over pairs of models, with a 95 % interval, and the pair of the least ρ.

    Args:
        pairs: see `by_pair`.
    """
    rows = []
    for (measure, other), each in pairs.groupby(["measure", "other"], sort=False):
        known = each.dropna(subset="rho")
        if known.empty:
            continue
        least = known.iloc[int(known["rho"].argmin())]
        ends = [float(end) for end in over_models(known)]
        rows.append((measure, other, *ends, len(known), least["rho"], least["source"], least["target"]))
    columns = ["measure", "other", "rho", "low", "high", "pairs", "least", "least_source", "least_target"]
    return pd.DataFrame(rows, columns=columns)


def mean_agreement(pairs: pd.DataFrame) -> Estimate:
    """Return the mean ρ over all two measures and all pairs of models, with a 95 % interval; see `over_models`."""
    return over_models(pairs.dropna(subset="rho").groupby(PAIR, sort=False)["rho"].mean().reset_index())


def over_models(pairs: pd.DataFrame) -> Estimate:
    """Return the mean of `rho` over pairs of models, with an interval that leaves out one model at a time.

    Layer pairs depend on each other, and so do pairs that share a model: what was drawn are the models. A replicate is
    the mean over the pairs without one model, the interval is Student's t with one degree of freedom less than models,
    cut at -1 and 1. It is right where what differs between pairs is a model's own, and up to √2 too wide where it is
    the pair's own. It does not hold what other text would change. With two models, or with one that is in every pair,
    it has no ends.

    Args:
        pairs: `source`, `target`, `rho`, none of them blank.
    """
    value = torch.tensor(pairs["rho"].mean(), dtype=torch.float64)
    without = [pairs[(pairs[PAIR] != model).all(axis=1)]["rho"] for model in pd.unique(pairs[PAIR].to_numpy().ravel())]
    if any(rest.empty for rest in without):
        return interval_around(value, torch.inf)
    found = jackknife(value, torch.tensor([rest.mean() for rest in without], dtype=torch.float64))
    return Estimate(value, found.low.clamp(min=-1), found.high.clamp(max=1))


def shares(table: pd.DataFrame, measures: Sequence[str]) -> pd.DataFrame:
    """Return the rank of each layer pair among those of its pair of models, from 0, the farthest, to 1, the closest.

    Args:
        table: as `oriented` returns it; blank cells stay blank, and so does a measure of fewer than three layer pairs.
    """
    groups = table.groupby(PAIR, sort=False)[list(measures)]
    counts = groups.transform("count")
    return ((groups.rank() - 1) / (counts - 1)).where(counts >= FEWEST)


def disagreements(table: pd.DataFrame, measures: Mapping[str, bool]) -> pd.DataFrame:
    """Return for each two measures the layer pair whose two ranks differ most, the largest difference first.

    Args:
        table, measures: see `oriented`.
    """
    ranks, rows = shares(oriented(table, measures), list(measures)), []
    for measure, other in itertools.combinations(measures, 2):
        apart = (ranks[measure] - ranks[other]).dropna()
        if apart.empty:
            continue
        place = apart.index[int(np.argmax(apart.abs().to_numpy()))]
        cell, rank = table.loc[place], ranks.loc[place]
        of_both = (cell[measure], cell[other], rank[measure], rank[other], abs(apart[place]))
        rows.append((measure, other, *(cell[name] for name in PLACE), *of_both))
    columns = ["measure", "other", *PLACE, "value", "other_value", "rank", "other_rank", "difference"]
    found = pd.DataFrame(rows, columns=columns)
    return found.sort_values("difference", ascending=False, kind="stable", ignore_index=True)
