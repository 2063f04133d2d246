"""Where classifiers that generalize part from those that do not: figures 2, 7 and 8 of Brown et al. 2023.

A cut is the last layer of the source in an identity stitch, -1 its embedding. Early are the cuts with at most half of
the source's blocks; late those with more than three quarters, but not all of them: at the last cut only pooler and
classes are the target's.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike import figures, jobs
from thinkalike.config import AnalyzeConfig, PopulationMeasureConfig, compose_job
from thinkalike.jobs.population import span
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
from thinkalike.reproduce.claims import Claim, conclude

SMALL = 0.02  # of an accuracy: what "almost no penalty" may cost
NO_LATE = "no cut is late in models of fewer than 5 blocks"


@dataclass(frozen=True)
class Compared:
    """A finished job on a population."""

    folder: Path

    def table(self) -> pd.DataFrame:
        return pd.read_csv(self.folder / "table.csv")

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(self.table()["source"]))

    @property
    def groups(self) -> list[str]:
        return list(self.table().drop_duplicates("source")["group_of_source"])

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        with np.load(self.folder / "arrays.npz") as file:
            return {name: file[name] for name in file.files}

    def penalties(self) -> Float[Tensor, "m m c n"]:
        """Accuracy of the target minus that of the stitched model, of each pair of texts: -1, 0 or 1."""
        return population_penalties(torch.from_numpy(self.arrays["correct"]).double())

    def likeness(self) -> Float[Tensor, "m m l"]:
        return torch.from_numpy(self.arrays["cka"])

    def distances(self) -> Float[Tensor, "m m"]:
        """√Σ arccos²(CKA) over layers (equation 2)."""
        return symmetric(arc_length(self.likeness())).fill_diagonal_(0)


def figure2(config: AnalyzeConfig) -> Path:
    """Identity stitches and CKA within and between the groups, on the pairs that classifiers were made for."""
    found = _compare(config, "report")
    penalties = grouped(found.penalties(), found.groups, examples=True)
    alike = grouped(found.likeness(), found.groups)
    tables = {
        "identity stitches": _by_pair(penalties, found, -1, "accuracy_penalty", "last layer of the source"),
        "CKA": _by_pair(alike, found, 0, "value", "layer"),
    }
    claims = [
        *_stitching_claims(penalties, found, "on held-out pairs"),
        _late_layers_part(alike, found),
        *_clusters(config, found),
    ]
    table = pd.concat([part.assign(panel=title) for title, part in tables.items()], ignore_index=True)
    return conclude(
        config, {"report": found.folder}, table, claims, lambda _, folder: figures.groups_by_depth(tables, folder)
    )


def figure7(config: AnalyzeConfig) -> Path:
    """The same identity stitches on the challenge."""
    found = _compare(config, "challenge")
    penalties = grouped(found.penalties(), found.groups, examples=True)
    tables = {"challenge": _by_pair(penalties, found, -1, "accuracy_penalty", "last layer of the source")}
    own = (
        found.table().query("source == target").drop_duplicates("source").groupby("group_of_source")["accuracy"].mean()
    )
    gap = Claim(
        "the two groups differ on the challenge",
        bool(own["generalizing"] - own["heuristic"] > 0.1),
        f"mean accuracy {own['generalizing']:.3f} and {own['heuristic']:.3f}",
    )
    claims = [gap, *_stitching_claims(penalties, found, "on the challenge")]
    return conclude(
        config,
        {"challenge": found.folder},
        tables["challenge"],
        claims,
        lambda _, folder: figures.groups_by_depth(tables, folder),
    )


def figure8(config: AnalyzeConfig) -> Path:
    """Distances between the models from CKA of all layers."""
    found = _compare(config, "report")
    distances = found.distances()
    table = _pairs_of(found, distances)
    apart = grouped(distances[..., None], found.groups).difference
    claim = Claim(
        "models of one group are nearer to each other than models of two",
        bool(apart.high[0] < 0),
        f"mean distance within minus between {span(apart, 0)}",
    )

    def draw(table: pd.DataFrame, folder: Path) -> None:
        figures.distances(table, folder)

    return conclude(config, {"report": found.folder}, table, [claim, *_clusters(config, found)], draw)


def _compare(config: AnalyzeConfig, side: str) -> Compared:
    measure = config.measure
    assert isinstance(measure, PopulationMeasureConfig)
    job = replace(_at_scale(config), experiment=None, measure=replace(measure, side=side))
    return Compared(jobs.population(job))


def _at_scale(config: AnalyzeConfig) -> AnalyzeConfig:
    """At the paper's scale the defaults, pairs=templates and population=bert-mini, give way to the paper's own."""
    if config.scale == "mini":
        return config
    paper = compose_job("analyze", ["pairs=mnli", "population=feather-berts"])
    pairs = paper.pairs if config.pairs.source == "templates" else config.pairs
    population = paper.population if config.population.base == "bert-mini" else config.population
    return replace(config, pairs=pairs, population=population)


def _stitching_claims(penalties: Grouped, found: Compared, where: str) -> list[Claim]:
    cuts = penalties.between.value.shape[0]
    blocks = cuts - 1
    early = [cut for cut in range(cuts) if cut <= blocks / 2]
    late = [cut for cut in range(cuts) if 0.75 * blocks < cut < blocks]
    within, between, difference = penalties.within, penalties.between, penalties.difference
    return [
        Claim(
            f"stitches at early cuts cost almost nothing {where}",
            bool(max(between.value[early].max(), within.value[early].max()) < SMALL),
            "between groups " + ", ".join(f"{cut - 1}: {span(between, cut)}" for cut in early),
        ),
        Claim(
            f"late stitches between the groups cost more than within {where}",
            all(bool(difference.high[cut] < 0) for cut in late) if late else None,
            "within minus between "
            + (", ".join(f"{cut - 1}: {span(difference, cut)}" for cut in late) or NO_LATE)
            + f"; {_parting(-found.penalties().mean(-1), found.groups, 'cut', -1)}",
        ),
        Claim(
            f"late stitches within a group cost almost nothing {where}",
            bool(within.value[late].max() < SMALL) if late else None,
            "within groups " + (", ".join(f"{cut - 1}: {span(within, cut)}" for cut in late) or NO_LATE),
        ),
    ]


def _late_layers_part(alike: Grouped, found: Compared) -> Claim:
    layers = alike.difference.value.shape[0]
    early, late = range(layers // 2), range(layers - max(layers // 4, 1), layers)
    parted = [bool(alike.difference.low[layer] > 0) for layer in late]
    return Claim(
        "CKA tells the groups apart in late layers, and not in early ones",
        all(parted) and not any(bool(alike.difference.low[layer] > 0) for layer in early),
        "within minus between "
        + ", ".join(f"{layer}: {span(alike.difference, layer)}" for layer in range(layers))
        + f"; {_parting(found.likeness(), found.groups, 'layer', 0)}",
    )


def _parting(values: Float[Tensor, "m m l"], groups: list[str], place: str, first: int) -> str:
    try:
        step = parting(values, groups)
    except ValueError:  # no change at all, of these models or of a resample
        return f"they part at no {place}"
    value, low, high = (int(end) + first for end in (step.value, step.low, step.high))
    return f"they part at {place} {value} ({low} to {high})"


def _clusters(config: AnalyzeConfig, found: Compared) -> list[Claim]:
    """What the paper left undone: groups from penalties alone, and from distances alone."""
    penalties = found.penalties().mean(-1)
    late = max(int(0.75 * (penalties.shape[-1] - 1)), 0)
    costs = symmetric(penalties[..., late:-1].clamp(min=0).mean(-1)).fill_diagonal_(0)
    known: dict[str, list[Any]] = {"accuracy on the challenge": found.groups}
    population = _at_scale(config).population
    if population.cluster:
        local = population.members == "local"
        inside = [str(number) if local else f"{population.members}-{number}" for number in population.cluster]
        known["the published cluster"] = [name in inside for name in found.names]
    claims = []
    for what, matrix in (("stitching penalties", costs), ("CKA distances", found.distances())):
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


def _by_pair(means: Grouped, found: Compared, first: int, column: str, axis: str) -> pd.DataFrame:
    """Mean and interval of each kind of pair at each place."""
    names = list(dict.fromkeys(found.groups))
    rows = []
    for (a, source), (b, target) in itertools.product(enumerate(names), repeat=2):
        for place in range(means.cells.value.shape[-1]):
            value, low, high = (
                float(part[a, b, place]) for part in (means.cells.value, means.cells.low, means.cells.high)
            )
            rows.append((f"{source} into {target}", place + first, value, low, high))
    table = pd.DataFrame(rows, columns=["pair", "place", "mean", "low", "high"])
    return table.assign(column=column, axis=axis)


def _pairs_of(found: Compared, values: Float[Tensor, "m m"]) -> pd.DataFrame:
    rows = []
    for (i, source), (j, target) in itertools.product(enumerate(found.names), repeat=2):
        pair = " and ".join(sorted((found.groups[i], found.groups[j])))
        rows.append((source, target, found.groups[i], found.groups[j], pair, float(values[i, j])))
    return pd.DataFrame(rows, columns=["source", "target", "group_of_source", "group_of_target", "pair", "value"])
