"""The penalty of a ridge regression, chosen by cross-validation over documents.

Least squares on few rows overfits, and its R² on further rows falls far below 0. Rows of one
document depend on each other, so that a penalty is judged on documents that the map was not fitted
on. An infinite penalty gives the map 0, whose R² is 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.measures.moments import PairStatistics

# The penalties that are tried, as multiples of `Basis.unit`, the number of rows times the mean
# variance of a dimension of the predicting states.
PENALTIES = torch.logspace(-12, 6, 55, dtype=torch.float64)

# A map must predict better than the mean by more than this many standard errors over the held-out
# parts, else the map 0 takes its place. At exactly 1, a gain in a single part would be enough.
FEWEST_STANDARD_ERRORS = 1 + 1e-6


class Basis(NamedTuple):
    """The eigenvectors of Σ (x - x̄)(x - x̄)', in whose coordinates ridge regressions are diagonal.

    Attributes:
        values: The eigenvalues, in rising order.
        vectors: The eigenvectors V, in columns.
    """

    values: Float[Tensor, " r"]
    vectors: Float[Tensor, "d r"]

    @classmethod
    def of(cls, products: Float[Tensor, "d d"], rows: int | None = None) -> Basis:
        """Return the eigenvalues and eigenvectors of a matrix of sums of centred products.

        Args:
            products: The matrix Σ (x - x̄)(x - x̄)' over some rows.
            rows: How many rows these are. n rows have at most n directions of variance, so only
                the n largest eigenvalues are returned. None: all d are.
        """
        values, vectors = torch.linalg.eigh(products)  # values in rising order
        rank = len(values)
        if rows:
            rank = min(rows, len(values))  # further eigenvalues are only rounding
        return cls(values[-rank:].clamp(min=0), vectors[:, -rank:])

    @property
    def unit(self) -> Float[Tensor, ""]:
        """The unit of ridge penalties: Σ ‖x - x̄‖² / d over all rows, for states of width d.

        It is the number of rows times the mean variance of a dimension. Penalties are multiples of
        it, so that they do not depend on the scale of the states. For constant states it is the
        smallest normal float, so that it is never 0.
        """
        smallest = torch.finfo(self.values.dtype).tiny
        width = len(self.vectors)
        # The eigenvalues sum to Σ ‖x - x̄‖².
        return (self.values.sum() / width).clamp(min=smallest)


def gains_of_penalties(
    values: Float[Tensor, " d"],
    penalties: Float[Tensor, " p"],
    fitted: Float[Tensor, "d e"],
    across: Float[Tensor, "d e"],
    products: Float[Tensor, "d d"],
) -> Float[Tensor, " p"]:
    """Return by how much the ridge map of each penalty beats the prediction 0 on held-out rows.

    For the map W of a penalty λ the gain is Σ ‖y‖² - Σ ‖y - W x‖², over rows that W was not fitted
    on. Only sums over rows are needed. With V the eigenvectors of Σ x x' over the rows that W was
    fitted on, and v their eigenvalues, W = (V' Σ x y')' diag(1 / (v + λ)) V'.

    Args:
        values: The eigenvalues v.
        penalties: The penalties λ.
        fitted: V' Σ x y' over the rows that the maps are fitted on.
        across: V' Σ x y' over the held-out rows.
        products: V' Σ x x' V over the held-out rows.
    """
    shrinkage = 1 / (values + penalties[:, None])  # (p, d)
    # With F = fitted and D = diag(shrinkage), the gain is
    # 2 Σ y' W x - Σ ‖W x‖² = 2 tr(F' D across) - tr(F' D products D F).
    linear = (fitted * across).sum(1)  # (d,)
    quadratic = (fitted @ fitted.T) * products  # (d, d)
    return 2 * shrinkage @ linear - ((shrinkage @ quadratic) * shrinkage).sum(1)


def best_penalty(gains: Float[Tensor, "k p"], penalties: Float[Tensor, " p"]) -> Float[Tensor, ""]:
    """Return the ridge penalty whose maps predict k held-out parts of the documents best.

    It is the one with the largest gain in all parts together. Its mean gain over the parts must
    also be larger than its standard error (times `FEWEST_STANDARD_ERRORS`). Otherwise, and with a
    single part, the penalty ∞ is returned, which makes the map 0.

    Args:
        gains: For each part and penalty, by how much the squared error of the map on the part is
            below that of predicting the mean.
        penalties: The p penalties that were tried.
    """
    # The index stays a tensor: as a number of Python it would make a GPU wait.
    index_of_best = gains.sum(0).argmax(keepdim=True)
    best = penalties.index_select(0, index_of_best)[0]
    gain_of_parts = gains.index_select(1, index_of_best)[:, 0]  # (k,)
    least_gain = FEWEST_STANDARD_ERRORS * gain_of_parts.std() / len(gain_of_parts) ** 0.5
    is_significant = gain_of_parts.mean() > least_gain
    return torch.where(is_significant, best, math.inf)


class HalfBasis(NamedTuple):
    """The basis of one half of the documents, and how the states of the other half vary in it.

    Maps are fitted on this half and judged on the other one.

    Attributes:
        basis: The basis V of this half.
        other_products: V' Σ (x - x̄)(x - x̄)' V over the rows x of the other half, where x̄ is the
            mean of this half. It is divided by `Basis.unit` of all rows.
    """

    basis: Basis
    other_products: Float[Tensor, "r r"]


def bases_of(halves: Sequence[PairStatistics]) -> tuple[Basis, list[HalfBasis]]:
    """Return the eigenvectors of the states' covariance, for all rows and for each half of them.

    Args:
        halves: The statistics of the states in each half of the documents. A single entry, of all
            rows, is also accepted; then no bases of halves are returned.

    Returns:
        The basis of all rows, and for each half its own basis, in which the states of the other
        half are expressed as well, see `HalfBasis`.
    """
    joint = reduce(PairStatistics.joined, halves)
    basis_of_all = Basis.of(joint.xx, joint.n)
    bases_of_halves: list[HalfBasis] = []
    if len(halves) > 1:
        for fitted_half, judging_half in zip(halves, reversed(halves), strict=True):
            basis = Basis.of(fitted_half.xx, fitted_half.n)
            # `xx` is a sum of products of deviations from the mean of the judging half itself. For
            # deviations from the mean of the fitted half, n δ δ' is added, where δ is the
            # difference of the two means and n the number of rows of the judging half.
            shift = judging_half.mean_x - fitted_half.mean_x  # δ
            about_fitted_mean = torch.addr(judging_half.xx, shift, shift, alpha=judging_half.n)
            products = about_fitted_mean / basis_of_all.unit
            in_basis = basis.vectors.T @ products @ basis.vectors
            bases_of_halves.append(HalfBasis(basis, other_products=in_basis))
    return basis_of_all, bases_of_halves


def penalty_of(
    halves: Sequence[PairStatistics], basis_of_all: Basis, bases_of_halves: Sequence[HalfBasis]
) -> Float[Tensor, ""]:
    """Return the penalty λ with which maps fitted on one half of the documents predict the other.

    It is the λ of the best prediction, over both directions. As λ is added to a sum over rows, the
    same λ suits the map that is fitted on all rows. It is ∞ if no map predicts better than the
    mean, see `best_penalty`.

    Args:
        halves: The statistics of each half.
        basis_of_all: The basis of all rows, see `bases_of`.
        bases_of_halves: The basis of each half, see `bases_of`.
    """
    penalties = PENALTIES.to(basis_of_all.values)
    fitted_of_halves = []
    across_of_halves = []
    for index, half_basis in enumerate(bases_of_halves):
        fitted_half = halves[index]
        judging_half = halves[1 - index]
        vectors = half_basis.basis.vectors
        shift_x = vectors.T @ (judging_half.mean_x - fitted_half.mean_x)
        shift_y = judging_half.mean_y - fitted_half.mean_y
        across = (vectors.T @ judging_half.xy).addr_(shift_x, shift_y, alpha=judging_half.n)
        fitted_of_halves.append(vectors.T @ fitted_half.xy)
        across_of_halves.append(across)

    # Divide by the largest entry, so that no product overflows. A basis may have no direction.
    extremes = [torch.zeros_like(basis_of_all.unit)]
    for products in (*fitted_of_halves, *across_of_halves):
        if products.numel():
            extremes.extend(products.aminmax())  # the least and the greatest entry
    size = torch.stack(extremes).abs().max()

    gains = []
    for half_basis, fitted, across in zip(
        bases_of_halves, fitted_of_halves, across_of_halves, strict=True
    ):
        values = half_basis.basis.values / basis_of_all.unit
        gains.append(
            gains_of_penalties(
                values,
                penalties,
                fitted.div_(size),
                across.div_(size),
                half_basis.other_products,
            )
        )
    return basis_of_all.unit * best_penalty(torch.stack(gains), penalties)
