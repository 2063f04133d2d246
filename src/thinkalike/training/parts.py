"""A training step whose parts run one after the other, each forward and backward, so that only one is in memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from thinkalike.config import TrainerConfig
from thinkalike.errors import ResourceError
from thinkalike.measures.losses import CHUNK
from thinkalike.memory import GAPS, MARGIN, Budget, LiveBytes, OverLimit, hand_back, readable


def mean_losses(
    losses: Losses, weights: Sequence[Sequence[nn.Parameter]], rows: Tensor, plan: Plan
) -> Float[Tensor, " p"]:
    """Return the mean loss of every stitch on a step's rows, differentiable once in the stitches' weights.

    Several parts give what one part gives, up to rounding: sums and their gradients are added up, and divided by the
    number of all values in the end.

    Args:
        losses: gives what each of some stitches loses on some rows, one value per token.
        weights: the parameters of each stitch.
    """
    if plan.parts(len(rows)) == 1:
        return torch.stack([values.mean() for values in losses(rows, range(len(weights)))])
    flat = [weight for own in weights for weight in own]
    return _InParts.apply(losses, weights, rows, plan, *flat)  # type: ignore[no-any-return]


class _InParts(torch.autograd.Function):
    """Losses that take their gradient in the forward pass; the backward pass multiplies it by the one that comes in.

    So whatever drives the training (autocast, several processes, clipping) sees one forward and one backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any, losses: Losses, weights: Sequence[Sequence[nn.Parameter]], rows: Tensor, plan: Plan, *flat: Tensor
    ) -> Tensor:
        sums, count = torch.zeros(len(weights), device=rows.device), 0  # each stitch has as many values as any other
        gradients = [[torch.zeros_like(weight) for weight in own] for own in weights]
        for part in rows.split(plan.rows):
            start = 0
            for size in plan.groups:
                chosen = range(start, start + size)
                start += size
                with torch.enable_grad():
                    values = losses(part, chosen)
                    total = torch.stack([each.sum() for each in values])
                _add_gradients(total, [weights[i] for i in chosen], [gradients[i] for i in chosen])
                sums[chosen.start : chosen.stop] += total.detach()
                count += values[0].numel() if not chosen.start else 0
                del values, total  # else they would live until the next part has its own
        ctx.gradients, ctx.count = gradients, count
        return sums / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Any) -> Any:
        gradients, ctx.gradients = ctx.gradients, None  # to be taken over by the parameters, not copied
        for own, factor in zip(gradients, outer[0] / ctx.count, strict=True):
            for gradient in own:
                gradient.mul_(factor)
        return (None, None, None, None, *(gradient for own in gradients for gradient in own))


def _add_gradients(
    total: Float[Tensor, " p"], weights: Sequence[Sequence[Tensor]], sums: Sequence[Sequence[Tensor]]
) -> None:
    """Add the gradients of several stitches' losses to their sums, outside of autocast as any backward pass."""
    with torch.autocast(total.device.type, enabled=False):
        flat = torch.autograd.grad(total, [weight for own in weights for weight in own], torch.ones_like(total))
    for gradient, place in zip(flat, [place for own in sums for place in own], strict=True):
        place += gradient


# ------------------------------------------------------------
# How a training step is cut into parts that fit into memory, from what small parts of it take.
#
# A part is some rows of the step and some of its stitches. What it keeps for the backward pass grows with both,
#
#     kept = fixed · stitches + rows · Σ (each + block · blocks in the stitch's tail),
#
# and so does what either pass needs beside that, above a constant part, the logits of one chunk:
#
#     peak = kept + max over forward and backward of (constant + by_row · rows + by_both · rows · stitches).
#
# Four small parts that run under `LiveBytes` give all of these numbers.

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


# ------------------------------------------------------------
# A training step within the memory that the user allows, or that the device has: said in one line, or refused.

log = logging.getLogger(__name__)


def plan_within(
    limits: TrainerConfig,
    losses: Losses,
    weights: Sequence[Sequence[nn.Parameter]],
    rows: Tensor,
    tails: Sequence[int],
    momenta: int,
) -> Plan:
    """Return the fewest parts in which a step fits into memory, after measuring small ones; tell the user.

    Args:
        losses: gives what each of some stitches loses on some rows, one value per token.
        weights: the parameters of each stitch.
        rows: those of a step, on the device that counts.
        tails: the blocks that run after each stitch.
        momenta: how many numbers the optimiser keeps of each weight.

    Raises:
        ResourceError: one row and one stitch do not fit.
    """
    shared = limits.strategy == "ddp"
    hand_back(rows.device)
    processes = limits.devices or 1 if shared and rows.device.type == "cpu" else 1
    budget = Budget.of(rows.device, limits.memory_bytes, processes)
    copies = 1 + momenta + int(shared)  # gradients, and those that processes exchange
    coming = float(copies) * sum(weight.nbytes for own in weights for weight in own)
    room = budget.room - coming / GAPS
    if room <= 0:
        raise _too_many(len(weights), coming, budget)
    probe = Prober(losses, weights, rows, room)
    try:
        cost = bounded(probe, tails)
        if cost(len(rows), tails) > room:  # then it is worth more than the blink of an eye
            cost = measured(probe, tails)
    except OverLimit:
        raise _too_long("more than", budget.total, budget, limits) from None
    hand_back(rows.device)
    plan = planned(cost, tails, len(rows), room)
    if plan is None:
        least = (budget.used + coming + GAPS * cost(1, [max(tails)])) / MARGIN
        raise _too_long("about", least, budget, limits)
    log.info("memory: %s", _account(plan, cost, tails, len(rows), budget, coming))
    return plan


def _account(plan: Plan, cost: Cost, tails: Sequence[int], rows: int, budget: Budget, coming: float) -> str:
    part, start = 0.0, 0
    for size in plan.groups:
        part = max(part, GAPS * cost(plan.rows, tails[start : start + size]))
        start += size
    parts = plan.parts(rows)
    where = "a step" if parts == 1 else f"each of {parts} parts of a step ({plan.rows} of {rows} rows"
    if len(plan.groups) > 1:
        where += f", at most {max(plan.groups)} of {len(tails)} stitches"
    return (
        f"up to {readable(budget.used + coming + part)} of {readable(budget.total)}: {readable(budget.used)} in use, "
        f"{readable(coming)} for gradients and momenta, {readable(part)} for {where}{')' if parts > 1 else ''}"
    )


def _too_many(stitches: int, coming: float, budget: Budget) -> ResourceError:
    return ResourceError(
        f"{stitches} stitches need {readable(coming)} for gradients and momenta beside "
        f"{readable(budget.used)} in use, and {budget.allowed}; choose fewer layers, stitch=low_rank, "
        f"stitch.momentum=0, {budget.more}"
    )


def _too_long(how: str, needed: float, budget: Budget, limits: TrainerConfig) -> ResourceError:
    again = "" if limits.recompute else "set trainer.recompute=true, "
    return ResourceError(
        f"one row of text and one stitch need {how} {readable(needed)} of memory ({readable(budget.used)} in use), and "
        f"{budget.allowed}; {again}lower data.context, choose later layers, {budget.more}"
    )
