"""Linear probes of states, in one model and through a map in another.

The levels of a feature are its values, which are the classes of a probe. It gives every level a
score, p·h + c, for a state h, and answers with the level of the highest score. With a map
ψ(g) = D g + v from the states g of model B to those of model A, a probe of A reads the states of B
(Chen, Merullo, Stolfo & Pavlick 2025, arXiv 2506.06609):

    p·ψ(g) + c = (p D)·g + (p·v + c)
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from threadpoolctl import threadpool_limits
from torch import Tensor

from thinkalike.measures.accuracy import balanced_folds
from thinkalike.measures.closed_forms import AffineMap
from thinkalike.measures.folds import splits

# The largest entry of the gradient of the mean loss at which a fit has converged.
TOLERANCE = 1e-6
# Of fits that only choose a penalty.
ROUGH_TOLERANCE = 1e-4
MOST_STEPS = 5000  # of L-BFGS


@dataclass(frozen=True, eq=False)
class Probe:
    """A score for each of k levels of a feature, linear in states, in float64.

    Attributes:
        weight: The vector p of each level, in the score p·h + c of a state h.
        bias: The number c of each level; -∞ for a level that the probe never saw.
        converged: Whether the fit reached its tolerance.
    """

    weight: Float[Tensor, "k d"]
    bias: Float[Tensor, " k"]
    converged: bool = True

    def scores(self, states: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
        """Return p·h + c of each state h and each level."""
        return states.to(self.weight) @ self.weight.T + self.bias

    def answers(self, states: Float[Tensor, "n d"]) -> Int[Tensor, " n"]:
        """Return the level of the highest score for each state."""
        return self.scores(states).argmax(1)

    def through(self, mapping: AffineMap) -> Probe:
        """Return a probe that scores states g as this probe scores the mapped states D g + v.

        A probe has weights p and a bias c for each level (value) of a feature; the score of a
        level is p·h + c. So p·(D g + v) + c = (p D)·g + (p·v + c).

        Args:
            mapping: The affine map g ↦ D g + v to the states that this probe reads.
        """
        map_weight = mapping.weight.to(self.weight)
        map_bias = mapping.bias.to(self.weight)
        return replace(
            self, weight=self.weight @ map_weight, bias=self.weight @ map_bias + self.bias
        )


def fit_probes(
    states: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    n_levels: int,
    alphas: Sequence[float],
    tolerance: float = TOLERANCE,
) -> list[Probe]:
    """Return a logistic regression for each ridge penalty, each started from the one before.

    It minimises Σᵢ wᵢ (-log softmax(P xᵢ + c))_yᵢ + α ‖P‖² / 2 over P, with a row for each level,
    and c. Here yᵢ is the label of state i, the weights w give all levels the same total, and x are
    the centred states over the root of their mean variance. As all dimensions share one scale,
    rotated states have the rotated probe. It is fastest from the largest penalty α to the
    smallest.

    Args:
        states: The states.
        labels: The number of each state's level (class), from 0. A level that does not occur gets
            the bias -∞.
        n_levels: How many levels there are.
        alphas: The ridge penalties α, above 0.
        tolerance: The largest entry of the gradient at which a fit has converged.

    Raises:
        ValueError: By scikit-learn, for labels of one level and states that do not vary.
    """
    from sklearn.linear_model import LogisticRegression

    rows = states.double()
    mean = rows.mean(0)
    scale = rows.var(0, correction=0).mean().sqrt()
    standardised = ((rows - mean) / scale).numpy()
    model = LogisticRegression(
        class_weight="balanced", tol=tolerance, max_iter=MOST_STEPS, warm_start=True
    )
    probes = []
    for alpha in alphas:
        model.set_params(C=1 / alpha)
        # A second thread makes the small products of a step up to five times slower.
        with warnings.catch_warnings(record=True) as caught, threadpool_limits(1):
            warnings.simplefilter("always")
            model.fit(standardised, labels.numpy())
        messages = [str(warning.message).lower() for warning in caught]
        converged = not any("converge" in message for message in messages)

        P = torch.from_numpy(model.coef_)
        c = torch.from_numpy(model.intercept_)
        if len(model.classes_) == 2:
            # scikit-learn has one row, the score of the second level minus that of the first.
            P = torch.cat([-P, P]) / 2
            c = torch.cat([-c, c]) / 2
        # P x + c = (P / scale) h + (c - P mean / scale) for the state h.
        seen_levels = torch.from_numpy(model.classes_)
        weight = mean.new_zeros(n_levels, len(mean))
        bias = mean.new_full((n_levels,), -torch.inf)
        weight[seen_levels] = P / scale
        bias[seen_levels] = c - P @ mean / scale
        probes.append(Probe(weight, bias, converged))
    return probes


@dataclass(frozen=True, eq=False)
class CrossFitted:
    """A probe for each fold of the stimuli, fitted on all other folds.

    Attributes:
        probes: The probe of each fold.
        alphas: The ridge penalty of each probe.
        fold_of: The fold of each stimulus.
    """

    probes: Sequence[Probe]
    alphas: Sequence[float]
    fold_of: Int[Tensor, " n"]

    @property
    def converged(self) -> bool:
        """Whether all fits reached their tolerance."""
        return all(probe.converged for probe in self.probes)

    def through(self, mapping: AffineMap) -> CrossFitted:
        """Return probes that read states through a map; see `Probe.through`."""
        return replace(self, probes=[probe.through(mapping) for probe in self.probes])

    def is_right(
        self, states: Float[Tensor, "n d"], labels: Int[Tensor, " n"]
    ) -> Bool[Tensor, " n"]:
        """Return, for each stimulus, whether a probe that was not fitted on it gives its label.

        There is a probe for each fold of the stimuli. It was fitted on all other folds, and
        answers for the stimuli of its own.
        """
        is_right = torch.zeros(len(labels), dtype=torch.bool)
        for fold, probe in enumerate(self.probes):
            in_fold = self.fold_of == fold
            is_right[in_fold] = probe.answers(states[in_fold]) == labels[in_fold]
        return is_right


def cross_fitted(
    states: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    n_levels: int,
    fold_of: Int[Tensor, " n"],
    groups: Int[Tensor, " n"],
    alphas: Sequence[float],
    inner_folds: int,
    seed: int,
) -> CrossFitted:
    """Fit a probe for each fold on the stimuli of all other folds.

    A probe predicts the level of a stimulus: its class, a value of some feature. The ridge penalty
    of each probe is chosen by cross-validation within these other folds, which are divided into
    inner folds: the largest penalty that is nearly as good as the best one.

    Args:
        states: The states of the stimuli.
        labels: The number of each stimulus's level, from 0.
        n_levels: How many levels the feature has.
        fold_of: The fold of each stimulus.
        groups: The group of each stimulus, such as its sentence. No inner fold divides a group.
        alphas: The ridge penalties to choose from. If there is only one, it is used.
        inner_folds: How many inner folds there are.
        seed: The seed of the inner folds.
    """
    probes = []
    chosen_alphas = []
    # For each fold, the indices of the stimuli of all other folds, and those of the fold itself.
    for train, _ in splits(fold_of):
        alpha = alphas[0]
        if len(alphas) > 1:
            alpha = strongest_good_penalty(
                states[train], labels[train], n_levels, groups[train], alphas, inner_folds, seed
            )
        (probe,) = fit_probes(states[train], labels[train], n_levels, [alpha])
        probes.append(probe)
        chosen_alphas.append(alpha)
    return CrossFitted(probes, chosen_alphas, fold_of)


def strongest_good_penalty(
    states: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    n_levels: int,
    groups: Int[Tensor, " n"],
    alphas: Sequence[float],
    n_folds: int,
    seed: int,
) -> float:
    """Return the largest ridge penalty whose probe is within one standard error of the best.

    Its held-out balanced accuracy (the mean recall of all levels) is at least the best accuracy
    minus a standard error of the best accuracy (Hastie, Tibshirani & Friedman 2009, section 7.10).
    Of equally good probes, one with a weak penalty depends more on directions of little variance,
    which maps between models predict badly.

    Args:
        states: The states of n stimuli.
        labels: The number of each stimulus's level (class), from 0.
        n_levels: How many levels there are.
        groups: The group of each stimulus, such as its sentence. No fold divides a group.
        alphas: The penalties to choose from, in any order.
        n_folds: How many folds there are.
        seed: The seed of the folds.
    """
    strongest_first = sorted(alphas, reverse=True)
    is_right = torch.zeros(len(alphas), len(labels), dtype=torch.float64)
    for train, test in splits(balanced_folds(labels, groups, n_folds, seed)):
        probes = fit_probes(
            states[train], labels[train], n_levels, strongest_first, ROUGH_TOLERANCE
        )
        for index, probe in enumerate(probes):
            is_right[index, test] = (probe.answers(states[test]) == labels[test]).double()

    levels, counts = labels.unique(return_counts=True)
    recalls = torch.stack([is_right[:, labels == level].mean(1) for level in levels])
    accuracies = recalls.mean(0)  # (penalties)
    best_recalls = recalls[:, accuracies.argmax()]  # (levels)
    # A recall r of n stimuli has the variance r (1 - r) / n. The accuracy is a mean of recalls.
    variance = (best_recalls * (1 - best_recalls) / counts).sum()
    standard_error = variance.sqrt() / len(best_recalls)
    is_good_enough = accuracies >= accuracies.max() - standard_error
    first_good_index = int(is_good_enough.nonzero()[0])
    return strongest_first[first_good_index]
