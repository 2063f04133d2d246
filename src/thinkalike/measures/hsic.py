"""The Hilbert-Schmidt independence criterion of two Gram matrices."""

from __future__ import annotations

from typing import Annotated

from jaxtyping import Float
from torch import Tensor

from thinkalike.arguments import Within
from thinkalike.measures.row_groups import FEWEST_HSIC_ROWS


def hsic1(
    K: Annotated[Float[Tensor, "n n"], Within()], L: Annotated[Float[Tensor, "n n"], Within()]
) -> Float[Tensor, ""]:
    """Return the unbiased HSIC of two Gram matrices (Song et al. 2012, eq. 5).

    It is [tr(K̃L̃) + 1'K̃1 1'L̃1 / ((n-1)(n-2)) - 2/(n-2) 1'K̃L̃1] / (n(n-3)), where K̃ is K, and
    L̃ is L, with a zero diagonal. It is any real number, in the unit of K times that of L, and
    differentiable. If features have a large mean, the terms cancel and float32 has too few digits:
    subtract the mean from the features first, or use `cka`.

    Raises:
        ValueError: There are fewer than 4 rows.

    >>> x = torch.tensor([[-1.0], [-1.0], [1.0], [1.0]])
    >>> round(hsic1(x @ x.T, x @ x.T).item(), 4)
    2.6667
    """
    if len(K) < FEWEST_HSIC_ROWS:
        raise ValueError(f"HSIC needs at least {FEWEST_HSIC_ROWS} rows, not {len(K)}")
    K = K - K.diagonal().diag()  # K̃
    L = L - L.diagonal().diag()  # L̃
    return unbiased_from_sums(
        n=len(K),
        products=(K * L.T).sum(),
        row_sum_product=(K.sum(0) * L.sum(1)).sum(),
        total_product=K.sum() * L.sum(),
    )


def hsic0(
    K: Annotated[Float[Tensor, "n n"], Within()], L: Annotated[Float[Tensor, "n n"], Within()]
) -> Float[Tensor, ""]:
    """Return the biased HSIC tr(KHLH) / (n-1)² with H = 1 - 11'/n (Gretton et al. 2005, eq. 9).

    It is at least 0 for kernels.

    Raises:
        ValueError: There are fewer than 2 rows.

    >>> K = [[1.0, 0.0], [0.0, 1.0]]
    >>> hsic0(K, K).item()
    1.0
    """
    if len(K) < 2:
        raise ValueError(f"the biased HSIC needs at least 2 rows, not {len(K)}")
    return biased_from_sums(
        n=len(K),
        products=(K * L.T).sum(),
        row_sum_product=(K.sum(0) * L.sum(1)).sum(),
        total_product=K.sum() * L.sum(),
    )


def unbiased_from_sums(
    n: int | Tensor, products: Tensor, row_sum_product: Tensor, total_product: Tensor
) -> Tensor:
    """Return the unbiased HSIC of symmetric Gram matrices K and L, from sums of their entries.

    K̃ and L̃ are K and L with the diagonal set to 0. This is equation 5 of Song et al. (2012).

    Args:
        n: The number of rows.
        products: Σᵢⱼ K̃ᵢⱼ L̃ᵢⱼ.
        row_sum_product: Σᵢ kᵢ lᵢ, with kᵢ and lᵢ the sums of row i of K̃ and of L̃.
        total_product: The product of the sums of all entries of K̃ and of L̃.
    """
    centred = products - row_sum_product * 2 / (n - 2) + total_product / ((n - 1) * (n - 2))
    return centred / (n * (n - 3))


def biased_from_sums(
    n: int | Tensor, products: Tensor, row_sum_product: Tensor, total_product: Tensor
) -> Tensor:
    """Return the biased HSIC of symmetric n x n Gram matrices K and L, from sums of entries.

    It is tr(KHLH) / (n-1)², where H = I - 11'/n centres rows and columns.

    Args:
        n: The number of rows.
        products: Σᵢⱼ Kᵢⱼ Lᵢⱼ.
        row_sum_product: Σᵢ kᵢ lᵢ, with kᵢ and lᵢ the sums of row i of K and of L.
        total_product: The product of the sums of all entries of K and of L.
    """
    return (products - row_sum_product * 2 / n + total_product / n**2) / (n - 1) ** 2
