"""Layers and words in a plane, by their dissimilarities."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

LIMIT, SETTLED = 3000, 1e-14  # steps of SMACOF, and the relative gain at which it stops


def mds(dissimilarity: Float[Tensor, "l l"], dimensions: int = 2) -> tuple[Float[Tensor, "l k"], Float[Tensor, ""]]:
    """Return points whose Euclidean distances d_ij approximate dissimilarities δ_ij: metric multidimensional scaling.

    It minimises Σ_{i<j} (d_ij - δ_ij)² by SMACOF (de Leeuw 1977) from the classical solution (Torgerson 1952), so it is
    deterministic. It returns the points, about 0 on principal axes, with the largest coordinate of each axis positive,
    and Kruskal's stress-1, sqrt(Σ (d - δ)² / Σ d²), at least 0.

    >>> points, stress = mds(torch.tensor([[0.0, 3.0, 4.0], [3.0, 0.0, 5.0], [4.0, 5.0, 0.0]]))
    >>> points.shape, round(stress.item(), 3)
    (torch.Size([3, 2]), 0.0)
    """
    given = dissimilarity.double()
    if not torch.equal(given, given.T) or (given < 0).any() or given.diagonal().any() or not given.any():
        raise ValueError("dissimilarities must be symmetric, not negative, 0 on the diagonal, and not all 0")
    from sklearn.manifold import smacof  # takes a second to import

    squared = given.square()
    product = -(squared - squared.mean(0) - squared.mean(1, keepdim=True) + squared.mean()) / 2
    values, vectors = torch.linalg.eigh(product)
    classical = (vectors * values.clamp(min=0).sqrt())[:, -dimensions:]
    found, _ = smacof(
        given.cpu().numpy(), n_components=dimensions, init=classical.cpu().numpy(), n_init=1,
        max_iter=LIMIT, eps=SETTLED, normalized_stress=False
    )  # fmt: skip
    points = torch.from_numpy(found).to(given.device)
    distances = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    stress = ((distances - given).square().sum() / distances.square().sum()).sqrt()
    about_0 = points - points.mean(0)
    turned = about_0 @ torch.linalg.svd(about_0, full_matrices=False).Vh.T
    return turned * turned.gather(0, turned.abs().argmax(0, keepdim=True)).sign(), stress
