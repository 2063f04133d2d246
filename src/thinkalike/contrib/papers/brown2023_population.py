"""In which layers groups of classifiers differ: figures 2, 7 and 8 of Brown et al. 2023.

One group generalizes, and the other one uses a heuristic. At mini scale the answer is known: the
groups are children of two parents, which were trained differently from one block on. There is also
a null that the paper lacks: children of two parents that differ only in the seed.

A cut is the number of the source's blocks in an identity stitch. Tables and figures name a cut by
the last layer of the source, which is -1, the embedding, for no block. At an early cut, at most
half of the blocks are the source's. At a late cut, more than three quarters of them are, but not
all: at the last cut, only the pooler and the classifier are the target's.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import pandas as pd
from jaxtyping import Float
from torch import Tensor

from thinkalike.contrib.figures.populations import draw_distances, draw_groups_by_depth
from thinkalike.contrib.papers.claims import (
    ABOVE_ZERO,
    BELOW_ZERO,
    Bound,
    Claim,
    bonferroni_level,
    bonferroni_note,
    judged_claim,
    over_models,
    untestable_claim,
)
from thinkalike.contrib.papers.experiment import Conclusion, Experiment, ExperimentRun, InnerJob
from thinkalike.contrib.papers.population_result import (
    EvaluatedPairs,
    PopulationResult,
    population_parts,
)
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

# "Almost no penalty" is a loss of accuracy of at most this.
SMALL_PENALTY = 0.02
# CKA within groups and between them may differ by this much where it should not tell them apart.
SMALL_CKA_GAP = 0.02
# Groups differ clearly in CKA or accuracy if they differ by more than this.
CLEAR_DIFFERENCE = 0.02
# Flips by chance are fewer than this share of the flips between groups of different strategies.
CHANCE_SHARE = 1 / 3
# The accuracies of the groups differ by at least this.
LEAST_ACCURACY_GAP = 0.1
# Clusters are the groups if their adjusted Rand index is above this.
LEAST_RAND_INDEX = 0.5

# Early cuts have at most this share of the blocks before them, ...
EARLY_SHARE = 0.5
# ... and late cuts more than this.
LATE_SHARE = 0.75

# What tables and figures call the first cut and the first layer.
FIRST_CUT = -1
FIRST_LAYER = 0


def _population_jobs(experiment: ExperimentRun, evaluated: EvaluatedPairs) -> list[InnerJob]:
    """Return the one job of a figure: the comparison of its classifiers on one set of texts.

    The set is called "report" for held-out texts, and "challenge" for texts on which a classifier
    fails that relies on a heuristic. Its name is also the label of the job. The classifiers are
    those of the population in the job's configuration.
    """
    changes = dict(population_parts(experiment, evaluated))
    return [InnerJob(label=evaluated, changes=changes)]


# ---- Figures.


def _conclude_figure2(experiment: ExperimentRun) -> Conclusion:
    """Judge the claims of figure 2 of Brown et al. 2023, about groups of classifiers.

    On held-out texts, identity stitches (early blocks of one classifier in front of late blocks of
    another, without a map) and CKA are compared within and between the groups.

    A population may also have a null: two groups whose parents differ only in the seed. The null
    then gets panels (subplots) and a claim of its own: CKA of the last layer does not tell its two
    groups apart.
    """
    population = PopulationResult.of(experiment, "report")  # "report" is the set of held-out texts
    claims = stitching_claims(population, "on held-out pairs")
    claims.append(claim_that_late_layers_differ(population))
    claims += cluster_claims(population)
    panels = _stitch_panel_tables(population, "") | _cka_panel_table(population, "")
    if population.config.null:  # titles of its panels end with ", null"
        null = population.null
        panels |= _stitch_panel_tables(null, ", null") | _cka_panel_table(null, ", null")
        claims.append(_claim_that_null_groups_are_alike(null))
    return _conclusion_with_panels(panels, claims, population.units)


def _conclude_figure7(experiment: ExperimentRun) -> Conclusion:
    """Judge the claims of figure 7 of Brown et al. 2023: identity stitches on challenge texts.

    A population is a set of classifiers of pairs of texts, in groups. The challenge is a set of
    pairs that a classifier gets wrong if it uses a heuristic. An identity stitch puts early blocks
    of one classifier in front of late blocks of another.

    A population may also have a null: two groups whose parents (the models that their classifiers
    were fine-tuned from) differ only in the seed. The null then gets panels (subplots) and a claim
    of its own: stitches between its two groups change fewer predictions than stitches between
    groups that use different strategies.
    """
    population = PopulationResult.of(experiment, "challenge")
    claims = [accuracy_gap_claim(population), *stitching_claims(population, "on the challenge")]
    panels = _stitch_panel_tables(population, ", challenge")
    if population.config.null:
        panels |= _stitch_panel_tables(population.null, ", challenge, null")
        claims.append(claim_that_null_flips_fewer_predictions(population))
    return _conclusion_with_panels(panels, claims, population.units)


def _conclude_figure8(experiment: ExperimentRun) -> Conclusion:
    """Judge the claims of figure 8 of Brown et al. 2023: distances between classifiers, from CKA.

    The distance of two classifiers is √Σ arccos²(CKA) over layers. It is claimed that classifiers
    of one group are nearer to each other, and that clusters by distance are the groups.
    """
    population = PopulationResult.of(experiment, "report")  # "report" is the set of held-out texts
    # Means are taken for each entry of the axes after source and target. Two classifiers have a
    # single distance, for which an axis of length 1 is added.
    distances = population.distances[..., None]  # (source, target, 1)
    difference = population.means_by_group(distances).difference  # (1,)
    nearer = judged_claim(
        "models of one group are nearer to each other than models of two",
        [(BELOW_ZERO, difference)],
        finding=f"mean distance within minus between {difference[0]:+.3f}",
        units=population.units,
    )
    claims = [nearer, *cluster_claims(population)]
    table = _distance_table(population)
    return Conclusion(table, claims, partial(draw_distances, table))


def _distance_table(population: PopulationResult) -> pd.DataFrame:
    """Return a row for each two classifiers of a population, with their groups and distance.

    Each of the two is the source in one row and the target in another. The distance (column
    `value`) is √Σ arccos²(CKA) over layers. `pair` has the names of both groups in alphabetical
    order.
    """
    rows = []
    for source, target in itertools.product(population.group_of.items(), repeat=2):
        source_name, source_group = source
        target_name, target_group = target
        pair = " and ".join(sorted((source_group, target_group)))
        rows.append((source_name, target_name, source_group, target_group, pair))
    columns = ["source", "target", "group_of_source", "group_of_target", "pair"]
    # The rows are in the order of the flattened matrix of distances.
    return pd.DataFrame(rows, columns=columns).assign(value=population.distances.flatten().numpy())


def _conclusion_with_panels(
    panels: dict[str, pd.DataFrame], claims: list[Claim], units: str
) -> Conclusion:
    """Return the conclusion of a figure whose panels show values by depth.

    Args:
        panels: The table of each panel (subplot), by its title.
        claims: The judged claims.
        units: What the intervals of the values are over, in words.
    """
    with_titles = [table.assign(panel=title) for title, table in panels.items()]
    table = pd.concat(with_titles, ignore_index=True)
    return Conclusion(table, claims, partial(draw_groups_by_depth, panels, units=units))


def _stitch_panel_tables(population: PopulationResult, ending: str) -> dict[str, pd.DataFrame]:
    """Return the tables of two panels about identity stitches, by the titles of the panels.

    An identity stitch puts early blocks of one classifier in front of late blocks of another. One
    panel has the accuracy that is lost, the other the share of predictions that differ from the
    target's.

    Args:
        population: The result of a population.
        ending: The end of both titles, such as ", null".
    """
    # Both have a value for each pair of sentences (example), over which the means are taken too.
    penalties = population.means_by_group(population.penalties, examples=True)
    flips = population.means_by_group(population.flips, examples=True)
    axis = "last layer of the source"
    return {
        f"identity stitches{ending}": _panel_table(
            penalties, population, FIRST_CUT, "accuracy_penalty", axis
        ),
        f"flipped predictions{ending}": _panel_table(flips, population, FIRST_CUT, "flips", axis),
    }


def _cka_panel_table(population: PopulationResult, ending: str) -> dict[str, pd.DataFrame]:
    """Return the mean CKA of each two groups of classifiers at each layer, by the panel's title.

    Args:
        population: The result of a population (classifiers in groups).
        ending: The end of the title, such as ", null".
    """
    means = population.means_by_group(population.cka)
    return {f"CKA{ending}": _panel_table(means, population, FIRST_LAYER, "value", "layer")}


def _panel_table(
    means: Grouped, population: PopulationResult, first_depth: int, column: str, axis: str
) -> pd.DataFrame:
    """Return the table of one panel: a row for each source group, target group and depth.

    The column `place` is the depth. `column` and `axis` are the same in all rows.

    Args:
        means: Means over pairs of models; their last axis is the depth.
        population: The result that names the groups.
        first_depth: The depth at index 0 of that axis.
        column: The name of the values in the figure.
        axis: The name of the depths in the figure.
    """
    rows = []
    groups = list(enumerate(population.group_names))
    cells = means.cells  # (source group, target group, depth)
    n_depths = cells.value.shape[-1]
    for (source, source_name), (target, target_name) in itertools.product(groups, repeat=2):
        for index in range(n_depths):
            mean, low, high = (float(number) for number in cells[source, target, index])
            pair = f"{source_name} into {target_name}"
            rows.append((pair, index + first_depth, mean, low, high))
    table = pd.DataFrame(rows, columns=["pair", "place", "mean", "low", "high"])
    return table.assign(column=column, axis=axis)


# ---- Claims about identity stitches.


class StitchClaim(NamedTuple):
    """A claim about identity stitches: early blocks of one model in front of late ones of another.

    Attributes:
        text: The claim in words.
        bound: Where each mean must be for the claim to hold.
        values: A value of each pair of m models, at each of c cuts, for each of n examples.
        directions: Pairs of the index of the source's group and that of the target's group. There
            is a mean for each direction and cut.
        is_beyond_own_group: Whether the mean over sources from the target's own group is
            subtracted from each mean.
    """

    text: str
    bound: Bound
    values: Float[Tensor, "m m c n"]
    directions: Sequence[tuple[int, int]]
    is_beyond_own_group: bool = False


def stitching_claims(population: PopulationResult, where: str) -> list[Claim]:
    """Judge the claims about identity stitches.

    Such a stitch runs the embedding and the first blocks of one model, up to a cut, and then the
    later blocks of another. In models of fewer than 5 blocks no cut is late, and the claims about
    late cuts are untestable.

    Args:
        population: The result of a population.
        where: The end of each claim: on which pairs of texts.
    """
    n_blocks = population.penalties.shape[2] - 1
    # A cut is the number of blocks of the source. At the last one, all blocks are the source's.
    cuts = range(n_blocks + 1)
    early_cuts = [cut for cut in cuts if cut <= EARLY_SHARE * n_blocks]
    late_cuts = [cut for cut in cuts if LATE_SHARE * n_blocks < cut < n_blocks]

    early_claim = _claim_about_early_stitches(population, where)
    claims = [_judged_stitch_claim(early_claim, population, early_cuts)]
    for late_claim in _claims_about_late_stitches(population, where):
        if late_cuts:
            claims.append(_judged_stitch_claim(late_claim, population, late_cuts))
        else:
            reason = "no cut is late in models of fewer than 5 blocks"
            claims.append(untestable_claim(late_claim.text, reason))
    return claims


def _group_directions(population: PopulationResult) -> list[tuple[int, int]]:
    """Return all pairs of the index of a source's group and that of a target's group."""
    groups = range(len(population.group_names))
    return list(itertools.product(groups, groups))


def _claim_about_early_stitches(population: PopulationResult, where: str) -> StitchClaim:
    """Return the claim, not judged yet, that stitches at early cuts cost little accuracy.

    A stitch has the first blocks of one classifier, the source, in front of the last blocks of
    another, the target; its penalty is the accuracy that the target loses by that. The claim
    contains the penalties at all cuts. The caller, `stitching_claims`, judges it at early cuts
    alone, where at most half of the blocks are the source's.

    Args:
        population: The result of comparing the classifiers of a population.
        where: The last words of the claim, which say on which pairs of texts it is judged.
    """
    return StitchClaim(
        f"stitches at early cuts cost almost nothing {where}",
        bound=Bound("below", SMALL_PENALTY),
        values=population.penalties,
        directions=_group_directions(population),
    )


def _claims_about_late_stitches(population: PopulationResult, where: str) -> list[StitchClaim]:
    """Return the claims about stitches of which nearly all blocks are the source's.

    A stitch has the first blocks of one classifier, the source, in front of the last blocks of
    another, the target. The claims contain the values of stitches at all cuts. The caller,
    `stitching_claims`, judges them at late cuts alone, where more than three quarters of the
    blocks are the source's.

    A penalty is the accuracy that a target loses if its first blocks are replaced by the source's,
    and a flip is a prediction that changes. In claims about two groups, the penalty of stitches
    between them minus that of stitches within the target's group is judged, and likewise for
    flips. Each direction between two groups is judged by itself, as signed penalties may cancel.

    Args:
        population: The result of a population.
        where: The end of each claim: on which pairs of texts.
    """
    directions = _group_directions(population)  # (source group, target group), all pairs
    within = [(source, target) for source, target in directions if source == target]
    between = [(source, target) for source, target in directions if source != target]
    return [
        StitchClaim(
            f"late stitches between the groups cost more than within {where}",
            bound=ABOVE_ZERO,
            values=population.penalties,
            directions=between,
            is_beyond_own_group=True,
        ),
        StitchClaim(
            f"late stitches between the groups flip more predictions than within {where}",
            bound=ABOVE_ZERO,
            values=population.flips,
            directions=between,
            is_beyond_own_group=True,
        ),
        StitchClaim(
            f"late stitches within a group cost almost nothing {where}",
            bound=Bound("below", SMALL_PENALTY),
            values=population.penalties,
            directions=within,
        ),
    ]


def _judged_stitch_claim(
    claim: StitchClaim, population: PopulationResult, cuts: Sequence[int]
) -> Claim:
    """Judge a claim about identity stitches in some directions between groups, at some cuts.

    The intervals hold for all directions and cuts together.

    Args:
        claim: The claim with its values and directions.
        population: The population from which the values come.
        cuts: For each cut, the number of early blocks that come from the source; the target's late
            blocks follow.
    """
    count = len(claim.directions) * len(cuts)
    all_means = population.means_by_group(
        claim.values, examples=True, level=bonferroni_level(count)
    )
    means = all_means.cells  # (source group, target group, cut)
    if claim.is_beyond_own_group:
        # The same means, minus those of sources from the target's own group.
        means = all_means.beyond_own_group

    names = population.group_names
    bounds_and_estimates = []
    findings = []
    for source, target in claim.directions:  # the indices of two groups
        bounds_and_estimates.append((claim.bound, means[source, target][list(cuts)]))
        # A cut is listed by the last layer of the source: -1, the embedding, for no block.
        by_cut = _listed_depths(means[source, target], cuts, FIRST_CUT)
        findings.append(f"{names[source]} into {names[target]} {by_cut}")
    if claim.is_beyond_own_group:
        # The function takes similarities, and models are similar if penalties are low.
        similarities = -claim.values.mean(-1)
        findings.append(_depths_of_first_difference(similarities, population, "cut", FIRST_CUT))
    finding = f"{'; '.join(findings)}{bonferroni_note(count)}"
    return judged_claim(claim.text, bounds_and_estimates, finding, population.units_with_examples)


def accuracy_gap_claim(population: PopulationResult) -> Claim:
    """Judge the claim that the first group of classifiers is right more often than the second.

    The classifiers are judged alone, without stitches. The difference of the mean accuracies of
    both groups must be above `LEAST_ACCURACY_GAP`. Its interval is over models and pairs of texts.
    It is Student's t with one degree of freedom less than the smaller group has models, the least
    that Welch's formula can give, so that it is too wide rather than too narrow.
    """
    group_of_models = list(population.group_of.values())
    # For each of the first two groups, (models, n): 1 if a model is right about a pair of texts.
    correct = []
    for name in population.group_names[:2]:
        is_in_group = [group == name for group in group_of_models]
        correct.append(population.correct_alone[is_in_group])
    first, second = correct

    # The variances of the difference of means, over models and over pairs of texts, add up.
    variance_over_models = sum(group.mean(1).var() / len(group) for group in correct)
    variance_over_texts = (first.mean(0) - second.mean(0)).var() / first.shape[1]
    standard_error = (variance_over_models + variance_over_texts).sqrt()
    degrees_of_freedom = min(len(group) for group in correct) - 1
    half_width = student_t(0.95, degrees_of_freedom) * standard_error
    gap = interval_around(first.mean() - second.mean(), half_width)
    means = " and ".join(f"{float(group.mean()):.3f}" for group in correct)
    return judged_claim(
        "the two groups differ on the challenge",
        [(Bound("above", LEAST_ACCURACY_GAP), gap)],
        finding=f"mean accuracy {means}, difference {gap:+.3f}",
        units=population.units_with_examples,
    )


def claim_that_null_flips_fewer_predictions(population: PopulationResult) -> Claim:
    """Judge the claim that a difference in seed flips fewer predictions than one in strategy.

    A flip is a pair of texts for which a stitched model predicts a different class than its
    target. Flips are counted for stitches in which all blocks but one are the source's.

    The null is two groups whose parents differ in nothing but the seed. The share of flips between
    them must be under a third of the share between the first of them and the first group outside
    the null, whose parent has a different strategy. The claim
    is untestable with fewer than three models in a group.
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

    assert population.config.null is not None
    first_null, second_null = population.config.null
    # The first group outside the null, of which there is at least one.
    other_strategy = next(
        name for name in population.group_names if name not in (first_null, second_null)
    )
    flips = all_groups.flips[:, :, -2].mean(-1)  # (m, m), at the last cut but one

    def excess(models: list[int]) -> float:
        """Return the null's share of flips minus a third of that between two strategies.

        Args:
            models: The indices of the models that are compared.
        """
        groups = [group_of[model] for model in models]
        flips_between = _mean_between_groups(flips[models][:, models], groups)
        flips_of_null = flips_between[first_null, second_null]
        flips_of_strategies = flips_between[other_strategy, first_null]
        return flips_of_null - CHANCE_SHARE * flips_of_strategies

    value = over_models(excess, range(len(group_of)))
    finding = (
        f"flips between {first_null} and {second_null} minus a third of those between "
        f"{other_strategy} and {first_null}: {value:+.3f}"
    )
    return judged_claim(claim, [(BELOW_ZERO, value)], finding, all_groups.units_with_examples)


