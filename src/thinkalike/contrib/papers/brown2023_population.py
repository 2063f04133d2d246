"""Where groups of classifiers part: figures 2, 7 and 8 of Brown et al. 2023.

One group generalizes, the other one uses a heuristic. At mini scale the answer is planted:
children of two parents, taught apart from one block on. Beside them is the null that the paper
lacks, children of two parents that differ in nothing but the seed.

A cut is the last layer of the source in an identity stitch, -1 its embedding. Early are the cuts
with at most half of the source's blocks. Late are those with more than three quarters, but not all
of them: at the last cut only pooler and classes are the target's.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import pandas as pd
from jaxtyping import Float
from torch import Tensor

from thinkalike.contrib.figures.populations import draw_distances, draw_groups_by_depth
from thinkalike.contrib.papers.claims import (
    Bound,
    Claim,
    bonferroni_note,
    judged_claim,
    level_of_each,
    over_models,
    untestable_claim,
)
from thinkalike.contrib.papers.experiment import Case, Conclusion, Experiment, InnerJob
from thinkalike.contrib.papers.population_result import PopulationResult, Side, population_parts
from thinkalike.contrib.populations.clusters import (
    adjusted_rand_index,
    adjusted_rand_index_p,
    cluster,
)
from thinkalike.contrib.populations.group_means import (
    Grouped,
    grouped,
    onset_of_difference,
    symmetric,
)
from thinkalike.measures.estimates import Estimate, interval_around, student_t

# Of an accuracy: "almost no penalty" is at most this.
SMALL_PENALTY = 0.02
# Of CKA: by how much it may tell groups apart where it should not.
SMALL_CKA_GAP = 0.02
# Of CKA or accuracy: groups that differ by more have parted, and not only begun to.
PARTED = 0.02
# Of the flips between strategies: fewer than this share of them are flips of chance.
CHANCE_SHARE = 1 / 3
# Of an accuracy: by how much the groups differ at least.
LEAST_ACCURACY_GAP = 0.1
# Of the adjusted Rand index: above it, clusters are the groups.
LEAST_RAND_INDEX = 0.5

# Shares of the blocks.
EARLY_SHARE = 0.5
LATE_SHARE = 0.75

FIRST_CUT = -1
FIRST_LAYER = 0


def _job(case: Case, side: Side) -> list[InnerJob]:
    """Return the one job of a figure: the comparison of its population on one side's pairs."""
    return [InnerJob(side, changes={**population_parts(case, side)})]


# ---- Figures.


def _figure2(case: Case) -> Conclusion:
    """Identity stitches and CKA within and between the groups, on held-out pairs."""
    population = PopulationResult.of(case, "report")
    claims = stitching_claims(population, "on held-out pairs")
    claims.append(late_layers_part(population))
    claims += cluster_claims(population)
    tables = {**_stitch_panels(population, ""), **_cka_panel(population, "")}
    if population.config.null:
        null = population.null
        tables |= {**_stitch_panels(null, ", null"), **_cka_panel(null, ", null")}
        claims.append(_null_is_not_told_apart(null))
    return _by_depth(tables, claims)


def _figure7(case: Case) -> Conclusion:
    """The same identity stitches on the challenge."""
    population = PopulationResult.of(case, "challenge")
    claims = [gap_claim(population), *stitching_claims(population, "on the challenge")]
    tables = _stitch_panels(population, ", challenge")
    if population.config.null:
        tables |= _stitch_panels(population.null, ", challenge, null")
        claims.append(null_flips_less(population))
    return _by_depth(tables, claims)


def _figure8(case: Case) -> Conclusion:
    """Distances between the models from CKA of all layers."""
    population = PopulationResult.of(case, "report")
    rows = []
    for source, target in itertools.product(population.group_of.items(), repeat=2):
        source_name, source_group = source
        target_name, target_group = target
        pair = " and ".join(sorted((source_group, target_group)))
        rows.append((source_name, target_name, source_group, target_group, pair))
    columns = ["source", "target", "group_of_source", "group_of_target", "pair"]
    table = pd.DataFrame(rows, columns=columns)
    table = table.assign(value=population.distances.flatten().numpy())

    difference = population.grouped(population.distances[..., None]).difference
    nearer = judged_claim(
        "models of one group are nearer to each other than models of two",
        [(Bound("below"), difference)],
        f"mean distance within minus between {difference[0]:+.3f}",
        population.units,
    )
    claims = [nearer, *cluster_claims(population)]
    return Conclusion(table, claims, partial(draw_distances, table))


