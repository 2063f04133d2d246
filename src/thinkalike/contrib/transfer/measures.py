"""Maps between two sites, and what they carry from one model to another: linear probes of states, steering vectors.

A probe gives every level of a feature a score, p·h + c, and answers with the level of the highest. With ψ(g) = D g + v
from the states of model B to those of model A, a probe of A reads the states of B:

    p·ψ(g) + c = (p D)·g + (p·v + c)

With φ(h) = U h + u from model A to model B, a vector s that is added to states of A becomes U s in B
(Chen, Merullo, Stolfo & Pavlick 2025, arXiv 2506.06609).

Intervals leave out whole sentences, as the words of one are not independent.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from threadpoolctl import threadpool_limits
from torch import Tensor

from thinkalike.measures.accuracy import Jackknifed, balanced_folds, without_each_part
from thinkalike.measures.closed_forms import AffineMap
from thinkalike.measures.folds import splits
from thinkalike.measures.sample_size import effective_number

TOLERANCE = 1e-6  # of the largest entry of the gradient of the mean loss
STEPS = 5000  # of L-BFGS at most


@dataclass(frozen=True, eq=False)
class Probe:
    """A score for each of k levels of a feature, linear in states of width d, in float64."""

    weight: Float[Tensor, "k d"]  # p of each level
    bias: Float[Tensor, " k"]  # c of each level; -∞ of one that the probe never saw
    converged: bool = True  # whether the fit reached its tolerance

    def scores(self, states: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
        return states.to(self.weight) @ self.weight.T + self.bias

    def answers(self, states: Float[Tensor, "n d"]) -> Int[Tensor, " n"]:
        """Return the level of the highest score for each state."""
        return self.scores(states).argmax(1)

    def through(self, mapping: AffineMap) -> Probe:
        """Return the probe whose scores for states g are those of this one for D g + v."""
        weight, bias = mapping.weight.to(self.weight), mapping.bias.to(self.weight)
        return replace(self, weight=self.weight @ weight, bias=self.weight @ bias + self.bias)


def fit_probes(
    states: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    levels: int,
    alphas: Sequence[float],
    tolerance: float = TOLERANCE,
) -> list[Probe]:
    """Return a logistic regression for each ridge penalty, each started from the one before.

    It minimises Σᵢ wᵢ (-log softmax(P xᵢ + c))_yᵢ + α ‖P‖² / 2, with weights w that give all levels the same total, and
    x the centred states over the root of their mean variance. As all dimensions share one scale, rotated states have
    the rotated probe. Errors are scikit-learn's: of labels of one level, and of states that do not vary. It is fastest
    from the largest penalty α to the smallest.
    """
    from sklearn.linear_model import LogisticRegression

    rows = states.double()
    mean, scale = rows.mean(0), rows.var(0, correction=0).mean().sqrt()
    x, y = ((rows - mean) / scale).numpy(), labels.numpy()
    model: Any = LogisticRegression(class_weight="balanced", tol=tolerance, max_iter=STEPS, warm_start=True)
    probes = []
    for alpha in alphas:
        model.set_params(C=1 / alpha)
        # a second thread makes the small products of a step up to five times slower
        with warnings.catch_warnings(record=True) as caught, threadpool_limits(1):
            warnings.simplefilter("always")
            model.fit(x, y)
        converged = not any("converge" in str(warning.message).lower() for warning in caught)
        weights, offsets = torch.from_numpy(model.coef_), torch.from_numpy(model.intercept_)
        if len(model.classes_) == 2:  # one row, for the second against the first
            weights, offsets = torch.cat([-weights, weights]) / 2, torch.cat([-offsets, offsets]) / 2
        seen = torch.from_numpy(model.classes_)
        weight = mean.new_zeros(levels, len(mean)).index_copy_(0, seen, weights / scale)
        bias = mean.new_full((levels,), -torch.inf).index_copy_(0, seen, offsets - weights @ mean / scale)
        probes.append(Probe(weight, bias, converged))
    return probes


ROUGH = 1e-4  # tolerance of fits that only choose a penalty


@dataclass(frozen=True, eq=False)
class CrossFitted:
    """A probe for each fold of the stimuli, fitted on all others, and its ridge penalty."""

    probes: Sequence[Probe]
    alphas: Sequence[float]
    fold_of: Int[Tensor, " n"]

    @property
    def converged(self) -> bool:
        return all(probe.converged for probe in self.probes)

    def through(self, mapping: AffineMap) -> CrossFitted:
        """Return the probes of the states that the map reads; see `Probe.through`."""
        return replace(self, probes=[probe.through(mapping) for probe in self.probes])

    def right(self, states: Float[Tensor, "n d"], labels: Int[Tensor, " n"]) -> Bool[Tensor, " n"]:
        """Return whether each stimulus gets its label from the probe of its fold."""
        right = torch.zeros(len(labels), dtype=torch.bool)
        for fold, probe in enumerate(self.probes):
            own = self.fold_of == fold
            right[own] = probe.answers(states[own]) == labels[own]
        return right


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
    """Fit a probe for each fold on all the others, with the ridge penalty that does best on `inner` folds of those.

    Inner folds keep groups together, too.
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

    Of penalties that do equally well up to chance, a weak one leans on directions of little variance, which no map
    carries well (rule of one standard error; Hastie, Tibshirani & Friedman 2009, section 7.10).
    """
    strongest_first = sorted(alphas, reverse=True)
    right = torch.zeros(len(alphas), len(labels), dtype=torch.float64)
    for train, test in splits(balanced_folds(labels, groups, folds, seed)):
        probes = fit_probes(states[train], labels[train], levels, strongest_first, ROUGH)
        for place, probe in enumerate(probes):
            right[place, test] = (probe.answers(states[test]) == labels[test]).double()
    present, counts = labels.unique(return_counts=True)
    recalls = torch.stack([right[:, labels == level].mean(1) for level in present])
    accuracy = recalls.mean(0)
    best = recalls[:, accuracy.argmax()]
    error = (best * (1 - best) / counts).sum().sqrt() / len(best)
    return strongest_first[int((accuracy >= accuracy.max() - error).nonzero()[0])]


# ---- steering vectors: the difference that a feature makes to mean states, carried to another model


def held_out_differences(
    before: Float[Tensor, "n d"], after: Float[Tensor, "n d"], fold_of: Int[Tensor, " n"]
) -> Float[Tensor, "n d"]:
    """Return for each pair of states the mean of after - before over all pairs that are not in its fold."""
    difference, vectors = after.double() - before.double(), torch.empty(before.shape, dtype=torch.float64)
    for fold in fold_of.unique():
        vectors[fold_of == fold] = difference[fold_of != fold].mean(0)
    return vectors


def with_norms_of(vectors: Float[Tensor, "*n d"], others: Float[Tensor, "n e"]) -> Float[Tensor, "*n d"]:
    """Return the directions of some vectors with the norms of others; a zero vector stays one."""
    return torch.nn.functional.normalize(vectors, dim=-1) * others.norm(dim=-1, keepdim=True)


def random_directions(
    draws: int, vectors: Float[Tensor, "n d"], generator: torch.Generator
) -> Float[Tensor, "draws n d"]:
    """Return random directions, each the same for all n, with the norms of the given vectors."""
    directions = torch.randn(draws, 1, vectors.shape[1], dtype=vectors.dtype, generator=generator)
    return with_norms_of(directions.expand(-1, len(vectors), -1), vectors)


def effects_of(
    steered: Float[Tensor, "c n"], natural: Float[Tensor, " n"], groups: Int[Tensor, " n"]
) -> tuple[Jackknifed, Jackknifed]:
    """Return the mean effects of c conditions over texts, and that of the counterparts, jackknifed over groups.

    An effect is how far the log-probability gap of a text moves, in nats; a group is such as the texts of one word.
    """
    rows = torch.cat([steered.double(), natural.double()[None], torch.ones(1, len(natural), dtype=torch.float64)])
    sums = without_each_part(rows, groups)
    means, worth = sums[:-1] / sums[-1], effective_number(sums[-1, 0] - sums[-1, 1:])
    return Jackknifed(means[:-1, 0], means[:-1, 1:], worth), Jackknifed(means[-1, 0], means[-1, 1:], worth)


def turned_at_random(mapping: AffineMap, mean: Float[Tensor, " d"], generator: torch.Generator) -> AffineMap:
    """Return Q W R x + b' with random rotations Q and R: the singular values of W, and the same image of the mean."""
    weight = mapping.weight.double()
    left, right = (random_rotation(width, generator).to(weight.device) for width in weight.shape)
    turned = left @ weight @ right
    mean = mean.to(weight)
    return AffineMap(turned, weight @ mean + mapping.bias.double() - turned @ mean)


def random_rotation(width: int, generator: torch.Generator) -> Float[Tensor, "d d"]:
    """Return an orthogonal matrix from the uniform distribution over all of them, in float64 (Mezzadri 2007)."""
    q, r = torch.linalg.qr(torch.randn(width, width, dtype=torch.float64, generator=generator))
    return q * r.diagonal().sign()
