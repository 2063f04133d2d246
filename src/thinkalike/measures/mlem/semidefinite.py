"""Least squares over symmetric positive semidefinite matrices."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

TOLERANCE = 1e-10  # of the optimality conditions, as a share of the largest slope
LIMIT = 100_000


def to_matrix(entries: Float[Tensor, "*b r"]) -> Float[Tensor, "*b f f"]:
    """Return the symmetric W of its f diagonal entries, then √2 W_fg for f < g: ‖W‖_F is the norm of the entries."""
    f = size_of(entries.shape[-1])
    rows, columns = torch.triu_indices(f, f, 1, device=entries.device)
    matrix = torch.diag_embed(entries[..., :f])
    matrix[..., rows, columns] = matrix[..., columns, rows] = entries[..., f:] / 2**0.5
    return matrix


def to_entries(matrix: Float[Tensor, "*b f f"]) -> Float[Tensor, "*b r"]:
    """Return the entries of a symmetric W, the inverse of `to_matrix`."""
    f = matrix.shape[-1]
    rows, columns = torch.triu_indices(f, f, 1, device=matrix.device)
    return torch.cat([matrix.diagonal(dim1=-2, dim2=-1), matrix[..., rows, columns] * 2**0.5], -1)


def size_of(entries: int) -> int:
    """Return f for f (f + 1) / 2 entries."""
    return int(((8 * entries + 1) ** 0.5 - 1) / 2)


def psd_least_squares(
    gram: Float[Tensor, "*b r r"], target: Float[Tensor, "*b r"], sizes: Sequence[int] | None = None
) -> Float[Tensor, "*b r"]:
    """Return the entries w of the W ⪰ 0 with least w'Gw / 2 - t'w, by accelerated projected gradient.

    The method (Beck & Teboulle 2009) starts from the unconstrained solution, and drops its momentum whenever that
    points uphill (O'Donoghue & Candès 2015). Each problem stops when a projected step of length 1/L moves by less than
    `TOLERANCE`.

    Args:
        gram: X'X in the coordinates of `to_matrix`, positive semidefinite.
        target: X'y.
        sizes: The sizes of several matrices, whose entries follow each other; by default there is one.

    Raises:
        ValueError: A problem has not converged after `LIMIT` steps.
    """
    r = target.shape[-1]
    sizes = [size_of(r)] if sizes is None else sizes
    gram, aim = gram.reshape(-1, r, r), target.reshape(-1, r)
    slopes = torch.linalg.eigvalsh(gram)[:, -1:].clamp(min=torch.finfo(gram.dtype).tiny)
    weights = (torch.linalg.pinv(gram, hermitian=True) @ aim[..., None])[..., 0]
    ahead, momentum = weights, torch.ones_like(slopes)
    solution, left = torch.empty_like(aim), torch.arange(len(aim), device=aim.device)
    for _ in range(LIMIT):
        step = _project(ahead - ((gram[left] @ ahead[..., None])[..., 0] - aim[left]) / slopes[left], sizes)
        moved = (step - ahead).abs().amax(1) * slopes[left, 0]
        going = moved > TOLERANCE * aim[left].abs().amax(1)
        solution[left] = step
        if not going.any():
            return solution.view_as(target)
        uphill = ((ahead - step) * (step - weights)).sum(1, keepdim=True) > 0
        following = torch.where(uphill, 1.0, (1 + (1 + 4 * momentum**2).sqrt()) / 2)
        ahead = step + torch.where(uphill, 0.0, (momentum - 1) / following) * (step - weights)
        left, ahead, weights, momentum = left[going], ahead[going], step[going], following[going]
    raise ValueError(f"no optimum within {LIMIT} steps: features are too much alike; a ridge (alpha > 0) helps")


def _project(entries: Float[Tensor, "b r"], sizes: Sequence[int]) -> Float[Tensor, "b r"]:
    parts = entries.split([size * (size + 1) // 2 for size in sizes], 1)
    return torch.cat([_nearest(part) if part.shape[1] > 1 else part.clamp(min=0) for part in parts], 1)


def _nearest(entries: Float[Tensor, "b r"]) -> Float[Tensor, "b r"]:
    """Return the entries of the nearest semidefinite matrices."""
    values, vectors = torch.linalg.eigh(to_matrix(entries))
    return to_entries((vectors * values.clamp(min=0)[..., None, :]) @ vectors.mT)
