"""Multidimensional scaling: a map of layers by how unlike they are (Salle et al. 2024, figure 2)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

LIMIT, SETTLED = 3000, 1e-14  # steps of SMACOF, and the relative gain that is worth another


def mds(dissimilarity: Float[Tensor, "l l"], dimensions: int = 2) -> tuple[Float[Tensor, "l k"], Float[Tensor, ""]]:
    """Return points whose Euclidean distances d_ij are near the dissimilarities δ_ij: metric multidimensional scaling.

    It minimises Σ_{i<j} (d_ij - δ_ij)² by SMACOF (de Leeuw 1977) from the classical solution (Torgerson 1952), so that
    the result is the same every time; each axis has its largest coordinate positive.

    Returns:
        The points, about 0 on principal axes, and Kruskal's stress-1, sqrt(Σ (d - δ)² / Σ d²), at least 0.

    Raises:
        ValueError: The matrix is not symmetric and non-negative with a zero diagonal, is zero, or has too few layers.
    """
    n = len(dissimilarity)
    given = dissimilarity.double()
    if not torch.equal(given, given.T) or (given < 0).any() or given.diagonal().any() or not given.any():
        raise ValueError("dissimilarities must be symmetric, not negative, 0 on the diagonal, and not all 0")
    if not 1 <= dimensions < n:
        raise ValueError(f"dimensions={dimensions} of {n} layers: there must be at least 1, and fewer than layers")
    points, stress = _classical(given, dimensions), torch.inf
    for _ in range(LIMIT):
        distances = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
        before, stress = stress, float((distances - given).square().sum())
        if before - stress <= SETTLED * float(given.square().sum()):
            break
        ratio = torch.where(distances > 0, given / distances, 0)
        points = (torch.diag(ratio.sum(1)) - ratio) @ points / n  # Guttman's transform
    return _turned(points), ((distances - given).square().sum() / distances.square().sum()).sqrt()


def _classical(given: Float[Tensor, "l l"], dimensions: int) -> Float[Tensor, "l k"]:
    squared = given.square()
    product = -(squared - squared.mean(0) - squared.mean(1, keepdim=True) + squared.mean()) / 2
    values, vectors = torch.linalg.eigh(product)
    return (vectors * values.clamp(min=0).sqrt())[:, -dimensions:]


def _turned(points: Float[Tensor, "l k"]) -> Float[Tensor, "l k"]:
    """Return the points about 0, on principal axes, the largest coordinate of each positive."""
    centred = points - points.mean(0)
    turned = centred @ torch.linalg.svd(centred, full_matrices=False).Vh.T
    return turned * turned.gather(0, turned.abs().argmax(0, keepdim=True)).sign()