def _mean_between_groups(
    values: Float[Tensor, "m m"], groups: Sequence[str]
) -> dict[tuple[str, str], float]:
    """Return the mean value of pairs of models of any two groups, by the names of both groups.

    The mean is over both directions: a model of either group may be the source. A group is also
    paired with itself; the value of a model with itself is left out.

    Args:
        values: A value for each source and target.
        groups: The group of each of the m models.
    """
    # Means are taken for each entry of the axes after source and target. Here there is no further
    # axis, so one of length 1 is added.
    cells = grouped(values[..., None], list(groups)).cells.value[..., 0]
    means = symmetric(cells)  # (group, group), the mean of both directions
    names = list(dict.fromkeys(groups))  # in the order of both axes
    return {
        (first, second): float(means[row, column])
        for row, first in enumerate(names)
        for column, second in enumerate(names)
    }


# ---- Claims about CKA.


def claim_that_late_layers_differ(population: PopulationResult) -> Claim:
    """Judge the claim that CKA tells groups of classifiers apart in late layers alone.

    The gap is the mean CKA of two classifiers of one group, minus that of two groups. It must be
    above 0 in the last quarter of the layers (at least one), and nearly 0 in the first half. Its
    intervals hold for all these layers together (Bonferroni).

    Args:
        population: The result of comparing the classifiers, with `cka` of shape (models, models,
            layers).
    """
    n_layers = population.cka.shape[-1]
    n_late_layers = max(n_layers // 4, 1)
    early_layers = list(range(n_layers // 2))
    late_layers = list(range(n_layers - n_late_layers, n_layers))
    n_judged = len(early_layers) + len(late_layers)
    gap = population.means_by_group(population.cka, level=bonferroni_level(n_judged)).difference
    by_layer = _listed_depths(gap, range(n_layers), FIRST_LAYER)
    # In words: the first layer at which groups differ, and the first at which they clearly do.
    onsets = _depths_of_first_difference(population.cka, population, "layer", FIRST_LAYER)
    return judged_claim(
        "CKA tells the groups apart in late layers, and not in early ones",
        [(ABOVE_ZERO, gap[late_layers]), (Bound("within", SMALL_CKA_GAP), gap[early_layers])],
        finding=f"within minus between {by_layer}{bonferroni_note(n_judged)}; {onsets}",
        units=population.units,
    )


def _claim_that_null_groups_are_alike(null: PopulationResult) -> Claim:
    """Judge the claim that CKA of the last layer does not tell the null's two groups apart.

    The parents of these groups differ in nothing but the seed. The gap is the mean CKA within
    groups minus that between them; it must be nearly 0.

    Args:
        null: The result of the population, with the models of these two groups alone.
    """
    gap = null.means_by_group(null.cka[..., -1:]).difference
    onsets = _depths_of_first_difference(null.cka, null, "layer", FIRST_LAYER)
    return judged_claim(
        "the null: CKA in the last layer does not tell two parents of one strategy apart",
        [(Bound("within", SMALL_CKA_GAP), gap)],
        finding=f"within minus between {gap[0]:+.3f}; {onsets}",
        units=null.units,
    )


def _listed_depths(estimate: Estimate, indices: Sequence[int], first_depth: int) -> str:
    """Return a text such as "3: +0.037 [+0.032, +0.043], 4: ...", with depths before values.

    Args:
        estimate: One number for each depth.
        indices: The indices of the estimate that are listed.
        first_depth: The depth at index 0.
    """
    return ", ".join(f"{index + first_depth}: {estimate[index]:+.3f}" for index in indices)


def _depths_of_first_difference(
    values: Float[Tensor, "m m l"], population: PopulationResult, depth: str, first_depth: int
) -> str:
    """Return in words at which depth groups of models first differ, and first differ clearly.

    They differ where the interval of (mean within groups - mean between groups) excludes 0, and
    clearly where it excludes all values up to ±`CLEAR_DIFFERENCE`. The word "none" stands for a
    depth if they differ nowhere.

    Args:
        values: A similarity of each pair of m models at each of l depths.
        population: The population from which the values come.
        depth: The name of a depth: "cut" or "layer".
        first_depth: The depth at index 0.
    """
    n_depths = values.shape[-1]
    gap = population.means_by_group(values, level=bonferroni_level(n_depths)).difference

    def in_words(index: int | None) -> str:
        """Return the depth at an index, or "none"."""
        return "none" if index is None else str(index + first_depth)

    any_onset = in_words(onset_of_difference(gap))
    clear_onset = in_words(onset_of_difference(gap, CLEAR_DIFFERENCE))
    return (
        f"the first {depth} that shows a difference is {any_onset}, "
        f"one of more than {CLEAR_DIFFERENCE} {clear_onset}"
    )


# ---- Claims about clusters, which the paper left undone.


def cluster_claims(population: PopulationResult) -> list[Claim]:
    """Judge the claims that two clusterings of the models find their groups.

    One clustering uses distances from CKA. The other uses identity stitches: the first blocks of a
    source run in front of the last blocks of a target, without a map between. Two models are far
    apart if many predictions change by this. Only late cuts count, at which the source has
    `LATE_SHARE` of the blocks, rounded down to whole blocks, or more, but not all.
    """
    # (source, target, cut): the share of the pairs of texts whose prediction changes. A cut is the
    # number of blocks of the source; all models of a population have equally many blocks.
    flips = population.flips.mean(-1)
    n_blocks = flips.shape[-1] - 1
    first_late_cut = int(LATE_SHARE * n_blocks)  # rounded down
    # At the last cut, all blocks are those of the source; it is left out.
    directed_flips = flips[..., first_late_cut:-1].mean(-1)  # (source, target)
    late_flips = symmetric(directed_flips).fill_diagonal_(0)  # a distance between two models
    return [
        _cluster_claim(population, "flipped predictions", late_flips),
        _cluster_claim(population, "CKA distances", population.distances),
    ]


def _cluster_claim(
    population: PopulationResult, origin: str, distances: Float[Tensor, "m m"]
) -> Claim:
    """Judge the claim that clusters of the models, by some distances, are their groups.

    The statistic is the adjusted Rand index of clusters and groups, with a jackknife interval over
    models. Where a paper has published a cluster, the index with it is listed as well.

    Args:
        population: The result of a population.
        origin: What the distances come from, in words.
        distances: The distance between any two of the m models.
    """
    n_clusters = len(population.group_names)
    cluster_of_model = cluster(distances, n_clusters)
    all_models = range(len(distances))
    rand_indices = {}
    findings = []
    for name, partition in _known_partitions(population).items():
        index_for_models = partial(_rand_index, distances, n_clusters, partition)
        rand_index = over_models(index_for_models, all_models)  # with a jackknife interval
        p = adjusted_rand_index_p(cluster_of_model, partition)
        findings.append(f"adjusted Rand index with {name} {rand_index:.2f}, p = {p:.4f}")
        rand_indices[name] = rand_index
    return judged_claim(
        f"clusters from {origin} alone are the groups",
        [(Bound("above", LEAST_RAND_INDEX), rand_indices["the groups"])],
        finding=", ".join(findings),
        units=population.units,
    )


def _known_partitions(population: PopulationResult) -> dict[str, list[Hashable]]:
    """Return the partitions of the models that clusters are compared with, by name.

    A partition has a label for each model: its group, or whether it is in the cluster that a paper
    has published (if there is one).
    """
    partitions: dict[str, list[Hashable]] = {"the groups": list(population.group_of.values())}
    if population.config.cluster:
        # The configuration has the numbers of models. In the names of models, these follow a
        # common prefix; folders ("local") have none.
        prefix = "" if population.config.members == "local" else f"{population.config.members}-"
        in_cluster = {f"{prefix}{number}" for number in population.config.cluster}
        partitions["the published cluster"] = [name in in_cluster for name in population.group_of]
    return partitions


def _rand_index(
    distances: Float[Tensor, "m m"],
    n_clusters: int,
    partition: Sequence[Hashable],
    models: list[int],
) -> float:
    """Return how well a clustering of some models agrees with a known partition of them.

    The agreement is the adjusted Rand index: 1 for equal partitions, and 0 on average by chance.

    Args:
        distances: The distances between all m models.
        n_clusters: How many clusters are made.
        partition: The known class of each of the m models.
        models: The indices of the models that are clustered.
    """
    cluster_of_model = cluster(distances[models][:, models], n_clusters)
    return adjusted_rand_index(cluster_of_model, [partition[model] for model in models])


MODELS: dict[str, list[str]] = {"paper": [], "mini": []}  # a population names its own
EXPERIMENTS = [
    Experiment(
        "brown2023/figure2",
        _conclude_figure2,
        MODELS,
        partial(_population_jobs, evaluated="report"),
        "population",
    ),
    Experiment(
        "brown2023/figure7",
        _conclude_figure7,
        MODELS,
        partial(_population_jobs, evaluated="challenge"),
        "population",
    ),
    Experiment(
        "brown2023/figure8",
        _conclude_figure8,
        MODELS,
        partial(_population_jobs, evaluated="report"),
        "population",
    ),
]
