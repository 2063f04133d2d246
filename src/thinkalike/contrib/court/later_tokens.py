"""Whether a source reads later tokens, which no causal model does."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.contrib.court.source import Source
from thinkalike.measures.seeds import seeded

ROWS_TRIED = 64


@torch.no_grad()
def relative_change_by_later_tokens(source: Source, rows: Int[Tensor, "rows t"]) -> float:
    """Return how much a source's states change when later tokens are replaced, at least 0.

    In each of some rows, all tokens from a random position on are replaced by different ones. The
    states before that position are those that should not change. The result has three steps:

    1. The squared change of each such state is taken, less its squared change in a second run on
       the same tokens. So a source with random noise gets a result near 0.
    2. These are averaged for each distance, in tokens, from the first replaced token.
    3. The largest average is divided by the median squared distance of a state from the mean
       state.

    The result is exactly 0 for a deterministic causal source.

    Args:
        source: The source.
        rows: Rows of tokens, the first `ROWS_TRIED` of which are read.
    """
    tokens = rows[:ROWS_TRIED].long()
    length = tokens.shape[1]
    # A source may leak at few positions or after few tokens, so the position differs by row.
    first_replaced = torch.randint(1, length, (len(tokens), 1), generator=seeded(0))
    distance = first_replaced - torch.arange(length)  # (b, t), positive before this position
    is_before = distance > 0
    replaced = torch.where(is_before, tokens, _different_tokens(tokens))

    def states_before(tokens: Int[Tensor, "b t"]) -> Float[Tensor, "n d"]:
        """Return the states at all positions before the first replaced one of each row."""
        (states,) = source.residuals(tokens, [0])
        return states.cpu().double()[is_before]

    states = states_before(tokens)
    change_of_second_run = (states_before(tokens) - states).square().sum(-1)
    change = (states_before(replaced) - states).square().sum(-1) - change_of_second_run

    distances = distance[is_before]
    # Index i holds distance i, which is below `length`. Distances that do not occur count as 0.
    sums = torch.zeros(length, dtype=change.dtype).index_add(0, distances, change)
    counts = distances.bincount(minlength=length)
    mean_by_distance = sums / counts.clamp(min=1)

    squared_distance_from_mean = (states - states.mean(0)).square().sum(-1)
    median = squared_distance_from_mean.median()
    # If most states are the same, the median is 0, and 0 / 0 would be NaN.
    tiny = torch.finfo(median.dtype).tiny
    relative_change = mean_by_distance.max() / median.clamp(min=tiny)
    return max(float(relative_change), 0.0)


def _different_tokens(tokens: Int[Tensor, "b t"]) -> Int[Tensor, "b t"]:
    """Return a different token for each token: the next larger id among those that occur.

    The largest id is replaced by the smallest. If only one id occurs, tokens stay the same.
    """
    occurring_ids, indices = tokens.unique(return_inverse=True)  # in rising order
    return occurring_ids[(indices + 1) % len(occurring_ids)]
