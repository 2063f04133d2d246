"""Where classifiers that generalize part from those that do not: figures 2, 7 and 8 of Brown et al. 2023.

A cut is the last layer of the source in an identity stitch, -1 its embedding. Early are the cuts with at most half of
the source's blocks; late those with more than three quarters, but not all of them: at the last cut only pooler and
classes are the target's.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike import figures
from thinkalike.config import PopulationConfig, compose_job
from thinkalike.measures import (
    Estimate,
    Grouped,
    agreement,
    arc_length,
    cluster,
    grouped,
    interval_around,
    jackknife,
    parting,
    population_penalties,
    student_t,
    symmetric,
)
from thinkalike.papers.claims import Bound, Claim, judged, level_of_each, together, untestable
from thinkalike.papers.experiment import Case, Conclusion, Experiment, Part
from thinkalike.store import Result

SMALL = 0.02  # of an accuracy: what "almost no penalty" may cost
ALIKE = 0.02  # of CKA: by how much it may tell groups apart where it should not
LEAST_GAP = 0.1  # of an accuracy: by how much the groups differ at least
LEAST_INDEX = 0.5  # of the adjusted Rand index: from there on clusters are the groups
NO_LATE = "no cut is late in models of fewer than 5 blocks"


def _changes(case: Case, side: str) -> dict[str, Any]:
    """Return what a population's job takes: at the paper's scale the defaults give way to the paper's own."""
    config = case.config
    changes: dict[str, Any] = {"measure": replace(config.measure, side=side)}  # type: ignore[call-arg]
    if config.scale != "mini":
        paper = compose_job("analyze", ["pairs=mnli", "population=feather-berts"])
        changes["pairs"] = paper.pairs if config.pairs.source == "templates" else config.pairs
        changes["population"] = paper.population if config.population.base == "bert-mini" else config.population
    return changes


def _parts(case: Case, side: str) -> list[Part]:
    return [Part(side, changes=_changes(case, side))]


@dataclass(frozen=True)
class Population:
    """The result of a job on a population, as tensors over its models."""

    result: Result
    config: PopulationConfig

    @classmethod
    def of(cls, case: Case, side: str) -> Population:
        return cls(case.results[side], _changes(case, side).get("population", case.config.population))

    @cached_property
    def groups(self) -> dict[str, str]:
        """The group of each model, by its name."""
        rows = self.result.table.drop_duplicates("source")
        return dict(zip(rows["source"], rows["group_of_source"], strict=True))

    @property
    def units(self) -> str:
        """Over what intervals of pairs of models are."""
        sizes = [list(self.groups.values()).count(group) for group in dict.fromkeys(self.groups.values())]
        return f"{len(self.groups)} models in groups of {' and '.join(map(str, sizes))}"

    @property
    def examples(self) -> str:
        """The same, where they are over pairs of texts, too."""
        return f"{self.units}, {self.penalties.shape[-1]} pairs of texts"

    @cached_property
    def own(self) -> Float[Tensor, "m n"]:
        """Which pairs of texts each model gets right by itself."""
        correct = torch.from_numpy(self.result.arrays["correct"]).double()
        return correct.diagonal()[0].T

    @cached_property
    def penalties(self) -> Float[Tensor, "m m c n"]:
        """Accuracy of the target minus that of the stitched model, of each pair of texts: -1, 0 or 1."""
        return population_penalties(torch.from_numpy(self.result.arrays["correct"]).double())

    @cached_property
    def likeness(self) -> Float[Tensor, "m m l"]:
        """CKA of every two models at each layer."""
        return torch.from_numpy(self.result.arrays["cka"])

    @cached_property
    def distances(self) -> Float[Tensor, "m m"]:
        """√Σ arccos²(CKA) over layers (equation 2)."""
        return symmetric(arc_length(self.likeness)).fill_diagonal_(0)

    def grouped(self, values: Float[Tensor, "m m *s"], **options: Any) -> Grouped:
        """Return means of pairs of models within the groups and between them."""
        return grouped(values, list(self.groups.values()), **options)


def _figure2(case: Case) -> Conclusion:
    """Identity stitches and CKA within and between the groups, on the pairs that classifiers were made for."""
    population = Population.of(case, "report")
    penalties, alike = population.grouped(population.penalties, examples=True), population.grouped(population.likeness)
    tables = {
        "identity stitches": _by_pair(penalties, population, -1, "accuracy_penalty", "last layer of the source"),
        "CKA": _by_pair(alike, population, 0, "value", "layer"),
    }
    claims = [
        *_stitching_claims(population, "on held-out pairs"),
        _late_layers_part(population),
        *_clusters(population),
    ]
    table = pd.concat([part.assign(panel=title) for title, part in tables.items()], ignore_index=True)
    return Conclusion(table, claims, partial(figures.groups_by_depth, tables))


def _figure7(case: Case) -> Conclusion:
    """The same identity stitches on the challenge."""
    population = Population.of(case, "challenge")
    penalties = population.grouped(population.penalties, examples=True)
    tables = {"challenge": _by_pair(penalties, population, -1, "accuracy_penalty", "last layer of the source")}
    claims = [_gap(population), *_stitching_claims(population, "on the challenge")]
    return Conclusion(tables["challenge"], claims, partial(figures.groups_by_depth, tables))


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
    return Conclusion(table, [claim, *_clusters(population)], partial(figures.distances, table))


