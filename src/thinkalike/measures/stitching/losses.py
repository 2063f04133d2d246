"""Losses of next-token distributions through a frozen unembedding, without ever holding all logits.

At 2^14 tokens and 48,262 entries the logits alone are 3.2 GB in float32, and their gradient as much again. Each token's
loss depends on its own state only, so the logits of a chunk are dropped as soon as its losses and gradients are known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import cross_entropy

CHUNK = 1024  # tokens whose logits exist at the same time

Finish = Callable[[Tensor], Tensor]  # final norm and unembedding, row by row: (n, d) to (n, vocabulary)


def token_loss(
    states: Float[Tensor, "n d"], finish: Finish, targets: Int[Tensor, " n"], chunk: int = CHUNK
) -> Float[Tensor, " n"]:
    """Return the cross-entropy of each token in nats, -log softmax(finish(states))[targets], at least 0.

    Args:
        states: The last residuals, one per token.
        finish: The final norm and the unembedding; its weights get no gradient.
        targets: The token that follows.
        chunk: How many tokens' logits are in memory at a time; the result does not depend on it.

    Returns:
        The losses in float32 (float64 for float64 states), differentiable once in `states`.
    """

    def losses(part: Tensor, start: int) -> Tensor:
        return cross_entropy(logits_of(part, finish), targets[start : start + len(part)], reduction="none")

    return _in_chunks(states, losses, chunk)


def token_kl(
    states: Float[Tensor, "n d"],
    finish: Finish,
    reference: Float[Tensor, "n d"],
    chunk: int = CHUNK,
) -> Float[Tensor, " n"]:
    """Return KL(p || q) of each token in nats, p = softmax(finish(reference)), q = softmax(finish(states)); at least 0.

    Args:
        reference: The last residuals of the model whose output is the standard; they get no gradient.
    """

    def losses(part: Tensor, start: int) -> Tensor:
        with torch.no_grad():
            standard = logits_of(reference[start : start + len(part)], finish).log_softmax(-1)
        return (standard.exp() * (standard - logits_of(part, finish).log_softmax(-1))).sum(-1)

    return _in_chunks(states, losses, chunk)


@torch.no_grad()
def same_top_token(
    states: Float[Tensor, "n d"], finish: Finish, reference: Float[Tensor, "n d"], chunk: int = CHUNK
) -> Bool[Tensor, " n"]:
    """Return whether the most likely token is that of the reference."""
    chunks = zip(states.split(chunk), reference.split(chunk), strict=True)
    return torch.cat([finish(part).argmax(-1) == finish(standard).argmax(-1) for part, standard in chunks])


def logits_of(states: Tensor, finish: Finish) -> Tensor:
    """Return the logits of states, at least in float32."""
    logits = finish(states)
    return logits if logits.dtype == torch.float64 else logits.float()


def _in_chunks(states: Tensor, losses: Callable[[Tensor, int], Tensor], chunk: int) -> Tensor:
    """Return the losses of all rows, `losses(part, index of its first row)` at a time."""
    if torch.is_grad_enabled() and states.requires_grad:
        return _ChunkedLoss.apply(states, losses, chunk)  # type: ignore[no-any-return]
    with torch.no_grad():
        return torch.cat([losses(part, index * chunk) for index, part in enumerate(states.split(chunk))])


class _ChunkedLoss(torch.autograd.Function):
    """A loss that takes the gradient of each chunk in the forward pass, so that the backward pass is one product."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, losses: Callable[[Tensor, int], Tensor], chunk: int) -> Tensor:
        values, gradients = [], []
        with torch.enable_grad():
            for index, part in enumerate(states.detach().split(chunk)):
                part = part.requires_grad_()
                value = losses(part, index * chunk)
                gradients.append(torch.autograd.grad(value.sum(), part)[0])
                values.append(value.detach())
        ctx.save_for_backward(torch.cat(gradients))
        return torch.cat(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Any) -> Any:
        (gradient,) = ctx.saved_tensors
        return gradient * outer[0][:, None].to(gradient.dtype), None, None


def unigram_entropy(tokens: Int[Tensor, " n"]) -> float:
    """Return the entropy in nats of the tokens' own frequencies: the loss of the best model without context."""
    counts = torch.bincount(tokens.long()).double()
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * shares.log()).sum())
