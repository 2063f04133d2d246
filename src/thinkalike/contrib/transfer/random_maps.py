"""Random rotations, and maps with the spectrum of a given one but random directions."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.measures.closed_forms import AffineMap


def turned_at_random(
    mapping: AffineMap, mean: Float[Tensor, " d"], generator: torch.Generator
) -> AffineMap:
    """Return Q W R x + b' with random rotations Q and R.

    It has the singular values of W, and the same image of the mean.

    Args:
        mapping: W x + b.
        mean: The mean of what is mapped.
        generator: What the rotations are drawn with.
    """
    weight = mapping.weight.double()
    n_outputs, n_inputs = weight.shape
    left = random_rotation(n_outputs, generator).to(weight.device)
    right = random_rotation(n_inputs, generator).to(weight.device)
    turned = left @ weight @ right
    mean = mean.to(weight)
    bias = weight @ mean + mapping.bias.double() - turned @ mean
    return AffineMap(turned, bias)


def random_rotation(width: int, generator: torch.Generator) -> Float[Tensor, "d d"]:
    """Return an orthogonal matrix from the uniform distribution over all of them, in float64.

    Source: Mezzadri 2007.
    """
    q, r = torch.linalg.qr(torch.randn(width, width, dtype=torch.float64, generator=generator))
    return q * r.diagonal().sign()
