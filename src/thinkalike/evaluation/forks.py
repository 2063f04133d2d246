"""Forks of a model by further training on its own text: what a change without any aim does."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy, deepcopy

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from thinkalike.arguments import seeded
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.parts import common_weights
from thinkalike.models.surgery import first_tensor

BATCH_TOKENS = 2048  # of a step
RATE = 3e-4  # of the first try


def with_weights(model: FrozenModel, module: torch.nn.Module, name: str) -> FrozenModel:
    """Return a model that has another module of the same architecture, which is frozen."""
    other = copy(model)
    other.module, other.name = module.eval().requires_grad_(False), name
    other.blocks = list(module.get_submodule(model.family.blocks).children())
    return other


def norm_of_change(base: FrozenModel, changed: FrozenModel) -> float:
    """Return ‖changed - base‖ over all weights that both have as numbers of one shape."""
    pairs = common_weights(base.module, changed.module)
    return sum(float((other.to(weight) - weight).double().square().sum()) for weight, other in pairs) ** 0.5


def fork(
    base: FrozenModel,
    rows: Int[Tensor, "rows t"],
    norm: float,
    seed: int,
    *,
    rate: float = RATE,
    steps: int = 40,
    paths: Sequence[str] = ("",),
) -> FrozenModel:
    """Return a copy of a model that was trained on, with the change of its weights scaled to a norm.

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
            own.copy_(old + (own - old) * (norm / moved))
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
