"""What a start saves: the operations after which it explains what another start explains after a budget of tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.evaluation import ends_of
from thinkalike.measures import Estimate, interval_around, student_t


@dataclass(frozen=True)
class Course:
    """What the autoencoders of a start explain as they read, and what that takes.

    Attributes:
        start: its name.
        tokens: how many had been read at each look, from 0.
        explained: (looks, seeds), at the rate that is best at that look.
        fixed, each: operations before training, and of each token.
    """

    start: str
    tokens: Sequence[int]
    explained: Float[Tensor, "looks seeds"]
    fixed: float
    each: float

    def operations(self, tokens: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        """Return the operations of so many tokens of training, with what came before it."""
        return self.fixed + self.each * tokens

    def reaches(self, goals: Float[Tensor, "looks seeds"]) -> Float[Tensor, "looks seeds"]:
        """Return the tokens after which each seed first explains as much as its goals; infinite where it never does.

        Between two looks the curve is taken as a line over the logarithm of the tokens, from 0 to the first as a line
        over tokens. It lies above such lines, so that a start needs a little less than is said here.
        """
        curve, tokens = self.explained.double(), torch.tensor(self.tokens, dtype=torch.float64)
        found = torch.full(goals.shape, math.inf, dtype=torch.float64)
        for place in range(len(tokens) - 1, 0, -1):
            first, last = curve[place - 1], curve[place]
            share = ((goals - first) / (last - first)).clamp(0, 1)
            line = tokens[place - 1] * (tokens[place] / tokens[place - 1]) ** share if place > 1 else share * tokens[1]
            found = torch.where((goals <= last) & (goals > first), line, found)
        return torch.where(goals <= curve[0], 0.0, found)


def savings(course: Course, against: Course) -> Float[Tensor, "looks seeds"]:
    """Return which share of the other's operations a start saves at each look after the first, on the way to its goal.

    1 - operations of the start / operations of the other. Where a start never gets there it is 1 - all of its
    operations / those of the other, which is more than it saves.
    """
    needed = course.reaches(against.explained.double()).clamp(max=float(course.tokens[-1]))
    budget = torch.tensor(against.tokens, dtype=torch.float64)[:, None]
    return (1 - course.operations(needed) / against.operations(budget))[1:]


def over_seeds(values: Float[Tensor, "*b seeds"], level: float = 0.95) -> Estimate:
    """Return the mean over seeds with its interval by Student's t; of one seed it has no ends."""
    seeds = values.shape[-1]
    if seeds < 2:
        return interval_around(values.mean(-1), math.inf)
    return interval_around(values.mean(-1), student_t(level, seeds - 1) * values.std(-1) / math.sqrt(seeds))


def savings_table(courses: Sequence[Course]) -> tuple[pd.DataFrame, Float[Tensor, "rows seeds"]]:
    """Return what each start saves against each before it in the list, one row for each look after the first.

    `reached` is the share of seeds that got to the other's figure at all; `saved` counts too much for the others.

    Returns:
        The table with means over seeds and intervals, and the share that each seed saves, row by row.
    """
    pairs = [(course, against) for number, against in enumerate(courses) for course in courses[number + 1 :]]
    by_seed = [savings(course, against) for course, against in pairs]
    tables = [
        pd.DataFrame(
            {
                "start": course.start,
                "against": against.start,
                "tokens": against.tokens[1:],
                "explained_variance": against.explained[1:].mean(-1).tolist(),
                "flops": against.operations(torch.tensor(against.tokens[1:]).double()).tolist(),
                **ends_of("saved", over_seeds(saved)),
                "reached": course.reaches(against.explained.double()).isfinite()[1:].double().mean(-1).tolist(),
                "seeds": saved.shape[1],
            }
        )
        for (course, against), saved in zip(pairs, by_seed, strict=True)
    ]
    return pd.concat(tables, ignore_index=True), torch.cat(by_seed)


def break_even(course: Course, against: Course) -> Float[Tensor, " seeds"]:
    """Return the first budget of the other start at which a start saves operations, in tokens, by seed.

    0: it does at the first look; infinite: it does at none.
    """
    saved, tokens = savings(course, against), torch.tensor(against.tokens[1:], dtype=torch.float64)
    saves = (saved > 0) & course.reaches(against.explained.double())[1:].isfinite()
    found = torch.full(saved.shape[1:], math.inf, dtype=torch.float64)
    for place in range(len(tokens) - 1, 0, -1):
        share = (saved[place - 1] / (saved[place - 1] - saved[place])).clamp(0, 1)
        crossing = tokens[place - 1] * (tokens[place] / tokens[place - 1]) ** share
        found = torch.where(saves[place], crossing, found)
    return torch.where(saves[0], 0.0, found)


def break_even_table(courses: Sequence[Course]) -> pd.DataFrame:
    """Return the first budget at which each start saves operations of another, over seeds.

    Blank cells: with some seed it does at none.
    """
    rows = []
    for number, against in enumerate(courses):
        for course in courses[number + 1 :]:
            found = break_even(course, against)
            ends = over_seeds(found) if found.isfinite().all() else Estimate(*(torch.tensor(math.nan),) * 3)
            rows.append({"start": course.start, "against": against.start, **ends_of("break_even_tokens", ends)})
    return pd.DataFrame(rows)
