"""Least squares under constraints, of many small systems at once: w ≥ 0, and matrices W ⪰ 0."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

# A slope or a square below this share of the largest is rounding.
SLOPE_ROUNDING = 1e-12

# A column depends on those before it if they leave a smaller share of its square.
LEAST_INDEPENDENT_SHARE = 1e-10

# The most exchanges of columns in block pivoting, ...
MOST_EXCHANGES = 50
# ... and the most exchanges of all wrong columns at once without progress.
MOST_FULL_EXCHANGES = 3

# Optimality of semidefinite matrices, as a share of the largest slope.
PSD_TOLERANCE = 1e-10

# Accelerated gradient steps to it.
MOST_PSD_STEPS = 100_000


def nnls(gram: Float[Tensor, "*b f f"], target: Float[Tensor, "*b f"]) -> Float[Tensor, "*b f"]:
    """Return the w ≥ 0 that minimises w'Gw / 2 - t'w, exactly, for any number of systems.

    With G = X'X and t = X'y, this is the w with the least ‖X w - y‖². Block principal pivoting
    (Kim & Park 2011) solves nearly every system in a few rounds, and active sets the remaining
    ones (Lawson & Hanson 1974, algorithm NNLS). A column of X that is zero, or depends linearly on
    columns of weight above 0, gets weight exactly 0.

    Args:
        gram: G of each system, with f columns in X.
        target: t of each system.
    """
    # Scale columns of X to norm 1, so that tolerances are the same for all. Zero columns stay 0.
    squared_norms = gram.diagonal(dim1=-2, dim2=-1)
    is_nonzero = squared_norms > SLOPE_ROUNDING * squared_norms.amax(-1, keepdim=True)
    inverse_norms = torch.where(is_nonzero, squared_norms.rsqrt(), 0)
    shape = target.shape
    size = shape[-1]  # f
    gram = (gram * inverse_norms[..., None] * inverse_norms[..., None, :]).reshape(-1, size, size)
    target = (target * inverse_norms).reshape(-1, size)
    weights, is_solved = _by_block_pivots(gram, target)
    if not is_solved.all():
        weights[~is_solved] = _by_active_sets(gram[~is_solved], target[~is_solved])
    return weights.view(shape) * inverse_norms  # the weights of columns before they were scaled


def _by_block_pivots(
    gram: Float[Tensor, "b f f"], target: Float[Tensor, "b f"]
) -> tuple[Float[Tensor, "b f"], Bool[Tensor, " b"]]:
    """Return the w ≥ 0 with least w'Gw / 2 - t'w of b systems, and which of them were solved.

    Each round solves the systems on their used columns, without the constraint. Then unused
    columns whose weight should grow are taken in, and used ones with a weight of 0 or less are
    dropped. Systems with dependent columns, and those that are not optimal within `MOST_EXCHANGES`
    rounds, are not solved.

    Args:
        gram: G of each system, with a diagonal of 1, or 0 for a column that is zero.
        target: t of each system.
    """
    count, size = target.shape
    solution = torch.zeros_like(target)
    is_solved = torch.zeros(count, dtype=torch.bool, device=target.device)
    is_used = gram.diagonal(dim1=1, dim2=2) > 0
    active = torch.arange(count, device=target.device)  # the systems that are not yet solved
    fewest_wrong = torch.full_like(active, size + 1)
    full_exchanges_left = torch.full_like(active, MOST_FULL_EXCHANGES)
    least_slope = SLOPE_ROUNDING * target.abs().amax(1, keepdim=True)
    for _ in range(MOST_EXCHANGES):
        weights, is_independent = _unconstrained(gram[active], target[active], is_used[active])
        slope = target[active] - (gram[active] @ weights[..., None])[..., 0]
        is_wrong = torch.where(is_used[active], weights <= 0, slope > least_slope[active])
        wrong_count = is_wrong.sum(1)
        solution[active] = weights
        is_solved[active] = is_independent & (wrong_count == 0)

        is_unsolved = is_independent & (wrong_count > 0)
        active = active[is_unsolved]
        is_wrong = is_wrong[is_unsolved]
        wrong_count = wrong_count[is_unsolved]
        if not len(active):
            break

        has_progress = wrong_count < fewest_wrong[active]
        full_exchanges_left[active] = torch.where(
            has_progress, MOST_FULL_EXCHANGES, full_exchanges_left[active] - 1
        )
        fewest_wrong[active] = torch.minimum(wrong_count, fewest_wrong[active])
        # Without progress the last wrong column alone is exchanged, which cannot cycle (Murty
        # 1974).
        wrong_from_here = is_wrong.flip(1).cumsum(1).flip(1)
        is_last_wrong = is_wrong & (wrong_from_here == 1)
        exchanges_all = (full_exchanges_left[active] >= 0)[:, None]
        is_used[active] ^= torch.where(exchanges_all, is_wrong, is_last_wrong)
    return solution, is_solved


def _unconstrained(
    gram: Float[Tensor, "b f f"], target: Float[Tensor, "b f"], is_used: Bool[Tensor, "b f"]
) -> tuple[Float[Tensor, "b f"], Bool[Tensor, " b"]]:
    """Return the solutions of b systems G w = t on their used columns, without the bound w ≥ 0.

    Weights of unused columns are 0. The second result is whether the used columns of each system
    are linearly independent. If not, its weights are meaningless: the identity stands in for the
    Cholesky factor of G, so that all systems can be solved at once.

    Args:
        gram, target: G and t of each system; G has a diagonal of 1, or 0 for an unused column.
        is_used: Which columns each system uses.
    """
    # `failed_minor` is 0 if the system is positive definite.
    factor, failed_minor = torch.linalg.cholesky_ex(_system_of_used(gram, is_used))
    # The squared diagonal of the factor is the share of each column, whose norm is 1, that the
    # columns before it do not explain.
    smallest_share = factor.diagonal(dim1=1, dim2=2).square().amin(1)
    is_independent = (failed_minor == 0) & (smallest_share > LEAST_INDEPENDENT_SHARE)
    identity = torch.eye(len(factor[0]), dtype=gram.dtype, device=gram.device)
    factor = torch.where(is_independent[:, None, None], factor, identity)
    weights = torch.cholesky_solve((target * is_used)[..., None], factor)[..., 0]
    return weights.where(is_used, 0), is_independent


def _by_active_sets(
    gram: Float[Tensor, "b f f"], target: Float[Tensor, "b f"]
) -> Float[Tensor, "b f"]:
    """Return the w ≥ 0 with least w'Gw / 2 - t'w of b systems (Lawson & Hanson 1974).

    Weight i belongs to column i of the matrix X with G = X'X. In each round, the unused column
    with the greatest slope t - G w is used as well, and then all columns whose weight reaches 0 on
    the way to the new solution are dropped. A column whose slope is only rounding is refused for
    good.

    Args:
        gram, target: G and t of each system.
    """
    weights = torch.zeros_like(target)
    is_used = torch.zeros_like(target, dtype=torch.bool)
    is_refused = torch.zeros_like(is_used)
    least_slope = SLOPE_ROUNDING * target.abs().amax(1, keepdim=True)
    while True:
        slope = target - (gram @ weights[..., None])[..., 0]
        slope = slope.masked_fill(is_used | is_refused, -torch.inf)
        greatest, column = slope.max(1, keepdim=True)
        enters = torch.zeros_like(is_used).scatter_(1, column, greatest > least_slope)
        if not enters.any():
            return weights
        is_used |= enters
        # A positive slope means a positive weight. Where the solution has none, the slope was
        # positive only by rounding.
        solution = _solved_on_used(gram, target, is_used)
        is_refused |= enters & (solution <= 0)
        is_used &= ~is_refused
        weights, is_used = _nonnegative_solution(gram, target, weights, is_used)


def _nonnegative_solution(
    gram: Float[Tensor, "b f f"],
    target: Float[Tensor, "b f"],
    weights: Float[Tensor, "b f"],
    is_used: Bool[Tensor, "b f"],
) -> tuple[Float[Tensor, "b f"], Bool[Tensor, "b f"]]:
    """Return positive weights that solve G w = t on some of the used columns, for b systems.

    Weights move from `weights` towards the unconstrained solution on the used columns. If one of
    them would reach 0 on the way, they stop there, its column is dropped, and they move on towards
    the solution on the remaining columns. This is the inner loop of Lawson & Hanson's algorithm
    (1974).

    Args:
        gram, target: G and t of each system.
        weights: The weights to start from: above 0 on used columns, or 0 on a column that is new
            and has a positive solution; 0 on the others.
        is_used: The columns that the solution may use.

    Returns:
        The solution, which is above 0 on all columns that are still used and 0 on the others, and
        which columns are still used.
    """
    while True:
        solution = _solved_on_used(gram, target, is_used)
        ends_below = is_used & (solution <= 0)
        if not ends_below.any():
            return solution, is_used
        # The share of the way to the solution after which each weight is 0. The first column that
        # gets there ends the step. Systems without such a column take a step of 1, the whole way.
        step_to_zero = torch.where(ends_below, weights / (weights - solution), torch.inf)
        step, column = step_to_zero.min(1, keepdim=True)
        weights = weights + step.clamp(max=1) * (solution - weights)
        is_first = torch.zeros_like(is_used).scatter_(1, column, step <= 1)
        reaches_zero = is_first | (ends_below & (weights <= 0))  # the latter: in the same step
        is_used = is_used & ~reaches_zero
        weights = weights * is_used  # rounding may leave a dropped weight above 0


def _solved_on_used(
    gram: Float[Tensor, "b f f"], target: Float[Tensor, "b f"], is_used: Bool[Tensor, "b f"]
) -> Float[Tensor, "b f"]:
    """Return for b systems the w with G w = t on the used columns, and 0 for the others.

    Args:
        gram, target: G and t of each system.
        is_used: Which columns each system uses; they must be independent.
    """
    solutions: Tensor = torch.linalg.solve(_system_of_used(gram, is_used), target * is_used)
    return solutions.where(is_used, 0)


def _system_of_used(
    gram: Float[Tensor, "b f f"], is_used: Bool[Tensor, "b f"]
) -> Float[Tensor, "b f f"]:
    """Return Gram matrices whose unused rows and columns are replaced by those of the identity.

    In this form, systems that use different columns can be solved in one batch.
    """
    used = is_used.to(gram.dtype)
    return gram * used[:, :, None] * used[:, None] + torch.diag_embed(1 - used)


def to_matrix(entries: Float[Tensor, "*b r"]) -> Float[Tensor, "*b f f"]:
    """Return the symmetric f x f matrix W that has these coordinates, for any number of matrices.

    The r = f (f + 1) / 2 coordinates are the diagonal of W, and then √2 W_fg for f < g, so that
    their norm is the Frobenius norm of W.
    """
    # r = f (f + 1) / 2, solved for f
    f = int(((8 * entries.shape[-1] + 1) ** 0.5 - 1) / 2)
    rows, columns = torch.triu_indices(f, f, 1, device=entries.device)
    off_diagonal = entries[..., f:] / 2**0.5
    matrix = torch.diag_embed(entries[..., :f])
    matrix[..., rows, columns] = off_diagonal
    matrix[..., columns, rows] = off_diagonal
    return matrix


def to_entries(matrix: Float[Tensor, "*b f f"]) -> Float[Tensor, "*b r"]:
    """Return the coordinates of a symmetric matrix W: its diagonal, then √2 W_fg for f < g.

    Their norm is the Frobenius norm of W. `to_matrix` is the inverse.
    """
    f = matrix.shape[-1]
    rows, columns = torch.triu_indices(f, f, 1, device=matrix.device)
    diagonal = matrix.diagonal(dim1=-2, dim2=-1)
    return torch.cat([diagonal, matrix[..., rows, columns] * 2**0.5], -1)


def psd_least_squares(
    gram: Float[Tensor, "*b r r"], target: Float[Tensor, "*b r"]
) -> Float[Tensor, "*b r"]:
    """Return the entries w of the W ⪰ 0 with least w'Gw / 2 - t'w.

    It is found by accelerated projected gradient (Beck & Teboulle 2009), which starts from the
    unconstrained solution, and resets its momentum when that points uphill (O'Donoghue & Candès
    2015), until a projected step of length 1/L moves less than `PSD_TOLERANCE`.

    Args:
        gram: G, X'X in the coordinates of `to_matrix`.
        target: t, X'y.

    Raises:
        ValueError: There is no optimum within `MOST_PSD_STEPS` steps.
    """
    r = target.shape[-1]
    gram = gram.reshape(-1, r, r)
    aim = target.reshape(-1, r)
    smallest = torch.finfo(gram.dtype).tiny
    lipschitz = torch.linalg.eigvalsh(gram)[:, -1:].clamp(min=smallest)
    weights = (torch.linalg.pinv(gram, hermitian=True) @ aim[..., None])[..., 0]
    ahead = weights  # where the next gradient is taken
    momentum = torch.ones_like(lipschitz)
    solution = torch.empty_like(aim)
    active = torch.arange(len(aim), device=aim.device)  # the systems that are not yet solved
    for _ in range(MOST_PSD_STEPS):
        gradient = (gram[active] @ ahead[..., None])[..., 0] - aim[active]
        descended = ahead - gradient / lipschitz[active]
        values, vectors = torch.linalg.eigh(to_matrix(descended))
        nearest_psd = (vectors * values.clamp(min=0)[:, None]) @ vectors.mT
        step = to_entries(nearest_psd)
        moved = (step - ahead).abs().amax(1) * lipschitz[active, 0]
        goes_on = moved > PSD_TOLERANCE * aim[active].abs().amax(1)
        solution[active] = step
        if not goes_on.any():
            return solution.view_as(target)

        is_uphill = ((ahead - step) * (step - weights)).sum(1, keepdim=True) > 0
        next_momentum = torch.where(is_uphill, 1.0, (1 + (1 + 4 * momentum**2).sqrt()) / 2)
        inertia = torch.where(is_uphill, 0.0, (momentum - 1) / next_momentum)
        ahead = (step + inertia * (step - weights))[goes_on]
        weights = step[goes_on]
        momentum = next_momentum[goes_on]
        active = active[goes_on]
    raise ValueError(
        f"no optimum within {MOST_PSD_STEPS} steps: features are too much alike; "
        "a ridge (alpha > 0) helps"
    )
