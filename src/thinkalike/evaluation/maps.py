"""Statistics of the states of two models, from which maps between them have closed forms."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from thinkalike.data.corpus import Layout
from thinkalike.evaluation.language import halved, states_of_both
from thinkalike.measures.closed_forms import LayerPair, Moments
from thinkalike.memory import Budget
from thinkalike.models.frozen import FrozenModel, StateSource
from thinkalike.processes import counted


@torch.no_grad()
def state_moments(
    source: StateSource,
    target: FrozenModel,
    layer_pairs: Sequence[LayerPair],
    rows: Int[Tensor, "rows width"],
    batch: int,
    layout: Layout | None = None,
) -> Moments:
    """Return the sufficient statistics of closed-form maps of all layer pairs, from one pass over the rows.

    Without a layout, rows hold tokens that both models read.
    """
    moments, layout = Moments(layer_pairs), layout or Layout(rows.shape[1])
    layers, depths = (list(dict.fromkeys(side)) for side in zip(*layer_pairs, strict=True))
    for part in counted(rows.split(batch), "batch of closed forms"):
        part = part.long()
        mine, theirs = states_of_both(source, target, part, layers, depths, layout)
        mine = [state.flatten(0, 1).to(target.device) for state in layout.gathered(mine, part)]
        theirs = [state.flatten(0, 1) for state in theirs]
        moments.update(dict(zip(layers, mine, strict=True)), dict(zip(depths, theirs, strict=True)))
    return moments


def rows_of_moments(
    source: FrozenModel,
    target: FrozenModel,
    layer_pairs: Sequence[LayerPair],
    rows: Int[Tensor, "rows width"],
    most: int,
    budget: Budget,
    layout: Layout | None = None,
) -> int:
    """Return how many rows, at most `most`, fit into memory: the layers' states, and two copies in float64."""
    sides = zip((source, target), zip(*layer_pairs, strict=True), strict=True)
    numbers = sum(len(set(side)) * model.d_model * (model.dtype.itemsize + 16) for model, side in sides)
    tokens = max(layout.target, layout.source) if layout else rows.shape[1]
    return halved(most, lambda count: count * tokens * numbers <= budget.room)
