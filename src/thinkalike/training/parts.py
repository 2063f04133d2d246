"""A training step in parts that fit into memory: some rows and some stitches at a time, each forward and backward.

Parts of another size sum the same gradients in another order, so they change a training by rounding alone. The size is
kept with the state of a training, so that a resumed one gives the bits of one that was never stopped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from thinkalike.config import TrainerConfig
from thinkalike.errors import ResourceError
from thinkalike.memory import GAPS, Budget, LiveBytes, OverLimit, hand_back, readable

log = logging.getLogger(__name__)

Losses = Callable[[Tensor, Sequence[int]], list[Tensor]]  # of each token, given rows and the numbers of stitches


class Part(NamedTuple):
    """The most rows and the most stitches that are in memory at once."""

    rows: int
    stitches: int


def mean_losses(
    losses: Losses, weights: Sequence[Sequence[nn.Parameter]], rows: Tensor, part: Part
) -> Float[Tensor, " p"]:
    """Return the mean loss of every stitch on a step's rows, differentiable once in the parameters of each stitch."""
    if len(rows) <= part.rows and len(weights) <= part.stitches:
        return torch.stack([values.mean() for values in losses(rows, range(len(weights)))])
    flat = [weight for own in weights for weight in own]
    return _InParts.apply(losses, weights, rows, part, *flat)  # type: ignore[no-any-return]


class _InParts(torch.autograd.Function):
    """Losses that take their gradient in the forward pass; the backward pass multiplies it by the one that comes in.

    So whatever drives the training (autocast, several processes, clipping) sees one forward and one backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any, losses: Losses, weights: Sequence[Sequence[nn.Parameter]], rows: Tensor, part: Part, *flat: Tensor
    ) -> Tensor:
        sums, count = torch.zeros(len(weights), device=rows.device), 0  # each stitch has as many values as any other
        gradients = [[torch.zeros_like(weight) for weight in own] for own in weights]
        for some in rows.split(part.rows):
            for start in range(0, len(weights), part.stitches):
                chosen = range(len(weights))[start : start + part.stitches]
                total, values, added = _gradients(losses, weights, some, chosen)
                for sum_, gradient in zip([g for i in chosen for g in gradients[i]], added, strict=True):
                    sum_ += gradient
                sums[chosen.start : chosen.stop] += total
                count += values if not start else 0
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


def _gradients(
    losses: Losses, weights: Sequence[Sequence[nn.Parameter]], rows: Tensor, chosen: Sequence[int]
) -> tuple[Float[Tensor, " p"], int, tuple[Tensor, ...]]:
    """Return the summed losses of some stitches, over how many values, and the gradients of these sums."""
    with torch.enable_grad():
        values = losses(rows, chosen)
        total = torch.stack([each.sum() for each in values])
    with torch.autocast(total.device.type, enabled=False):  # as in any backward pass
        flat = [weight for i in chosen for weight in weights[i]]
        return total.detach(), len(values[0]), torch.autograd.grad(total, flat, torch.ones_like(total))


def largest_part(
    limits: TrainerConfig,
    losses: Losses,
    weights: Sequence[Sequence[nn.Parameter]],
    rows: Tensor,
    tails: Sequence[int],
    momenta: int,
) -> Part:
    """Return the largest part of a step that fits into memory: fewer rows first, then of one row fewer stitches.

    Each size is tried once, forward and backward, and nothing is left of it.

    Args:
        rows: those of a step, on the device that counts.
        tails: the blocks that run after each stitch; those with the longest tails are tried.
        momenta: how many numbers the optimiser keeps of each weight.

    Raises:
        ResourceError: one row and one stitch do not fit.
    """
    shared = limits.strategy == "ddp"
    hand_back(rows.device)
    processes = limits.devices or 1 if shared and rows.device.type == "cpu" else 1
    budget = Budget.of(rows.device, limits.memory_bytes, processes)
    copies = 1 + momenta + int(shared)  # gradients, and those that processes exchange
    room = budget.room - copies * sum(weight.nbytes for own in weights for weight in own) / GAPS
    longest = sorted(range(len(weights)), key=lambda number: -tails[number])
    part = whole = Part(len(rows), len(weights))
    while room <= 0 or not _fits(losses, weights, rows[: part.rows], longest[: part.stitches], room):
        if room <= 0 or part == (1, 1):
            raise ResourceError(
                f"one row of text and {len(weights)} stitches do not fit into memory: {budget.limit}; set "
                "trainer.recompute=true, lower data.context, choose fewer or later layers, or stitch=low_rank"
            )
        part = Part((part.rows + 1) // 2, part.stitches if part.rows > 1 else (part.stitches + 1) // 2)
        hand_back(rows.device)
    if part != whole:
        sizes = f"{part.rows} of {whole.rows} rows and {part.stitches} of {whole.stitches} stitches"
        log.info(f"memory: each step runs in parts of {sizes}, to fit into {readable(budget.total)}")
    return part


def _fits(
    losses: Losses, weights: Sequence[Sequence[nn.Parameter]], rows: Tensor, chosen: Sequence[int], room: float
) -> bool:
    try:
        with LiveBytes(rows.device, room):
            _gradients(losses, weights, rows, chosen)
    except (OverLimit, torch.OutOfMemoryError):
        return False
    return True
