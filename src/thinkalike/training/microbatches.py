"""Microbatches: a step that does not fit into memory runs in pieces, with the same gradients.

Microbatches sum the same gradients in another order, so their size changes a training by rounding
alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from thinkalike.advice import named_setting
from thinkalike.config import TrainerConfig
from thinkalike.errors import ResourceError
from thinkalike.memory import (
    FRAGMENTATION,
    Budget,
    LiveBytes,
    OverLimitError,
    free_cached_memory,
    readable,
)

log = logging.getLogger(__name__)

# Returns the loss of each token, (n), for each chosen stitch, given rows and the stitches'
# numbers.
TokenLosses = Callable[[Tensor, Sequence[int]], list[Tensor]]
Weights = Sequence[Sequence[nn.Parameter]]  # of each stitch


class Microbatch(NamedTuple):
    """The most rows and the most stitches that are in memory at once."""

    rows: int
    stitches: int


SMALLEST_MICROBATCH = Microbatch(1, 1)


@dataclass(frozen=True)
class SummedLosses:
    """The losses of some stitches on some rows.

    Attributes:
        sums: The summed loss of each stitch.
        count: Over how many values each is summed.
        gradients: The gradients of these sums in all weights of the stitches, one stitch after
            another.
    """

    sums: Float[Tensor, " p"]
    count: int
    gradients: tuple[Tensor, ...]


def _summed_losses(
    losses: TokenLosses, weights: Weights, rows: Tensor, chosen: Sequence[int]
) -> SummedLosses:
    """Return the summed losses of the chosen stitches on some rows, and their gradients.

    A stitch's loss depends on its own weights only, so that one backward pass of the sum of all
    gives each its gradients.

    Args:
        losses: Returns the loss of each token for each chosen stitch.
        weights: The weights of each stitch.
        rows: The rows of tokens.
        chosen: The indices of the stitches.
    """
    with torch.enable_grad():
        values = losses(rows, chosen)
        sums = torch.stack([token_losses.sum() for token_losses in values])
    chosen_weights = [weight for number in chosen for weight in weights[number]]
    with torch.autocast(sums.device.type, enabled=False):  # as in any backward pass
        gradients = torch.autograd.grad(sums, chosen_weights, grad_outputs=torch.ones_like(sums))
    return SummedLosses(sums.detach(), len(values[0]), gradients)


class _AccumulatedLosses(torch.autograd.Function):
    """Mean losses of a step, whose forward pass computes the gradients too, by microbatches.

    The backward pass multiplies these gradients by the incoming ones. Autocast, several processes
    and clipping therefore meet a single forward and a single backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any,
        losses: TokenLosses,
        weights: Weights,
        rows: Tensor,
        size: Microbatch,
        *all_weights: Tensor,
    ) -> Float[Tensor, " p"]:
        """Return the mean loss of each stitch, and store its gradients for the backward pass.

        Args:
            ctx: Stores the gradients, summed over microbatches.
            losses: Returns the loss of each token for each chosen stitch.
            weights: The weights of each stitch.
            rows: The rows of the step.
            size: How many rows and stitches a microbatch has.
            all_weights: The same weights one after another, so that autograd sees them as inputs.
        """
        sums = torch.zeros(len(weights), device=rows.device)
        count = 0  # the number of token losses of each stitch, equal for all stitches
        gradients = []
        for stitch_weights in weights:
            gradients.append([torch.zeros_like(weight) for weight in stitch_weights])

        for some_rows in rows.split(size.rows):
            for start in range(0, len(weights), size.stitches):
                chosen = range(len(weights))[start : start + size.stitches]
                summed = _summed_losses(losses, weights, some_rows, chosen)
                totals = [gradient for number in chosen for gradient in gradients[number]]
                for total, gradient in zip(totals, summed.gradients, strict=True):
                    total += gradient  # in place, so that `gradients` has the sum
                sums[chosen.start : chosen.stop] += summed.sums
                if start == 0:  # count each row once, and not for each group of stitches
                    count += summed.count

        ctx.gradients = gradients
        ctx.count = count
        return sums / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of all weights: those stored in the forward pass, rescaled.

        The factor of a stitch is the gradient of the final result in its mean loss, the output of
        the forward pass. The remaining inputs of the forward pass have no gradient.
        """
        gradients: list[list[Tensor]] = ctx.gradients
        ctx.gradients = None  # the tensors become the gradients of parameters, without a copy
        # The stored gradients are those of sums of losses, and the output was their means.
        factors = grad_outputs[0] / ctx.count
        flat = []
        for stitch_gradients, factor in zip(gradients, factors, strict=True):
            for gradient in stitch_gradients:
                flat.append(gradient.mul_(factor))
        no_gradient = (None, None, None, None)  # of losses, weights, rows and size
        return (*no_gradient, *flat)


def mean_losses(
    losses: TokenLosses, weights: Weights, rows: Tensor, size: Microbatch
) -> Float[Tensor, " p"]:
    """Return the mean loss of every stitch on a step's rows, computed in microbatches.

    If all rows and stitches fit into one microbatch, autograd differentiates it as usual.
    Otherwise the gradients of the weights are computed here already, one microbatch after
    another, and the result can be differentiated only once.

    Args:
        losses: Returns the loss of each token for each chosen stitch.
        weights: The weights of each stitch.
        rows: The rows of the step.
        size: How many rows and stitches are in memory at once.
    """
    if len(rows) <= size.rows and len(weights) <= size.stitches:
        all_losses = losses(rows, range(len(weights)))
        return torch.stack([token_losses.mean() for token_losses in all_losses])
    all_weights = [weight for stitch_weights in weights for weight in stitch_weights]
    accumulated: Tensor = _AccumulatedLosses.apply(losses, weights, rows, size, *all_weights)
    return accumulated


def largest_microbatch(
    limits: TrainerConfig,
    losses: TokenLosses,
    weights: Weights,
    rows: Tensor,
    tail_lengths: Sequence[int],
    momenta: int,
) -> Microbatch:
    """Return the largest microbatch of a step that fits into memory, found by trying.

    Sizes are tried from the whole step downwards, each by a forward and a backward pass. First the
    rows are halved, and then the stitches on a single row. The stitches with the longest tails are
    tried, because they need most memory.

    Args:
        limits: How much memory may be used.
        losses: Returns the loss of each token for each chosen stitch.
        weights: The weights of each stitch.
        rows: The rows of a step.
        tail_lengths: For each stitch, the number of the target's blocks after it.
        momenta: How many numbers the optimiser stores for each weight.

    Raises:
        ResourceError: Not even one row and one stitch fit.
    """
    free_cached_memory(rows.device)
    budget = _budget(limits, rows.device)
    room = budget.room - _bytes_beside_a_step(limits, weights, momenta)
    longest_first = sorted(range(len(weights)), key=lambda index: -tail_lengths[index])

    whole_step = Microbatch(len(rows), len(weights))
    size = whole_step
    while room <= 0 or not _fits_in_memory(
        losses, weights, rows[: size.rows], longest_first[: size.stitches], room
    ):
        if room <= 0 or size == SMALLEST_MICROBATCH:
            raise ResourceError(
                f"one row of text and {len(weights)} stitches do not fit into memory: "
                f"{budget.limit}; set {named_setting('trainer.recompute', True)}, lower "
                f"{named_setting('data.context')}, choose fewer or later layers, or "
                f"{named_setting('stitch', 'low_rank')}"
            )
        size = _half(size)
        free_cached_memory(rows.device)

    if size != whole_step:
        sizes = (
            f"{size.rows} of {whole_step.rows} rows and "
            f"{size.stitches} of {whole_step.stitches} stitches"
        )
        log.info(
            f"memory: each step runs in microbatches of {sizes}, "
            f"to fit into {readable(budget.total)}"
        )
    return size


def _budget(limits: TrainerConfig, device: torch.device) -> Budget:
    """Return how much memory this process may use.

    Processes that share a training on one CPU get equal parts of its memory.
    """
    processes = 1
    if limits.strategy == "ddp" and device.type == "cpu":
        processes = limits.devices or 1  # on a CPU, the setting is the number of processes
    return Budget.of(device, limits.memory, processes)


def _bytes_beside_a_step(limits: TrainerConfig, weights: Weights, momenta: int) -> float:
    """Return the bytes that a step takes besides what a trial of its passes measures.

    These are the gradients and momenta of all weights.

    Args:
        limits: The trainer's settings, which say whether processes exchange gradients.
        weights: The weights of each stitch.
        momenta: How many numbers the optimizer stores for each weight.
    """
    copies = 1 + momenta  # the gradients and the momenta
    if limits.strategy == "ddp":
        copies += 1  # the buffer through which processes exchange gradients
    weight_bytes = sum(weight.nbytes for stitch_weights in weights for weight in stitch_weights)
    # `Budget.room`, from which this is subtracted, is divided by FRAGMENTATION as well.
    return copies * weight_bytes / FRAGMENTATION


def _fits_in_memory(
    losses: TokenLosses, weights: Weights, rows: Tensor, chosen: Sequence[int], room: float
) -> bool:
    """Run a forward and a backward pass, and return whether they fit into `room` bytes.

    The result is False too if the device itself runs out of memory.

    Args:
        losses: Returns the loss of each token for each chosen stitch.
        weights: The weights of each stitch.
        rows: The rows of tokens.
        chosen: The indices of the stitches that run.
        room: How many bytes the tensors of both passes may take.
    """
    try:
        with LiveBytes(rows.device, room):
            _summed_losses(losses, weights, rows, chosen)
    except (OverLimitError, torch.OutOfMemoryError):
        return False
    return True


def _half(size: Microbatch) -> Microbatch:
    """Return a microbatch of half the rows or, if it has one row, of half the stitches.

    Halves are rounded up.
    """
    if size.rows > 1:
        return Microbatch((size.rows + 1) // 2, size.stitches)
    return Microbatch(1, (size.stitches + 1) // 2)
