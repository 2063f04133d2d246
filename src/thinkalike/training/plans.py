"""How a training step is cut into parts that fit into memory, from what small parts of it take.

A part is some rows of the step and some of its stitches. What it keeps for the backward pass grows with both,

    kept = fixed · stitches + rows · Σ (each + block · blocks in the stitch's tail),

and so does what either pass needs beside that, above a constant part, the logits of one chunk:

    peak = kept + max over forward and backward of (constant + by_row · rows + by_both · rows · stitches).

Four small parts that run under `LiveBytes` give all of these numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from thinkalike.measures import CHUNK
from thinkalike.memory import LiveBytes, OverLimit

Losses = Callable[[Tensor, Sequence[int]], list[Tensor]]  # of rows, and of stitches by their numbers


@dataclass(frozen=True)
class Plan:
    """How many rows are in memory at once, and how many stitches, group after group."""

    rows: int
    groups: tuple[int, ...]

    def parts(self, rows: int) -> int:
        """Return in how many parts a step of so many rows runs."""
        return -(-rows // self.rows) * len(self.groups)


@dataclass(frozen=True)
class Probe:
    """What a part took: bytes kept for the backward pass, and the most of each pass beside them."""

    rows: int
    kept: int
    forward: int
    backward: int
    values: int  # losses

    def slope(self, other: Probe, name: str) -> float:
        """Return by how much a number grows with each row, from this probe to one of more rows."""
        return float(getattr(other, name) - getattr(self, name)) / (other.rows - self.rows)


@dataclass(frozen=True)
class Pass:
    """The bytes that one pass takes beside what is kept; the constant part needs `full` rows to be whole."""

    constant: float
    by_row: float
    by_both: float
    full: int

    def __call__(self, rows: int, stitches: int) -> float:
        constant = self.constant * min(rows * stitches / self.full, 1.0)
        return constant + rows * (self.by_row + self.by_both * stitches)


@dataclass(frozen=True)
class Cost:
    """The bytes that a part of a step takes, beside what is there before."""

    fixed: float
    each: float
    block: float
    passes: tuple[Pass, ...]

    def __call__(self, rows: int, tails: Sequence[int]) -> float:
        """Return the bytes of a part of so many rows, and of stitches with tails of so many blocks."""
        count = len(tails)
        kept = self.fixed * count + rows * (self.each * count + self.block * sum(tails))
        return kept + max(each(rows, count) for each in self.passes)


def explained(short: Probe, blocks: int, tail: int, long: Probe, more: Probe | None, both: Probe | None) -> Cost:
    """Return the cost that explains the probes; what a missing one would tell apart counts as growing with all.

    Args:
        short: the stitch with the shortest tail, on one row.
        blocks: by how many blocks the longest tail is longer.
        tail: the blocks of the longest one.
        long: the stitch with the longest tail.
        more: the same on more rows.
        both: that stitch and another one on the rows of `long`.
    """
    a_row = long.slope(more, "kept") if more else long.kept / long.rows
    fixed = max(long.kept - a_row * long.rows, 0.0)
    block = max(a_row - (short.kept - fixed), 0.0) / blocks if blocks else 0.0
    passes = []
    for name in ("forward", "backward"):
        most = float(getattr(long, name))
        slope = max(long.slope(more, name), 0.0) if more else most / long.rows
        by_both = min(max((getattr(both, name) - most) / long.rows, 0.0), slope) if both else slope
        passes.append(Pass(max(most - slope * long.rows, 0.0), slope - by_both, by_both, long.rows))
    return Cost(fixed, max(a_row - block * tail, 0.0), block, tuple(passes))


class Prober:
    """Runs small parts of a step and counts their bytes; nothing is left of them.

    Args:
        losses: gives what each of some stitches loses on some rows, one value per token.
        weights: the parameters of each stitch.
        rows: a step's.
        room: bytes that a part may take.
    """

    def __init__(self, losses: Losses, weights: Sequence[Sequence[nn.Parameter]], rows: Tensor, room: float):
        self.losses, self.weights, self.rows, self.room = losses, weights, rows, room

    def __call__(self, count: int, *numbers: int) -> Probe:
        """Return what these stitches take on so many rows, which begin anew after the step's last.

        Raises:
            OverLimit: more than there is room for.
        """
        weights = [weight for number in numbers for weight in self.weights[number]]
        with LiveBytes(self.rows.device, self.room) as live, torch.enable_grad():
            values = self.losses(self.rows[torch.arange(count) % len(self.rows)], numbers)
            kept, forward = live.now, live.peak
            live.restart()
            torch.autograd.grad(torch.stack([each.sum() for each in values]).sum(), weights)
            return Probe(count, kept, forward - kept, live.peak - kept, len(values[0]))

    def if_it_fits(self, count: int, *numbers: int) -> Probe | None:
        """Return the same, or None where there is not enough room."""
        try:
            return self(count, *numbers)
        except OverLimit:
            return None


def bounded(probe: Prober, tails: Sequence[int]) -> Cost:
    """Return at most what parts of a step cost, as if all of the longest tail's first row grew with rows and stitches.

    Raises:
        OverLimit: one row of the longest tail takes more than there is room for.
    """
    long = probe(1, max(range(len(tails)), key=lambda number: tails[number]))
    return explained(long, 0, 0, long, None, None)


def measured(probe: Prober, tails: Sequence[int]) -> Cost:
    """Return the cost of parts of a step, from the stitches with the longest tails and the one with the shortest.

    The long ones run on as many rows as fill one chunk of logits, and on twice as many.

    Args:
        tails: the blocks that run after each stitch.

    Raises:
        OverLimit: one row of the longest tail takes more than there is room for.
    """
    order = sorted(range(len(tails)), key=lambda number: tails[number])
    longest = order[-1]
    short = probe(1, order[0])
    full = -(-49 * CHUNK // (50 * max(short.values, 1)))  # 98 % of a chunk count as one
    long = probe.if_it_fits(full, longest) or probe(1, longest)
    more = probe.if_it_fits(2 * long.rows, longest)
    both = probe.if_it_fits(long.rows, *order[-2:]) if len(order) > 1 else None
    return explained(short, tails[longest] - tails[order[0]], tails[longest], long, more, both)


def planned(cost: Cost, tails: Sequence[int], rows: int, room: float) -> Plan | None:
    """Return the fewest parts of a step that fit: fewer rows at once, then of one row fewer stitches; None: none do.

    Args:
        rows: of a step.
        room: bytes that a part may take.
    """
    if cost(rows, tails) <= room:
        return Plan(rows, (len(tails),))
    at_once = 1 << max(rows - 1, 1).bit_length() - 1  # the largest power of two that is less, or one
    while at_once:
        if cost(at_once, tails) <= room:
            return Plan(at_once, (len(tails),))
        at_once //= 2
    groups: list[list[int]] = [[]]
    for tail in tails:
        if cost(1, [tail]) > room:
            return None
        if groups[-1] and cost(1, [*groups[-1], tail]) > room:
            groups.append([])
        groups[-1].append(tail)
    return Plan(1, tuple(map(len, groups)))
