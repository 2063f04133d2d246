"""Where classifiers that generalize part from those that do not: figures 2, 7 and 8 of Brown et al. 2023.

At mini scale the answer is planted: forks of two parents, taught apart from one block on, and the null that the paper
lacks, forks of two parents that differ in nothing but the seed.

A cut is the last layer of the source in an identity stitch, -1 its embedding. Early are the cuts with at most half of
the source's blocks; late those with more than three quarters, but not all of them: at the last cut only pooler and
classes are the target's.
"""

from __future__ import annotations

import itertools
from functools import partial

import pandas as pd
from jaxtyping import Float
from torch import Tensor

from thinkalike import figures
from thinkalike.measures import Grouped
from thinkalike.papers.claims import Bound, judged
from thinkalike.papers.experiment import Case, Conclusion, Experiment, Part
from thinkalike.papers.population_claims import (
    cluster_claims,
    gap_claim,
    late_layers_part,
    null_flips_less,
    null_is_alike,
    stitching_claims,
)
from thinkalike.papers.population_view import Population, changes_of


def _parts(case: Case, side: str) -> list[Part]:
    return [Part(side, changes=changes_of(case, side))]


def _figure2(case: Case) -> Conclusion:
    """Identity stitches and CKA within and between the groups, on the pairs that classifiers were made for."""
    population = Population.of(case, "report")
    tables = _panels(population, "") | (_panels(population.null, ", null") if population.config.null else {})
    claims = [
        *stitching_claims(population, "on held-out pairs"),
        late_layers_part(population),
        *cluster_claims(population),
        *([null_is_alike(population.null)] if population.config.null else []),
    ]
    table = pd.concat([part.assign(panel=title) for title, part in tables.items()], ignore_index=True)
    return Conclusion(table, claims, partial(figures.groups_by_depth, tables))


def _figure7(case: Case) -> Conclusion:
    """The same identity stitches on the challenge."""
    population = Population.of(case, "challenge")
    tables = _stitches(population, ", challenge")
    claims = [gap_claim(population), *stitching_claims(population, "on the challenge")]
    if population.config.null:
        tables |= _stitches(population.null, ", challenge, null")
        claims.append(null_flips_less(population))
    table = pd.concat([part.assign(panel=title) for title, part in tables.items()], ignore_index=True)
    return Conclusion(table, claims, partial(figures.groups_by_depth, tables))


def _panels(population: Population, ending: str) -> dict[str, pd.DataFrame]:
    alike = population.grouped(population.likeness)
    return _stitches(population, ending) | {f"CKA{ending}": _by_pair(alike, population, 0, "value", "layer")}


def _stitches(population: Population, ending: str) -> dict[str, pd.DataFrame]:
    """Return what identity stitches cost and flip, by title of a panel."""
    found = {"accuracy_penalty": population.penalties, "flips": population.flips}
    titles = {"accuracy_penalty": "identity stitches", "flips": "flipped predictions"}
    return {
        f"{titles[column]}{ending}": _by_pair(
            population.grouped(values, examples=True), population, -1, column, "last layer of the source"
        )
        for column, values in found.items()
    }


def _figure8(case: Case) -> Conclusion:
    """Distances between the models from CKA of all layers."""
    population = Population.of(case, "report")
    table = _pairs_of(population, population.distances)
    apart = population.grouped(population.distances[..., None]).difference
    claim = judged(
        "models of one group are nearer to each other than models of two",
        [(Bound("below"), apart)],
        f"mean distance within minus between {apart[0]:+.3f}",
        population.units,
    )
    return Conclusion(table, [claim, *cluster_claims(population)], partial(figures.distances, table))


def _by_pair(means: Grouped, population: Population, first: int, column: str, axis: str) -> pd.DataFrame:
    """Return mean and interval of each kind of pair at each place."""
    names = list(dict.fromkeys(population.groups.values()))
    rows = []
    for (a, source), (b, target) in itertools.product(enumerate(names), repeat=2):
        for place in range(means.cells.value.shape[-1]):
            value, low, high = (float(end) for end in means.cells[a, b, place])
            rows.append((f"{source} into {target}", place + first, value, low, high))
    table = pd.DataFrame(rows, columns=["pair", "place", "mean", "low", "high"])
    return table.assign(column=column, axis=axis)


def _pairs_of(population: Population, values: Float[Tensor, "m m"]) -> pd.DataFrame:
    rows = []
    for (i, (source, a)), (j, (target, b)) in itertools.product(enumerate(population.groups.items()), repeat=2):
        rows.append((source, target, a, b, " and ".join(sorted((a, b))), float(values[i, j])))
    return pd.DataFrame(rows, columns=["source", "target", "group_of_source", "group_of_target", "pair", "value"])


MODELS: dict[str, list[str]] = {"paper": [], "mini": []}  # a population names them
EXPERIMENTS = [
    Experiment("brown2023/figure2", _figure2, MODELS, partial(_parts, side="report"), "population"),
    Experiment("brown2023/figure7", _figure7, MODELS, partial(_parts, side="challenge"), "population"),
    Experiment("brown2023/figure8", _figure8, MODELS, partial(_parts, side="report"), "population"),
]
