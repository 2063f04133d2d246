"""Non-negative least squares of many small systems at once."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

ROUNDING = 1e-12  # a slope below this share of the largest is rounding: its column adds nothing to those in use
DEPENDENT = 1e-10  # share of a column's square that the columns before it leave, below which it depends on them
ROUNDS, FULL = 50, 3  # exchanges of columns at the most, and those of all columns that do not lower their number


def nnls(gram: Float[Tensor, "*b f f"], target: Float[Tensor, "*b f"]) -> Float[Tensor, "*b f"]:
    """Return the w ≥ 0 with least w'Gw / 2 - t'w, exactly.

    Block principal pivoting (Kim & Park 2011) exchanges many columns at once, and settles nearly every system in a few
    rounds; what it does not settle goes to active sets (Lawson & Hanson 1974, algorithm NNLS). A column that is zero,
    or that depends on columns in use, gets weight exactly 0.

    Args:
        gram: X'X, symmetric, positive semidefinite.
        target: X'y.
    """
    squares = gram.diagonal(dim1=-2, dim2=-1)
    inverse = torch.where(squares > ROUNDING * squares.amax(-1, keepdim=True), squares.rsqrt(), 0)
    shape, size = target.shape, target.shape[-1]
    gram = (gram * inverse[..., None] * inverse[..., None, :]).reshape(-1, size, size)
    target = (target * inverse).reshape(-1, size)
    weights, settled = _by_pivots(gram, target)
    if not settled.all():
        weights[~settled] = _by_active_sets(gram[~settled], target[~settled])
    return weights.view(shape) * inverse


def _by_pivots(gram: Float[Tensor, "b f f"], target: Float[Tensor, "b f"]) -> tuple[Tensor, Bool[Tensor, " b"]]:
    """Return solutions, and which of them are optimal; systems of columns that depend on each other are left out."""
    found, settled = torch.zeros_like(target), torch.zeros(len(target), dtype=torch.bool, device=target.device)
    going = torch.arange(len(target), device=target.device)
    used = gram.diagonal(dim1=1, dim2=2) > 0
    fewest, left = torch.full_like(going, target.shape[1] + 1), torch.full_like(going, FULL)
    least = ROUNDING * target.abs().amax(1, keepdim=True)
    for _ in range(ROUNDS):
        weights, sound = _independent(gram[going], target[going], used[going])
        slope = target[going] - (gram[going] @ weights[..., None])[..., 0]
        wrong = torch.where(used[going], weights <= 0, slope > least[going])
        number = wrong.sum(1)
        found[going], settled[going] = weights, sound & (number == 0)
        keep = sound & (number > 0)
        going, wrong, number = going[keep], wrong[keep], number[keep]
        if not len(going):
            break
        fewer = number < fewest[going]
        left[going] = torch.where(fewer, FULL, left[going] - 1)
        fewest[going] = torch.minimum(number, fewest[going])
        last = wrong & (wrong.flip(1).cumsum(1).flip(1) == 1)  # one column at a time cannot cycle (Murty 1974)
        used[going] ^= torch.where((left[going] >= 0)[:, None], wrong, last)
    return found, settled


def _independent(gram: Tensor, target: Tensor, used: Bool[Tensor, "b f"]) -> tuple[Tensor, Bool[Tensor, " b"]]:
    """Return the least-squares solutions on the used columns, and whether these are independent."""
    factor, failed = torch.linalg.cholesky_ex(_system(gram, used))
    sound = (failed == 0) & (factor.diagonal(dim1=1, dim2=2).square().amin(1) > DEPENDENT)
    factor = torch.where(sound[:, None, None], factor, torch.eye(len(factor[0]), dtype=gram.dtype, device=gram.device))
    return torch.cholesky_solve((target * used)[..., None], factor)[..., 0].where(used, 0), sound


def _by_active_sets(gram: Float[Tensor, "b f f"], target: Float[Tensor, "b f"]) -> Float[Tensor, "b f"]:
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
    return torch.linalg.solve(_system(gram, used), target * used).where(used, 0)


def _system(gram: Float[Tensor, "b f f"], used: Bool[Tensor, "b f"]) -> Float[Tensor, "b f f"]:
    """Return the used part of the system, and the identity elsewhere."""
    kept = used.to(gram.dtype)
    return gram * kept[:, :, None] * kept[:, None] + torch.diag_embed(1 - kept)
