"""Merges: is a block a weighted mean of the blocks of other models?

The weights of a merge (linear, SLERP, task arithmetic) lie between those of its parents. A model
that was trained independently of them, from the same origin or not, does not.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.optimize import nnls
from torch import Tensor

LEAST_EXPLAINED = 0.9
"""A merge explains at least so much of the squared distance from the nearest parent. Rounding to
16 bits leaves a part of it, where parents differ by little."""

LEAST_WEIGHT = 0.02
"""A model with a smaller weight is no parent."""


ROUNDING_OF_SQUARES = 1e-12
"""Squared distances below this share of the largest one are rounding errors of float64."""


class MergeFit(NamedTuple):
    """The weighted mean of k models that is nearest to a block.

    Attributes:
        weights: The weight of each model, which are not negative and add up to 1.
        explained: 1 less the squared distance from that mean, divided by that from the nearest
            model; NaN if the block is that of a model, unchanged.
        is_merge: Whether the block is a mean of several models.
    """

    weights: Float[Tensor, " k"]
    explained: float
    is_merge: bool


def fit_merge(block: Float[Tensor, " n"], candidates: Float[Tensor, "k n"]) -> MergeFit:
    """Return the weighted mean of k models that is nearest to a block, and whether it is a merge.

    The weights minimise ‖Σ w_i (X_i - M)‖² over w ≥ 0 with Σ w_i = 1. In place of this constraint,
    (1 - Σ w_i)² is added to the objective, which makes it one of non-negative least squares
    (Lawson & Hanson 1974). Its solution is the same up to a scale, so it is divided by its sum.

    The share explained is 1 - ‖Σ w_i X_i - M‖² / min ‖X_i - M‖², by how much the mean is nearer
    than the nearest single model. The block may also be the common origin from which the k models
    were tuned independently, which is near their mean, too: then 1 - 1/k is explained if all moved
    equally far. So for a merge at least 1 - 1/(4 k) must be explained, and `LEAST_EXPLAINED`, and
    two models or more must have a weight.

    A candidate that is a merge of other candidates has the weight 0, and is not counted among the
    k: several merges of the same parents are means of each other, too, and only the parents are
    means of none. It may be the nearest single model all the same, as it is of what was tuned from
    it: that is no merge.

    Args:
        block: The weights M of the block.
        candidates: The weights X_i of k ≥ 1 blocks that may be its parents.
    """
    differences = (candidates - block).double()
    products = differences @ differences.T  # (k, k)
    squared_distances = products.diagonal()
    if squared_distances.min() == 0:  # the block is that of a model, unchanged
        weights = (squared_distances == 0).double()
        return MergeFit(weights / weights.sum(), float("nan"), is_merge=False)

    parents = _indices_of_no_merges(products)
    nearest = float(squared_distances.min())
    fit = _fit_of_products(products[parents][:, parents], nearest)
    weights = torch.zeros(len(candidates), dtype=torch.float64)
    weights[parents] = fit.weights
    return MergeFit(weights, fit.explained, fit.is_merge)


def _indices_of_no_merges(products: Float[Tensor, "k k"]) -> Int[Tensor, " parents"]:
    """Return which of k candidates are no merges of the others.

    Args:
        products: The products (X_i - M)·(X_j - M) of the candidates X_i, for some point M.
    """
    squares = products.diagonal()
    distances = squares[:, None] + squares[None, :] - 2 * products  # ‖X_i - X_j‖²
    is_other = distances > ROUNDING_OF_SQUARES * squares.max()  # neither itself nor a copy
    no_merges = []
    for index in range(len(products)):
        others = is_other[index].nonzero().flatten()
        # (X_i - X_c)·(X_j - X_c) of the other candidates, with X_c this one
        to_candidate = products[index, others]
        products_of_others = (
            products[others][:, others]
            - to_candidate[:, None]
            - to_candidate[None, :]
            + squares[index]
        )
        if len(others) < 2:
            no_merges.append(index)
            continue
        nearest = float(products_of_others.diagonal().min())
        if not _fit_of_products(products_of_others, nearest).is_merge:
            no_merges.append(index)
    return torch.tensor(no_merges)


def _fit_of_products(products: Float[Tensor, "k k"], nearest: float) -> MergeFit:
    """Return the weighted mean of k models that is nearest to a block, see `fit_merge`.

    Args:
        products: The products (X_i - M)·(X_j - M) of the models X_i, with M the block. None of
            the models is the block itself.
        nearest: The squared distance of the block from the nearest single model, which may be none
            of these.
    """
    squared_distances = products.diagonal()
    scale = squared_distances.mean()
    values, vectors = torch.linalg.eigh(products / scale)
    root = values.clamp(min=0).sqrt()[:, None] * vectors.T  # root' root = products / scale
    # root w = 0 and Σ w = 1, as nearly as w ≥ 0 allows
    equations = np.vstack([root.numpy(), np.ones(len(products))])
    right_side = np.append(np.zeros(len(products)), 1.0)
    solution, _ = nnls(equations, right_side)
    weights = torch.from_numpy(solution / solution.sum())

    remaining = float(weights @ products @ weights)  # ‖Σ w_i (X_i - M)‖²
    explained = 1 - remaining / nearest
    parent_count = int((weights >= LEAST_WEIGHT).sum())
    least_explained = max(LEAST_EXPLAINED, 1 - 1 / (4 * len(products)))
    is_merge = parent_count > 1 and explained >= least_explained
    return MergeFit(weights, explained, is_merge)
