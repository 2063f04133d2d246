"""Hilbert-Schmidt independence criterion of two Gram matrices: how alike are the similarities that they hold?"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.measures.kernels.blocks import Pair

FEWEST = 4  # rows; the unbiased estimator divides by n - 3
ROUNDINGS = 8  # what a sum may be off by, in units of its terms' last digit


class GramStatistics(NamedTuple):
    """All that HSIC needs of the Gram matrices of the layers of models, in float64; K̃ is K with a zero diagonal."""

    products: dict[Pair, Float[Tensor, "l m"]]  # Σᵢⱼ K̃ᵢⱼ L̃ᵢⱼ, by the two models whose layers K and L are of
    sums: list[Float[Tensor, "l n"]]  # of each row of K̃, by model
    diagonals: list[Float[Tensor, "l n"]]  # of K, by model


def hsic1(K: Float[Tensor, "n n"], L: Float[Tensor, "n n"]) -> Float[Tensor, ""]:
    """Return the unbiased HSIC of two Gram matrices (Song et al. 2012, eq. 5).

    It is [tr(K̃L̃) + 1'K̃1 1'L̃1 / ((n-1)(n-2)) - 2/(n-2) 1'K̃L̃1] / (n(n-3)), where K̃ is K with a zero diagonal: any real
    number, in the unit of K times that of L, differentiable. Uncentred Grams of large offsets leave float32 no digits:
    centre the features first, or use `cka`.

    Raises:
        ValueError: There are fewer than 4 rows.
    """
    enough_rows(len(K))
    K, L = K - K.diagonal().diag(), L - L.diagonal().diag()
    return unbiased_from_sums(len(K), (K * L.T).sum(), (K.sum(0) * L.sum(1)).sum(), K.sum() * L.sum())


def hsic0(K: Float[Tensor, "n n"], L: Float[Tensor, "n n"]) -> Float[Tensor, ""]:
    """Return the biased HSIC tr(KHLH) / (n-1)², H = 1 - 11'/n (Gretton et al. 2005, eq. 9), at least 0 for kernels.

    Raises:
        ValueError: There are fewer than 4 rows.
    """
    enough_rows(len(K))
    return _biased(len(K), (K * L.T).sum(), (K.sum(0) * L.sum(1)).sum(), K.sum() * L.sum())


def enough_rows(n: int) -> None:
    """Raise a ValueError if there are too few rows for HSIC."""
    if n < FEWEST:
        raise ValueError(f"HSIC needs at least {FEWEST} rows, not {n}")


def all_hsics(statistics: GramStatistics, estimator: str, groups: int = 1) -> dict[Pair, Float[Tensor, "l m"]]:
    """Return the HSIC of every two symmetric Gram matrices of the models that are compared, "unbiased" or "biased".

    Args:
        groups: Of how many groups of one size the rows are, side by side, and the matrices their blocks; the HSICs of
            all groups are summed.
    """
    formula = unbiased_from_sums if estimator == "unbiased" else _biased
    sums, own = statistics.sums, statistics.diagonals
    if estimator == "biased":
        sums = [off + diagonal for off, diagonal in zip(sums, own, strict=True)]
    totals = [each.unflatten(1, (groups, -1)).sum(2) for each in sums]
    n, found = sums[0].shape[1] // groups, {}
    for (a, b), products in statistics.products.items():
        whole = products + own[a] @ own[b].T if estimator == "biased" else products
        found[a, b] = formula(n, whole, sums[a] @ sums[b].T, totals[a] @ totals[b].T)
    return found


def unbiased_from_sums(n: int, products: Tensor, of_sums: Tensor, of_totals: Tensor) -> Tensor:
    """Return `hsic1` from Σᵢⱼ K̃ᵢⱼ L̃ᵢⱼ, the product of the rows' sums of K̃ and L̃, and that of their totals."""
    return (products - of_sums * 2 / (n - 2) + of_totals / ((n - 1) * (n - 2))) / (n * (n - 3))


def cancels(n: int, products: Tensor, of_sums: Tensor, of_totals: Tensor, dtype: torch.dtype) -> Tensor:
    """Return whether nothing but rounding is left of the unbiased HSIC of a matrix with itself."""
    size = unbiased_from_sums(n, products, -of_sums, of_totals)
    return unbiased_from_sums(n, products, of_sums, of_totals) <= ROUNDINGS * torch.finfo(dtype).eps * size


def _biased(n: int, products: Tensor, of_sums: Tensor, of_totals: Tensor) -> Tensor:
    return (products - of_sums * 2 / n + of_totals / n**2) / (n - 1) ** 2
