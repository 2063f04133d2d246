"""The statistics of the states of two models from which maps are solved for in closed form."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from thinkalike.data.rows import TokenRows
from thinkalike.evaluation.batch_sizes import halve_until, rows_per_batch, tokens_per_batch
from thinkalike.evaluation.forward import states_of_both
from thinkalike.evaluation.token_means import MOST_TOKENS, TokenMeans
from thinkalike.measures.halved_moments import HalvedMoments, halves_of
from thinkalike.memory import Budget
from thinkalike.models.families import Layer
from thinkalike.models.frozen import FrozenModel
from thinkalike.states.source import StateSource

SitePair = tuple[Layer, Layer]
"""A layer of the source and one of the target, or a site in each."""

BYTES_OF_FLOAT64_COPIES = 16
"""For each number of a state: what two copies in float64 take."""


@torch.no_grad()
def state_moments(
    source: StateSource,
    target: FrozenModel,
    layer_pairs: Sequence[SitePair],
    rows: TokenRows,
    budget: Budget,
    means: TokenMeans | None = None,
) -> HalvedMoments:
    """Return the statistics of halves of the documents for maps of all layer pairs, in one pass.

    Args:
        source, target: The models.
        layer_pairs: The layer pairs, of which several may share a layer.
        rows: The rows of text to fit on.
        budget: The memory, which decides how many rows are read together.
        means: If given, takes the target's states of the first `MOST_TOKENS` tokens from the same
            pass; its layers are those of the target, in the order of the layer pairs.
    """
    moments = HalvedMoments(layer_pairs)
    source_layers = list(dict.fromkeys(layer for layer, _ in layer_pairs))
    target_layers = list(dict.fromkeys(layer for _, layer in layer_pairs))
    halves = halves_of(rows.documents.flatten()).view_as(rows.documents)
    halved_rows = TokenRows(rows.tokens, halves, rows.source)  # a half in place of each document

    rows_of_means = 0  # how many rows `means` still takes
    if means is not None:
        rows_of_means = max(MOST_TOKENS // rows.context, 1)
    batch_rows = batch_rows_of_moments(source, target, layer_pairs, rows, budget)
    for batch in halved_rows.batches(batch_rows, "batch of closed forms"):
        source_states, target_states = states_of_both(
            source, target, batch, source_layers, target_layers
        )
        if means is not None and rows_of_means > 0:
            first_states = [state[:rows_of_means] for state in target_states]
            means.update(batch.tokens[:rows_of_means], first_states)
            rows_of_means -= len(batch)

        by_source_layer: dict[Hashable, Tensor] = {}
        for layer, state in zip(source_layers, batch.align(source_states), strict=True):
            by_source_layer[layer] = state.flatten(0, 1).to(target.device)
        by_target_layer: dict[Hashable, Tensor] = {}
        for layer, state in zip(target_layers, target_states, strict=True):
            by_target_layer[layer] = state.flatten(0, 1)
        moments.update(by_source_layer, by_target_layer, batch.documents.flatten())
    return moments


def batch_rows_of_moments(
    source: StateSource,
    target: FrozenModel,
    layer_pairs: Sequence[SitePair],
    rows: TokenRows,
    budget: Budget,
) -> int:
    """Return how many rows of text are read together to sum products of states, at least one.

    They are as many as fit into memory, with the states of all layers and two copies of them in
    float64, but not more than are efficient on the device.

    Args:
        source, target: The models.
        layer_pairs: The layers of both models whose states are read together.
        rows: All rows.
        budget: The memory that may be used.
    """
    source_layers = {layer for layer, _ in layer_pairs}
    target_layers = {layer for _, layer in layer_pairs}
    bytes_per_token = 0
    for layers, model in ((source_layers, source), (target_layers, target)):
        bytes_per_number = model.dtype.itemsize + BYTES_OF_FLOAT64_COPIES
        bytes_per_token += len(layers) * model.d_model * bytes_per_number
    # A row has more tokens by one tokenizer than by the other.
    longest = max(rows.context, rows.source_tokens.shape[1])

    def fits(row_count: int) -> bool:
        """Return whether the states of this many rows fit into the memory that is left."""
        return row_count * longest * bytes_per_token <= budget.room

    return halve_until(fits, rows_per_batch(rows, tokens_per_batch(target.device)))
