"""The control of a fitted map: one that stretches as much, in directions that mean nothing."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.measures.stitching.closed_forms import AffineMap


def turned_at_random(mapping: AffineMap, mean: Float[Tensor, " d"], generator: torch.Generator) -> AffineMap:
    """Return Q W R x + b' with random rotations Q and R: the singular values of W, and the same image of the mean.

    Args:
        mean: The mean of the states that the map reads.
    """
    weight = mapping.weight.double()
    left, right = (random_rotation(width, generator).to(weight.device) for width in weight.shape)
    turned = left @ weight @ right
    mean = mean.to(weight)
    return AffineMap(turned, weight @ mean + mapping.bias.double() - turned @ mean)


def random_rotation(width: int, generator: torch.Generator) -> Float[Tensor, "d d"]:
    """Return an orthogonal matrix from the uniform distribution over all of them, in float64 (Mezzadri 2007)."""
    q, r = torch.linalg.qr(torch.randn(width, width, dtype=torch.float64, generator=generator))
    return q * r.diagonal().sign()