def _by_depth(panels: dict[str, pd.DataFrame], claims: list[Claim]) -> Conclusion:
    """Return the conclusion of a figure with panels of values by depth.

    Args:
        panels: The table of each panel, by its title.
        claims: What is claimed.
    """
    with_titles = [table.assign(panel=title) for title, table in panels.items()]
    table = pd.concat(with_titles, ignore_index=True)
    return Conclusion(table, claims, partial(draw_groups_by_depth, panels))


def _stitch_panels(population: PopulationResult, ending: str) -> dict[str, pd.DataFrame]:
    """Return two tables, of what identity stitches cost and flip, by the title of their panel.

    Args:
        population: The result of a population.
        ending: The end of both titles, which says what is special.
    """
    penalties = population.grouped(population.penalties, examples=True)
    flips = population.grouped(population.flips, examples=True)
    axis = "last layer of the source"
    return {
        f"identity stitches{ending}": _panel(
            penalties, population, FIRST_CUT, "accuracy_penalty", axis
        ),
        f"flipped predictions{ending}": _panel(flips, population, FIRST_CUT, "flips", axis),
    }


def _cka_panel(population: PopulationResult, ending: str) -> dict[str, pd.DataFrame]:
    """Return a table of the mean CKA of each two groups by layer, by the title of its panel."""
    means = population.grouped(population.likeness)
    return {f"CKA{ending}": _panel(means, population, FIRST_LAYER, "value", "layer")}


def _panel(
    means: Grouped, population: PopulationResult, first: int, column: str, axis: str
) -> pd.DataFrame:
    """Return a row with the mean of each pair of groups at each depth.

    Args:
        means: The means, with one depth for each index of their last axis.
        population: The result that names the groups.
        first: The depth of the first index.
        column: What the values are called.
        axis: What the depths are called.
    """
    rows = []
    groups = list(enumerate(population.group_names))
    n_depths = means.cells.value.shape[-1]
    for (source, source_name), (target, target_name) in itertools.product(groups, repeat=2):
        for index in range(n_depths):
            mean, low, high = (float(end) for end in means.cells[source, target, index])
            rows.append((f"{source_name} into {target_name}", index + first, mean, low, high))
    table = pd.DataFrame(rows, columns=["pair", "place", "mean", "low", "high"])
    return table.assign(column=column, axis=axis)


# ---- Claims about identity stitches.

Kind = Literal["cells", "directed"]
LateClaim = tuple[str, Bound, Tensor, Kind, list[tuple[int, int]]]
"""The claim, its bound, its values, the kind of means, and directions between groups."""


def stitching_claims(population: PopulationResult, where: str) -> list[Claim]:
    """Return the claims about stitches.

    Each direction is judged by itself, as signed accuracies may cancel. In models of fewer than 5
    blocks no cut is late, and the claims about late cuts are untestable.

    Args:
        population: The result of a population.
        where: The end of each claim: on which pairs.
    """
    n_blocks = population.penalties.shape[2] - 1
    cuts = range(n_blocks + 1)
    early = [cut for cut in cuts if cut <= EARLY_SHARE * n_blocks]
    late = [cut for cut in cuts if LATE_SHARE * n_blocks < cut < n_blocks]

    groups = range(len(population.group_names))
    directions = [(source, target) for source in groups for target in groups]
    within = [direction for direction in directions if direction[0] == direction[1]]
    between = [direction for direction in directions if direction[0] != direction[1]]
    is_small = Bound("below", SMALL_PENALTY)
    is_positive = Bound("above")
    penalties = population.penalties

    claims = [
        _by_direction(
            f"stitches at early cuts cost almost nothing {where}",
            population,
            is_small,
            penalties,
            "cells",
            directions,
            early,
        )
    ]
    late_claims: tuple[LateClaim, ...] = (
        (
            "late stitches between the groups cost more than within",
            is_positive,
            penalties,
            "directed",
            between,
        ),
        (
            "late stitches between the groups flip more predictions than within",
            is_positive,
            population.flips,
            "directed",
            between,
        ),
        (
            "late stitches within a group cost almost nothing",
            is_small,
            penalties,
            "cells",
            within,
        ),
    )
    for claim, bound, values, kind, some_directions in late_claims:
        if late:
            claims.append(
                _by_direction(
                    f"{claim} {where}", population, bound, values, kind, some_directions, late
                )
            )
        else:
            reason = "no cut is late in models of fewer than 5 blocks"
            claims.append(untestable_claim(f"{claim} {where}", reason))
    return claims


