"""Distance correlation, and CKA as its twin: products of U-centred matrices of pairs of rows."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.measures.calibration.contract import LayerMeasure, both_in_order, products, unit
from thinkalike.measures.distances.neural import NeuralDistances, upper
from thinkalike.measures.distances.ranks import unit_ranks
from thinkalike.measures.kernels.centring import centred


def distance_correlation(X: Float[Tensor, "n d"], Y: Float[Tensor, "m e"]) -> Float[Tensor, ""]:
    """Return the bias-corrected distance correlation R* = <A, B> / √(<A, A> <B, B>), in [-1, 1].

    A and B are the U-centred Euclidean distances of the rows (Székely & Rizzo 2013; in this form 2014). It
    estimates the *square* of the distance correlation of Székely, Rizzo & Bakirov (2007), is about 0 for independent
    features of any width, and below 0 half of the time. It is 0 in the limit only if there is no dependence of any
    kind. It has no gradient here.

    Raises:
        ValueError: n < 4 or n differs between the sides, a value is not finite, or all distances of a side are equal.
    """
    return DISTANCE_CORRELATION.of(X, Y)


@torch.no_grad()
def u_centred(matrix: Float[Tensor, "n n"], name: str) -> Float[Tensor, "n n"]:
    """Return a symmetric matrix with the sums of its rows taken away so that products are unbiased, of norm 1.

    Aᵢⱼ = aᵢⱼ - aᵢ./(n-2) - a.ⱼ/(n-2) + a../((n-1)(n-2)) off the diagonal, and 0 on it. The product of two of them, over
    n (n-3), is the unbiased squared distance covariance of matrices of distances, and the unbiased HSIC of Grams.

    Raises:
        ValueError: Nothing is left but rounding.
    """
    n = len(matrix)
    whole = matrix.double().clone().fill_diagonal_(0)
    sums = whole.sum(0) / (n - 2)
    matrix_centred = (whole - sums - sums[:, None] + sums.sum() / (n - 1)).fill_diagonal_(0)
    return unit(matrix_centred, whole.norm(), name)


@torch.no_grad()
def _of_distances(features: Float[Tensor, "n d"], name: str) -> Float[Tensor, "n n"]:
    rows = centred(features, name).rows
    return u_centred(NeuralDistances.of(rows, name=name).squared().sqrt(), name)


@torch.no_grad()
def _of_products(features: Float[Tensor, "n d"], name: str) -> Float[Tensor, "n n"]:
    rows = centred(features, name).rows.double()
    return u_centred(rows @ rows.T, name)


@torch.no_grad()
def _of_ranks(features: Float[Tensor, "n d"], name: str) -> Float[Tensor, "n n"]:
    squared = NeuralDistances.of(features, name=name).squared()
    above, ranked = upper(len(squared), squared.device), torch.zeros_like(squared)
    ranked.view(-1)[above] = unit_ranks([squared.flatten()[above]], f"the distances of {name},")[0] / 2**0.5
    return ranked + ranked.T


DISTANCE_CORRELATION = LayerMeasure(_of_distances, products, both_in_order)
UNBIASED_CKA = LayerMeasure(_of_products, products, both_in_order)  # the numbers of `cka`, in the form that permutes
RANKED_DISTANCES = LayerMeasure(_of_ranks, products, both_in_order, fewest=3)  # the numbers of `rsa`
