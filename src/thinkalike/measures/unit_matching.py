"""Soft matching: how similar single units are, matched one to one or in shares."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.measures.contract import SAME_SHAPE, LayerMeasure
from thinkalike.measures.shape import centred_rows

MOST_COPIES = 8192  # units of a side up to which shares are matched as whole copies
CONSTANT_NORM_SHARE = 1e-12  # share of the widest unit's norm below which a unit does not vary


def soft_matching(X: Float[Tensor, "n d"], Y: Float[Tensor, "m e"]) -> Float[Tensor, ""]:
    """Return the mean correlation of matched units, in [-1, 1]: max_P Σᵢⱼ Pᵢⱼ corr(xᵢ, yⱼ).

    P is a transport plan between units of weight 1/d and units of weight 1/e; of equal widths the
    best one is a permutation (Khosla & Williams 2024, "Soft matching distance"; their distance of
    standardised units is √(2 - 2 s)). It is exact, not regularised. A unit that does not vary
    correlates with nothing: 0. Rotations change the value, as they should; scales of single units
    do not. It is differentiable where the plan is unique.
    """
    return SoftMatching().of(X, Y)


def transport_plan(similarity: Float[Tensor, "d e"]) -> Float[Tensor, "d e"]:
    """Return how d units are matched with e units in shares: the P ≥ 0 of greatest Σᵢⱼ Pᵢⱼ sᵢⱼ.

    Its rows sum to 1/d and its columns to 1/e, so that for d = e it is a permutation matrix
    divided by d. If d and e have a common multiple of at most `MOST_COPIES`, copies of units are
    assigned to each other; else a linear program finds P, which takes minutes for some hundred
    units.

    Args:
        similarity: s, how similar each of d units is to each of e units.
    """
    from scipy.optimize import linear_sum_assignment

    d, e = similarity.shape
    size = math.lcm(d, e)
    scores = similarity.detach().cpu().numpy()
    if size > MOST_COPIES:
        return torch.from_numpy(_plan_by_linear_program(scores)).to(similarity.device)
    # A square of copies of units, which are matched one to one. A pair of copies has the weight
    # 1 / size.
    copies_of_row = size // d
    copies_of_column = size // e
    copies = scores.repeat(copies_of_row, 0).repeat(copies_of_column, 1)  # (size, size)
    rows, columns = linear_sum_assignment(copies, maximize=True)
    plan = np.zeros((d, e))
    np.add.at(plan, (rows // copies_of_row, columns // copies_of_column), 1 / size)
    return torch.from_numpy(plan).to(similarity.device)


def _plan_by_linear_program(scores: np.ndarray) -> np.ndarray:
    """Return how d units are matched with e units in shares, by a linear program.

    It is the matrix P ≥ 0 of greatest Σᵢⱼ Pᵢⱼ scoresᵢⱼ whose rows sum to 1/d and whose columns sum
    to 1/e.

    Args:
        scores: How similar each of d units is to each of e units, (d, e).
    """
    from scipy.optimize import linprog
    from scipy.sparse import eye_array, kron, vstack

    d, e = scores.shape
    # One equation for the sum of each row and of each column of the plan, which is laid out flat.
    row_sums = kron(eye_array(d), np.ones((1, e)))
    column_sums = kron(np.ones((1, d)), eye_array(e))
    sums = vstack([row_sums, column_sums]).tocsr()
    weights = np.concatenate([np.full(d, 1 / d), np.full(e, 1 / e)])
    # `linprog` minimises, over numbers that are at least 0.
    solution = linprog(-scores.ravel(), A_eq=sums, b_eq=weights, method="highs")
    plan: np.ndarray = solution.x.reshape(d, e)
    return plan


@dataclass(frozen=True)
class SoftMatching(LayerMeasure[Tensor]):
    """Mean correlation of matched units, see `soft_matching`."""

    formula = "max over transport plans P of Σ Pᵢⱼ corr(xᵢ, yⱼ), units matched exactly"
    meaning = (
        "A value is the mean correlation of units, each matched with units of the other layer."
    )
    source = "Khosla & Williams 2024"
    value_range = (-1.0, 1.0)
    invariances = SAME_SHAPE - {"orthogonal"} | {"unit_scaling"}
    differentiable = 2
    fewest = 2
    version = 13
    in_atlas = True
    in_benchmarks = True

    def prepare(self, layer: Float[Tensor, "n d"], name: str) -> Float[Tensor, "n d"]:
        """Return the layer with its columns, one for each unit, centred and of norm 1.

        A unit that does not vary, up to rounding, becomes 0.
        """
        rows = centred_rows(layer, name)
        norms = torch.linalg.vector_norm(rows, dim=0)
        varies = norms > CONSTANT_NORM_SHARE * norms.max()
        return torch.where(varies, rows, 0) / torch.where(varies, norms, 1)

    def compare(
        self, first: Float[Tensor, "n d"], second: Float[Tensor, "n e"]
    ) -> Float[Tensor, ""]:
        """Return the mean correlation of the units of two layers, matched as well as possible.

        Columns are units, centred and of norm 1, so that their inner products are correlations.
        """
        correlations = first.T @ second
        plan = transport_plan(correlations)  # its entries add up to 1
        return (plan * correlations).sum()
