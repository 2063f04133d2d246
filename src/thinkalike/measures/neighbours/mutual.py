"""Mutual nearest neighbours: do two sets of features put the same stimuli next to each other? (Huh et al. 2024)"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor


def mutual_knn(X: Float[Tensor, "n d"], Y: Float[Tensor, "m e"], k: int = 10) -> Float[Tensor, ""]:
    """Return the mean share of a stimulus's k nearest neighbours in X that are also among those in Y.

    m = 1/n Σᵢ |S_X(i) ∩ S_Y(i)| / k, with S(i) the k rows of greatest cosine similarity with row i, without i itself
    (Huh et al. 2024, "The Platonic Representation Hypothesis", appendix A). In [0, 1]; features that have nothing in
    common give k / (n - 1) on average. It has no gradient.

    Args:
        X, Y: row i of both belongs to stimulus i; widths and dtypes may differ.

    Raises:
        ValueError: see `mutual_knn_matrix`.
    """
    return mutual_knn_matrix([X, Y], k)[0, 1]


def mutual_knn_matrix(layers: Sequence[Float[Tensor, "_ _"]], k: int = 10) -> Float[Tensor, "l l"]:
    """Return `mutual_knn` of every two of several layers, in float64; the neighbours of each are found once.

    Raises:
        ValueError: layers differ in n, n < k + 2, k < 1, or see `neighbours`.
    """
    n = len(layers[0])
    for index, layer in enumerate(layers):
        if len(layer) != n:
            raise ValueError(f"layer {index} has {len(layer)} rows, not {n}: all layers need the same stimuli")
    member = torch.zeros(len(layers), n, n, dtype=torch.float32, device=layers[0].device)
    for index, layer in enumerate(layers):
        member[index].scatter_(1, neighbours(layer, k, f"layer {index}").to(member.device), 1.0)
    shared = torch.einsum("lij,mij->lmi", member, member)  # whole numbers up to k: exact in float32
    return shared.double().mean(-1) / k


def neighbours(features: Float[Tensor, "n d"], k: int, name: str = "features") -> Int[Tensor, "n k"]:
    """Return the numbers of the k rows of greatest cosine similarity with each row, without the row itself.

    Raises:
        ValueError: k < 1, n < k + 2, a value is not finite, a row is zero, or all rows are the same.
    """
    n = len(features)
    if not 1 <= k <= n - 2:
        raise ValueError(f"k={k} neighbours of {n} rows: k must lie between 1 and n - 2, as n - 1 would be all of them")
    rows = features.detach().to(torch.promote_types(features.dtype, torch.float32))
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    if not norms.isfinite().all():
        raise ValueError(f"{name}: a value is not finite, or too large for {rows.dtype}")
    if (norms == 0).any():
        raise ValueError(f"{name}: row {int((norms == 0).nonzero()[0, 0])} is zero and has no direction")
    if (rows == rows[:1]).all():
        raise ValueError(f"{name}: all rows are the same, so none is nearer than another")
    rows = rows / norms
    similarity = (rows @ rows.T).fill_diagonal_(-torch.inf)
    return similarity.topk(k, dim=1).indices
