"""Next-token cross-entropy through a frozen unembedding, without ever holding all logits.

At 2^14 tokens and 48,262 entries the logits alone are 3.2 GB in float32, and their gradient as much again. Each token's
loss depends on its own state only, so the logits of a chunk are dropped as soon as its losses and gradients are known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import cross_entropy

CHUNK = 1024  # tokens whose logits exist at the same time


def token_loss(
    states: Float[Tensor, "n d"],
    finish: Callable[[Tensor], Tensor],
    targets: Int[Tensor, " n"],
    chunk: int = CHUNK,
) -> Float[Tensor, " n"]:
    """Cross-entropy of each token in nats: -log softmax(finish(states))[targets].

    Args:
        states: last residuals, one per token.
        finish: final norm and unembedding, row by row; its weights get no gradient.
        targets: the token that follows.
        chunk: memory is chunk x vocabulary; the result does not depend on it.

    Returns:
        Losses in float32 (float64 for float64 states), differentiable in `states`.
    """
    if torch.is_grad_enabled() and states.requires_grad:
        return _ChunkedLoss.apply(states, finish, targets, chunk)  # type: ignore[no-any-return]
    with torch.no_grad():
        return torch.cat([_losses(part, finish, to) for part, to in _chunks(states, targets, chunk)])


class _ChunkedLoss(torch.autograd.Function):
    """Takes the gradient of each chunk in the forward pass, so that the backward pass is one product."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, finish: Callable[[Tensor], Tensor], targets: Tensor, chunk: int) -> Tensor:
        losses, gradients = [], []
        with torch.enable_grad():
            for part, to in _chunks(states.detach(), targets, chunk):
                part = part.requires_grad_()
                losses.append(_losses(part, finish, to))
                gradients.append(torch.autograd.grad(losses[-1].sum(), part)[0])
                losses[-1] = losses[-1].detach()
        ctx.save_for_backward(torch.cat(gradients))
        return torch.cat(losses)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Any) -> Any:
        (gradient,) = ctx.saved_tensors
        return gradient * outer[0][:, None].to(gradient.dtype), None, None, None


def _losses(states: Tensor, finish: Callable[[Tensor], Tensor], targets: Tensor) -> Tensor:
    logits = finish(states)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return cross_entropy(logits, targets, reduction="none")


def _chunks(states: Tensor, targets: Tensor, size: int) -> Any:
    return zip(states.split(size), targets.split(size), strict=True)


def unigram_entropy(tokens: Int[Tensor, " n"]) -> float:
    """Entropy in nats of the tokens' own frequencies: the loss of the best model that ignores its context."""
    counts = torch.bincount(tokens.long()).double()
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * shares.log()).sum())
