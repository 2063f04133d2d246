"""A training step whose parts run one after the other, each forward and backward, so that only one is in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from thinkalike.training.plans import Losses, Plan


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
