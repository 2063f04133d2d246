"""measure=atlas: all pairs of several models by all measures of layer pairs, and how far the measures agree.

    python analyze.py measure=atlas 'models=[gelu-3l-mini,solu-3l-mini,neox-5l-mini]'
    python analyze.py measure=atlas 'measure.measures=[cka,r2]' 'models=[gelu-3l,solu-3l]'

Its parts are jobs like any other, of `measure=cka` and so on, with their own keys and folders. Those that the store
lacks are done in one pass, in which each model runs once for each input; what follows from them is the atlas's own:
rank correlations over layer pairs, and where ranks differ most.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, reduce
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd
import torch

from thinkalike.config import MEASURES, AnalyzeConfig, measure_schema, setting
from thinkalike.config.parts import TOKENS_AT_ONCE
from thinkalike.contrib import figures
from thinkalike.errors import ConfigError, DataError, one_of
from thinkalike.instruments import asked_for, instrument, run_jobs
from thinkalike.instruments.layer_pairs.frame import LayerPairsConfig
from thinkalike.instruments.ruler import LEAST_WORDS, WORDS
from thinkalike.job import Instrument, Outcome, Work
from thinkalike.measures.estimates import Estimate, interval_around, jackknife
from thinkalike.models.labels import told_apart
from thinkalike.registry import CORE, OF_OUTPUTS, layer_measures
from thinkalike.screen import show_text, span
from thinkalike.store import Result

ENDS = ("", "_low", "_high")
SAID = 3  # how many of the least agreements, and of the largest disagreements, a screen has
PAIR = ["source", "target"]
PLACE = [*PAIR, "source_layer", "target_layer"]
FEWEST = 3  # layer pairs that a rank correlation is of


@cache
def measures_of_states() -> tuple[str, ...]:
    """Return the measures of states that an atlas has, in the order of its columns."""
    return tuple(entry.kind for entry in CORE.measures if getattr(instrument(entry), "in_atlas", False))


@dataclass
class AtlasConfig(LayerPairsConfig):
    """The settings of an atlas: which measures, and what each of them has of the rest."""

    kind: str = "atlas"
    measures: list[str] = field(
        default_factory=lambda: [*measures_of_states()]
    )  # and jsd, disagreement, of predictions
    null: bool = False  # keep what chance gives beside each value, in the results of the measures
    permutations: int = setting(99, least=1, most=10**6)  # of null
    # of mutual_knn, jaccard and second_order_cosine
    neighbours: int = setting(10, least=1, most=TOKENS_AT_ONCE)
    kept: float = setting(0.99, above=0, most=1)  # of svcca
    words: int = setting(WORDS, least=LEAST_WORDS, most=10**8)  # of r2

    def __post_init__(self) -> None:
        super().__post_init__()
        of_states = measures_of_states()
        of_outputs = [entry.kind for entry in layer_measures(OF_OUTPUTS)]
        for name in self.measures:
            one_of("measure.measures", name, (*of_states, *of_outputs))
        self.measures = list(dict.fromkeys(self.measures))
        if len([name for name in self.measures if name in of_states]) < 2:
            raise ConfigError(f"measure.measures={self.measures} must name two measures of layers or more")


class Atlas(Instrument[AnalyzeConfig], kind="atlas", version=3, reads=("models", "measure")):
    """Compares all pairs of the models of a list by all measures, and the measures with each other."""

    of_models: ClassVar[str] = "all"

    def settings_read(self, config: AnalyzeConfig) -> frozenset[str]:
        """Return what the atlas reads itself, and what its comparisons of pairs read."""
        of_pairs = (self.keys_of_part(config, part) for part in ("model", "data", "seed"))
        return super().settings_read(config).union(*of_pairs)

    def inputs(self, config: AnalyzeConfig) -> Mapping[str, Any]:
        parts = parts_of(config)
        results = run_jobs([part.config for part in parts], shown=False)
        return {"labels": ", ".join(_names(parts)), "parts": _Finished(parts, results)}

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        parts, results = work.input("parts", _Finished)
        table, measures = joined(parts, results), measured(parts)
        pairs = by_pair(table, measures)
        ends = zip(ENDS, map(float, mean_agreement(pairs)), strict=True)
        scalars = {f"mean_agreement{end}": part for end, part in ends if math.isfinite(part)}  # of two models no ends
        scalars |= {"models": float(len(_names(parts))), "layer_pairs": float(len(table))}
        found = {"agreement": agreement(pairs), "agreement_by_pair": pairs}
        models = {str(sorted(model.items())): model for each in results for model in each.provenance["models"]}
        return Outcome(
            table,
            scalars,
            tables=found | {"disagreements": disagreements(table, measures)},
            models=list(models.values()),
            facts={"parts": {part.label: result.key for part, result in zip(parts, results, strict=True)}},
            blank=(*table.columns, "rho"),
        )

    def draw(self, result: Result, folder: Path) -> None:
        found = result.tables["agreement"]
        names = list(dict.fromkeys([*found["measure"], *found["other"]]))
        figures.agreement(found, names, folder)
        closer = oriented(result.table, {name: is_distance(name) for name in names})
        figures.ranks(result.table.assign(**shares(closer, names)), names, folder)

    def show(self, result: Result) -> None:
        found, scalars = result.tables["agreement"], result.scalars
        value, low, high = (scalars.get(f"mean_agreement{end}", math.nan) for end in ENDS)
        mean = span(value, low, high, "+.2f")
        count = f"{scalars['models']:.0f} models, {scalars['layer_pairs']:.0f} layer pairs"
        show_text(f"Agreement of {found['measure'].nunique() + 1} measures, {count}: mean Spearman's ρ {mean}.")
        ordered = found.sort_values("rho", kind="stable")
        for row in [*ordered[: -SAID - 1 : -1].itertuples(), *ordered[:SAID][::-1].itertuples()]:
            number = span(row.rho, row.low, row.high, "+.2f")
            least = f"least {row.least:+.2f}, {row.least_source} and {row.least_target}"
            show_text(f"{row.measure} and {row.other} agree by {number}; {least}", indent=2)
        for row in result.tables["disagreements"][:SAID].itertuples():
            where = f"{row.source} layer {row.source_layer} with {row.target} layer {row.target_layer}"
            ranks = f"rank {row.rank:.2f} by {row.measure}, {row.other_rank:.2f} by {row.other}"
            show_text(f"{where}: {ranks} (0 is the farthest, 1 the closest)", indent=2)


class _Finished(NamedTuple):
    """The jobs of an atlas with their results, whose keys are its fingerprint."""

    parts: Sequence[Part]
    results: Sequence[Result]

    def fingerprint(self) -> str:
        return repr([(part.label, result.key) for part, result in zip(self.parts, self.results, strict=True)])


def _names(parts: Sequence[Part]) -> list[str]:
    return list(dict.fromkeys(name for part in parts for name in (part.source, part.target)))


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
    """Return the mean of `rho`, never blank, over pairs of models, with an interval that leaves out a model at a time.

    Layer pairs depend on each other, and so do pairs that share a model: what was drawn are the models. A replicate is
    the mean over the pairs without one model, the interval is Student's t with one degree of freedom less than models,
    cut at -1 and 1. It is right where what differs between pairs is a model's own, and up to √2 too wide where it is
    the pair's own. It does not hold what other text would change. With two models, or with one that is in every pair,
    it has no ends.
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

    measure: str  # the kind of its measure
    source: str  # what the atlas calls the first model of the pair
    target: str
    config: AnalyzeConfig

    @property
    def label(self) -> str:
        return f"{self.measure} of {self.source} and {self.target}"