def _gap(population: Population) -> Claim:
    """Say whether one group is right more often, by an interval over models and pairs of texts (Welch's)."""
    kinds = list(population.groups.values())
    names = list(dict.fromkeys(kinds))
    parts = [population.own[[kind == name for kind in kinds]] for name in names]
    spread = sum(part.mean(1).var() / len(part) for part in parts)
    spread = spread + (parts[0].mean(0) - parts[1].mean(0)).var() / parts[0].shape[1]
    half = student_t(0.95, min(map(len, parts)) - 1) * spread.sqrt()
    gap = interval_around(parts[0].mean() - parts[1].mean(), half)
    chosen = "; the groups were chosen by it" if population.config.base else ""
    means = " and ".join(f"{float(part.mean()):.3f}" for part in parts)
    numbers = f"mean accuracy {means}, difference {gap:+.3f}{chosen}"
    return judged(
        "the two groups differ on the challenge", [(Bound("above", LEAST_GAP), gap)], numbers, population.examples
    )


def _stitching_claims(population: Population, where: str) -> list[Claim]:
    blocks = population.penalties.shape[2] - 1
    early = [cut for cut in range(blocks + 1) if cut <= blocks / 2]
    late = [cut for cut in range(blocks + 1) if 0.75 * blocks < cut < blocks]

    def means(count: int) -> Grouped:
        return population.grouped(population.penalties, examples=True, level=level_of_each(count))

    first, last, small = means(2 * len(early)), means(len(late)), Bound("below", SMALL)
    names = (
        f"stitches at early cuts cost almost nothing {where}",
        f"late stitches between the groups cost more than within {where}",
        f"late stitches within a group cost almost nothing {where}",
    )
    cheap = judged(
        names[0],
        [(small, first.between[early]), (small, first.within[early])],
        f"between groups {_places(first.between, early, -1)}{together(2 * len(early))}",
        population.examples,
    )
    if not late:
        return [cheap, *(untestable(name, NO_LATE) for name in names[1:])]
    parted = f"within minus between {_places(last.difference, late, -1)}{together(len(late))}"
    parted += f"; {_parting(-population.penalties.mean(-1), population, 'cut', -1)}"
    within = f"within groups {_places(last.within, late, -1)}{together(len(late))}"
    return [
        cheap,
        judged(names[1], [(Bound("below"), last.difference[late])], parted, population.examples),
        judged(names[2], [(small, last.within[late])], within, population.examples),
    ]


def _places(estimate: Estimate, places: Sequence[int], first: int) -> str:
    """Return the numbers at some places of the last axis, which begins with the cut or layer `first`."""
    return ", ".join(f"{place + first}: {estimate[place]:+.3f}" for place in places)


def _late_layers_part(population: Population) -> Claim:
    layers = population.likeness.shape[-1]
    early, late = list(range(layers // 2)), list(range(layers - max(layers // 4, 1), layers))
    count = len(early) + len(late)
    apart = population.grouped(population.likeness, level=level_of_each(count)).difference
    numbers = f"within minus between {_places(apart, range(layers), 0)}{together(count)}"
    return judged(
        "CKA tells the groups apart in late layers, and not in early ones",
        [(Bound("above"), apart[late]), (Bound("within", ALIKE), apart[early])],
        f"{numbers}; {_parting(population.likeness, population, 'layer', 0)}",
        population.units,
    )


def _parting(values: Float[Tensor, "m m l"], population: Population, place: str, first: int) -> str:
    try:
        step = parting(values, list(population.groups.values()))
    except ValueError:  # no change at all, of these models or of a resample
        return f"they part at no {place}"
    value, low, high = (int(end) + first for end in (step.value, step.low, step.high))
    return f"they part at {place} {value} ({low} to {high})"


def _clusters(population: Population) -> list[Claim]:
    """Return what the paper left undone: groups from penalties alone, and from distances alone."""
    penalties, names = population.penalties.mean(-1), list(population.groups)
    late = max(int(0.75 * (penalties.shape[-1] - 1)), 0)
    costs = symmetric(penalties[..., late:-1].clamp(min=0).mean(-1)).fill_diagonal_(0)
    known: dict[str, list[Any]] = {"accuracy on the challenge": list(population.groups.values())}
    config = population.config
    if config.cluster:
        local = config.members == "local"
        inside = [str(number) if local else f"{config.members}-{number}" for number in config.cluster]
        known["the published cluster"] = [name in inside for name in names]
    claims = []
    for what, matrix in (("stitching penalties", costs), ("CKA distances", population.distances)):
        indices = {name: _index(matrix, groups) for name, groups in known.items()}
        claims.append(
            judged(
                f"two clusters from {what} alone are the two groups",
                [(Bound("above", LEAST_INDEX), indices["accuracy on the challenge"])],
                ", ".join(f"adjusted Rand index with {name} {value:.2f}" for name, value in indices.items()),
                population.units,
            )
        )
    return claims


def _index(matrix: Float[Tensor, "m m"], groups: Sequence[Any]) -> Estimate:
    """Return the adjusted Rand index of two clusters with some groups, with a jackknife interval over models."""

    def index(kept: list[int]) -> float:
        return agreement(cluster(matrix[kept][:, kept], 2), [groups[model] for model in kept])

    models = list(range(len(groups)))
    without = [index([model for model in models if model != left]) for left in models]
    return jackknife(torch.tensor(index(models)).double(), torch.tensor(without).double())


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
