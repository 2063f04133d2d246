"""How far measures agree in which layers are close: rank correlations over layer pairs, and where ranks differ most."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from thinkalike.config import MEASURES, AnalyzeConfig, TrainConfig, compose_job, measure_schema
from thinkalike.errors import DataError
from thinkalike.instruments import instrument
from thinkalike.job import asked_for
from thinkalike.measures.estimates import Estimate, interval_around, jackknife
from thinkalike.models.families import told_apart
from thinkalike.store import Result

PAIR = ["source", "target"]
PLACE = [*PAIR, "source_layer", "target_layer"]
FEWEST = 3  # layer pairs that a rank correlation is of
# how a source is stitched into its target at all layer pairs, by a short recipe
STITCH = ("task=stitch", "layers=all", "stitch=affine", "stitch.steps=50", "stitch.warmup=5", "stitch.floor=false")
FORWARD, BACK = "penalty", "penalty_back"  # of stitches of a pair's source into its target, and of the other way
SHARED = ("model", "target", "data", "seed", "store", "force", "screen", "wait", "scale", "recipe", "threads")


def oriented(table: pd.DataFrame, measures: Mapping[str, bool]) -> pd.DataFrame:
    """Return a table of cells with a column for each measure, in which more is closer: distances are negated."""
    return table.assign(**{name: -table[name] for name, is_distance in measures.items() if is_distance})


def by_pair(table: pd.DataFrame, measures: Mapping[str, bool]) -> pd.DataFrame:
    """Return Spearman's ρ of each two measures over the layer pairs of each pair of models, in [-1, 1].

    Table and measures are those of `oriented`. ρ is blank where a measure has the same value for all layer pairs, or
    where fewer than three have both; if all are blank, that is a DataError.
    """
    rows = []
    for (source, target), cells in oriented(table, measures).groupby(PAIR, sort=False):
        ranks = cells[list(measures)].corr("spearman", min_periods=FEWEST)
        for measure, other in itertools.combinations(measures, 2):
            both = int(cells[[measure, other]].notna().all(axis=1).sum())
            rows.append((source, target, measure, other, ranks.at[measure, other], both))
    found = pd.DataFrame(rows, columns=[*PAIR, "measure", "other", "rho", "layer_pairs"])
    if found["rho"].isna().all():
        raise DataError(f"no two measures rank {FEWEST} or more different layer pairs: take models of more layers")
    return found


def agreement(pairs: pd.DataFrame) -> pd.DataFrame:
    """Return for each two measures the mean ρ of `by_pair`, with a 95 % interval, and the models of the least."""
    rows = []
    for (measure, other), known in pairs.dropna(subset="rho").groupby(["measure", "other"], sort=False):
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

    Blank cells of a table of `oriented` stay blank, and so does a measure of fewer than three layer pairs.
    """
    groups = table.groupby(PAIR, sort=False)[list(measures)]
    counts = groups.transform("count")
    return ((groups.rank() - 1) / (counts - 1)).where(counts >= FEWEST)


