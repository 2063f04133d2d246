"""Linear probes of states, and what becomes of one that is carried through an affine map into another model's states.

A probe gives every level of a feature a score, p·h + c, and answers with the level of the highest. With ψ(g) = D g + v
from the states of model B to those of model A, a probe of A reads the states of B:

    p·ψ(g) + c = (p D)·g + (p·v + c)

(Chen, Merullo, Stolfo & Pavlick 2025, arXiv 2506.06609).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from threadpoolctl import threadpool_limits
from torch import Tensor

from thinkalike.measures.stitching.closed_forms import AffineMap

TOLERANCE = 1e-6  # of the largest entry of the gradient of the mean loss
STEPS = 5000  # of L-BFGS at most


@dataclass(frozen=True, eq=False)
class Probe:
    """A score for each of k levels of a feature, linear in states of width d, in float64.

    Attributes:
        weight, bias: p and c of each level; a level that the probe never saw has the bias -∞, and is never answered.
        converged: whether the fit reached its tolerance.
    """

    weight: Float[Tensor, "k d"]
    bias: Float[Tensor, " k"]
    converged: bool = True

    def scores(self, states: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
        """Return the score of every level for each state; only differences between levels mean anything."""
        return states.to(self.weight) @ self.weight.T + self.bias

    def answers(self, states: Float[Tensor, "n d"]) -> Int[Tensor, " n"]:
        """Return the level of the highest score for each state."""
        return self.scores(states).argmax(1)

    def through(self, mapping: AffineMap) -> Probe:
        """Return the probe of states g whose scores are those of this one for the states D g + v that the map makes."""
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

    Minimised is Σᵢ wᵢ (-log softmax(P xᵢ + c))_yᵢ + α ‖P‖² / 2 by scikit-learn (C = 1/α), with weights w that give all
    levels the same total, and x the centred states over the root of their mean variance. One scale for all dimensions,
    and not one for each, makes the fit equivariant: rotated states have the rotated probe.

    Args:
        labels: The number of each state's level, below `levels`.
        alphas: Best from the largest to the smallest, as the first is the quickest to fit from nothing.
        tolerance: Of the largest entry of the gradient.

    Raises:
        ValueError: The labels have fewer than two levels, or the states do not vary.
    """
    if len(labels.unique()) < 2:
        raise ValueError(f"a probe tells levels apart, and all {len(labels)} labels are of one level")
    rows = states.double()
    mean, scale = rows.mean(0), rows.var(0, correction=0).mean().sqrt()
    if not scale > 0:
        raise ValueError("the states are all the same, so no probe can tell them apart")
    x, y = ((rows - mean) / scale).numpy(), labels.numpy()
    model, probes = _regression(tolerance), []
    for alpha in alphas:
        model.set_params(C=1 / alpha)
        # the products of a step are so small that a second thread makes it up to five times slower
        with warnings.catch_warnings(record=True) as caught, threadpool_limits(1):
            warnings.simplefilter("always")
            model.fit(x, y)
        converged = not any("converge" in str(warning.message).lower() for warning in caught)
        probes.append(_of_states(model, levels, mean, scale, converged))
    return probes


def _regression(tolerance: float) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(class_weight="balanced", tol=tolerance, max_iter=STEPS, warm_start=True)


def _of_states(model: Any, levels: int, mean: Tensor, scale: Tensor, converged: bool) -> Probe:
    """Return what scikit-learn fitted to (h - mean) / scale as a probe of h."""
    rows, offsets = torch.from_numpy(model.coef_), torch.from_numpy(model.intercept_)
    if len(model.classes_) == 2:  # one row, for the second against the first
        rows, offsets = torch.cat([-rows, rows]) / 2, torch.cat([-offsets, offsets]) / 2
    seen = torch.from_numpy(model.classes_)
    weight = mean.new_zeros(levels, len(mean)).index_copy_(0, seen, rows / scale)
    bias = mean.new_full((levels,), -torch.inf).index_copy_(0, seen, offsets - rows @ mean / scale)
    return Probe(weight, bias, converged)
