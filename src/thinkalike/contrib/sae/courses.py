"""Explained variance during training from each start, its operations, and what a start saves."""

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
    """Explained variance during the training of autoencoders from one kind of first weights.

    The autoencoders differ in their seed. A start is how their first weights are made, such as
    "random".

    Attributes:
        start: The name of the start.
        tokens: How many tokens had been read at each evaluation during training, from 0.
        explained: The explained variance at the learning rate that is best at that evaluation.
        fixed: The floating-point operations to make the first weights.
        per_token: The floating-point operations of training on a token.
    """

    start: str
    tokens: Sequence[int]
    explained: Float[Tensor, "evaluations seeds"]
    fixed: float
    per_token: float

    def operations(self, tokens: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        """Return the operations to make the first weights and to train on so many tokens."""
        return self.fixed + self.per_token * tokens

    def operations_at(self, tokens: int) -> float:
        """Return the operations to make the first weights and to train on this many tokens."""
        return float(self.operations(torch.tensor(float(tokens))))

    def tokens_to_explain(
        self, goals: Float[Tensor, "evaluations seeds"]
    ) -> Float[Tensor, "evaluations seeds"]:
        """Return after how many tokens each seed first explains as much variance as its goals.

        The number is infinite if a seed never does, and 0 if it does before the training. Between
        two evaluations, the curve of explained variance is interpolated linearly over the
        logarithm of the tokens, and from 0 tokens to the next evaluation linearly over the tokens.
        The true curve lies above such lines, so the true number of tokens is slightly smaller.

        Args:
            goals: Explained variances, any number of them for each seed.
        """
        curve = self.explained.double()
        tokens = torch.tensor(self.tokens, dtype=torch.float64)
        reached = torch.full(goals.shape, math.inf, dtype=torch.float64)
        # From the last segment to the first, so that the earliest crossing overwrites later ones.
        for index in range(len(tokens) - 1, 0, -1):
            before = curve[index - 1]
            after = curve[index]
            share_of_segment = ((goals - before) / (after - before)).clamp(0, 1)
            if index == 1:  # from 0 tokens, which have no logarithm
                interpolated = share_of_segment * tokens[1]
            else:
                ratio = tokens[index] / tokens[index - 1]
                interpolated = tokens[index - 1] * ratio**share_of_segment
            # False where the curve does not rise, so that a division by 0 has no effect.
            is_in_segment = (goals <= after) & (goals > before)
            reached = torch.where(is_in_segment, interpolated, reached)
        return torch.where(goals <= curve[0], 0.0, reached)


def savings(curve: StartCurve, against: StartCurve) -> Float[Tensor, "evaluations seeds"]:
    """Return the share of operations that one kind of first weights saves, compared with another.

    At each evaluation of `against` but the first, let b be the operations that its training has
    taken so far, and a the operations after which `curve` explains as much variance. The share is
    1 - a / b. If `curve` never explains as much, a is the number of all its operations, and the
    share is too large.

    Args:
        curve: The explained variance during training from the first weights that may save
            operations.
        against: That of the first weights that it is compared with.
    """
    goals = against.explained.double()
    tokens_needed = curve.tokens_to_explain(goals).clamp(max=float(curve.tokens[-1]))
    tokens_of_other = torch.tensor(against.tokens, dtype=torch.float64)[:, None]
    saved = 1 - curve.operations(tokens_needed) / against.operations(tokens_of_other)
    return saved[1:]  # at the first evaluation, nothing has been read


def savings_table(
    start_curves: Sequence[StartCurve],
) -> tuple[pd.DataFrame, Float[Tensor, "rows seeds"]]:
    """Return the share of operations that each start saves, compared with each earlier start.

    A start is how the first weights of an autoencoder are made; earlier ones come before it in the
    list. The table has a row for each pair of starts and each evaluation of the earlier start,
    without its first evaluation, which is before the training. Its column `saved` is the mean over
    seeds, and `reached` the share of seeds that ever explain as much variance as the earlier
    start. Of the remaining seeds, all operations of their training count as what they need, so
    that their `saved` is too large. The second result is the share that each seed saves, for the
    same rows.
    """
    tables = []
    saved_by_seed = []
    for against, curve in itertools.combinations(start_curves, 2):  # `against` is earlier
        saved = savings(curve, against)  # without the first evaluation
        saved_by_seed.append(saved)
        tokens = against.tokens[1:]
        # (evaluations, seeds); infinite where a seed never explains as much
        tokens_needed = curve.tokens_to_explain(against.explained.double())
        is_reached = tokens_needed.isfinite()[1:]
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
