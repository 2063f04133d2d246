"""Means over pairs of models within and between groups, with intervals over models, and onsets.

Values of pairs of models may be directed: the row is the source, the column the target. A model is
never paired with itself.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from thinkalike.arguments import refuse_nan
from thinkalike.measures.estimates import Estimate, interval_around, student_t

FEWEST_MODELS = 4  # of a group; the jackknife over fewer covers too little
MEAN_ROUNDING = 1e-12  # a difference of means that is this close to 0 counts as 0

# Within groups, between groups, and their difference stand before the cells in a table of means.
N_SUMMARIES = 3


class Grouped(NamedTuple):
    """Means over pairs of models, see `grouped`; values of one pair have the shape (*s).

    Attributes:
        within: Both models are of one group, (*s).
        between: The models are of two groups, in both directions, (*s).
        difference: within - between, (*s).
        cells: The source is of one group and the target of another, (g, g, *s). Groups are in the
            order of their first models.
        directed: Cell (a, b) minus cell (b, b): the same targets under sources of a different
            group, (g, g, *s).
    """

    within: Estimate
    between: Estimate
    difference: Estimate
    cells: Estimate
    directed: Estimate


def population_penalties(values: Float[Tensor, "m m *s"]) -> Float[Tensor, "m m *s"]:
    """Return the value (target, target) minus the value (source, target), for each pair of models.

    For accuracies of stitches, that is how much accuracy the target loses. The diagonal is 0.
    """
    models = torch.arange(len(values))
    value_with_itself = values[models, models][None]  # (1, target, *s)
    return value_with_itself - values


def flips(predicted: Int[Tensor, "m m c n"]) -> Float[Tensor, "m m c n"]:
    """Return 1 where a stitched model and its target alone predict different classes, else 0.

    The axes are source, target, cut (the last block of the source in the stitch) and example.
    Unlike a penalty of accuracy, the share of flips also counts a stitch that is right where the
    target is wrong, so that the two cannot cancel. It is 0 for a target with itself.
    """
    models = torch.arange(len(predicted))
    # A target stitched into itself predicts what the target alone predicts.
    predicted_by_target = predicted[models, models][None]
    return (predicted != predicted_by_target).double()


def symmetric(penalties: Float[Tensor, "m m *s"]) -> Float[Tensor, "m m *s"]:
    """Return (P + Pᵀ) / 2 over both axes of models: penalties are directed, distances are not."""
    return (penalties + penalties.transpose(0, 1)) / 2


def grouped(
    values: Float[Tensor, "m m *s"],
    groups: Sequence[Hashable],
    *,
    examples: bool = False,
    level: float = 0.95,
) -> Grouped:
    """Return means over pairs within and between groups, with jackknife intervals over models.

    Pairs that share a model are not independent, so one model and all its pairs are left out at a
    time (Arvesen 1969). The squared errors Σ_g (n_g - 1) / n_g Σ (replicate - mean)² over models
    and var / n over examples add up, and t is Student's with one degree of freedom less than there
    are models in the smallest group.

    A group of two models has one pair and no spread: `directed` that compares with it has the
    interval (-∞, ∞). Within groups of fewer than `FEWEST_MODELS` models the jackknife covers too
    little, and the interval is (-∞, ∞). `difference` averages both directions, in which signed
    values may cancel; `directed` keeps them apart.

    Args:
        values: The values of each pair of m models; those of a model with itself are not read.
        groups: The group of each model. There are at least two groups of at least two models.
        examples: Whether the last axis of the values holds examples, which means and intervals are
            then over as well.
        level: The level of the intervals.
    """
    is_member = one_hot(group_numbers(groups)).bool()  # (m, g)
    group_sizes = is_member.sum(0)
    n_models, n_groups = is_member.shape

    # The first row of weights has all models; each further row leaves out one of them.
    weights = torch.cat([torch.ones(1, n_models), 1 - torch.eye(n_models)])
    values_of_pairs = values.mean(-1) if examples else values
    means = _table_of_means(values_of_pairs, is_member, weights)  # (1 + m, k, *s)
    all_models = means[0]
    replicates = means[1:]

    variance = torch.zeros_like(all_models)
    for members, size in zip(is_member.T, group_sizes, strict=True):
        variance = variance + (size - 1) * replicates[members].var(0, correction=0)
    if examples:
        by_example = _table_of_means(values, is_member, weights[:1])[0]
        variance = variance + by_example.var(-1) / values.shape[-1]
    t = student_t(level, int(group_sizes.min()) - 1)
    half_width = t * variance.sqrt().nan_to_num(torch.inf)

    is_small = group_sizes < FEWEST_MODELS
    if is_small.any():
        half_width[0] = torch.inf
    first_cell = N_SUMMARIES
    first_directed = first_cell + n_groups**2
    within_one_group = half_width[first_cell:first_directed][:: n_groups + 1]  # a view
    within_one_group[is_small] = torch.inf

    estimates = interval_around(all_models, half_width)
    return Grouped(
        within=estimates[0],
        between=estimates[1],
        difference=estimates[2],
        cells=_by_group(estimates[first_cell:first_directed], n_groups),
        directed=_by_group(estimates[first_directed:], n_groups),
    )


def _by_group(cells: Estimate, n_groups: int) -> Estimate:
    """Reshape estimates (g², *s) to (source group, target group, *s)."""
    return Estimate(*(tensor.unflatten(0, (n_groups, n_groups)) for tensor in cells))


def group_numbers(groups: Sequence[Hashable]) -> Int[Tensor, " m"]:
    """Return the number of each model's group, in the order of the groups' first models."""
    names = list(dict.fromkeys(groups))
    return torch.tensor([names.index(group) for group in groups])


def _table_of_means(
    values: Float[Tensor, "m m *s"], is_member: Bool[Tensor, "m g"], weights: Float[Tensor, "r m"]
) -> Float[Tensor, "r k *s"]:
    """Return k means over pairs of models, for each of r weightings of the models.

    There are k = 3 + 2 g² means for g groups: within groups, between groups, and their difference;
    then the mean of each cell (group of the source, group of the target); and then each cell minus
    the cell of the same target group in which the source is from that group, too.

    Args:
        values: A value of each pair (source, target) of m models.
        is_member: Which models each group has.
        weights: The weight of each model; 0 leaves it out. The weight of a pair is the product of
            the weights of its models.
    """
    n_groups = is_member.shape[1]
    values = values.double().clone()
    values.diagonal().fill_(0)  # a model with itself is no pair, and may be NaN
    masks = _kinds_of_pairs(is_member).to(values.device)  # within, between, and each cell
    weights = weights.to(values)

    pair_weights = torch.einsum("ri,rj,kij->rkij", weights, weights, masks)
    sums = torch.einsum("rkij,ij...->rk...", pair_weights, values)
    total_weights = pair_weights.sum((2, 3))  # (r, masks)
    ones_for_values = [1] * (sums.ndim - 2)  # the axes *s, over which weights are broadcast
    means = sums / total_weights.view(*sums.shape[:2], *ones_for_values)
    within = means[:, :1]
    between = means[:, 1:2]
    cells = means[:, 2:]  # (r, g², *s)

    by_group = cells.unflatten(1, (n_groups, n_groups))  # (r, source group, target group, *s)
    own_group = torch.arange(n_groups)
    within_target_group = by_group[:, own_group, own_group][:, None]
    directed = by_group - within_target_group
    directed[:, own_group, own_group] = 0  # also for a group that has one model left, and no pair
    return torch.cat([within, between, within - between, cells, directed.flatten(1, 2)], 1)


def _kinds_of_pairs(is_member: Bool[Tensor, "m g"]) -> Float[Tensor, "k m m"]:
    """Return masks of pairs of models: within a group, between groups, and for each two groups.

    There are k = 2 + g² masks for g groups. A mask is 1 where a pair (source, target) is of its
    kind, and 0 elsewhere, also on the diagonal: a model with itself is not a pair.

    Raises:
        ValueError: There are fewer than two groups, or fewer than two models in one.
    """
    group_sizes = is_member.sum(0)
    if len(group_sizes) < 2 or group_sizes.min() < 2:
        raise ValueError(
            f"groups of {group_sizes.tolist()} models: give two groups or more, "
            "with two models or more in each"
        )
    within = (is_member[:, None] & is_member).any(-1)  # (m, m): a group that has both models
    cells = is_member.T[:, None, :, None] & is_member.T[None, :, None, :]  # (g, g, m, m)
    masks = torch.cat([within[None], ~within[None], cells.flatten(0, 1)])
    is_pair = 1 - torch.eye(len(is_member))
    return masks.double() * is_pair


def onset_of_difference(curve: Estimate, least: float = 0.0) -> int | None:
    """Return the first index at which the interval of a difference excludes 0, or None.

    The intervals must hold for all l indices together, such as those of `grouped(..., level=1 -
    0.05 / l)` (Bonferroni). Then a curve of pure noise has an onset in at most 5 % of draws.

    Args:
        curve: A difference at each of l indices, such as layers.
        least: The interval must exclude all values from -least to least. With 0, the onset
            depends on the number of models and examples, as more of them make smaller differences
            visible.

    Raises:
        ValueError: An end of an interval is NaN.
    """
    refuse_nan(torch.stack([curve.low, curve.high]), "the interval")
    is_above = curve.low > least + MEAN_ROUNDING
    is_below = curve.high < -least - MEAN_ROUNDING
    indices = (is_above | is_below).nonzero()
    if len(indices) == 0:
        return None
    return int(indices[0])