def disagreements(table: pd.DataFrame, measures: Mapping[str, bool]) -> pd.DataFrame:
    """Return for each two measures the layer pair whose two ranks differ most, the largest difference first.

    Table and measures are those of `oriented`.
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


class Part(NamedTuple):
    """A job of an atlas."""

    measure: str  # the kind of its measure, or `FORWARD` or `BACK` of stitches
    source: str  # what the atlas calls the first model of the pair, also where the job stitches them backwards
    target: str
    config: AnalyzeConfig | TrainConfig


def parts_of(config: AnalyzeConfig) -> list[Part]:
    """Return the jobs of an atlas, by measure and then by pair, given the configuration of `measure=atlas`."""
    measure: Any = config.measure
    pairs = _pairs(config, config.models)
    names, parts = names_of(pairs), []
    for kind in measure.measures:  # with those settings of the atlas that it has
        schema = measure_schema(kind)
        known = {item.name for item in fields(schema)} & {item.name for item in fields(measure)} - {"kind"}
        own = schema(**{name: getattr(measure, name) for name in known})
        parts += [Part(kind, *name, replace(pair, measure=own)) for name, pair in zip(names, pairs, strict=True)]
    if measure.stitches:
        # the pairs of the reversed list are the same ones, last first, each the other way round
        ways = {FORWARD: pairs, BACK: _pairs(config, (config.models or [])[::-1])[::-1]}
        for way, jobs in ways.items():
            for name, job in zip(names, jobs, strict=True):
                given = {key: getattr(job, key) for key in SHARED}
                parts.append(Part(way, *name, compose_job("train", [*STITCH, "logger=none"], **given)))
    return parts


def names_of(pairs: Sequence[AnalyzeConfig]) -> list[tuple[str, str]]:
    """Return what the two models of each pair are called, so that no two models of all pairs share a name."""
    models = list({repr(model): model for pair in pairs for model in (pair.model, pair.target)}.values())
    names = dict(zip(map(repr, models), told_apart(models), strict=True))
    return [(names[repr(pair.model)], names[repr(pair.target)]) for pair in pairs]


def _pairs(config: AnalyzeConfig, models: Any) -> Any:
    """Return a job of one measure for each pair of models."""
    return asked_for(replace(config, models=models or [], measure=measure_schema("cka")()))


def joined(parts: Sequence[Part], results: Sequence[Result]) -> pd.DataFrame:
    """Return the table `source, target, source_layer, target_layer, cka, ...`, in the order of the parts.

    A measure of predictions has a value for the last layers alone, from which they are made; the other cells are blank.
    """
    long: dict[str, list[pd.DataFrame]] = {}
    for part, result in zip(parts, results, strict=True):
        long.setdefault(part.measure, []).append(_cells(part, result))
    whole = {name: pd.concat(tables) for name, tables in long.items()}
    of_outputs = {name: cells for name, cells in whole.items() if cells["source_layer"].iloc[0] == "logits"}
    of_states = [cells for name, cells in whole.items() if name not in of_outputs]
    wide = reduce(lambda one, other: one.merge(other, how="left", on=PLACE), of_states)
    last = wide.groupby(PAIR, sort=False)[PLACE[2:]].max().reset_index()
    for cells in of_outputs.values():
        wide = wide.merge(cells.drop(columns=PLACE[2:]).merge(last, on=PAIR), how="left", on=PLACE)
    return wide[[*PLACE, *(column for cells in whole.values() for column in cells if column not in PLACE)]]


def measured(parts: Sequence[Part]) -> dict[str, bool]:
    """Return the columns of the table of these parts, and whether each is a distance."""
    kinds = dict.fromkeys(part.measure for part in parts)
    names = [name for kind in kinds for name in ((kind, f"{kind}_back") if kind == "r2" else (kind,))]
    return {name: is_distance(name) for name in names}


def is_distance(name: str) -> bool:
    if name in (FORWARD, BACK):
        return True
    own: Any = instrument(MEASURES[name.removesuffix("_back")])
    return bool(own.is_distance)


def _cells(part: Part, result: Result) -> pd.DataFrame:
    """Return the cells across the two models of a part, in the place of the pair's own source and target.

    They come first in a result of layer pairs; stitches have no other ones, and their values are penalties in nats.
    """
    table = result.table
    if part.measure in (FORWARD, BACK):
        values = {part.measure: table["penalty"]}
    else:
        table = table[(table[PAIR] == table[PAIR].iloc[0]).all(axis=1)]
        values = {part.measure: table["value"]}
        values |= {f"{part.measure}_back": table["back"]} if "back" in table else {}
    rows, columns = reversed(PLACE[2:]) if part.measure == BACK else PLACE[2:]
    places = {"source": part.source, "target": part.target, "source_layer": table[rows], "target_layer": table[columns]}
    return pd.DataFrame({**places, **values}, index=table.index)
