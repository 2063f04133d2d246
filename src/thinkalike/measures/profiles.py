"""Likeness of feature-importance profiles, and a map of layers by it (Salle et al. 2024, figure 2)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

LIMIT, SETTLED = 3000, 1e-14  # steps of SMACOF, and the relative gain that is worth another


def weighted_tau(profiles: Float[Tensor, "l f"], others: Float[Tensor, "m f"] | None = None) -> Float[Tensor, "l m"]:
    """Weighted Kendall τ of every two profiles, in [-1, 1], the same as `scipy.stats.weightedtau`.

    τ = <x, y> / (‖x‖ ‖y‖), <x, y> = Σ_{i<j} w_ij sgn(x_i - x_j) sgn(y_i - y_j), w_ij = 1/(1 + r_i) + 1/(1 + r_j), with
    r = 0 for the most important feature (Vigna 2015, additive hyperbolic). The value is the mean of that with features
    ranked by x, ties by y, and the other way round.

    Args:
        others: profiles to compare with; default: the same.

    Raises:
        ValueError: a profile is constant.
    """
    left, right = (_signs(part) for part in (profiles, profiles if others is None else others))
    left, right = left[:, None], right[None]
    return (_tau(left, right) + _tau(right, left)) / 2


def _signs(profiles: Float[Tensor, "l f"]) -> Float[Tensor, "l f f"]:
    signs = (profiles[:, :, None] - profiles[:, None]).sign().double()
    if constant := (~signs.any((1, 2))).nonzero().flatten().tolist():
        raise ValueError(f"profile {constant[0]} is constant and ranks no feature")
    return signs


def _tau(first: Tensor, second: Tensor) -> Float[Tensor, "l m"]:
    """With ranks by `first`, ties by `second`."""
    f = first.shape[-1]
    position = torch.ones(f, f, dtype=first.dtype, device=first.device).tril(-1)
    position = position - position.T  # for those equal in both: in whatever order, they are interchangeable
    before = torch.where(first != 0, first, torch.where(second != 0, second, position)) < 0  # of i, by j
    weight = 1 / (1 + before.sum(-1).double())
    both = weight[..., :, None] + weight[..., None, :]
    inner, x, y = ((both * part).sum((-2, -1)) for part in (first * second, first.square(), second.square()))
    return inner / (x * y).sqrt()


def mds(dissimilarity: Float[Tensor, "l l"], dimensions: int = 2) -> tuple[Float[Tensor, "l k"], Float[Tensor, ""]]:
    """Metric multidimensional scaling: points whose Euclidean distances d_ij are near the dissimilarities δ_ij.

    Minimises Σ_{i<j} (d_ij - δ_ij)² by SMACOF (de Leeuw 1977) from the classical solution (Torgerson 1952), so that the
    result is the same every time; each axis has its largest coordinate positive.

    Returns:
        Points about 0 on principal axes, and Kruskal's stress-1, sqrt(Σ (d - δ)² / Σ d²), at least 0.

    Raises:
        ValueError: the matrix is not symmetric and non-negative with a zero diagonal, is zero, or has too few layers.
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
    """About 0, on principal axes, the largest coordinate of each positive."""
    centred = points - points.mean(0)
    turned = centred @ torch.linalg.svd(centred, full_matrices=False).Vh.T
    return turned * turned.gather(0, turned.abs().argmax(0, keepdim=True)).sign()
