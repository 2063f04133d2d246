"""Singular vector canonical correlation (SVCCA) of the main directions of two layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.measures.contract import LayerMeasure
from thinkalike.measures.row_groups import SUM_ROUNDING
from thinkalike.measures.shape import centred_rows
from thinkalike.ranges import parameter

KEPT = 0.99  # of the variance


def svcca(
    X: Float[Tensor, "n d"], Y: Float[Tensor, "m e"], kept: float = KEPT
) -> Float[Tensor, ""]:
    """Return the mean canonical correlation of the top principal components, in [0, 1].

    It is 1/k Σᵢ σᵢ(U_X' U_Y), with σᵢ the singular values (Raghu et al. 2017). U_X are the leading
    left singular vectors of centred features X, as many as hold at least the share `kept` of the
    variance; likewise U_Y, and k is the smaller one of the two counts. It has no gradient. If both
    counts together exceed n - 1, some correlations are 1 whatever the features are: compare the
    value with its null.
    """
    if not 0 < kept <= 1:
        raise ValueError(f"kept={kept} is no share of the variance: it must lie in (0, 1]")
    return SVCCA(kept).of(X, Y)


@dataclass(frozen=True)
class SVCCA(LayerMeasure[Tensor]):
    """Singular vector canonical correlation analysis, see `svcca`."""

    # share of the variance that the kept principal components explain together
    kept: float = parameter(KEPT, above=0, most=1)

    formula = (
        "mean canonical correlation of the principal components that hold `measure.kept`=99 % of "
        "the variance"
    )
    source = "Raghu et al. 2017"
    fewest = 2
    version = 13
    in_atlas = True
    in_benchmarks = True

    @property
    def meaning(self) -> str:
        return (
            "A value is the mean canonical correlation of the principal components that hold the "
            f"share {self.kept} of the variance of each layer."
        )

    @torch.no_grad()
    def prepare(self, layer: Float[Tensor, "n d"], name: str) -> Float[Tensor, "n r"]:
        """Return the leading left singular vectors of the centred rows, in float64.

        They are the r that together hold at least the share `kept` of the variance, without those
        whose singular value may be only rounding.
        """
        rows = centred_rows(layer, name)
        # X X' and X' X have the same eigenvalues but for zeros, and the smaller one is taken.
        is_wide = rows.shape[1] >= len(rows)
        if is_wide:
            gram = rows @ rows.T
        else:
            gram = rows.T @ rows
        values, vectors = torch.linalg.eigh(gram)
        values = values.flip(0).clamp(min=0)  # in falling order; rounding may leave less than 0
        vectors = vectors.flip(1)
        # Eigenvalues below this share of the largest may come from rounding alone: either of the
        # eigenvalues, or of the states, whose relative error is squared in eigenvalues.
        rounding = max(
            max(rows.shape) * torch.finfo(rows.dtype).eps,
            (SUM_ROUNDING * torch.finfo(layer.dtype).eps) ** 2,
        )
        shares = values.cumsum(0) / values.sum()  # of the variance, for each number of directions
        count_of_share = int((shares < self.kept).sum()) + 1
        count_above_rounding = int((values > rounding * values[0]).sum())
        count = min(count_of_share, count_above_rounding)
        leading: Tensor = vectors[:, :count]
        if is_wide:
            return leading  # eigenvectors of X X' are left singular vectors
        # Eigenvectors V of X' X are right singular vectors, and left ones are U = X V / σ.
        left_vectors: Tensor = rows @ leading / values[:count].sqrt()
        return left_vectors

    def compare(
        self, first: Float[Tensor, "n r"], second: Float[Tensor, "n s"]
    ) -> Float[Tensor, ""]:
        """Return the mean canonical correlation of two layers, given as orthonormal columns.

        The correlations are the singular values of first' second; there are min(r, s) of them.
        """
        cosines: Tensor = torch.linalg.svdvals(first.T @ second)
        return cosines.mean()
