"""Probes that never judge what they were fitted on: folds that keep groups together, and a penalty for each fold."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.measures.statistics.folds import splits
from thinkalike.measures.stitching.closed_forms import AffineMap
from thinkalike.measures.transfer.probes import Probe, fit_probes

TOLERANCE = 1e-4  # of fits that only choose a penalty


@dataclass(frozen=True, eq=False)
class CrossFitted:
    """A probe for each fold of the stimuli, fitted on all others, with the ridge penalty that was chosen for it."""

    probes: Sequence[Probe]
    alphas: Sequence[float]
    fold_of: Int[Tensor, " n"]

    @property
    def converged(self) -> bool:
        """Whether all fits reached their tolerance."""
        return all(probe.converged for probe in self.probes)

    def through(self, mapping: AffineMap) -> CrossFitted:
        """Return the probes of the states that the map reads; see `Probe.through`."""
        return CrossFitted([probe.through(mapping) for probe in self.probes], self.alphas, self.fold_of)

    def right(self, states: Float[Tensor, "n d"], labels: Int[Tensor, " n"]) -> Bool[Tensor, " n"]:
        """Return whether each stimulus, in any model's states of width d, gets its label from the probe of its fold."""
        right = torch.zeros(len(labels), dtype=torch.bool)
        for fold, probe in enumerate(self.probes):
            own = self.fold_of == fold
            right[own] = probe.answers(states[own]) == labels[own]
        return right


def balanced_folds(labels: Int[Tensor, " n"], groups: Int[Tensor, " n"], folds: int, seed: int) -> Int[Tensor, " n"]:
    """Return the fold of each stimulus: no group is in two, and levels are shared out as evenly as groups allow.

    Raises:
        ValueError: There are fewer groups than folds.
    """
    from sklearn.model_selection import StratifiedGroupKFold

    if (count := len(groups.unique())) < folds:
        raise ValueError(f"{folds} folds of {count} groups: there must be as many groups")
    splitter = StratifiedGroupKFold(folds, shuffle=True, random_state=seed)
    fold_of = torch.empty(len(labels), dtype=torch.long)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of levels with fewer stimuli than there are folds
        for fold, (_, test) in enumerate(splitter.split(labels, labels, groups)):
            fold_of[torch.from_numpy(test)] = fold
    return fold_of


def cross_fitted(
    states: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    levels: int,
    fold_of: Int[Tensor, " n"],
    groups: Int[Tensor, " n"],
    alphas: Sequence[float],
    inner: int,
    seed: int,
) -> CrossFitted:
    """Fit a probe for each fold on all the others, with the penalty that does best on inner folds of those.

    Args:
        groups: What inner folds keep together, as `fold_of` does.
        alphas: Ridge penalties to choose from; a single one is taken as it is.
        inner: How many inner folds.

    Raises:
        ValueError: See `fit_probes`, `balanced_folds`.
    """
    probes, chosen = [], []
    for train, _ in splits(fold_of):
        x, y, g = states[train], labels[train], groups[train]
        chosen.append(alphas[0] if len(alphas) == 1 else best_penalty(x, y, levels, g, alphas, inner, seed))
        probes += fit_probes(x, y, levels, chosen[-1:])
    return CrossFitted(probes, chosen, fold_of)


def best_penalty(
    states: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    levels: int,
    groups: Int[Tensor, " n"],
    alphas: Sequence[float],
    folds: int,
    seed: int,
) -> float:
    """Return the largest ridge penalty whose held-out balanced accuracy is within a standard error of the best one's.

    Penalties that are equally right up to chance differ in their probes: a weak one leans on directions of little
    variance, which no map carries well. So the choice is not left to a stimulus or two (the rule of one standard error;
    Hastie, Tibshirani & Friedman 2009, section 7.10).

    Raises:
        ValueError: See `fit_probes`, `balanced_folds`.
    """
    strongest_first = sorted(alphas, reverse=True)
    right = torch.zeros(len(alphas), len(labels), dtype=torch.float64)
    for train, test in splits(balanced_folds(labels, groups, folds, seed)):
        probes = fit_probes(states[train], labels[train], levels, strongest_first, TOLERANCE)
        for place, probe in enumerate(probes):
            right[place, test] = (probe.answers(states[test]) == labels[test]).double()
    recalls = torch.stack([right[:, labels == level].mean(1) for level in labels.unique()])
    accuracy = recalls.mean(0)
    best = recalls[:, accuracy.argmax()]
    counts = torch.bincount(labels)[labels.unique()]
    error = (best * (1 - best) / counts).sum().sqrt() / len(best)
    return strongest_first[int((accuracy >= accuracy.max() - error).nonzero()[0])]
