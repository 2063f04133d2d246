"""What section 4 of Brown et al. 2023 claims of a population of classifiers, and what its nulls say."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.measures import (
    Estimate,
    agreement,
    agreement_p,
    cluster,
    grouped,
    interval_around,
    jackknife,
    onset,
    parting,
    student_t,
    symmetric,
)
from thinkalike.papers.claims import Bound, Claim, judged, level_of_each, together, untestable
from thinkalike.papers.population_view import Population

SMALL = 0.02  # of an accuracy: what "almost no penalty" may cost
ALIKE = 0.02  # of CKA: by how much it may tell groups apart where it should not
PARTED = 0.02  # of CKA or accuracy: by how much groups differ that have parted, and not only begun to
THIRD = 1 / 3  # of the flips between strategies: fewer than that are flips of chance
LEAST_GAP = 0.1  # of an accuracy: by how much the groups differ at least
LEAST_INDEX = 0.5  # of the adjusted Rand index: from there on clusters are the groups
NO_LATE = "no cut is late in models of fewer than 5 blocks"


def gap_claim(population: Population) -> Claim:
    """Say whether one group is right more often, by an interval over models and pairs of texts (Welch's)."""
    kinds = list(population.groups.values())
    names = list(dict.fromkeys(kinds))
    parts = [population.own[[kind == name for kind in kinds]] for name in names]
    spread = sum(part.mean(1).var() / len(part) for part in parts)
    spread = spread + (parts[0].mean(0) - parts[1].mean(0)).var() / parts[0].shape[1]
    half = student_t(0.95, min(map(len, parts)) - 1) * spread.sqrt()
    gap = interval_around(parts[0].mean() - parts[1].mean(), half)
    means = " and ".join(f"{float(part.mean()):.3f}" for part in parts)
    numbers = f"mean accuracy {means}, difference {gap:+.3f}"
    return judged(
        "the two groups differ on the challenge", [(Bound("above", LEAST_GAP), gap)], numbers, population.examples
    )


def stitching_claims(population: Population, where: str) -> list[Claim]:
    """Return the claims about stitches; each direction is judged by itself, as signed accuracies may cancel."""
    blocks = population.penalties.shape[2] - 1
    early = [cut for cut in range(blocks + 1) if cut <= blocks / 2]
    late = [cut for cut in range(blocks + 1) if 0.75 * blocks < cut < blocks]
    names = (
        f"stitches at early cuts cost almost nothing {where}",
        f"late stitches between the groups cost more than within {where}",
        f"late stitches between the groups flip more predictions than within {where}",
        f"late stitches within a group cost almost nothing {where}",
    )
    count = range(len(population.names))
    squares = list(itertools.product(count, count))
    apart, own = [pair for pair in squares if pair[0] != pair[1]], [pair for pair in squares if pair[0] == pair[1]]
    small, above = Bound("below", SMALL), Bound("above")
    cheap = _by_direction(names[0], population, small, population.penalties, "cells", squares, early)
    if not late:
        return [cheap, *(untestable(name, NO_LATE) for name in names[1:])]
    return [
        cheap,
        _by_direction(names[1], population, above, population.penalties, "directed", apart, late),
        _by_direction(names[2], population, above, population.flips, "directed", apart, late),
        _by_direction(names[3], population, small, population.penalties, "cells", own, late),
    ]


def _by_direction(
    claim: str,
    population: Population,
    bound: Bound,
    values: Float[Tensor, "m m c n"],
    kind: str,
    directions: Sequence[tuple[int, int]],
    cuts: Sequence[int],
) -> Claim:
    """Return a claim about the means, or the differences from the targets' own group, of some directions at cuts."""
    count, names = len(directions) * len(cuts), population.names
    means = getattr(population.grouped(values, examples=True, level=level_of_each(count)), kind)
    numbers = "; ".join(f"{names[a]} into {names[b]} {_places(means[a, b], cuts, -1)}" for a, b in directions)
    if kind == "directed":
        numbers += f"; {_parting(-values.mean(-1), population, 'cut', -1)}"
    estimates = [(bound, means[a, b][list(cuts)]) for a, b in directions]
    return judged(claim, estimates, f"{numbers}{together(count)}", population.examples)


def null_is_alike(null: Population) -> Claim:
    """Say whether CKA leaves groups together that differ in the seed of their parents alone."""
    last = null.grouped(null.likeness[..., -1:]).difference
    return judged(
        "the null: CKA in the last layer does not tell two parents of one strategy apart",
        [(Bound("within", ALIKE), last)],
        f"within minus between {last[0]:+.3f}; {_parting(null.likeness, null, 'layer', 0)}",
        null.units,
    )


def null_flips_less(population: Population) -> Claim:
    """Say whether parents of one strategy flip less than a third of what two strategies do, at the last cut but one."""
    whole = replace(population, wanted=())
    flipped, kinds = whole.flips[:, :, -2].mean(-1), list(whole.groups.values())
    claim = "the null: parents of one strategy flip under a third of what two strategies flip on the challenge"
    if min(Counter(kinds).values()) < 3:
        return untestable(claim, "an interval leaves out a model at a time, so groups must have three")
    first, second = population.names[0], list(population.config.null or [])

    def excess(kept: Sequence[int]) -> float:
        groups = [kinds[model] for model in kept]
        means = grouped(flipped[kept][:, kept, None], groups).cells.value[..., 0]
        names = list(dict.fromkeys(groups))
        one, other, strategy = (names.index(name) for name in [*second, first])
        return float(symmetric(means)[one, other] - THIRD * symmetric(means)[strategy, one])

    models = list(range(len(kinds)))
    without = torch.tensor([excess([model for model in models if model != left]) for left in models])
    value = jackknife(torch.tensor(excess(models)).double(), without.double())
    return judged(
        claim,
        [(Bound("below"), value)],
        f"flips between {' and '.join(second)} minus a third of those between {first} and {second[0]}: {value:+.3f}",
        whole.examples,
    )


def _places(estimate: Estimate, places: Sequence[int], first: int) -> str:
    """Return the numbers at some places of the last axis, which begins with the cut or layer `first`."""
    return ", ".join(f"{place + first}: {estimate[place]:+.3f}" for place in places)


def late_layers_part(population: Population) -> Claim:
    """Say whether CKA tells the groups apart in the last quarter of the layers, and not in the first half."""
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
    """Return where groups part: the first place that shows it, and the step nearest to the whole curve."""
    level = level_of_each(values.shape[-1])
    apart = population.grouped(values, level=level).difference
    begins = ["none" if at is None else str(at + first) for at in (onset(apart), onset(apart, PARTED))]
    shown = f"the first {place} that shows a difference is {begins[0]}, one of more than {PARTED} {begins[1]}"
    try:
        step = parting(values, list(population.groups.values()))
    except ValueError:  # no change at all, of these models or of a resample
        return shown
    value, low, high = (int(end) + first for end in (step.value, step.low, step.high))
    return f"{shown}, and the step is at {value} ({low} to {high})"


def cluster_claims(population: Population) -> list[Claim]:
    """Return what the paper left undone: groups from flips alone, and from distances alone."""
    flipped, names = population.flips.mean(-1), list(population.groups)
    late = max(int(0.75 * (flipped.shape[-1] - 1)), 0)
    costs = symmetric(flipped[..., late:-1].mean(-1)).fill_diagonal_(0)
    known: dict[str, list[Any]] = {"the groups": list(population.groups.values())}
    config = population.config
    if config.cluster:
        local = config.members == "local"
        inside = [str(number) if local else f"{config.members}-{number}" for number in config.cluster]
        known["the published cluster"] = [name in inside for name in names]
    claims = []
    for what, matrix in (("flipped predictions", costs), ("CKA distances", population.distances)):
        count = len(population.names)
        indices = {name: _index(matrix, groups, count) for name, groups in known.items()}
        chance = {name: agreement_p(cluster(matrix, count), groups) for name, groups in known.items()}
        claims.append(
            judged(
                f"clusters from {what} alone are the groups",
                [(Bound("above", LEAST_INDEX), indices["the groups"])],
                ", ".join(
                    f"adjusted Rand index with {name} {value:.2f}, p = {chance[name]:.4f}"
                    for name, value in indices.items()
                ),
                population.units,
            )
        )
    return claims


def _index(matrix: Float[Tensor, "m m"], groups: Sequence[Any], count: int) -> Estimate:
    """Return the adjusted Rand index of so many clusters with some groups, with a jackknife interval over models."""

    def index(kept: list[int]) -> float:
        return agreement(cluster(matrix[kept][:, kept], count), [groups[model] for model in kept])

    models = list(range(len(groups)))
    without = [index([model for model in models if model != left]) for left in models]
    return jackknife(torch.tensor(index(models)).double(), torch.tensor(without).double())
