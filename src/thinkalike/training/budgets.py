"""A training step within the memory that the user allows, or that the device has: said in one line, or refused."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from torch import Tensor, nn

from thinkalike.config import TrainerConfig
from thinkalike.errors import ResourceError
from thinkalike.memory import GAPS, MARGIN, Budget, OverLimit, hand_back, readable
from thinkalike.training.plans import Cost, Losses, Plan, Prober, bounded, measured, planned

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