def _by_direction(
    claim: str,
    population: PopulationResult,
    bound: Bound,
    values: Float[Tensor, "m m c n"],
    kind: Kind,
    directions: Sequence[tuple[int, int]],
    cuts: Sequence[int],
) -> Claim:
    """Return a claim about some directions between groups at some cuts.

    Args:
        claim: The claim in words.
        population: The result that the values are of.
        bound: Where each number must be for the claim to hold.
        values: A value of each pair of m models, at each of c cuts, for each of n examples.
        kind: "cells": about the means; "directed": about differences from the target's own group.
        directions: The groups of the source and of the target, by number.
        cuts: The indices of the cuts.
    """
    count = len(directions) * len(cuts)
    names = population.group_names
    all_means = population.grouped(values, examples=True, level=level_of_each(count))
    means = all_means.cells if kind == "cells" else all_means.directed
    listed = []
    for source, target in directions:
        by_cut = _listed_depths(means[source, target], cuts, FIRST_CUT)
        listed.append(f"{names[source]} into {names[target]} {by_cut}")
    numbers = "; ".join(listed)
    if kind == "directed":
        numbers += f"; {_where_groups_part(-values.mean(-1), population, 'cut', FIRST_CUT)}"
    bounded = [(bound, means[source, target][list(cuts)]) for source, target in directions]
    return judged_claim(
        claim, bounded, f"{numbers}{bonferroni_note(count)}", population.units_with_examples
    )


def gap_claim(population: PopulationResult) -> Claim:
    """Return the claim that one group is right more often.

    The interval is Welch's, over models and pairs of texts.
    """
    group_of = list(population.group_of.values())
    correct = []
    for name in population.group_names:
        is_member = [group == name for group in group_of]
        correct.append(population.correct_alone[is_member])
    first, second = correct[:2]

    # Each entry of `correct` has the models of a group in rows, and the pairs in columns.
    over_models_variance = sum(group.mean(1).var() / len(group) for group in correct)
    over_texts_variance = (first.mean(0) - second.mean(0)).var() / first.shape[1]
    freedom = min(len(group) for group in correct) - 1
    half = student_t(0.95, freedom) * (over_models_variance + over_texts_variance).sqrt()
    gap = interval_around(first.mean() - second.mean(), half)
    means = " and ".join(f"{float(group.mean()):.3f}" for group in correct)
    return judged_claim(
        "the two groups differ on the challenge",
        [(Bound("above", LEAST_ACCURACY_GAP), gap)],
        f"mean accuracy {means}, difference {gap:+.3f}",
        population.units_with_examples,
    )


def null_flips_less(population: PopulationResult) -> Claim:
    """Return the claim that the null flips less than a third of what two strategies flip.

    It is about the last cut but one. It is untestable with fewer than three models in a group.
    """
    claim = (
        "the null: parents of one strategy flip under a third of what two strategies flip on the "
        "challenge"
    )
    all_groups = replace(population, chosen_groups=())
    group_of = list(all_groups.group_of.values())
    if min(Counter(group_of).values()) < 3:
        reason = "an interval leaves out a model at a time, so groups must have three"
        return untestable_claim(claim, reason)

    strategy = population.group_names[0]
    null_groups = list(population.config.null or [])
    flips = all_groups.flips[:, :, -2].mean(-1)  # (m, m)

    def excess(models: list[int]) -> float:
        """Return by how much the null's flips exceed their share of the strategies' flips."""
        groups = [group_of[model] for model in models]
        cells = grouped(flips[models][:, models, None], groups).cells.value[..., 0]
        means = symmetric(cells)
        names = list(dict.fromkeys(groups))
        first, second = (names.index(name) for name in null_groups)
        of_null = means[first, second]
        of_strategies = means[names.index(strategy), first]
        return float(of_null - CHANCE_SHARE * of_strategies)

    value = over_models(excess, range(len(group_of)))
    numbers = (
        f"flips between {' and '.join(null_groups)} minus a third of those between {strategy} and "
        f"{null_groups[0]}: {value:+.3f}"
    )
    return judged_claim(claim, [(Bound("below"), value)], numbers, all_groups.units_with_examples)


# ---- Claims about CKA.


