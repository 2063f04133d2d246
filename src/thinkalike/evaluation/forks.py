"""Forks of a model by further training on its own text: what a change without any aim does."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy, deepcopy
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from thinkalike.arguments import seeded
from thinkalike.measures.changes import beyond_null
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.parts import Part, common_weights
from thinkalike.models.surgery import first_tensor

BATCH_TOKENS = 2048  # of a step
RATE = 3e-4  # of the first try
COMPARED = 2**16  # weights of a tensor, at most, by which changes are compared


def with_weights(model: FrozenModel, module: torch.nn.Module, name: str) -> FrozenModel:
    """Return a model that has another module of the same architecture, which is frozen."""
    other = copy(model)
    other.module, other.name = module.eval().requires_grad_(False), name
    other.blocks = list(module.get_submodule(model.family.blocks).children())
    return other


class Move(NamedTuple):
    """How one part of a model was changed."""

    weights: Float[Tensor, " n"]  # changed - base, of each tensor at most `COMPARED`
    largest: float  # mean over its matrices of the log of the largest singular value of changed - base


def moves(base: FrozenModel, changed: FrozenModel, parts: Sequence[Part]) -> list[Move]:
    """Return how each part was changed."""
    found = []
    for part in parts:
        changes = [(other - weight).float() for weight, other in common_weights(base, changed, part.paths)]
        matrices = [each.flatten(1) for each in changes if each.dim() > 1] or [each[None] for each in changes]
        wide = [each if each.shape[0] <= each.shape[1] else each.T for each in matrices]
        squares = [torch.linalg.eigvalsh((each @ each.T).double())[-1].clamp(min=1e-30) for each in wide]
        weights = torch.cat([each.flatten()[:: -(-each.numel() // COMPARED)] for each in changes])
        found.append(Move(weights.cpu(), float(torch.stack(squares).log().mean()) / 2))
    return found


def beyond_forks(changed: Sequence[Move], forks: Sequence[Sequence[Move]]) -> tuple[Float[Tensor, " p"], float]:
    """Return how far the change of each of p parts is beyond those of forks, and the p-value of the farthest.

    Two numbers are compared by `beyond_null`, and the greater result is taken: the distance of the part's change from
    the mean over all runs, which holds what forks share, and its largest singular values, which are large where
    training had an aim.
    """
    columns = []
    for part in zip(changed, *forks, strict=True):
        runs = torch.stack([move.weights for move in part])
        columns.append((runs - runs.mean(0)).double().norm(dim=1).clamp(min=1e-15).log())
        columns.append(torch.tensor([move.largest for move in part], dtype=torch.float64))
    values = torch.stack(columns, 1)
    beyond, p = beyond_null(values[0], values[1:])
    return beyond.view(-1, 2).amax(1), float(p)


def fork(
    base: FrozenModel,
    rows: Int[Tensor, "rows t"],
    norm: float | None,
    seed: int,
    *,
    rate: float = RATE,
    steps: int = 40,
    paths: Sequence[str] = ("",),
) -> FrozenModel:
    """Return a copy of a model that was trained on, with the change of its weights scaled to a norm, if one is given.

    AdamW without weight decay, at a rate that falls linearly to 0, on batches of rows at random.

    Args:
        paths: of the modules whose weights are trained; "" is the whole model.
    """
    module = deepcopy(base.module).requires_grad_(True)
    weights = list({id(own): own for path in paths for own in module.get_submodule(path).parameters()}.values())
    before = [weight.detach().clone() for weight in weights]
    moved = _train(base, module, weights, rows, seed, rate, steps)
    with torch.no_grad():
        for own, old in zip(weights, before, strict=True):
            own.copy_(old + (own - old) * (norm / moved if norm else 1.0))
    return with_weights(base, module, f"fork {seed}")


def rate_for(base: FrozenModel, rows: Int[Tensor, "rows t"], norm: float, steps: int) -> float:
    """Return the rate at which forks of so many steps move by about this norm, found in two tries."""
    rate = RATE
    for _ in range(2):
        module = deepcopy(base.module).requires_grad_(True)
        rate *= norm / _train(base, module, list(module.parameters()), rows, 0, rate, steps)
    return rate


def _train(
    base: FrozenModel,
    module: torch.nn.Module,
    weights: Sequence[Tensor],
    rows: Int[Tensor, "rows t"],
    seed: int,
    rate: float,
    steps: int,
) -> float:
    """Train these weights of a module, and return the norm of their change."""
    before, generator = [weight.detach().clone() for weight in weights], seeded(seed)
    optimizer = torch.optim.AdamW(weights, lr=rate, weight_decay=0.0)
    at_once = max(BATCH_TOKENS // rows.shape[1], 1)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * (1 - step / steps)
        tokens = rows[torch.randint(len(rows), (at_once,), generator=generator)].long().to(base.device)
        with torch.enable_grad():
            logits = first_tensor(module(tokens))[:, :-1]
            cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    pairs = zip(weights, before, strict=True)
    return float(sum((own.detach() - old).double().square().sum() for own, old in pairs)) ** 0.5