def parts_of(config: AnalyzeConfig) -> list[Part]:
    """Return the jobs of an atlas, by measure and then by pair, given the configuration of `measure=atlas`."""
    measure = config.measure_as(AtlasConfig)
    pairs: Any = asked_for(replace(config, models=config.models or [], measure=measure_schema("cka")()))
    parts = list[Part]()
    models = list({repr(model): model for pair in pairs for model in (pair.model, pair.target)}.values())
    called = dict(zip(map(repr, models), told_apart(models), strict=True))  # no two of all models share a name
    names = [(called[repr(pair.model)], called[repr(pair.target)]) for pair in pairs]
    for kind in measure.measures:  # with those settings of the atlas that it has
        schema = measure_schema(kind)
        known = {item.name for item in fields(schema)} & {item.name for item in fields(measure)} - {"kind"}
        own = schema(**{name: getattr(measure, name) for name in known})
        parts += [Part(kind, *name, replace(pair, measure=own)) for name, pair in zip(names, pairs, strict=True)]
    return parts


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
    own: Any = instrument(MEASURES[name.removesuffix("_back")])
    return bool(own.is_distance)


def _cells(part: Part, result: Result) -> pd.DataFrame:
    """Return the cells across the two models of a part, which come first in a result of layer pairs."""
    table = result.table[(result.table[PAIR] == result.table[PAIR].iloc[0]).all(axis=1)]
    values = {part.measure: table["value"]}
    values |= {f"{part.measure}_back": table["back"]} if "back" in table else {}
    return table[PLACE].assign(source=part.source, target=part.target, **values)
