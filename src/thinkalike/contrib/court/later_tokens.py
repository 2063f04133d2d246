"""Whether a source reads later tokens, which no causal model does."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.contrib.court.source import Source
from thinkalike.measures.seeds import seeded

ROWS_TRIED = 64


@torch.no_grad()
def later_share(source: Source, rows: Int[Tensor, "rows t"]) -> float:
    """Return how much a source's states change when later tokens are replaced, as a share.

    In each of some rows, all tokens from a random position on are replaced by different ones, and
    the states before that position are compared. The share is their mean squared change, minus
    that of a second run on the same tokens, divided by the median squared distance of states from
    their mean. It is computed for each distance to the position, and the largest share is
    returned. It is exactly 0 for a deterministic causal source.
    """
    tokens = rows[:ROWS_TRIED].long()
    length = tokens.shape[1]
    vocabulary, indices = tokens.unique(return_inverse=True)
    # Each token is replaced by the next one among those that occur.
    different = vocabulary[(indices + 1) % len(vocabulary)]

    # A source may leak at few positions or after few tokens, so the position differs by row.
    first_replaced = torch.randint(1, length, (len(tokens), 1), generator=seeded(0))
    distance = first_replaced - torch.arange(length)
    is_before = distance > 0
    replaced = torch.where(is_before, tokens, different)

    def states_before(tokens: Int[Tensor, "b t"]) -> Float[Tensor, "n d"]:
        """Return the states at the positions before the first replaced one of each row."""
        return source.residuals(tokens, [0])[0].cpu().double()[is_before]

    states = states_before(tokens)
    change_by_chance = (states_before(tokens) - states).square().sum(-1)
    change = (states_before(replaced) - states).square().sum(-1) - change_by_chance

    distances = distance[is_before]
    # The sum of the changes at each distance; distances are below `length`.
    sums = torch.zeros(length, dtype=change.dtype).index_add(0, distances, change)
    mean_by_distance = sums / distances.bincount(minlength=length).clamp(min=1)
    variance = (states - states.mean(0)).square().sum(-1).median()
    # Where most states are the same, the variance is 0, and 0 / 0 would be NaN.
    share = mean_by_distance.max() / variance.clamp(min=torch.finfo(variance.dtype).tiny)
    return max(float(share), 0.0)
