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
class Course:
    """What the autoencoders of a start explain as they read, and what that takes.

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
        """Return the tokens after which each seed first explains as much as its goals.

        Infinite where it never does. Between two evaluations the curve is taken as a line over the
        logarithm of the tokens; from 0 to the first as a line over tokens. It lies above such
        lines, so a start needs a little less than this.

        Args:
            goals: Explained variances; their seeds are those of the course, their looks may be
                others.
        """
        curve = self.explained.double()
        tokens = torch.tensor(self.tokens, dtype=torch.float64)
        reached = torch.full(goals.shape, math.inf, dtype=torch.float64)
        # From the end to the beginning, so that the first time remains.
        for index in range(len(tokens) - 1, 0, -1):
            before = curve[index - 1]
            after = curve[index]
            share = ((goals - before) / (after - before)).clamp(0, 1)
            if index == 1:
                interpolated = share * tokens[1]
            else:
                ratio = tokens[index] / tokens[index - 1]
                interpolated = tokens[index - 1] * ratio**share
            is_between = (goals <= after) & (goals > before)
            reached = torch.where(is_between, interpolated, reached)
        return torch.where(goals <= curve[0], 0.0, reached)


def savings(course: Course, against: Course) -> Float[Tensor, "looks seeds"]:
    """Return which share of another start's operations a start saves, at each look but the first.

    1 - operations of the start until it explains as much / operations of the other. Where a start
    never gets there it is 1 - all of its operations / those of the other, which is more than it
    saves.
    """
    goals = against.explained.double()
    needed = course.reaches(goals).clamp(max=float(course.tokens[-1]))
    tokens = torch.tensor(against.tokens, dtype=torch.float64)[:, None]
    return (1 - course.operations(needed) / against.operations(tokens))[1:]


def savings_table(
    courses: Sequence[Course],
) -> tuple[pd.DataFrame, Float[Tensor, "rows seeds"]]:
    """Return what each start saves against each before it in the list, a row per evaluation.

    `reached` is the share of seeds that got to the other's figure at all; `saved` counts too much
    for the others. Beside the table of means over seeds comes the share that each seed saves, row
    by row.
    """
    tables = []
    saved_by_seed = []
    for against, course in itertools.combinations(courses, 2):
        saved = savings(course, against)
        saved_by_seed.append(saved)
        tokens = against.tokens[1:]
        is_reached = course.reaches(against.explained.double()).isfinite()[1:]
        tables.append(
            pd.DataFrame(
                {
                    "start": course.start,
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