def late_layers_part(population: PopulationResult) -> Claim:
    """Return the claim that CKA tells groups apart late, and not early.

    Late is the last quarter of the layers, early the first half.
    """
    n_layers = population.likeness.shape[-1]
    n_late = max(n_layers // 4, 1)
    early = list(range(n_layers // 2))
    late = list(range(n_layers - n_late, n_layers))
    count = len(early) + len(late)
    gap = population.grouped(population.likeness, level=level_of_each(count)).difference
    by_layer = _listed_depths(gap, range(n_layers), FIRST_LAYER)
    parting = _where_groups_part(population.likeness, population, "layer", FIRST_LAYER)
    return judged_claim(
        "CKA tells the groups apart in late layers, and not in early ones",
        [(Bound("above"), gap[late]), (Bound("within", SMALL_CKA_GAP), gap[early])],
        f"within minus between {by_layer}{bonferroni_note(count)}; {parting}",
        population.units,
    )


def _null_is_not_told_apart(null: PopulationResult) -> Claim:
    """Return the claim that CKA in the last layer does not tell the null's two parents apart."""
    gap = null.grouped(null.likeness[..., -1:]).difference
    parting = _where_groups_part(null.likeness, null, "layer", FIRST_LAYER)
    return judged_claim(
        "the null: CKA in the last layer does not tell two parents of one strategy apart",
        [(Bound("within", SMALL_CKA_GAP), gap)],
        f"within minus between {gap[0]:+.3f}; {parting}",
        null.units,
    )


def _listed_depths(estimate: Estimate, indices: Sequence[int], first: int) -> str:
    """Return "depth: value [interval]" at some indices of an estimate's axis, as one text.

    Args:
        estimate: One number for each depth.
        indices: The indices that are listed.
        first: The depth of index 0.
    """
    return ", ".join(f"{index + first}: {estimate[index]:+.3f}" for index in indices)


def _where_groups_part(
    values: Float[Tensor, "m m l"], population: PopulationResult, depth: str, first: int
) -> str:
    """Say at which depth groups first differ, and where they first do by more than `PARTED`.

    Args:
        values: A likeness of each pair of m models at each of l depths.
        population: The result that the values are of.
        depth: What a depth is called: "cut" or "layer".
        first: The number of the first one.
    """
    n_depths = values.shape[-1]
    gap = population.grouped(values, level=level_of_each(n_depths)).difference
    names = []
    for index in (onset_of_difference(gap), onset_of_difference(gap, PARTED)):
        names.append("none" if index is None else str(index + first))
    any_difference, clear_difference = names
    return (
        f"the first {depth} that shows a difference is {any_difference}, "
        f"one of more than {PARTED} {clear_difference}"
    )


# ---- Claims about clusters, which the paper left undone.


def cluster_claims(population: PopulationResult) -> list[Claim]:
    """Return the claims that flips alone, and distances alone, cluster models by their groups."""
    flips = population.flips.mean(-1)  # (m, m, cuts)
    n_blocks = flips.shape[-1] - 1
    first_late_cut = max(int(LATE_SHARE * n_blocks), 0)
    late_flips = symmetric(flips[..., first_late_cut:-1].mean(-1)).fill_diagonal_(0)
    return [
        _cluster_claim(population, "flipped predictions", late_flips),
        _cluster_claim(population, "CKA distances", population.distances),
    ]


def _cluster_claim(
    population: PopulationResult, source: str, distances: Float[Tensor, "m m"]
) -> Claim:
    """Return the claim that clusters by some distances are the groups.

    Args:
        population: The result of a population.
        source: What the distances come from, in words.
        distances: The distances of its models.
    """
    partitions: dict[str, list[Hashable]] = {"the groups": list(population.group_of.values())}
    if population.config.cluster:
        prefix = "" if population.config.members == "local" else f"{population.config.members}-"
        in_cluster = {f"{prefix}{number}" for number in population.config.cluster}
        partitions["the published cluster"] = [name in in_cluster for name in population.group_of]

    n_clusters = len(population.group_names)
    labels = cluster(distances, n_clusters)
    indices = {}
    listed = []
    for name, partition in partitions.items():
        index = over_models(
            partial(_rand_index, distances, n_clusters, partition), range(len(partition))
        )
        p = adjusted_rand_index_p(labels, partition)
        listed.append(f"adjusted Rand index with {name} {index:.2f}, p = {p:.4f}")
        indices[name] = index
    return judged_claim(
        f"clusters from {source} alone are the groups",
        [(Bound("above", LEAST_RAND_INDEX), indices["the groups"])],
        ", ".join(listed),
        population.units,
    )


def _rand_index(
    distances: Float[Tensor, "m m"],
    n_clusters: int,
    partition: Sequence[Hashable],
    models: list[int],
) -> float:
    """Return the adjusted Rand index of the clusters of some models and a partition of all.

    Args:
        distances: The distances of all m models.
        n_clusters: How many clusters there are.
        partition: The class of each model.
        models: The indices of the models that count.
    """
    labels = cluster(distances[models][:, models], n_clusters)
    return adjusted_rand_index(labels, [partition[model] for model in models])


MODELS: dict[str, list[str]] = {"paper": [], "mini": []}  # a population names its own
EXPERIMENTS = [
    Experiment("brown2023/figure2", _figure2, MODELS, partial(_job, side="report"), "population"),
    Experiment(
        "brown2023/figure7", _figure7, MODELS, partial(_job, side="challenge"), "population"
    ),
    Experiment("brown2023/figure8", _figure8, MODELS, partial(_job, side="report"), "population"),
]
