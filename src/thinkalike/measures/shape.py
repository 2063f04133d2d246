"""Angular Procrustes distance: the angle that remains after the best rotation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.measures.centred_rows import centred
from thinkalike.measures.contract import LayerMeasure


def procrustes_distance(X: Float[Tensor, "n d"], Y: Float[Tensor, "m e"]) -> Float[Tensor, ""]:
    """Return arccos(‖X'Y‖_* / (‖X‖ ‖Y‖)) of centred features, in radians, in [0, π/2].

    ‖X'Y‖_*, the sum of the singular values, is the largest tr(Q'X'Y) of any rotation or reflection
    Q. So the distance is 0 for features that are the same up to rotation, reflection, shift and
    scale (Williams et al. 2021, "Generalized shape metrics on neural representations", the angular
    metric). It is a metric, is computed in float64 and differentiable where it is above 0. For n
    rows in d ≥ n dimensions it is small even for unrelated features: compare it with its null.

    Raises:
        ValueError: n differs between the sides or is 1, a value is not finite, or all rows of a
            side are the same.
    """
    return Procrustes().of(X, Y)


def centred_rows(features: Float[Tensor, "n d"], name: str) -> Float[Tensor, "n d"]:
    """Return rows less their mean, in float64, in units of the typical distance from it.

    Args:
        features: The rows.
        name: What errors call the layer.

    Raises:
        ValueError: A value is not finite, or all rows are the same.
    """
    # `centred` subtracts a point near the mean, which loses no digits, and divides by the norm of
    # a typical row. The exact mean is subtracted from what is left.
    rows = centred(features, name).rows.double()
    return rows - rows.mean(0)


@dataclass(frozen=True)
class Procrustes(LayerMeasure[Tensor]):
    """Angular Procrustes distance, see `procrustes_distance`."""

    formula = "arccos(‖X'Y‖_* / (‖X‖ ‖Y‖)), centred, radians"
    meaning = (
        "A value is an angle in radians: 0 for states that are equal after a rotation and "
        "scaling, and at most π/2 = 1.571."
    )
    source = "Williams et al. 2021"
    best = 0.0
    higher_is_closer = False
    value_range = (0.0, math.pi / 2)
    scale = (0.0, math.pi / 2)
    differentiable = 2
    fewest = 2
    version = 12
    in_atlas = True
    in_benchmarks = True

    def prepare(self, layer: Float[Tensor, "n d"], name: str) -> Float[Tensor, "n _"]:
        """Return the layer less the mean of its rows, with a Frobenius norm of 1.

        If d > n, rows are expressed in n dimensions, to save time. Layers are compared by the
        singular values of X'Y, which this does not change. If gradients are needed, all d
        dimensions remain: QR has no gradient for centred rows, which are linearly dependent.

        Args:
            layer: The states of n tokens.
            name: What errors call the layer.
        """
        rows = centred_rows(layer, name)
        if rows.shape[1] > len(rows) and not rows.requires_grad:
            # X' = Q R, where Q has orthonormal columns. So X'Y = Q (R Y) has the singular values
            # of R Y for any Y, and R', which is n x n, can take the place of X.
            rows = torch.linalg.qr(rows.T).R.T
        norm: Tensor = rows.norm()
        return rows / norm

    def compare(
        self, first: Float[Tensor, "n d"], second: Float[Tensor, "n e"]
    ) -> Float[Tensor, ""]:
        """Return the angle between two prepared layers X and Y, in radians.

        It is arccos of the nuclear norm of X' Y, the sum of its singular values.
        """
        singular_values: Tensor = torch.linalg.svdvals(first.T @ second)
        return singular_values.sum().clamp(max=1).arccos()
