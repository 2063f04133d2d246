"""Losses of next-token distributions through a frozen unembedding, without ever holding all logits.

At 2^14 tokens and 48,262 entries the logits alone are 3.2 GB in float32, and their gradient as much again. Each token's
loss depends on its own state only, so the logits of a chunk are dropped as soon as its losses and gradients are known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import cross_entropy

CHUNK = 1024  # tokens whose logits exist at the same time

_Losses = Callable[[Tensor], Tensor]  # of the states of some tokens: their losses
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

    def chunked(rows: slice) -> _Losses:
        return lambda part: cross_entropy(logits_of(part, finish), targets[rows], reduction="none")

    return _in_chunks(states, chunked, chunk)


def token_kl(
    states: Float[Tensor, "*k n d"],
    finish: Finish,
    reference: Float[Tensor, "n d"],
    chunk: int = CHUNK,
) -> Float[Tensor, "*k n"]:
    """Return KL(p || q) of each token in nats, p = softmax(finish(reference)), q = softmax(finish(states)); at least 0.

    Args:
        states: The last residuals, of one way to them or of several, which share the work on the reference.
        reference: The last residuals of the model whose output is the standard; they get no gradient.
    """

    def chunked(rows: slice) -> _Losses:
        with torch.no_grad():
            standard = logits_of(reference[rows], finish).log_softmax(-1)
            shares = standard.exp()
        return lambda part: (shares * (standard - logits_of(part, finish).log_softmax(-1))).sum(-1)

    return _in_chunks(states, chunked, chunk)


def logits_of(states: Tensor, finish: Finish) -> Tensor:
    """Return the logits of states, at least in float32."""
    logits = finish(states)
    return logits if logits.dtype == torch.float64 else logits.float()


def _in_chunks(states: Tensor, chunked: Callable[[slice], _Losses], chunk: int) -> Tensor:
    """Return the losses of all tokens, (..., n), of which `chunked` gives the function for those of some rows."""
    flat = states.reshape(math.prod(states.shape[:-2]), *states.shape[-2:])
    if torch.is_grad_enabled() and states.requires_grad:
        values = _ChunkedLoss.apply(flat, chunked, chunk)
    else:
        with torch.no_grad():
            values = torch.cat([torch.stack([*map(losses, part)]) for part, losses in _chunks(flat, chunked, chunk)], 1)
    return values.view(states.shape[:-1])  # type: ignore[no-any-return]


def _chunks(
    states: Float[Tensor, "k n d"], chunked: Callable[[slice], _Losses], chunk: int
) -> Iterator[tuple[Float[Tensor, "k m d"], _Losses]]:
    """Yield the states of some rows at a time, and what gives their losses."""
    for start in range(0, max(states.shape[1], 1), chunk):  # no tokens are one empty chunk
        rows = slice(start, start + chunk)
        yield states[:, rows], chunked(rows)


class _ChunkedLoss(torch.autograd.Function):
    """A loss that takes the gradient of each chunk in the forward pass, so that the backward pass is one product."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, chunked: Callable[[slice], _Losses], chunk: int) -> Tensor:
        values, gradients = [], []
        with torch.enable_grad():
            for part, losses in _chunks(states.detach(), chunked, chunk):
                both = [_with_gradient(each, losses) for each in part]
                values.append(torch.stack([value for value, _ in both]))
                gradients.append(torch.stack([gradient for _, gradient in both]))
        ctx.save_for_backward(torch.cat(gradients, 1))
        return torch.cat(values, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Any) -> Any:
        (gradient,) = ctx.saved_tensors
        return gradient * outer[0][..., None].to(gradient.dtype), None, None


def _with_gradient(states: Float[Tensor, "m d"], losses: _Losses) -> tuple[Float[Tensor, " m"], Float[Tensor, "m d"]]:
    states = states.detach().requires_grad_()
    value = losses(states)
    return value.detach(), torch.autograd.grad(value.sum(), states)[0]


def unigram_entropy(tokens: Int[Tensor, " n"]) -> float:
    """Return the entropy in nats of the tokens' own frequencies: the loss of the best model without context."""
    counts = torch.bincount(tokens.long()).double()
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * shares.log()).sum())
