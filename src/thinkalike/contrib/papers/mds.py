"""Multidimensional scaling: layers or words as points in a plane, by their dissimilarities."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

MOST_STEPS = 3000  # of SMACOF
SMALLEST_GAIN = 1e-14  # relative; with less SMACOF stops


def mds(
    dissimilarity: Float[Tensor, "l l"], dimensions: int = 2
) -> tuple[Float[Tensor, "l k"], Float[Tensor, ""]]:
    """Return points whose Euclidean distances d_ij approximate dissimilarities, and the error.

    Metric multidimensional scaling minimises Σ_{i<j} (d_ij - δ_ij)², for dissimilarities δ_ij, by
    SMACOF (de Leeuw 1977). It starts from the classical solution (Torgerson 1952), so it is
    deterministic. The points are centred and rotated to their principal axes, and the coordinate
    of largest magnitude on each axis is positive. The error is Kruskal's stress-1,
    sqrt(Σ (d - δ)² / Σ d²), at least 0.

    >>> points, stress = mds(torch.tensor([[0.0, 3.0, 4.0], [3.0, 0.0, 5.0], [4.0, 5.0, 0.0]]))
    >>> points.shape, round(stress.item(), 3)
    (torch.Size([3, 2]), 0.0)

    Raises:
        ValueError: Dissimilarities are not symmetric, negative, not 0 on the diagonal, or all 0.
    """
    delta = dissimilarity.double()
    is_symmetric = torch.equal(delta, delta.T)
    if not is_symmetric or (delta < 0).any() or delta.diagonal().any() or not delta.any():
        raise ValueError(
            "dissimilarities must be symmetric, not negative, 0 on the diagonal, and not all 0"
        )
    from sklearn.manifold import smacof  # the import takes a second

    initial = _classical_solution(delta, dimensions)
    coordinates, _ = smacof(
        delta.cpu().numpy(),
        n_components=dimensions,
        init=initial.cpu().numpy(),
        n_init=1,
        max_iter=MOST_STEPS,
        eps=SMALLEST_GAIN,
        normalized_stress=False,
    )
    points = torch.from_numpy(coordinates).to(delta.device)
    distances = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    stress = ((distances - delta).square().sum() / distances.square().sum()).sqrt()
    return _on_principal_axes(points), stress


def _classical_solution(delta: Float[Tensor, "l l"], dimensions: int) -> Float[Tensor, "l k"]:
    """Return the classical solution (Torgerson 1952): points with k coordinates.

    If δ are Euclidean distances, the inner products of the centred points are the matrix
    -J δ² J / 2 with the centring matrix J. Its k leading eigenvectors, times the roots of their
    eigenvalues, are the points; negative eigenvalues count as 0.
    """
    squared = delta.square()
    column_means = squared.mean(0)
    row_means = squared.mean(1, keepdim=True)
    centred = squared - row_means - column_means + squared.mean()  # J δ² J
    eigenvalues, eigenvectors = torch.linalg.eigh(-centred / 2)  # in ascending order
    coordinates = eigenvectors * eigenvalues.clamp(min=0).sqrt()
    return coordinates[:, -dimensions:]  # the leading ones


def _on_principal_axes(points: Float[Tensor, "l k"]) -> Float[Tensor, "l k"]:
    """Return the points, centred and rotated to their principal axes.

    The sign of an axis is arbitrary; here the coordinate of largest magnitude is positive.
    """
    centred = points - points.mean(0)
    principal_axes = torch.linalg.svd(centred, full_matrices=False).Vh
    rotated = centred @ principal_axes.T
    index_of_largest = rotated.abs().argmax(0, keepdim=True)  # (1, k): a point for each axis
    largest_coordinates = rotated.gather(0, index_of_largest)
    return rotated * largest_coordinates.sign()
