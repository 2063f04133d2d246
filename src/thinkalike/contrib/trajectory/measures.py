"""What forms while a model trains: held-out accuracies by step beside their null, and the step of onset.

A feature is there from the first step on from which its accuracy stays above its null to the end. The null permutes
labels between groups of stimuli, such as sentences or words, and takes the greatest accuracy over all steps.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from thinkalike.contrib.transfer.measures import balanced_accuracies
from thinkalike.measures import estimates
from thinkalike.measures.estimates import Estimate, interval_around, jackknife, seeded, splits
from thinkalike.measures.mlem.importance import regrouped

SHRINKAGE = 0.1
ALPHA = 0.05  # of the null: the share of permutations that a feature may be below by chance


def held_out_right(
    states: Float[Tensor, "n d"],
    labels: Int[Tensor, "p n"],
    levels: int,
    fold_of: Int[Tensor, " n"],
    shrinkage: float = SHRINKAGE,
) -> Bool[Tensor, "p n"]:
    """Return which stimuli get their label from a linear discriminant of the other folds, for each of p labellings.

    The answer is the level whose mean is nearest in (1 - s) S + s tr(S)/d I, S the covariance of all states of the
    other folds, so that all levels are equally likely beforehand. S knows no labels, and so one inversion serves all
    labellings; of two levels the answers are those of S within levels (Fisher 1936) where s is 0.

    Args:
        labels: The number of each stimulus's level, below `levels`.
        shrinkage: The s.
    """
    right = torch.zeros(labels.shape, dtype=torch.bool)
    for train, test in splits(fold_of):
        rows = states[train].double()
        mean = rows.mean(0)
        covariance = (rows - mean).T @ (rows - mean) / len(rows)
        ridge = shrinkage * covariance.diagonal().mean()
        covariance = (1 - shrinkage) * covariance + ridge * torch.eye(len(mean), dtype=torch.float64)
        root = torch.linalg.cholesky(covariance)
        whitened = torch.linalg.solve_triangular(root, (states.double() - mean).T, upper=False)
        held = one_hot(labels[:, train], levels).double()
        counts = held.sum(1)  # (p, k)
        means = torch.einsum("dm,pmk->pkd", whitened[:, train], held) / counts.clamp(min=1)[..., None]
        scores = means @ whitened[:, test] - means.square().sum(-1, keepdim=True) / 2
        answers = scores.masked_fill(counts[..., None] == 0, -torch.inf).argmax(1)
        right[:, test] = answers == labels[:, test]
    return right


def permuted_labels(
    labels: Int[Tensor, " n"], groups: Int[Tensor, " n"], permutations: int, seed: int = 0
) -> Int[Tensor, "p n"]:
    """Return the labels, and then permutations of them between groups, see `regrouped`."""
    generator, strata = seeded(seed), torch.zeros(len(labels))
    return torch.stack([labels, *(labels[regrouped(strata, groups, generator)] for _ in range(permutations))])


def balanced(right: Bool[Tensor, "p n"], labels: Int[Tensor, "p n"], levels: int) -> Float[Tensor, " p"]:
    """Return the mean recall over the levels of each labelling, of those that occur in it."""
    held = one_hot(labels, levels).double()
    counts = held.sum(1)
    recalls = (held * right[..., None]).sum(1) / counts.clamp(min=1)
    return recalls.sum(1) / (counts > 0).sum(1)


def simultaneous_t(replicates: Float[Tensor, "b s *r"], level: float = 0.95, draws: int = 4000) -> Float[Tensor, " *r"]:
    """Return the t with which the intervals of s values hold for all of them together, for each of r such families.

    It is the quantile of maxₛ |Tₛ| for T of the multivariate t distribution with b - 1 degrees of freedom, whose
    correlation is that of the replicates: Tₛ = Σ g d / √(Σ d²) / √(χ² / (b - 1)) over b, with normal g and the
    deviations d of a value's replicates from their mean (Hothorn, Bretz & Westfall 2008). Of one value it is Student's
    t up to the error of drawing. A value without deviations takes no part.
    """
    generator, (b, s, *rest) = seeded(0), replicates.shape
    families = (replicates - replicates.mean(0)).double().cpu().reshape(b, s, -1).unbind(2)
    normal = torch.randn(draws, b, generator=generator, dtype=torch.float64)
    chi = torch.randn(draws, b - 1, generator=generator, dtype=torch.float64).square().mean(1).sqrt()
    found = [(normal @ each / each.square().sum(0).sqrt()).nan_to_num(0.0).abs().amax(1) / chi for each in families]
    return torch.stack([t.quantile(level) for t in found]).view(rest).to(replicates)


def band(
    value: Float[Tensor, " s"], replicates: Float[Tensor, "b s"], reference: Float[Tensor, " s"] | None = None
) -> Estimate:
    """Return values by step with intervals that hold for all steps together, from those without parts of the groups.

    Fewer than `FEWEST_GROUPS` parts have no interval: it is (-∞, ∞).
    """
    if len(replicates) < estimates.FEWEST_GROUPS:
        return interval_around(value, torch.inf)
    return jackknife(value, replicates, reference, t=simultaneous_t(replicates))


class Curve(NamedTuple):
    """The held-out accuracy of a feature by step, in [0, 1], beside its null, and its onset."""

    accuracy: Estimate  # balanced, with intervals that hold for all steps together, over groups of stimuli
    threshold: float  # what an accuracy exceeds by chance, at any of the steps, in 5 % of permutations
    onset: int  # the index of the first step from which the accuracy stays above it, or the number of steps
    draws: Int[Tensor, " r"]  # the same in each resample of groups


def curve_of(
    right: Bool[Tensor, "s n"],
    labels: Int[Tensor, " n"],
    groups: Int[Tensor, " n"],
    null: Float[Tensor, "s p"],
    resamples: int = 2000,
) -> Curve:
    """Return the curve of a feature.

    Args:
        right: Whether each stimulus was answered right at each step, by probes of other groups.
        groups: What stimuli depend on each other in; resamples draw whole groups, the same ones at all steps.
        null: The accuracies of permuted labels, with the same permutations at each step.
    """
    levels = int(labels.max()) + 1
    judged = balanced_accuracies(right, labels, groups, levels)
    held = one_hot(labels, levels).double().T  # (k, n)
    greatest = null.amax(0).sort(descending=True).values
    threshold = float(greatest[max(int(ALPHA * (len(greatest) + 1)) - 1, 0)])
    number = groups.unique(return_inverse=True)[1]
    weights = estimates.drawn_counts(int(number.max()) + 1, resamples, seeded(0))
    counts = weights @ estimates.sum_by_document(held, number, weights.shape[1]).T  # (r, k)
    by_group = estimates.sum_by_document(right[:, None] * held, number, weights.shape[1])
    sums = torch.einsum("rg,skg->rsk", weights, by_group)
    drawn = (sums / counts.clamp(min=1)[:, None]).sum(-1) / (counts > 0).sum(-1, keepdim=True)
    accuracy = band(torch.stack([each.value for each in judged]), torch.stack([each.replicates for each in judged], 1))
    return Curve(accuracy, threshold, int(onset(accuracy.value > threshold)), onset(drawn > threshold))


def onset(above: Bool[Tensor, "*b s"]) -> Int[Tensor, "*b"]:
    """Return the place of the first step from which on all are above; the number of steps if the last one is not."""
    return above.shape[-1] - above.flip(-1).long().cumprod(-1).sum(-1)
