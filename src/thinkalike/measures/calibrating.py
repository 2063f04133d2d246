"""Any measure of two sets of features, with an interval and a p-value for rows that depend on each other in groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.arguments import seeded, takes_arrays
from thinkalike.measures.bootstrapping import effective_number
from thinkalike.measures.chance import balanced_rows, permuted_rows
from thinkalike.measures.estimates import (
    FEWEST_EQUAL,
    FEWEST_GROUPS,
    PARTS,
    check_groups,
    jackknife,
    numbered_by_part,
)
from thinkalike.progress import counted


class Calibrated(NamedTuple):
    """A value with its 95 % interval, and what it is by chance.

    Attributes:
        null: The mean value where whole groups of Y changed places.
        p: The share of permutations of groups, with the value itself, whose value is at least as large.
        groups: How many different groups there are.
    """

    value: float
    low: float
    high: float
    null: float
    p: float
    groups: int


@takes_arrays
def calibrate(
    function: Callable[[Tensor, Tensor], Any],
    X: Float[Tensor, "n d"],
    Y: Float[Tensor, "n e"],
    groups: Int[Tensor, " n"],
    permutations: int = 99,
    seed: int = 0,
) -> Calibrated:
    """Return the value of any function of two sets of features, larger if more alike, with its interval and p.

    The interval is the jackknife that leaves out whole groups, those of one tenth at a time, beside as many rows at
    random. p is of as many rows of each group that has them, since only groups of equal length are exchangeable; it is
    at least 1 / (permutations + 1). Groups that are worth fewer than 15 of equal length (`effective_number`) have no
    interval, (-∞, ∞), and of fewer than 8 of equal length p is NaN.

    Args:
        function: Takes two tensors, (m, d) and (m, e), also of some of the rows, and returns a number.
        X, Y: Row i of both is of stimulus i.
        groups: What each row belongs to, within which rows depend on each other, such as its document or sentence.

    Raises:
        ValueError: X and Y differ in their rows, or there is not one group for each.
    """
    check_groups(groups, len(X))
    numbers = numbered_by_part(groups)
    counts, parts = numbers.unique(return_counts=True)[1], numbers % PARTS
    value = torch.tensor(float(function(X, Y)), dtype=torch.float64)
    is_enough = effective_number(counts) >= FEWEST_EQUAL

    def without(parts: Int[Tensor, " n"]) -> Float[Tensor, " parts"]:
        rests = [parts != part for part in range(PARTS)] if is_enough else []
        return torch.tensor([float(function(X[rest], Y[rest])) for rest in rests], dtype=torch.float64)

    scattered = parts[torch.randperm(len(parts), generator=seeded(seed)).to(parts.device)]
    found = jackknife(value, without(parts), without(scattered).mean(0), is_drawn=True)
    seeds = [seed * permutations + place for place in range(permutations)]
    null = [float(function(X, Y[permuted_rows(numbers, each)])) for each in counted(seeds, "permutation")]
    chosen = balanced_rows(numbers)
    p, rows = float("nan"), chosen.flatten()
    if len(chosen) >= FEWEST_GROUPS:
        own, x, y = numbers[rows], X[rows], Y[rows]
        tested = float(function(x, y))
        p = (1 + sum(float(function(x, y[permuted_rows(own, each)])) >= tested for each in seeds)) / (1 + permutations)
    return Calibrated(float(value), float(found.low), float(found.high), sum(null) / len(null), p, len(counts))
