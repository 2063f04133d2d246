"""Least squares of many small systems at once: non-negative numbers, and positive semidefinite matrices."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

ROUNDING = 1e-12  # a slope below this share of the largest is rounding
DEPENDENT = 1e-10  # a column depends on those before it if they leave a smaller share of its square
ROUNDS, FULL = 50, 3  # most exchanges of columns, and most exchanges of all wrong columns without progress
TOLERANCE = 1e-10  # of the optimality conditions of semidefinite matrices, as a share of the largest slope
LIMIT = 100_000  # steps to them


def nnls(gram: Float[Tensor, "*b f f"], target: Float[Tensor, "*b f"]) -> Float[Tensor, "*b f"]:
    """Return the w ≥ 0 with least w'Gw / 2 - t'w, exactly.

    Block principal pivoting (Kim & Park 2011) exchanges many columns at once, and solves nearly every system in a few
    rounds; the others are solved by active sets (Lawson & Hanson 1974, algorithm NNLS). A column that is zero, or
    depends on columns in use, gets weight exactly 0. G is X'X, positive semidefinite, and t is X'y.
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
    """Return solutions, and which of them are optimal; systems with dependent columns are not solved."""
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

    The method (Beck & Teboulle 2009) starts from the unconstrained solution, and resets its momentum when that points
    uphill (O'Donoghue & Candès 2015). Each problem stops when a projected step of length 1/L moves less than
    `TOLERANCE`. G is X'X in the coordinates of `to_matrix`, and t is X'y.

    Args:
        sizes: The sizes of several matrices, whose entries follow each other; by default there is one.
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
    """Return the entries of the nearest semidefinite matrices."""
    parts = entries.split([size * (size + 1) // 2 for size in sizes], 1)
    spectra = [torch.linalg.eigh(to_matrix(part)) for part in parts]
    return torch.cat([to_entries((v * values.clamp(min=0)[:, None]) @ v.mT) for values, v in spectra], 1)
