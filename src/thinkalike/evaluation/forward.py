"""Forward passes through parts of models: states of two models, and states that enter a model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.data.rows import RowReader, TokenRows
from thinkalike.measures.losses import token_loss
from thinkalike.models.families import Layer
from thinkalike.models.frozen import FrozenModel


def next_token_losses(
    model: FrozenModel, states: Sequence[Float[Tensor, "b t d"]], tokens: Int[Tensor, "b t"]
) -> list[Float[Tensor, "b u"]]:
    """Return the cross-entropy in nats of the u = t - 1 tokens of each row after the first.

    Args:
        model: The model whose final norm and unembedding turn states into predictions.
        states: Several sets of states after the last block, such as of several stitched models.
        tokens: The token ids of the rows.

    Returns:
        The losses for each set of states.
    """
    next_tokens = tokens[:, 1:].to(model.device)
    # The states from which the next tokens are predicted, (sets, b, u, d).
    states_before = torch.stack([state[:, :-1] for state in states])
    next_tokens_of_all_sets = next_tokens.repeat(len(states), 1, 1).flatten()
    losses = token_loss(states_before.flatten(0, 2), model.finish, next_tokens_of_all_sets)
    return list(losses.view(len(states), *next_tokens.shape))


def states_of_both(
    source: RowReader[Layer],
    target: FrozenModel,
    rows: TokenRows,
    source_layers: Sequence[Layer],
    target_layers: Sequence[Layer],
) -> tuple[list[Float[Tensor, "b s _"]], list[Float[Tensor, "b t _"]]]:
    """Return states of the source and of the target at some layers, from one pass of each model.

    The states of the source are those of its own tokens. If its tokenizer is not the target's, the
    caller pairs them with the target's tokens afterwards, by `TokenRows.align`.

    Args:
        source: A model, or anything else that has states at layers. If it is the target, there is
            one pass for both.
        target: The target.
        rows: The rows, of the tokens of both models.
        source_layers, target_layers: The layers whose states are returned, in this order.

    Returns:
        A tensor for each source layer, over the s tokens of a row of the source's tokenizer, and
        one for each target layer, over the t tokens of the target's. The last axis is the width
        of the layer.
    """
    reads_same_tokens = rows.source is None
    if source is target and reads_same_tokens:
        states = list(target.residuals(rows.tokens, [*source_layers, *target_layers]))
        return states[: len(source_layers)], states[len(source_layers) :]
    source_states = source.residuals(rows.source_tokens, source_layers)
    target_states = target.residuals(rows.tokens, target_layers)
    return list(source_states), list(target_states)


def last_states(
    target: FrozenModel, entering: Sequence[tuple[int, Float[Tensor, "b t d"]]]
) -> list[Float[Tensor, "b t d"]]:
    """Return the states after the last block, for states that enter a model at different blocks.

    They replace the output of a block, as those of a stitch do. Each later block runs once: states
    join the batch when their block is reached.

    Args:
        target: The model.
        entering: Pairs of the index of a block and the states that replace its output, in any
            order; at least one.

    Returns:
        The states after the last block, in the order of `entering`.
    """
    # The indices of `entering`, those of early blocks first.
    indices_by_block = sorted(range(len(entering)), key=lambda index: entering[index][0])
    running: list[Tensor] = []  # the states that have entered so far, in this order
    next_block = 0  # the block that the states in `running` enter next
    for index in indices_by_block:
        block, state = entering[index]
        if running:
            advanced = target.advance(torch.cat(running), next_block, block + 1)
            running = list(advanced.chunk(len(running)))
        running.append(state.to(target.device, target.dtype))
        next_block = block + 1
    finished = target.advance(torch.cat(running), next_block, target.n_layers)
    finished_by_index = dict(zip(indices_by_block, finished.chunk(len(running)), strict=True))
    return [finished_by_index[index] for index in range(len(entering))]


def states_onwards(
    target: FrozenModel, entering: Sequence[tuple[int, Float[Tensor, "b t d"]]]
) -> list[list[Float[Tensor, "b t d"]]]:
    """Return the states after every later block, for states that enter a model at some blocks.

    Every block runs once, for all states that have entered before it.

    Args:
        target: The model.
        entering: Pairs of the index of a block and the states that replace its output; at least
            one.

    Returns:
        For each pair a list: its states, then those after each later block.
    """
    trajectories = []
    for _, state in entering:
        trajectories.append([state.to(target.device, target.dtype)])
    first_block = min(block for block, _ in entering)
    for block in range(first_block + 1, target.n_layers):
        entered = []  # the trajectories whose states are in the model before this block
        for (entry_block, _), trajectory in zip(entering, trajectories, strict=True):
            if entry_block < block:
                entered.append(trajectory)
        states_before = torch.cat([trajectory[-1] for trajectory in entered])
        states_after = target.advance(states_before, block, block + 1)
        for trajectory, state in zip(entered, states_after.chunk(len(entered)), strict=True):
            trajectory.append(state)
    return trajectories
