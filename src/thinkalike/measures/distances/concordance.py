"""Kendall's τ_a: how many pairs of values two vectors order alike, without a matrix of all pairs."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


def tau_a(x: Int[Tensor, " p"], y: Int[Tensor, " p"], weights: Float[Tensor, "r p"]) -> Float[Tensor, " r"]:
    """Return τ_a = (concordant - discordant) / all pairs of values, in [-1, 1], for each set of weights.

    A pair that is tied in x or in y is neither, and still one of all pairs (Kendall 1938), so that a vector with ties
    is never at 1 even with itself: a model that predicts ties gains nothing by them.

    Values that stand for w copies each have Σ w (Σ w - 1) / 2 pairs. With all pairs T, those tied in x, X, in y, Y, and
    in both, B, and D discordant ones, concordant minus discordant is T - X - Y + B - 2 D. D is counted bit by bit of
    y's level among values in the order of x, O(p log p) (as a wavelet tree counts inversions).

    Args:
        x, y: The numbers of the values' levels, from 0, in ascending order.
        weights: How often each value is there, whole numbers.
    """
    weights = weights.T.contiguous()  # one row for each value, so that rows move as a whole
    joint = x * (int(y.max()) + 1) + y
    order = joint.argsort()
    total = weights.sum(0)
    every = total * (total - 1) / 2
    tied = [_tied(levels, weights) for levels in (x, y, joint.unique(return_inverse=True)[1])]
    return (every - tied[0] - tied[1] + tied[2] - 2 * _discordant(y[order], weights[order])) / every


def _tied(levels: Int[Tensor, " p"], weights: Float[Tensor, "p r"]) -> Float[Tensor, " r"]:
    """Return the number of pairs of copies on one level."""
    sizes = weights.new_zeros(int(levels.max()) + 1, weights.shape[1]).index_add_(0, levels, weights)
    return (sizes * (sizes - 1)).sum(0) / 2


def _discordant(levels: Int[Tensor, " p"], weights: Float[Tensor, "p r"]) -> Float[Tensor, " r"]:
    """Return the weight of pairs of which the first has the higher level.

    Two such levels are alike down to a bit that is 1 in the first and 0 in the second. So at each bit, from the
    highest, values that are alike above it stand together, in their order: every 0 counts the 1s before it there, which
    are those before it in all, minus those before its group.
    """
    count = weights.new_zeros(weights.shape[1])
    for bit in reversed(range(int(levels.max()).bit_length())):
        ones = weights * ((levels >> bit) & 1)[:, None]
        zeros, before = weights - ones, ones.cumsum(0)
        above = levels >> (bit + 1)
        last = torch.nn.functional.pad(above[1:] != above[:-1], (0, 1), value=True).nonzero()[:, 0]
        inside = zeros.cumsum(0)[last].diff(dim=0, prepend=zeros.new_zeros(1, zeros.shape[1]))
        count += (zeros * before).sum(0) - (before[last[:-1]] * inside[1:]).sum(0)
        order = (levels >> bit).argsort(stable=True)
        levels, weights = levels[order], weights[order]
    return count
