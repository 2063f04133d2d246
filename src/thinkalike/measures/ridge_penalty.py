"""The penalty of a ridge regression, chosen by cross-validation over documents.

Least squares on few rows overfits, and its R² on other rows falls far below 0. Rows of one
document depend on each other, so that the penalty is judged on other documents than the map is
fitted on. A penalty may grow without bound, to the map 0 of R² 0.
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

# The penalties that are tried, in units of the mean variance of the states that predict.
PENALTIES = torch.logspace(-12, 6, 55, dtype=torch.float64)

# A map must predict better than the mean by more than this many standard errors over the parts, or
# 0 takes its place. At exactly 1, a gain that a single part shows would pass.
SURE = 1 + 1e-6


class Basis(NamedTuple):
    """The eigenvectors of Σ (x - x̄)(x - x̄)', in which ridge regressions on x are diagonal.

    Attributes:
        values: The eigenvalues, in rising order.
        vectors: The eigenvectors V, in columns.
    """

    values: Float[Tensor, " r"]
    vectors: Float[Tensor, "d r"]

    @classmethod
    def of(cls, products: Float[Tensor, "d d"], rows: int | None = None) -> Basis:
        """Return the basis of products, of no higher rank than the number of rows, if given."""
        values, vectors = torch.linalg.eigh(products)
        rank = min(rows or len(values), len(values))
        return cls(values[-rank:].clamp(min=0), vectors[:, -rank:])

    @property
    def unit(self) -> Float[Tensor, ""]:
        """The mean variance, times the number of rows."""
        smallest = torch.finfo(self.values.dtype).tiny
        return (self.values.sum() / len(self.vectors)).clamp(min=smallest)


def gained(
    values: Float[Tensor, " d"],
    penalties: Float[Tensor, " p"],
    fitted: Float[Tensor, "d e"],
    across: Float[Tensor, "d e"],
    products: Float[Tensor, "d d"],
) -> Float[Tensor, " p"]:
    """Return Σ ‖y‖² - Σ ‖y - W x‖² over rows that W was not fitted on, for the W of each penalty.

    Args:
        values: The eigenvalues of Σ x x' over the rows to fit on. All else is in the basis V of
            its eigenvectors.
        penalties: The penalties.
        fitted: V' Σ x y' over the rows to fit on.
        across: V' Σ x y' over the other rows.
        products: V' Σ x x' V over the other rows.
    """
    shrinkage = 1 / (values + penalties[:, None])  # (p, d)
    linear = (fitted * across).sum(1)
    quadratic = (fitted @ fitted.T) * products
    return 2 * shrinkage @ linear - ((shrinkage @ quadratic) * shrinkage).sum(1)


def best_penalty(gains: Float[Tensor, "k p"], penalties: Float[Tensor, " p"]) -> Float[Tensor, ""]:
    """Return the penalty that predicts k parts of the documents best.

    It is ∞, which gives the map 0, where the best predicts better than the mean by less than
    `SURE` standard errors over the parts.

    Args:
        gains: What the maps of each penalty gain on each part, see `gained`.
        penalties: The penalties.
    """
    best = gains.sum(0).argmax(keepdim=True)
    gain_of_parts = gains.index_select(1, best)[:, 0]
    least_gain = SURE * gain_of_parts.std() / len(gain_of_parts) ** 0.5
    is_sure = gain_of_parts.mean() > least_gain
    return torch.where(is_sure, penalties.index_select(0, best)[0], math.inf)


class HalfBasis(NamedTuple):
    """The basis of one half of the documents, with the products of the other half in it.

    Attributes:
        basis: The basis of the half.
        other_products: V' Σ x x' V over the rows of the other half, in the unit of all rows. It is
            about the mean of the half.
    """

    basis: Basis
    other_products: Float[Tensor, "r r"]


def bases_of(parts: Sequence[PairStatistics]) -> tuple[Basis, list[HalfBasis]]:
    """Return the basis of x in all rows, and those of two halves of them.

    Args:
        parts: The statistics of two halves, or of all rows, which have no halves.
    """
    joint = reduce(PairStatistics.joined, parts)
    whole = Basis.of(joint.xx, joint.n)
    halves: list[HalfBasis] = []
    if len(parts) > 1:
        for half, other in zip(parts, reversed(parts), strict=True):
            basis = Basis.of(half.xx, half.n)
            shift = other.mean_x - half.mean_x
            products = torch.addr(other.xx, shift, shift, alpha=other.n) / whole.unit
            halves.append(HalfBasis(basis, basis.vectors.T @ products @ basis.vectors))
    return whole, halves


def penalty_of(
    parts: Sequence[PairStatistics], whole: Basis, halves: Sequence[HalfBasis]
) -> Float[Tensor, ""]:
    """Return the λ with which maps of each half of the documents predict the other half best.

    As λ stands beside a sum over rows, it is right for the map of all rows, too. It is ∞ where no
    map predicts better than the mean, see `best_penalty`.

    Args:
        parts: The statistics of both halves.
        whole, halves: Their bases, see `bases_of`.
    """
    penalties = PENALTIES.to(whole.values)
    fitted_of_halves = []
    across_of_halves = []
    for half, other, (basis, _) in zip(parts, reversed(parts), halves, strict=True):
        shift_x = basis.vectors.T @ (other.mean_x - half.mean_x)
        shift_y = other.mean_y - half.mean_y
        across = (basis.vectors.T @ other.xy).addr_(shift_x, shift_y, alpha=other.n)
        fitted_of_halves.append(basis.vectors.T @ half.xy)
        across_of_halves.append(across)

    # Divide by the largest entry, so that no product overflows. A basis may have no direction.
    extremes = [torch.zeros_like(whole.unit)]
    for products in (*fitted_of_halves, *across_of_halves):
        if products.numel():
            extremes += products.aminmax()
    size = torch.stack(extremes).abs().max()

    gains = []
    for half_basis, fitted, across in zip(halves, fitted_of_halves, across_of_halves, strict=True):
        values = half_basis.basis.values / whole.unit
        gains.append(
            gained(
                values,
                penalties,
                fitted.div_(size),
                across.div_(size),
                half_basis.other_products,
            )
        )
    return whole.unit * best_penalty(torch.stack(gains), penalties)
