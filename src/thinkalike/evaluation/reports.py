"""How many rows and layer pairs the report of stitches has in memory at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from thinkalike.data import Layout
from thinkalike.evaluation.shares import halved
from thinkalike.evaluation.stitches import LayerPair, last_states
from thinkalike.measures import CHUNK, compare_outputs
from thinkalike.memory import Budget, LiveBytes
from thinkalike.models import FrozenModel

COPIES = 6  # of a pair's states: mapped and last ones of two kinds of maps, and two of parts of them


class Share(NamedTuple):
    """How much of a report is in memory at once."""

    rows: int
    pairs: int


@torch.no_grad()
def report_share(
    source: FrozenModel,
    target: FrozenModel,
    layer_pairs: Sequence[LayerPair],
    rows: Int[Tensor, "rows width"],
    most: int,
    budget: Budget,
    layout: Layout | None = None,
    *,
    others: bool = False,
) -> Share:
    """Return how many rows, at most `most`, and layer pairs of `document_sums` fit; pairs give way first.

    One row through both models, one block of the target, and one chunk of logits are measured.

    Args:
        others: whether there are readers of other states, which take as much again as the target's.
    """
    row, device, width = rows[:1].long(), target.device, target.d_model
    layout = layout or Layout(rows.shape[1])
    with LiveBytes(device) as live:
        states = layout.source_states(source, row, [layer for layer, _ in layer_pairs])
        goals = target.residuals(layout.target_tokens(row), [depth for _, depth in layer_pairs])
        kept, a_row = live.now, live.peak + others * sum(goal.nbytes for goal in goals)
        live.restart()
        last_states(target, [(target.n_layers - 2, goals[-1])])
        a_pair = live.peak - kept + COPIES * goals[-1].nbytes
        del states, goals
        live.restart()
        before, chunk = live.now, torch.zeros(CHUNK, width, device=device, dtype=target.dtype)
        compare_outputs(chunk[None], target.finish, chunk, torch.zeros(CHUNK, dtype=torch.long, device=device))
        logits = live.peak - before

    def fits(rows_at_once: int, pairs: int = 1) -> bool:
        return logits + rows_at_once * (a_row + pairs * a_pair) <= budget.room

    rows_at_once = halved(most, fits)
    pairs = max(sum(fits(rows_at_once, count) for count in range(1, len(layer_pairs) + 1)), 1)
    return Share(rows_at_once, pairs)


def rows_of_moments(
    source: FrozenModel,
    target: FrozenModel,
    rows: Int[Tensor, "rows width"],
    most: int,
    budget: Budget,
    layout: Layout | None = None,
) -> int:
    """Return how many rows, at most `most`, of `state_moments` fit: all layers' states, and two copies in float64."""
    numbers = sum(model.n_layers * model.d_model * (model.dtype.itemsize + 16) for model in (source, target))
    tokens = max(layout.target, layout.source) if layout else rows.shape[1]
    return halved(most, lambda count: count * tokens * numbers <= budget.room)
