"""Where classifiers that generalize part from those that do not: figures 2, 7 and 8 of Brown et al. 2023.

A cut is the last layer of the source in an identity stitch, -1 its embedding. Early are the cuts with at most half of
the source's blocks; late those with more than three quarters, but not all of them: at the last cut only pooler and
classes are the target's.
"""

from __future__ import annotations

import itertools
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
    Grouped,
    agreement,
    arc_length,
    cluster,
    grouped,
    parting,
    population_penalties,
    symmetric,
)
from thinkalike.papers.experiment import Case, Claim, Conclusion, Experiment, Part
from thinkalike.store import Result

SMALL = 0.02  # of an accuracy: what "almost no penalty" may cost
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

    def grouped(self, values: Float[Tensor, "m m *s"], **options: bool) -> Grouped:
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
        *_stitching_claims(penalties, population, "on held-out pairs"),
        _late_layers_part(alike, population),
        *_clusters(population),
    ]
    table = pd.concat([part.assign(panel=title) for title, part in tables.items()], ignore_index=True)
    return Conclusion(table, claims, partial(figures.groups_by_depth, tables))


def _figure7(case: Case) -> Conclusion:
    """The same identity stitches on the challenge."""
    population = Population.of(case, "challenge")
    penalties = population.grouped(population.penalties, examples=True)
    tables = {"challenge": _by_pair(penalties, population, -1, "accuracy_penalty", "last layer of the source")}
    alone = population.result.table.query("source == target").drop_duplicates("source")
    own = alone.groupby("group_of_source")["accuracy"].mean()
    gap = Claim(
        "the two groups differ on the challenge",
        bool(own["generalizing"] - own["heuristic"] > 0.1),
        f"mean accuracy {own['generalizing']:.3f} and {own['heuristic']:.3f}",
    )
    claims = [gap, *_stitching_claims(penalties, population, "on the challenge")]
    return Conclusion(tables["challenge"], claims, partial(figures.groups_by_depth, tables))


def _figure8(case: Case) -> Conclusion:
    """Distances between the models from CKA of all layers."""
    population = Population.of(case, "report")
    table = _pairs_of(population, population.distances)
    apart = population.grouped(population.distances[..., None]).difference
    claim = Claim(
        "models of one group are nearer to each other than models of two",
        bool(apart.high[0] < 0),
        f"mean distance within minus between {apart[0]:+.3f}",
    )
    return Conclusion(table, [claim, *_clusters(population)], partial(figures.distances, table))


def _stitching_claims(penalties: Grouped, population: Population, where: str) -> list[Claim]:
    cuts = penalties.between.value.shape[0]
    blocks = cuts - 1
    early = [cut for cut in range(cuts) if cut <= blocks / 2]
    late = [cut for cut in range(cuts) if 0.75 * blocks < cut < blocks]
    within, between, difference = penalties.within, penalties.between, penalties.difference
    mean = -population.penalties.mean(-1)
    return [
        Claim(
            f"stitches at early cuts cost almost nothing {where}",
            bool(max(between.value[early].max(), within.value[early].max()) < SMALL),
            "between groups " + ", ".join(f"{cut - 1}: {between[cut]:+.3f}" for cut in early),
        ),
        Claim(
            f"late stitches between the groups cost more than within {where}",
            all(bool(difference.high[cut] < 0) for cut in late) if late else None,
            "within minus between "
            + (", ".join(f"{cut - 1}: {difference[cut]:+.3f}" for cut in late) or NO_LATE)
            + f"; {_parting(mean, population, 'cut', -1)}",
        ),
        Claim(
            f"late stitches within a group cost almost nothing {where}",
            bool(within.value[late].max() < SMALL) if late else None,
            "within groups " + (", ".join(f"{cut - 1}: {within[cut]:+.3f}" for cut in late) or NO_LATE),
        ),
    ]


def _late_layers_part(alike: Grouped, population: Population) -> Claim:
    layers = alike.difference.value.shape[0]
    early, late = range(layers // 2), range(layers - max(layers // 4, 1), layers)
    parted = [bool(alike.difference.low[layer] > 0) for layer in late]
    return Claim(
        "CKA tells the groups apart in late layers, and not in early ones",
        all(parted) and not any(bool(alike.difference.low[layer] > 0) for layer in early),
        "within minus between "
        + ", ".join(f"{layer}: {alike.difference[layer]:+.3f}" for layer in range(layers))
        + f"; {_parting(population.likeness, population, 'layer', 0)}",
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
        labels = cluster(matrix, 2)
        numbers = {name: agreement(labels, groups) for name, groups in known.items()}
        claims.append(
            Claim(
                f"two clusters from {what} alone are the two groups",
                numbers["accuracy on the challenge"] > 0.5,
                ", ".join(f"adjusted Rand index with {name} {value:.2f}" for name, value in numbers.items()),
            )
        )
    return claims


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
