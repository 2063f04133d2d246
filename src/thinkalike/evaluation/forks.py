"""Forks of a model, which show what a change without any aim does.

A fork is a copy that was trained further on its own text. How far each part of a changed model
moved is compared with how far the parts of forks moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy, deepcopy
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from thinkalike.measures.changes import deviations_beyond_null
from thinkalike.measures.seeds import seeded
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.module_facts import first_tensor
from thinkalike.models.parts import Part, common_weights

STEP_TOKENS = 2048
"""How many tokens a step of a fork reads."""

FIRST_RATE = 3e-4
"""The learning rate of a fork if none is given, and of the first try to find one for a norm."""

COMPARED_WEIGHTS = 2**16
"""At most so many weights of a tensor are compared between changes."""

SMALLEST_SQUARE = 1e-30
"""Stands for a squared singular value of 0, which has no logarithm."""

SMALLEST_DISTANCE = 1e-15
"""Stands for a distance of 0, which has no logarithm."""


class PartMove(NamedTuple):
    """How one part of a model was changed."""

    weights: Float[Tensor, " n"]
    """changed - base, at most `COMPARED_WEIGHTS` of each tensor."""

    log_singular_value: float
    """The mean, over the matrices of changed - base, of the log of the largest singular value."""


def part_moves(base: FrozenModel, changed: FrozenModel, parts: Sequence[Part]) -> list[PartMove]:
    """Return how the weights of each part were changed, in the order of the parts.

    Args:
        base: The model before.
        changed: The model after.
        parts: The parts, such as the attention or the MLP of a block.

    Returns:
        For each part, changed - base of its weights, and the mean over its matrices of the log of
        the largest singular value of changed - base. Of a tensor of more than `COMPARED_WEIGHTS`
        weights, evenly spaced weights are returned, at most so many.
    """
    moves = []
    for part in parts:
        differences = []
        for base_weight, changed_weight in common_weights(base, changed, part.paths):
            differences.append((changed_weight - base_weight).float())
        matrices = [change.flatten(1) for change in differences if change.dim() > 1]
        if not matrices:
            matrices = [change[None] for change in differences]  # a vector is a matrix of one row
        squares = [_largest_squared_singular_value(matrix) for matrix in matrices]
        log_singular_value = float(torch.stack(squares).log().mean()) / 2  # log √s = log s / 2

        samples = []
        for change in differences:
            stride = -(-change.numel() // COMPARED_WEIGHTS)  # the quotient, rounded up
            samples.append(change.flatten()[::stride])
        moves.append(PartMove(torch.cat(samples).cpu(), log_singular_value))
    return moves


def _largest_squared_singular_value(matrix: Float[Tensor, "m n"]) -> Float[Tensor, ""]:
    """Return the square of the largest singular value of a matrix A.

    It is the largest eigenvalue of A Aᵀ, or of Aᵀ A if this is the smaller matrix. It is raised to
    `SMALLEST_SQUARE` if it is below, so that it has a logarithm.
    """
    rows, columns = matrix.shape
    wide = matrix if rows <= columns else matrix.T
    eigenvalues = torch.linalg.eigvalsh((wide @ wide.T).double())
    return eigenvalues[-1].clamp(min=SMALLEST_SQUARE)


def beyond_forks(
    changed: Sequence[PartMove], forks: Sequence[Sequence[PartMove]]
) -> tuple[Float[Tensor, " p"], float]:
    """Return how far each part changed beyond what further training does, and a p-value.

    Forks are copies of the base that were trained further on its own text, which tells how parts
    change without any aim. The change of a part is described by two statistics: its distance from
    the mean change of all runs, and its largest singular values, which are large where training
    moved it in few directions. `deviations_beyond_null` compares both with the forks: its result
    is the greater z of the two statistics. A learning rate, batch size or weight decay different
    from that of the forks makes most parts move farther or less far, so what counts is how far a
    part moved compared with the remaining parts.

    Args:
        changed: How each of p parts of the changed model was changed.
        forks: For each of two or more forks, how the same parts were changed.

    Returns:
        How far each part is beyond the forks, as z, and the p-value of the farthest part.
    """
    statistics = []
    for moves in zip(changed, *forks, strict=True):  # of one part in all runs
        # A run is the training of the changed model (the first) or of a fork.
        weights = torch.stack([move.weights for move in moves])  # (runs, n)
        distances = (weights - weights.mean(0)).double().norm(dim=1)
        log_distances = distances.clamp(min=SMALLEST_DISTANCE).log()
        log_singular_values = [move.log_singular_value for move in moves]
        largest_singular_values = torch.tensor(log_singular_values, dtype=torch.float64)
        statistics.append(torch.stack([log_distances, largest_singular_values], 1))
    by_run = torch.stack(statistics, 1)  # (runs, p, 2)
    statistics_of_changed, statistics_of_forks = by_run[0], by_run[1:]
    beyond, p_value = deviations_beyond_null(statistics_of_changed, statistics_of_forks)
    return beyond, float(p_value)


def comparable_with_forks(base: FrozenModel, parts: Sequence[Part]) -> list[Part]:
    """Return the parts whose change can be compared with what further training does to them.

    These are parts of blocks, such as attention and MLPs, but no norms. How far embeddings and
    norms move depends on the optimiser's settings more than on the text.
    """
    comparable = []
    for part in parts:
        is_in_block = 0 <= part.layer < base.n_layers
        if is_in_block and part.component != "norms":
            comparable.append(part)
    return comparable


def with_module(model: FrozenModel, module: torch.nn.Module, name: str) -> FrozenModel:
    """Return a copy of a model with another PyTorch module, such as one with different weights.

    Args:
        model: The model; it is not changed.
        module: The module of the copy, of the same architecture. It is set to evaluation mode and
            its weights are frozen, in place.
        name: The name of the copy.
    """
    changed = copy(model)
    changed.module = module.eval().requires_grad_(False)
    changed.name = name
    # `copy` has kept the list of the old module's blocks.
    changed.blocks = list(module.get_submodule(model.family.blocks).children())
    return changed


def fork(
    base: FrozenModel,
    rows: Int[Tensor, "rows t"],
    norm: float | None,
    seed: int,
    *,
    rate: float = FIRST_RATE,
    steps: int = 40,
    paths: Sequence[str] = ("",),
) -> FrozenModel:
    """Return a copy of a model that was trained further, as a control for other changes of it.

    The optimiser is AdamW without weight decay, at a rate that falls linearly to 0, on batches of
    random rows.

    Args:
        base: The model; it is not changed.
        rows: The text, as rows of t token ids.
        norm: The norm to which the change of all weights is scaled; None or 0 leaves it as it is.
        seed: Decides which rows each step reads, and names the copy.
        rate: The learning rate at the first step.
        steps: How many steps are taken.
        paths: The modules that are trained; "" is the whole model.
    """
    module = deepcopy(base.module).requires_grad_(True)
    trained: dict[int, torch.nn.Parameter] = {}  # by identity, as modules may share weights
    for path in paths:
        for weight in module.get_submodule(path).parameters():
            trained[id(weight)] = weight
    weights = list(trained.values())
    old_weights = [weight.detach().clone() for weight in weights]
    norm_of_change = _train_weights(base, module, weights, rows, seed, rate, steps)
    scale = norm / norm_of_change if norm else 1.0
    with torch.no_grad():
        for weight, old_weight in zip(weights, old_weights, strict=True):
            weight.copy_(old_weight + (weight - old_weight) * scale)
    return with_module(base, module, f"fork {seed}")


def learning_rate_for_norm(
    base: FrozenModel, rows: Int[Tensor, "rows t"], norm: float, steps: int
) -> float:
    """Return the learning rate at which further training changes weights by about a given norm.

    It is found by training twice, from `FIRST_RATE` on. After each training the rate is
    multiplied by the wanted norm over the norm of the change.

    Args:
        base: The model; copies of it are trained.
        rows: The text, as rows of t token ids.
        norm: The norm that the change of all weights should have.
        steps: How many steps the training takes.
    """
    rate = FIRST_RATE
    for _ in range(2):
        module = deepcopy(base.module).requires_grad_(True)
        weights = list(module.parameters())
        norm_of_change = _train_weights(
            base, module, weights, rows, seed=0, rate=rate, steps=steps
        )
        rate *= norm / norm_of_change
    return rate


def _train_weights(
    base: FrozenModel,
    module: torch.nn.Module,
    weights: Sequence[Tensor],
    rows: Int[Tensor, "rows t"],
    seed: int,
    rate: float,
    steps: int,
) -> float:
    """Train weights of a language model by AdamW, in place, and return the norm of their change.

    Args:
        base: The model of which the module is a copy; tokens are put on its device.
        module: Takes token ids to logits.
        weights: The weights that are trained.
        rows: The text, as rows of t token ids.
        seed: Decides which rows each step reads.
        rate: The learning rate at the first step; it falls linearly to 0.
        steps: How many steps are taken, each on rows of about `STEP_TOKENS` tokens.
    """
    old_weights = [weight.detach().clone() for weight in weights]
    generator = seeded(seed)
    optimizer = torch.optim.AdamW(weights, lr=rate, weight_decay=0.0)
    batch_rows = max(STEP_TOKENS // rows.shape[1], 1)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * (1 - step / steps)
        row_indices = torch.randint(len(rows), (batch_rows,), generator=generator)
        tokens = rows[row_indices].long().to(base.device)
        with torch.enable_grad():  # callers may compute without gradients
            logits = first_tensor(module(tokens))[:, :-1]
            loss = cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    squared_norms = []
    for weight, old_weight in zip(weights, old_weights, strict=True):
        squared_norms.append((weight.detach() - old_weight).double().square().sum())
    return float(sum(squared_norms)) ** 0.5
