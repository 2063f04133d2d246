"""Forward passes through parts of models: states of two models, and states that enter a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.data.rows import TokenRows
from thinkalike.measures.losses import token_loss
from thinkalike.models.frozen import FrozenModel


def next_token_losses(
    model: FrozenModel, states: Sequence[Float[Tensor, "b t d"]], tokens: Int[Tensor, "b t"]
) -> list[Float[Tensor, "b u"]]:
    """Return the cross-entropy in nats of all tokens of a row but the first (u = t - 1).

    Args:
        model: What turns states into predictions.
        states: Several sets of states after the last block.
        tokens: The token ids of the rows.

    Returns:
        The losses for each set of states.
    """
    following = tokens[:, 1:].to(model.device)
    predicting = torch.stack([state[:, :-1] for state in states])  # (sets, b, u, d)
    following_of_each_set = following.repeat(len(states), 1, 1).flatten()
    losses = token_loss(predicting.flatten(0, 2), model.finish, following_of_each_set)
    return list(losses.view(len(states), *following.shape))


def states_of_both(
    source: Any,
    target: FrozenModel,
    rows: TokenRows,
    source_layers: Sequence[Any],
    target_layers: Sequence[Any],
) -> tuple[list[Float[Tensor, "b s _"]], list[Float[Tensor, "b t _"]]]:
    """Return states of the source and of the target at some layers, from one pass of each model.

    The states of the source are those of its own tokens, see `TokenRows.align`.

    Args:
        source: Anything with `residuals`. If it is the target, there is one pass for both.
        target: The target.
        rows: The rows, of the tokens of both models.
        source_layers, target_layers: The layers whose states are returned, in this order.

    Returns:
        A tensor for each source layer, over the s tokens of a row of the source's tokenizer, and
        one for each target layer, over the t tokens of the target's.
    """
    if source is target and rows.source is None:
        states = list(target.residuals(rows.tokens, [*source_layers, *target_layers]))
        return states[: len(source_layers)], states[len(source_layers) :]
    source_states = source.residuals(rows.source_tokens, source_layers)
    target_states = target.residuals(rows.tokens, target_layers)
    return list(source_states), list(target_states)


def last_states(
    target: FrozenModel, entering: Sequence[tuple[int, Float[Tensor, "b t d"]]]
) -> list[Float[Tensor, "b t d"]]:
    """Run states from within a model to its end; every block runs once for all of them.

    States are joined along the batch from the block on at which they enter.

    Args:
        target: The model.
        entering: Pairs of a block and the states that stand for its output, in any order; at least
            one.

    Returns:
        The states after the last block, in the order of `entering`.
    """
    order = sorted(range(len(entering)), key=lambda index: entering[index][0])
    running: list[Tensor] = []
    next_block = 0
    for index in order:
        block, state = entering[index]
        if running:
            advanced = target.advance(torch.cat(running), next_block, block + 1)
            running = list(advanced.chunk(len(running)))
        running.append(state.to(target.device, target.dtype))
        next_block = block + 1
    finished = target.advance(torch.cat(running), next_block, target.n_layers)
    finished_in_order = finished.chunk(len(running))
    return [finished_in_order[order.index(index)] for index in range(len(entering))]


def states_onwards(
    target: FrozenModel, entering: Sequence[tuple[int, Float[Tensor, "b t d"]]]
) -> list[list[Float[Tensor, "b t d"]]]:
    """Run states from within a model to its end, and return them after every block.

    Every block runs once for all states that have entered before it.

    Args:
        target: The model.
        entering: Pairs of a block and the states that stand for its output; at least one.

    Returns:
        For each of `entering`, its states, then those after each later block.
    """
    trajectories = []
    for _, state in entering:
        trajectories.append([state.to(target.device, target.dtype)])
    first_block = min(block for block, _ in entering)
    for block in range(first_block + 1, target.n_layers):
        running = []
        for (entry_block, _), trajectory in zip(entering, trajectories, strict=True):
            if entry_block < block:
                running.append(trajectory)
        advanced = target.advance(
            torch.cat([trajectory[-1] for trajectory in running]), block, block + 1
        )
        for trajectory, state in zip(running, advanced.chunk(len(running)), strict=True):
            trajectory.append(state)
    return trajectories
