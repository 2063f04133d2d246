"""Random rotations, and maps with the spectrum of a given one but random directions."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.measures.closed_forms import AffineMap


def turned_at_random(
    mapping: AffineMap, mean: Float[Tensor, " d"], generator: torch.Generator
) -> AffineMap:
    """Return the map Q W R x + b' with random orthogonal matrices Q and R.

    It is a control for the map W x + b: it stretches as much, but in random directions. Its matrix
    has the singular values of W, and b' is chosen so that both maps send the mean of x to the same
    point.

    Args:
        mapping: The map W x + b.
        mean: The mean of the vectors x.
        generator: The random generator of Q and R.
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
    """Draw a float64 orthogonal matrix from the uniform (Haar) distribution (Mezzadri 2007)."""
    normal = torch.randn(width, width, dtype=torch.float64, generator=generator)
    q, r = torch.linalg.qr(normal)
    # The QR decomposition fixes the signs of columns in its own way. With the signs of R's
    # diagonal, Q is uniform.
    return q * r.diagonal().sign()
