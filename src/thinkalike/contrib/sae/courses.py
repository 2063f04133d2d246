"""What each start explains as it reads, what that takes, and what one start saves."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.contrib.subjects.random_effects import random_effects
from thinkalike.evaluation.columns import interval_columns


@dataclass(frozen=True)
class StartCurve:
    """What the autoencoders of one start explain during training, and its operations.

    Attributes:
        start: The name of the start.
        tokens: How many had been read at each evaluation ("look"), from 0.
        explained: The explained variance at the rate that is best at that evaluation.
        fixed: Operations before training.
        per_token: Operations of each token.
    """

    start: str
    tokens: Sequence[int]
    explained: Float[Tensor, "looks seeds"]
    fixed: float
    per_token: float

    def operations(self, tokens: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        """Return the operations of training on this many tokens, including the preparation."""
        return self.fixed + self.per_token * tokens

    def spent(self, tokens: int) -> float:
        """Return the operations for one number of tokens, see `operations`."""
        return float(self.operations(torch.tensor(float(tokens))))

    def reaches(self, goals: Float[Tensor, "looks seeds"]) -> Float[Tensor, "looks seeds"]:
        """Return after how many tokens each seed first explains as much variance as its goals.

        It is infinite if a seed never does. Between two evaluations ("looks") the curve of
        explained variance is interpolated linearly over the logarithm of the tokens, and from 0 to
        the first evaluation linearly over the tokens. The true curve lies above such lines, so the
        true number of tokens is slightly smaller.

        Args:
            goals: Explained variances of the same seeds, at any number of looks.
        """
        curve = self.explained.double()
        tokens = torch.tensor(self.tokens, dtype=torch.float64)
        reached = torch.full(goals.shape, math.inf, dtype=torch.float64)
        # From the last segment to the first, so that the earliest crossing overwrites later ones.
        for index in range(len(tokens) - 1, 0, -1):
            before = curve[index - 1]
            after = curve[index]
            share = ((goals - before) / (after - before)).clamp(0, 1)
            if index == 1:  # from 0 tokens, which have no logarithm
                interpolated = share * tokens[1]
            else:
                ratio = tokens[index] / tokens[index - 1]
                interpolated = tokens[index - 1] * ratio**share
            is_between = (goals <= after) & (goals > before)
            reached = torch.where(is_between, interpolated, reached)
        return torch.where(goals <= curve[0], 0.0, reached)


def savings(curve: StartCurve, against: StartCurve) -> Float[Tensor, "looks seeds"]:
    """Return the share of operations that a start saves, for what another start explains.

    It is 1 - a / b, at each evaluation ("look") of the other start except the first. b is how many
    operations the other start has spent by then, and a how many the start needs to explain as much
    variance. If it never explains as much, a is the number of all its operations, and the share is
    too large.

    Args:
        curve: The explained variance and the operations of the start.
        against: The explained variance and the operations of the other start.
    """
    goals = against.explained.double()
    needed = curve.reaches(goals).clamp(max=float(curve.tokens[-1]))
    tokens = torch.tensor(against.tokens, dtype=torch.float64)[:, None]
    return (1 - curve.operations(needed) / against.operations(tokens))[1:]


def savings_table(
    start_curves: Sequence[StartCurve],
) -> tuple[pd.DataFrame, Float[Tensor, "rows seeds"]]:
    """Return the share of operations that each start saves, compared with each earlier start.

    Starts are compared with all starts before them in the list. Returns a table with a row for
    each evaluation of each pair of starts, and the share that each seed saves, for the same rows.
    In the table, `saved` is the mean over seeds, and `reached` the share of seeds that ever
    explain as much variance as the other start; for the remaining seeds, `saved` is too large.
    """
    tables = []
    saved_by_seed = []
    for against, curve in itertools.combinations(start_curves, 2):
        saved = savings(curve, against)
        saved_by_seed.append(saved)
        tokens = against.tokens[1:]
        is_reached = curve.reaches(against.explained.double()).isfinite()[1:]
        tables.append(
            pd.DataFrame(
                {
                    "start": curve.start,
                    "against": against.start,
                    "tokens": tokens,
                    "explained_variance": against.explained[1:].mean(-1).tolist(),
                    "flops": against.operations(torch.tensor(tokens).double()).tolist(),
                    **interval_columns("saved", random_effects(saved)),
                    "reached": is_reached.double().mean(-1).tolist(),
                    "seeds": saved.shape[1],
                }
            )
        )
    return pd.concat(tables, ignore_index=True), torch.cat(saved_by_seed)
