"""Singular vector canonical correlation (SVCCA): how far do the main directions of two layers coincide?"""

from __future__ import annotations

from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.measures.contract import LayerMeasure, each_pair, rows_in_order
from thinkalike.measures.row_groups import SUM_ROUNDING
from thinkalike.measures.shape import centred_rows

KEPT = 0.99  # of the variance


def svcca(X: Float[Tensor, "n d"], Y: Float[Tensor, "m e"], kept: float = KEPT) -> Float[Tensor, ""]:
    """Return the mean canonical correlation of the top principal components, in [0, 1].

    1/k Σᵢ σᵢ(U_X' U_Y), U the left singular vectors of centred features that hold at least a share `kept` of their
    variance, k the smaller count of these (Raghu et al. 2017). It has no gradient here. Where both counts together
    exceed n - 1, some correlations are 1 whatever the features are: compare the value with its null.
    """
    if not 0 < kept <= 1:
        raise ValueError(f"kept={kept} is no share of the variance: it must lie in (0, 1]")
    return svcca_measure(kept).of(X, Y)


def svcca_measure(kept: float = KEPT) -> LayerMeasure:
    return LayerMeasure(partial(_components, kept=kept), each_pair(_correlation), rows_in_order, fewest=2)


@torch.no_grad()
def _components(features: Float[Tensor, "n d"], name: str, kept: float) -> Float[Tensor, "n r"]:
    """Return the left singular vectors of the largest singular values, in float64, from the smaller Gram matrix."""
    rows = centred_rows(features, name)
    wide = rows.shape[1] >= len(rows)
    values, vectors = torch.linalg.eigh(rows @ rows.T if wide else rows.T @ rows)
    values, vectors = values.flip(0).clamp(min=0), vectors.flip(1)
    shares = values.cumsum(0) / values.sum()
    least = max(max(rows.shape) * torch.finfo(rows.dtype).eps, (SUM_ROUNDING * torch.finfo(features.dtype).eps) ** 2)
    count = min(int((shares < kept).sum()) + 1, int((values > least * values[0]).sum()))
    top = vectors[:, :count]
    return top if wide else rows @ top / values[:count].sqrt()


def _correlation(source: Float[Tensor, "n r"], target: Float[Tensor, "n s"]) -> Float[Tensor, ""]:
    return torch.linalg.svdvals(source.T @ target).mean()
