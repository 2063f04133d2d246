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
        beyond_own_group: Cell (a, b) minus cell (b, b): the mean over sources of group a minus
            that over sources of the targets' own group b, (g, g, *s).
    """

    within: Estimate
    between: Estimate
    difference: Estimate
    cells: Estimate
    beyond_own_group: Estimate


def population_penalties(values: Float[Tensor, "m m *s"]) -> Float[Tensor, "m m *s"]:
    """Return for each (source, target) the value of (target, target) minus that of the pair.

    If the values are accuracies of a target whose first blocks are replaced by those of a source,
    this is how much accuracy the target loses. It is 0 for a target with itself.

    Args:
        values: A value of each source (axis 0) and target (axis 1) among m models; later axes,
            such as layers, are kept.
    """
    models = torch.arange(len(values))
    value_with_itself = values[models, models][None]  # (1, target, *s)
    return value_with_itself - values


def flips(predicted: Int[Tensor, "m m c n"]) -> Float[Tensor, "m m c n"]:
    """Return 1 where a stitched model and its target alone predict different classes, else 0.

    A stitched model runs the first blocks of a source, up to a cut, and the later blocks of a
    target. Unlike a loss of accuracy, the share of flips also counts examples on which the
    stitched model is right and the target wrong, so that the two cannot cancel.

    Args:
        predicted: The predicted class, by source, target, cut and example.
    """
    models = torch.arange(len(predicted))
    # A target stitched into itself predicts what the target alone predicts.
    predicted_by_target = predicted[models, models][None]  # (1, target, cut, example)
    return (predicted != predicted_by_target).double()


def symmetric(penalties: Float[Tensor, "m m *s"]) -> Float[Tensor, "m m *s"]:
    """Return (P + Pᵀ) / 2, the mean of both directions of each pair of m models.

    So penalties P, of a target that reads the states of a source, become distances, which have no
    direction. The first two axes of P are source and target.
    """
    return (penalties + penalties.transpose(0, 1)) / 2


def grouped(
    values: Float[Tensor, "m m *s"],
    groups: Sequence[Hashable],
    *,
    examples: bool = False,
    level: float = 0.95,
) -> Grouped:
    """Return means over pairs of models within and between groups, with intervals over models.

    Pairs that share a model are not independent, so the jackknife leaves out one model with all
    its pairs at a time (Arvesen 1969). For groups g of n_g models, the squared standard error is
    Σ_g (n_g - 1) / n_g Σ (replicate - mean of the group's replicates)², plus the variance over
    examples divided by their number if there are examples. The intervals are Student's t, with
    one degree of freedom less than there are models in the smallest group.

    A group of two models has one pair and no spread, so where `beyond_own_group` subtracts its
    mean, the interval is (-∞, ∞). Within groups of fewer than `FEWEST_MODELS` models the jackknife
    covers too little, and the interval is (-∞, ∞). `difference` averages both directions, in which
    signed values may cancel; `beyond_own_group` keeps them apart.

    Args:
        values: The value of each pair (source, target) of m models; those of a model with itself
            are not used.
        groups: The group of each model. There are at least two groups of at least two models.
        examples: Whether the last axis of the values holds examples. Then the means are also over
            examples, and the intervals cover their choice.
        level: The level of the intervals.
    """
    is_member = one_hot(group_numbers(groups)).bool()  # (m, g)
    group_sizes = is_member.sum(0)
    n_models, n_groups = is_member.shape

    # The first row of weights has all models; each further row leaves out one of them.
    weights = torch.cat([torch.ones(1, n_models), 1 - torch.eye(n_models)])
    values_of_pairs = values.mean(-1) if examples else values
    means = _table_of_means(values_of_pairs, is_member, weights)  # (1 + m, k, *s)
    of_all_models = means[0]
    replicates = means[1:]

    variance = torch.zeros_like(of_all_models)
    for is_in_group, size in zip(is_member.T, group_sizes, strict=True):
        # The variance with correction=0 is Σ (...)² / n_g.
        variance = variance + (size - 1) * replicates[is_in_group].var(0, correction=0)
    if examples:
        n_examples = values.shape[-1]
        means_by_example = _table_of_means(values, is_member, weights[:1])[0]
        variance = variance + means_by_example.var(-1) / n_examples
    t = student_t(level, int(group_sizes.min()) - 1)
    half_width = t * variance.sqrt().nan_to_num(torch.inf)

    # The k means are: within, between, their difference, g² cells, and g² differences of cells.
    within, between, difference = range(N_SUMMARIES)
    first_cell = N_SUMMARIES
    first_beyond_own_group = first_cell + n_groups**2
    is_small = group_sizes < FEWEST_MODELS
    if is_small.any():
        half_width[within] = torch.inf
    cells_of_one_group = slice(first_cell, first_beyond_own_group, n_groups + 1)  # the diagonal
    half_width[cells_of_one_group][is_small] = torch.inf  # the slice is a view

    estimates = interval_around(of_all_models, half_width)
    return Grouped(
        within=estimates[within],
        between=estimates[between],
        difference=estimates[difference],
        cells=_by_group(estimates[first_cell:first_beyond_own_group], n_groups),
        beyond_own_group=_by_group(estimates[first_beyond_own_group:], n_groups),
    )


def _by_group(cells: Estimate, n_groups: int) -> Estimate:
    """Reshape estimates for pairs of groups from (g², *s) to (source group, target group, *s)."""
    return Estimate(*(tensor.unflatten(0, (n_groups, n_groups)) for tensor in cells))


def group_numbers(groups: Sequence[Hashable]) -> Int[Tensor, " m"]:
    """Return the number of each model's group; groups are numbered by their first appearance."""
    names = list(dict.fromkeys(groups))
    return torch.tensor([names.index(group) for group in groups])


def _table_of_means(
    values: Float[Tensor, "m m *s"], is_member: Bool[Tensor, "m g"], weights: Float[Tensor, "r m"]
) -> Float[Tensor, "r k *s"]:
    """Return k means over pairs of models, for each of r weightings of the models.

    There are k = 3 + 2 g² means for g groups, in this order: the mean of pairs within a group; of
    pairs between groups; the difference of these two; the mean of each cell (a, b), whose pairs
    have a source of group a and a target of group b; and cell (a, b) minus cell (b, b).

    Args:
        values: A value of each pair (source, target) of m models.
        is_member: Which models each group has.
        weights: The weight of each model; 0 leaves it out. The weight of a pair is the product of
            the weights of its models.
    """
    n_groups = is_member.shape[1]
    values = values.double().clone()
    values.diagonal().fill_(0)  # a model with itself is no pair, and its value may be NaN
    masks = _masks_of_pairs(is_member).to(values.device)  # within, between, and each cell
    weights = weights.to(values)

    # The weight of source i times that of target j, where mask k has the pair (i, j).
    pair_weights = torch.einsum("ri,rj,kij->rkij", weights, weights, masks)
    sums = torch.einsum("rkij,ij...->rk...", pair_weights, values)
    total_weights = pair_weights.sum((2, 3))  # (r, masks)
    while total_weights.ndim < sums.ndim:
        total_weights = total_weights.unsqueeze(-1)  # an axis of size 1 for each axis of *s
    means = sums / total_weights
    within = means[:, :1]
    between = means[:, 1:2]
    cells = means[:, 2:]  # (r, g², *s)

    # (r, source group a, target group b, *s)
    by_group = cells.unflatten(1, (n_groups, n_groups))
    group_indices = torch.arange(n_groups)
    source_in_target_group = by_group[:, group_indices, group_indices][:, None]  # cells (b, b)
    beyond_own_group = by_group - source_in_target_group
    # The difference of a cell (b, b) to itself is 0, also where it is NaN: a group of which one
    # model is left has no pair.
    beyond_own_group[:, group_indices, group_indices] = 0
    return torch.cat([within, between, within - between, cells, beyond_own_group.flatten(1, 2)], 1)


def _masks_of_pairs(is_member: Bool[Tensor, "m g"]) -> Float[Tensor, "k m m"]:
    """Return masks of pairs of models: within a group, between groups, and for each two groups.

    There are k = 2 + g² masks for g groups. A mask is 1 for the pairs (source, target) that belong
    to it, and 0 elsewhere, also on the diagonal: a model with itself is not a pair.

    Raises:
        ValueError: There are fewer than two groups, or fewer than two models in one.
    """
    group_sizes = is_member.sum(0)
    if len(group_sizes) < 2 or group_sizes.min() < 2:
        raise ValueError(
            f"groups of {group_sizes.tolist()} models: give two groups or more, "
            "with two models or more in each"
        )
    within = (is_member[:, None] & is_member).any(-1)  # (m, m): some group has both models
    is_source = is_member.T[:, None, :, None]  # (g, 1, m, 1)
    is_target = is_member.T[None, :, None, :]  # (1, g, 1, m)
    cells = is_source & is_target  # (source group, target group, source, target)
    masks = torch.cat([within[None], ~within[None], cells.flatten(0, 1)])
    is_pair = 1 - torch.eye(len(is_member))
    return masks.double() * is_pair


def onset_of_difference(curve: Estimate, margin: float = 0.0) -> int | None:
    """Return the first index at which the interval of a difference excludes 0.

    None is returned if no interval excludes 0. The intervals should hold for all l indices
    together: at the level 1 - 0.05 / l (Bonferroni), a curve of pure noise has an onset in at most
    5 % of draws.

    Args:
        curve: A difference at each of l indices, such as layers, with its interval.
        margin: The interval must exclude all values from -margin to margin. With 0, the onset
            depends on the number of models and examples, as more of them make smaller differences
            visible.

    Raises:
        ValueError: An end of an interval is NaN.
    """
    refuse_nan(torch.stack([curve.low, curve.high]), "the interval")
    # `MEAN_ROUNDING`: what rounding leaves of a difference of 0 is no difference.
    is_above = curve.low > margin + MEAN_ROUNDING
    is_below = curve.high < -margin - MEAN_ROUNDING
    indices = (is_above | is_below).nonzero()
    if len(indices) == 0:
        return None
    return int(indices[0])
