"""Non-negative least squares of many small systems at once."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

ROUNDING = 1e-12  # a slope below this share of the largest is rounding: its column adds nothing to those in use


def nnls(gram: Float[Tensor, "*b f f"], target: Float[Tensor, "*b f"]) -> Float[Tensor, "*b f"]:
    """Return the w ≥ 0 with least w'Gw / 2 - t'w, by active sets (Lawson & Hanson 1974, algorithm NNLS).

    A column that is zero, or that depends on columns in use, gets weight exactly 0.

    Args:
        gram: X'X, symmetric, positive semidefinite.
        target: X'y.
    """
    squares = gram.diagonal(dim1=-2, dim2=-1)
    inverse = torch.where(squares > ROUNDING * squares.amax(-1, keepdim=True), squares.rsqrt(), 0)
    shape, size = target.shape, target.shape[-1]
    gram = (gram * inverse[..., None] * inverse[..., None, :]).reshape(-1, size, size)
    weights = _solve(gram, (target * inverse).reshape(-1, size))
    return weights.view(shape) * inverse


def _solve(gram: Float[Tensor, "b f f"], target: Float[Tensor, "b f"]) -> Float[Tensor, "b f"]:
    weights, used = torch.zeros_like(target), torch.zeros_like(target, dtype=torch.bool)
    refused = torch.zeros_like(used)
    least = ROUNDING * target.abs().amax(1, keepdim=True)
    while True:
        slope = (target - (gram @ weights[..., None])[..., 0]).masked_fill(used | refused, -torch.inf)
        best, column = slope.max(1, keepdim=True)
        enters = torch.zeros_like(used).scatter_(1, column, best > least)
        if not enters.any():
            return weights
        used |= enters
        solution = _restricted(gram, target, used)
        refused |= enters & (solution <= 0)  # rounding: it was to grow
        used &= ~refused
        weights, used = _back_to_cone(gram, target, weights, used)


def _back_to_cone(gram: Tensor, target: Tensor, weights: Tensor, used: Tensor) -> tuple[Tensor, Tensor]:
    """Walk from `weights` towards the solution on the used columns, dropping each column that reaches 0."""
    while True:
        solution = _restricted(gram, target, used)
        bad = used & (solution <= 0)
        if not bad.any():
            return solution, used
        ratio = torch.where(bad, weights / (weights - solution), torch.inf)
        step, column = ratio.min(1, keepdim=True)
        weights = weights + step.clamp(max=1) * (solution - weights)
        used = used & ~torch.zeros_like(used).scatter_(1, column, step <= 1) & ~(bad & (weights <= 0))
        weights = weights * used


def _restricted(gram: Float[Tensor, "b f f"], target: Float[Tensor, "b f"], used: Bool[Tensor, "b f"]) -> Tensor:
    """Return the least-squares solution on the used columns, 0 elsewhere."""
    kept = used.to(gram.dtype)
    system = gram * kept[:, :, None] * kept[:, None] + torch.diag_embed(1 - kept)
    return torch.linalg.solve(system, target * kept).where(used, 0)
