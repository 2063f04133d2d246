"""measure=atlas: all pairs of several models by all measures of layer pairs, and how far the measures agree.

    python analyze.py measure=atlas 'models=[gelu-3l-mini,solu-3l-mini,neox-5l-mini]'
    python analyze.py measure=atlas 'measure.measures=[cka,r2]' measure.stitches=true 'models=[gelu-3l,solu-3l]'

Its parts are jobs like any other, of `measure=cka` and so on, with their own keys and folders. Those that the store
lacks are done in one pass, in which each model runs once for each input; what follows from them is the atlas's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from thinkalike.config import AnalyzeConfig, ranged
from thinkalike.config.schema import TOKENS_AT_ONCE
from thinkalike.contrib import figures
from thinkalike.contrib.atlas import tables
from thinkalike.errors import ConfigError, one_of
from thinkalike.instruments import run_jobs
from thinkalike.instruments.layer_pairs.declared import DECLARED, OUTPUTS
from thinkalike.instruments.layer_pairs.frame import LayerPairsConfig
from thinkalike.job import Instrument, Outcome, Work
from thinkalike.screen import show_text, span
from thinkalike.store import Result

OF_STATES = ("cka", *DECLARED, "r2")
ENDS = ("", "_low", "_high")
SAID = 3  # how many of the least agreements, and of the largest disagreements, a screen has


@dataclass
class AtlasConfig(LayerPairsConfig):
    """The settings of an atlas: which measures, and what each of them has of the rest."""

    kind: str = "atlas"
    measures: list[str] = field(default_factory=lambda: list(OF_STATES))  # and jsd, disagreement, of predictions
    stitches: bool = False  # also stitch every two models at all layer pairs, both ways, by a short recipe
    null: bool = False  # keep what chance gives beside each value, in the results of the measures
    permutations: int = ranged(99, least=1, most=10**6)  # of null
    neighbours: int = ranged(10, least=1, most=TOKENS_AT_ONCE)  # of mutual_knn, jaccard and second_order_cosine
    kept: float = ranged(0.99, above=0, most=1)  # of svcca
    fit_batches: int = ranged(64, least=1, most=10**9)  # of r2

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.measures:
            one_of("measure.measures", name, (*OF_STATES, *OUTPUTS))
        self.measures = list(dict.fromkeys(self.measures))
        if len([name for name in self.measures if name in OF_STATES]) + 2 * self.stitches < 2:
            raise ConfigError(f"measure.measures={self.measures} must name two measures of layers or more")


class Atlas(Instrument, kind="atlas", version=2, reads=("models", "measure")):
    """Compares all pairs of the models of a list by all measures, and the measures with each other."""

    of_models: ClassVar[str] = "all"
    inner_jobs_read: ClassVar[tuple[str, ...]] = ("model", "data", "seed")

    def inputs(self, config: AnalyzeConfig) -> Mapping[str, Any]:
        """Run the jobs that the store lacks; returns the result of each."""
        parts = tables.parts_of(config)
        results = run_jobs([part.config for part in parts], shown=False)
        return {"labels": ", ".join(_names(parts)), "parts": _Finished(parts, results)}

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        parts, results = work.inputs["parts"]
        table, measures = tables.joined(parts, results), tables.measured(parts)
        pairs = tables.by_pair(table, measures)
        ends = zip(ENDS, map(float, tables.mean_agreement(pairs)), strict=True)
        scalars = {f"mean_agreement{end}": part for end, part in ends if math.isfinite(part)}  # of two models no ends
        scalars |= {"models": float(len(_names(parts))), "layer_pairs": float(len(table))}
        found = {"agreement": tables.agreement(pairs), "agreement_by_pair": pairs}
        models = {str(sorted(model.items())): model for each in results for model in each.provenance["models"]}
        return Outcome(
            table,
            scalars,
            tables=found | {"disagreements": tables.disagreements(table, measures)},
            models=list(models.values()),
            facts={"parts": {_called(part): result.key for part, result in zip(parts, results, strict=True)}},
            blank=(*table.columns, "rho"),
        )

    def draw(self, result: Result, folder: Path) -> None:
        found = result.tables["agreement"]
        names = list(dict.fromkeys([*found["measure"], *found["other"]]))
        figures.agreement(found, names, folder)
        closer = tables.oriented(result.table, {name: tables.is_distance(name) for name in names})
        figures.ranks(result.table.assign(**tables.shares(closer, names)), names, folder)

    def show(self, result: Result) -> None:
        """Print the mean agreement, the measures that agree least, and the layer pairs on which two differ most."""
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

    parts: Sequence[tables.Part]
    results: Sequence[Result]

    def fingerprint(self) -> str:
        return repr([(_called(part), result.key) for part, result in zip(self.parts, self.results, strict=True)])


def _called(part: tables.Part) -> str:
    return f"{part.measure} of {part.source} and {part.target}"


def _names(parts: Sequence[tables.Part]) -> list[str]:
    return list(dict.fromkeys(name for part in parts for name in (part.source, part.target)))
