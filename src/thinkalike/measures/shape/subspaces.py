"""SVCCA: canonical correlations of the subspaces that hold most of the variance."""

from __future__ import annotations

from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.measures.calibration.contract import LayerMeasure, each_pair, rows_in_order
from thinkalike.measures.shape.procrustes import centred_rows

KEPT = 0.99  # of the variance


def svcca(X: Float[Tensor, "n d"], Y: Float[Tensor, "m e"], kept: float = KEPT) -> Float[Tensor, ""]:
    """Return the mean canonical correlation of the top principal components, in [0, 1].

    1/k Σᵢ σᵢ(U_X' U_Y), U the left singular vectors of centred features that hold at least a share `kept` of their
    variance, k the smaller count of these (Raghu et al. 2017). It has no gradient here, as the count moves
    in steps. Where both counts together exceed n - 1, some correlations are 1 whatever the features are: compare the
    value with its null.

    Raises:
        ValueError: `kept` is not in (0, 1]; see `procrustes_distance`.
    """
    if not 0 < kept <= 1:
        raise ValueError(f"kept={kept} is no share of the variance: it must lie in (0, 1]")
    return svcca_measure(kept).of(X, Y)


def svcca_measure(kept: float = KEPT) -> LayerMeasure:
    """Return SVCCA as a measure of layer pairs."""
    return LayerMeasure(partial(_prepared, kept=kept), each_pair(_correlation), rows_in_order, fewest=2)


@torch.no_grad()
def _prepared(features: Float[Tensor, "n d"], name: str, kept: float) -> Float[Tensor, "n r"]:
    """Return the left singular vectors of the largest singular values, in float64; the smaller Gram matrix has them."""
    rows = centred_rows(features, name)
    wide = rows.shape[1] >= len(rows)
    values, vectors = torch.linalg.eigh(rows @ rows.T if wide else rows.T @ rows)
    values, vectors = values.flip(0).clamp(min=0), vectors.flip(1)
    shares = values.cumsum(0) / values.sum()
    count = min(int((shares < kept).sum()) + 1, int((values > torch.finfo(values.dtype).eps * values[0]).sum()))
    top = vectors[:, :count]
    return top if wide else rows @ top / values[:count].sqrt()


def _correlation(source: Float[Tensor, "n r"], target: Float[Tensor, "n s"]) -> Float[Tensor, ""]:
    return torch.linalg.svdvals(source.T @ target).mean()
