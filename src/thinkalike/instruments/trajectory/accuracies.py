"""Held-out accuracies of probes by step, beside their null, and the onset of a feature.

A feature is there from the first step on from which its accuracy stays above its null to the end.
The null permutes labels between groups of stimuli, such as sentences or words, and takes the
greatest accuracy over all steps. Bands hold for all steps together.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from thinkalike.measures.accuracy import balanced_accuracies
from thinkalike.measures.bootstrap import drawn_counts, sum_by_document
from thinkalike.measures.estimates import Estimate, interval_around, jackknife
from thinkalike.measures.folds import splits
from thinkalike.measures.mlem.importance import regrouped
from thinkalike.measures.sample_size import FEWEST_GROUPS, RELATIVE_ROUNDING
from thinkalike.measures.seeds import seeded

SHRINKAGE = 0.1
"""How much of a covariance is replaced by a multiple of the identity."""

ALPHA = 0.05
"""A feature without information exceeds its threshold with this probability."""


def correct_held_out_answers(
    states: Float[Tensor, "n d"],
    labels: Int[Tensor, "p n"],
    levels: int,
    fold_of: Int[Tensor, " n"],
    shrinkage: float = SHRINKAGE,
) -> Bool[Tensor, "p n"]:
    """Return for which stimuli a linear discriminant, fitted on the other folds, is right.

    The answer is the level whose mean state is nearest by the Mahalanobis distance with covariance
    (1 - s) S + s tr(S)/d I, where s is the shrinkage and S the covariance of all states of the
    other folds. All levels have the same prior. S does not depend on the labels, so that one
    decomposition serves all labellings. With two levels and s = 0, the answers are those of
    Fisher's discriminant (1936), whose S is within levels. A level that does not occur in the
    other folds is never the answer.

    Args:
        states: The states of n stimuli.
        labels: The level of each stimulus, in each of p labellings.
        levels: How many levels there are.
        fold_of: The fold of each stimulus.
        shrinkage: The share s.
    """
    is_right = torch.zeros(labels.shape, dtype=torch.bool)
    for train, test in splits(fold_of):
        rows = states[train].double()
        mean = rows.mean(0)
        covariance = (rows - mean).T @ (rows - mean) / len(rows)
        ridge = shrinkage * covariance.diagonal().mean()
        identity = torch.eye(len(mean), dtype=torch.float64)
        shrunk_covariance = (1 - shrinkage) * covariance + ridge * identity
        root = torch.linalg.cholesky(shrunk_covariance)
        centred = (states.double() - mean).T
        # The Mahalanobis distance is the Euclidean one between whitened states.
        whitened = torch.linalg.solve_triangular(root, centred, upper=False)  # (d, n)

        is_of_level = one_hot(labels[:, train], levels).double()  # (p, m, k)
        counts = is_of_level.sum(1)
        sums = torch.einsum("dm,pmk->pkd", whitened[:, train], is_of_level)
        means = sums / counts.clamp(min=1)[..., None]
        # -‖x - mean‖² / 2 without the term ‖x‖², which is the same for all levels
        scores = means @ whitened[:, test] - means.square().sum(-1, keepdim=True) / 2
        never_seen = counts[..., None] == 0
        answers = scores.masked_fill(never_seen, -torch.inf).argmax(1)
        is_right[:, test] = answers == labels[:, test]
    return is_right


def permuted_labels(
    labels: Int[Tensor, " n"], groups: Int[Tensor, " n"], permutations: int, seed: int = 0
) -> Int[Tensor, "p n"]:
    """Return p = 1 + `permutations` labellings: the labels themselves, then permutations of them.

    A whole group exchanges its labels with another group of about its size, so that labels stay as
    similar within groups as they were.

    Args:
        labels: The label of each stimulus.
        groups: The group of each stimulus, such as its sentence.
        permutations: How many permutations are drawn.
        seed: The seed of all permutations.
    """
    generator = seeded(seed)
    one_stratum = torch.zeros(len(labels))  # nothing but the groups restricts the exchange
    labellings = [labels]
    for _ in range(permutations):
        order = regrouped(one_stratum, groups, generator)
        labellings.append(labels[order])
    return torch.stack(labellings)


def balanced_accuracies_of_labellings(
    is_right: Bool[Tensor, "p n"], labels: Int[Tensor, "p n"], levels: int
) -> Float[Tensor, " p"]:
    """Return the balanced accuracy with each labelling: the mean recall over the levels in it.

    Args:
        is_right: Whether the answer to each stimulus is right, in each of p labellings.
        labels: The level of each stimulus, in each labelling.
        levels: How many levels there are.
    """
    is_of_level = one_hot(labels, levels).double()  # (p, n, k)
    counts = is_of_level.sum(1)  # (p, k)
    right_counts = (is_of_level * is_right[..., None]).sum(1)
    recalls = right_counts / counts.clamp(min=1)  # 0 for a level without stimuli
    n_levels_present = (counts > 0).sum(1)
    return recalls.sum(1) / n_levels_present


def simultaneous_t(
    replicates: Float[Tensor, "b s *r"], level: float = 0.95, draws: int = 4000
) -> Float[Tensor, " *r"]:
    """Return the t for jackknife intervals of s values that hold for all of them together.

    It is the quantile of maxₛ |Tₛ|, where T has the multivariate t distribution with b - 1 degrees
    of freedom and the correlation of the replicates (Hothorn, Bretz & Westfall 2008). For a single
    value it is Student's t up to the error of drawing. T is drawn from normal numbers g and a
    number χ² of the chi-squared distribution:

        Tₛ = (Σ g d / √(Σ d²)) / √(χ² / (b - 1)),

    where sums are over the b replicates, and d is the deviation of a replicate of value s from
    their mean. A value whose replicates are all equal up to rounding, such as the similarity of a
    checkpoint to itself, is left out; if all are, t is 0.

    Args:
        replicates: b replicates of s values, for each of r sets of values. Intervals hold together
            for the values of one set.
        level: The level of the intervals.
        draws: How many T are drawn.
    """
    b, s, *families_shape = replicates.shape
    wide_replicates = replicates.double().cpu().reshape(b, s, -1)
    deviations = wide_replicates - wide_replicates.mean(0)
    magnitudes = wide_replicates.abs().amax(0)  # (s, families)
    is_rounding = deviations.abs().amax(0) <= RELATIVE_ROUNDING * magnitudes
    deviations = deviations.where(~is_rounding, 0.0)
    generator = seeded(0)
    normal = torch.randn(draws, b, generator=generator, dtype=torch.float64)
    squares = torch.randn(draws, b - 1, generator=generator, dtype=torch.float64).square()
    chi = squares.mean(1).sqrt()  # √(χ² / (b - 1))
    quantiles = []
    for family in deviations.unbind(2):  # (b, s)
        norms = family.square().sum(0).sqrt()
        # A value that is ignored has deviations 0, and 0 / 0 becomes 0.
        statistics = (normal @ family / norms).nan_to_num(0.0)  # (draws, s)
        largest_t = statistics.abs().amax(1) / chi
        quantiles.append(largest_t.quantile(level))
    return torch.stack(quantiles).view(families_shape).to(replicates)


def simultaneous_band(
    value: Float[Tensor, " s"],
    replicates: Float[Tensor, "b s"],
    reference: Float[Tensor, " s"] | None = None,
) -> Estimate:
    """Return values by step with jackknife intervals that hold for all steps together.

    With fewer than `FEWEST_GROUPS` replicates the intervals are (-∞, ∞).

    Args:
        value: The value at each of s steps.
        replicates: The values without each of b parts of the documents or groups.
        reference: What the mean of the replicates would be if rows did not depend on each other.
            The mean of the replicates less this is the bias, which is subtracted. None: no bias is
            subtracted.
    """
    if len(replicates) < FEWEST_GROUPS:
        return interval_around(value, torch.inf)
    return jackknife(value, replicates, reference, t=simultaneous_t(replicates))


def percentile_interval(
    value: Int[Tensor, "*b"], draws: Int[Tensor, "*b r"], level: float
) -> Estimate:
    """Return whole numbers with percentile intervals over resamples.

    The ends are numbers that occur among the resamples; they are not interpolated.

    Args:
        value: The numbers themselves.
        draws: Each number in each of r resamples.
        level: The share of resamples in the interval; half of the rest is below, half above.
    """
    tail = (1 - level) / 2
    numbers = draws.double()
    low = numbers.quantile(tail, -1, interpolation="lower")
    high = numbers.quantile(1 - tail, -1, interpolation="higher")
    return Estimate(value, low.to(draws), high.to(draws))


class Curve(NamedTuple):
    """The held-out accuracy of a feature by step, beside its null, and its onset."""

    accuracy: Estimate
    """The balanced accuracy, in [0, 1], with intervals over groups of stimuli that hold for all
    steps together."""

    threshold: float
    """What an accuracy exceeds by chance, at any of the steps, in 5 % of permutations."""

    onset_index: int
    """The index of the first step from which the accuracy stays above the threshold, or the number
    of steps."""

    draws: Int[Tensor, " r"]
    """The onset in each resample of groups."""


def accuracy_curve(
    is_right: Bool[Tensor, "s n"],
    labels: Int[Tensor, " n"],
    groups: Int[Tensor, " n"],
    null: Float[Tensor, "s p"],
    resamples: int = 2000,
) -> Curve:
    """Return the held-out accuracy of a feature by step, with its null threshold and its onset.

    The onset is the first step from which on the accuracy stays above the threshold. Resamples
    draw whole groups of stimuli, as those in a group depend on each other. Permutations and
    resamples are the same at all steps.

    Args:
        is_right: Whether the answer to each stimulus is right at each step, by a probe that was
            fitted on other groups.
        labels: The level of each stimulus, from 0.
        groups: The group of each stimulus, such as its sentence.
        null: The accuracies at each of s steps, with labels permuted p times.
        resamples: How often groups are drawn, for an interval of the onset.
    """
    levels = int(labels.max()) + 1
    accuracy_of_step = balanced_accuracies(is_right, labels, groups, levels)
    # The intervals hold for all steps together.
    accuracy = simultaneous_band(
        torch.stack([estimate.value for estimate in accuracy_of_step]),  # (s,)
        torch.stack([estimate.replicates for estimate in accuracy_of_step], 1),  # (replicates, s)
    )
    threshold = _threshold_of_null(null)
    # (resamples, s)
    resampled_accuracies = _resampled_accuracies(is_right, labels, groups, levels, resamples)
    return Curve(
        accuracy,
        threshold,
        onset_index=int(onset_index(accuracy.value > threshold)),
        draws=onset_index(resampled_accuracies > threshold),  # the onset in each resample
    )


def _threshold_of_null(null: Float[Tensor, "s p"]) -> float:
    """Return the accuracy that at most 5 % of permutations exceed at any step.

    It is the greatest accuracy of all permutations if there are fewer than 19, which are too few
    for a level of 5 %.

    Args:
        null: The accuracy at each of s steps with each of p permutations of the labels.
    """
    greatest_first = null.amax(0).sort(descending=True).values
    # A share ALPHA of p + 1 labellings (the true labels and p permutations) may be above the
    # threshold. The true labels count as one of these.
    n_above = int(ALPHA * (len(greatest_first) + 1)) - 1
    return float(greatest_first[max(n_above, 0)])


def _resampled_accuracies(
    is_right: Bool[Tensor, "s n"],
    labels: Int[Tensor, " n"],
    groups: Int[Tensor, " n"],
    levels: int,
    resamples: int,
) -> Float[Tensor, "r s"]:
    """Return the balanced accuracy of each step in each resample of groups.

    Balanced accuracy is the mean share of right answers over the levels that the resample has.

    Args:
        is_right: Whether the answer to each of n stimuli is right at each of s steps.
        labels: The level of each stimulus, from 0.
        groups: The group of each stimulus; groups are drawn as a whole.
        levels: How many levels there are.
        resamples: How many resamples are drawn.
    """
    # Axes: r resamples, s steps, k levels, n stimuli and g groups.
    is_of_level = one_hot(labels, levels).double().T  # (k, n)
    is_right_at_level = is_right[:, None] * is_of_level  # (s, k, n)
    _, group_numbers = groups.unique(return_inverse=True)
    n_groups = int(group_numbers.max()) + 1
    # Groups take the place of documents.
    counts_by_group = sum_by_document(is_of_level, group_numbers, n_groups)  # (k, g)
    right_by_group = sum_by_document(is_right_at_level, group_numbers, n_groups)  # (s, k, g)

    times_drawn = drawn_counts(n_groups, resamples, seeded(0))  # (r, g)
    counts = times_drawn @ counts_by_group.T  # (r, k)
    right_counts = torch.einsum("rg,skg->rsk", times_drawn, right_by_group)
    # A level that is not drawn has no right answers: its share is 0, and does not count below.
    recalls = right_counts / counts.clamp(min=1)[:, None]
    n_levels_drawn = (counts > 0).sum(-1, keepdim=True)
    return recalls.sum(-1) / n_levels_drawn


def onset_index(is_above: Bool[Tensor, "*b s"]) -> Int[Tensor, "*b"]:
    """Return the index of the step from which on all steps to the last are above a threshold.

    It is s, the number of steps, if the last step is not above the threshold.
    """
    n_steps = is_above.shape[-1]
    from_the_end = is_above.flip(-1).long()
    # The product is 1 until the first step from the end that is not above the threshold.
    n_steps_above_at_the_end = from_the_end.cumprod(-1).sum(-1)
    return n_steps - n_steps_above_at_the_end
