"""Losses of next-token distributions through a frozen unembedding, without all logits in memory.

At 2^14 tokens and 48,262 entries the logits alone are 3.2 GB in float32, and their gradient as
much again. Each token's loss depends on its own state only, so the logits of a chunk are dropped
as soon as its losses and gradients are known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Annotated, Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from thinkalike.arguments import Count, Within
from thinkalike.errors import one_line
from thinkalike.processes import counted

# A chunk has at most this many tokens, ...
CHUNK = 1024
# ... and at most this many logits.
CHUNK_LOGITS = 2**25

# What progress counts: with 262,144 entries one layer pair takes minutes.
CHUNK_NAME = "chunk of logits"

# The final norm and the unembedding, row by row: (n, d) to (n, vocabulary).
Finish = Callable[[Tensor], Tensor]

# The ids of the tokens that follow.
Targets = Annotated[Int[Tensor, " n"], Within(least=0)]

# Takes log-probabilities (m, v), and whether gradients are needed, to losses (m). If they are, the
# gradients of the logits overwrite the log-probabilities.
_Loss = Callable[[Tensor, bool], Tensor]

# Takes the rows of a chunk to its loss.
_LossOfChunk = Callable[[slice], _Loss]


def token_loss(
    states: Annotated[Float[Tensor, "n d"], Within()],
    finish: Finish,
    targets: Targets,
    chunk: Count | None = None,
) -> Float[Tensor, " n"]:
    """Return the cross-entropy of each token in nats, -log softmax(finish(states))[targets].

    It is at least 0, in float32 (float64 for float64 states), and differentiable once in `states`,
    but not in the weights of `finish`. Only the logits of one chunk of tokens are in memory.

    Args:
        states: The last residuals.
        finish: The final norm and the unembedding.
        targets: The id of the token that follows each token.
        chunk: How many tokens a chunk has; None: a fixed number (`CHUNK`), or fewer if the
            vocabulary is large.

    Raises:
        ValueError: A target is not in the vocabulary, or `finish` does not return logits.

    >>> token_loss(torch.zeros(2, 3), torch.nn.Identity(), torch.tensor([0, 2]))  # ln 3
    tensor([1.0986, 1.0986])
    """

    def loss_of_chunk(rows: slice) -> _Loss:
        """Return the function that takes the log-probabilities of these rows to their losses."""
        target_ids = targets[rows, None].long()  # (m, 1)

        def loss(log_probabilities: Tensor, needs_gradient: bool) -> Tensor:
            """Return the cross-entropies, and overwrite the input by gradients if needed."""
            if not needs_gradient:  # each step of a training would wait for the check
                _refuse_beyond_vocabulary(target_ids, log_probabilities.shape[-1])
            losses = -log_probabilities.gather(-1, target_ids).squeeze(-1)
            if needs_gradient:  # the gradient of the logits is softmax minus one-hot
                minus_one = log_probabilities.new_full((), -1.0).expand_as(target_ids)
                log_probabilities.exp_().scatter_add_(-1, target_ids, minus_one)
            return losses

        return loss

    return _losses_in_chunks(states, finish, loss_of_chunk, chunk)


def _refuse_beyond_vocabulary(targets: Int[Tensor, "*n"], vocabulary: int) -> None:
    """Raise a ValueError if a target is no id of the vocabulary.

    Targets on a GPU are not checked, as this would make the CPU wait for the GPU. There, indexing
    by a wrong id fails in torch.

    Args:
        targets: The ids of some tokens; there may be none.
        vocabulary: How many ids there are, from 0.
    """
    if targets.device.type != "cpu" or not targets.numel():
        return
    lowest, highest = (int(end) for end in targets.aminmax())
    if lowest >= 0 and highest < vocabulary:
        return
    wrong_id = lowest if lowest < 0 else highest
    raise ValueError(
        f"targets holds {wrong_id}, and `finish` gives logits of {vocabulary} tokens: "
        f"0 to {vocabulary - 1}"
    )


def token_kl(
    states: Annotated[Float[Tensor, "*k n d"], Within()],
    finish: Finish,
    reference: Annotated[Float[Tensor, "n d"], Within()],
    chunk: Count | None = None,
) -> Float[Tensor, "*k n"]:
    """Return KL(p || q) of each token in nats, at least 0.

    p = softmax(finish(reference)) and q = softmax(finish(states)). It is differentiable once in
    `states`.

    Args:
        states: The last residuals, once or k times with the same reference.
        finish: The final norm and the unembedding.
        reference: The last residuals of the reference, which gets no gradient.
        chunk: How many tokens a chunk has; None: a fixed number (`CHUNK`), or fewer if the
            vocabulary is large.

    Raises:
        ValueError: `finish` does not return logits.
    """

    def loss_of_chunk(rows: slice) -> _Loss:
        """Return the function that takes log q of these rows to their KL(p || q)."""
        with torch.no_grad():
            log_p = logits_of(reference[rows], finish).log_softmax(-1)
            p = log_p.exp()

        def loss(log_q: Tensor, needs_gradient: bool) -> Tensor:
            """Return Σ p (log p - log q) of each token.

            If the gradient is needed, that of the logits of q, q - p, overwrites log q.
            """
            losses = torch.sub(log_p, log_q).mul_(p).sum(-1)
            if needs_gradient:
                log_q.exp_().sub_(p)
            return losses

        return loss

    return _losses_in_chunks(states, finish, loss_of_chunk, chunk)


def logits_of(states: Tensor, finish: Finish) -> Tensor:
    """Return finish(states), the logits of states, in float32 or a wider dtype.

    Args:
        states: The last residuals.
        finish: The final norm and the unembedding.

    Raises:
        ValueError: `finish` does not take the states, or does not return logits for them.
    """
    logits = _checked_logits(states, finish)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _checked_logits(states: Float[Tensor, "*k n d"], finish: Finish) -> Float[Tensor, "*k n v"]:
    """Return finish(states), the logits of states, in the dtype that `finish` returns.

    Args:
        states: The last residuals.
        finish: The final norm and the unembedding, which a user may have written.

    Raises:
        ValueError: `finish` does not take the states, or does not return logits for them.
        RuntimeError: There is too little memory.
    """
    shape = tuple(states.shape)
    try:
        logits = finish(states)
    except (RuntimeError, TypeError, ValueError) as error:
        if "memory" in str(error):  # too little memory is no flaw of `finish`
            raise
        raise ValueError(
            f"finish does not take states, {states.dtype} of shape {shape}: {one_line(error)}"
        ) from error

    is_tensor = isinstance(logits, Tensor) and logits.is_floating_point()
    if not is_tensor or logits.shape[:-1] != states.shape[:-1] or not logits.shape[-1]:
        returned = type(logits).__name__
        if isinstance(logits, Tensor):
            returned = f"{logits.dtype} of shape {tuple(logits.shape)}"
        raise ValueError(
            f"finish gives {returned} for states of shape {shape}: it must give their logits"
        )
    return logits


def logit_rows_per_chunk(states: Float[Tensor, "*k n d"], finish: Finish) -> int:
    """Return for how many tokens logits are computed at a time, so that memory is bounded.

    It is `CHUNK` tokens, or fewer if these have more than `CHUNK_LOGITS` logits. The size of the
    vocabulary comes from the logits of the first state.

    Args:
        states: The last residuals.
        finish: The final norm and the unembedding.
    """
    with torch.no_grad():
        first_state = states.detach().reshape(-1, states.shape[-1])[:1]  # (1, d)
        vocabulary = _checked_logits(first_state, finish).shape[-1]
    return min(CHUNK, max(CHUNK_LOGITS // vocabulary, 1))


def bytes_of_logits(vocabulary: int) -> float:
    """Return the bytes of the logits of a chunk and of their log-probabilities in float32."""
    return 8.0 * min(CHUNK * vocabulary, CHUNK_LOGITS)


def _losses_in_chunks(
    states: Tensor, finish: Finish, loss_of_chunk: _LossOfChunk, chunk: int | None
) -> Tensor:
    """Return the loss of each state, (*k, n) for states (*k, n, d), differentiable once.

    Logits are computed for a chunk of states at a time, to save memory.

    Args:
        states: The last residuals.
        finish: Maps them to logits: the final norm and the unembedding.
        loss_of_chunk: Called with the slice of the n states that is the chunk. It returns a
            function from the log-probabilities of these states to their losses.
        chunk: How many of the n states are computed at a time; None: depending on the size of the
            vocabulary.
    """
    chunk = chunk or logit_rows_per_chunk(states, finish)
    stacked = states.reshape(math.prod(states.shape[:-2]), *states.shape[-2:])  # (k, n, d)
    if torch.is_grad_enabled() and states.requires_grad:
        # Gradients of the states are computed with the losses, in the forward pass. Otherwise the
        # logits of all chunks would be kept for the backward pass.
        values = _ChunkedLoss.apply(stacked, finish, loss_of_chunk, chunk)  # type: ignore[no-untyped-call]
    else:
        with torch.no_grad():
            values, _ = _losses(stacked, finish, loss_of_chunk, chunk, needs_gradient=False)
    return values.view(states.shape[:-1])  # type: ignore[no-any-return]


class _ChunkedLoss(torch.autograd.Function):
    """A loss whose forward pass takes the gradient of each chunk, so that its logits can be freed.

    The backward pass is then one product of these gradients with the outer gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, finish: Finish, loss_of_chunk: _LossOfChunk, chunk: int
    ) -> Tensor:
        """Return the loss (k, n) of each state, and save its gradient (k, n, d) for `backward`.

        Args:
            ctx: Keeps the gradient until then.
            states: The last residuals, (k, n, d).
            finish: Maps them to logits: the final norm and the unembedding.
            loss_of_chunk: Takes a slice of the n states to a function, which takes their
                log-probabilities to their losses, and overwrites them by gradients of the logits.
            chunk: How many of the n states are computed at a time.
        """
        values, gradient = _losses(
            states.detach(), finish, loss_of_chunk, chunk, needs_gradient=True
        )
        ctx.save_for_backward(gradient)
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients_of_losses: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient (k, n, d) of the states; the remaining inputs have none.

        `forward` saved the gradient of each loss with respect to its state. A loss depends on no
        other state, so the chain rule is one product for each state.
        """
        (gradient_of_states,) = ctx.saved_tensors  # (k, n, d)
        (gradient_of_losses,) = gradients_of_losses  # (k, n)
        factors = gradient_of_losses[..., None].to(gradient_of_states.dtype)
        return gradient_of_states * factors, None, None, None


def _losses(
    states: Float[Tensor, "k n d"],
    finish: Finish,
    loss_of_chunk: _LossOfChunk,
    chunk: int,
    *,
    needs_gradient: bool,
) -> tuple[Float[Tensor, "k n"], Float[Tensor, "k n d"] | None]:
    """Return the losses, and the gradient of each with respect to its state, or None.

    The log-probabilities of all chunks share one piece of memory.

    Args:
        states: The last residuals of k outputs.
        finish: Maps them to logits.
        loss_of_chunk: Takes the rows of a chunk to the loss of their log-probabilities.
        chunk: How many rows a chunk has.
        needs_gradient: Whether gradients are wanted.
    """
    gradient = torch.empty_like(states) if needs_gradient else None
    memory = states.new_empty(0)
    losses_of_chunks = []
    # no tokens are one empty chunk
    starts: Iterable[int] = range(0, max(states.shape[1], 1), chunk)
    if not needs_gradient:  # a training counts its steps
        starts = counted(starts, CHUNK_NAME)
    for start in starts:
        rows = slice(start, start + chunk)
        loss = loss_of_chunk(rows)
        losses_of_chunk = []
        for index, states_of_chunk in enumerate(states[:, rows]):
            leaf = states_of_chunk.detach().requires_grad_(needs_gradient)
            with torch.set_grad_enabled(needs_gradient):
                logits = _checked_logits(leaf, finish)
            if memory.numel() < logits.numel():
                wide = torch.promote_types(logits.dtype, torch.float32)
                memory = torch.empty(logits.numel(), dtype=wide, device=logits.device)
            log_probabilities = memory[: logits.numel()].view(logits.shape)
            torch.log_softmax(logits.detach(), -1, dtype=memory.dtype, out=log_probabilities)
            losses_of_chunk.append(loss(log_probabilities, needs_gradient))
            if gradient is not None:
                logit_gradient = log_probabilities.to(logits.dtype)
                (gradient[index, rows],) = torch.autograd.grad(logits, leaf, logit_gradient)
            del logits  # else they would live until the next chunk has its own
        losses_of_chunks.append(torch.stack(losses_of_chunk))
    return torch.cat(losses_of_chunks, 1), gradient


def unigram_entropy(tokens: Annotated[Int[Tensor, " n"], Within(least=0, fewest=1)]) -> float:
    """Return the entropy in nats of the frequencies of these tokens, at least 0.

    It is the least loss on them of any model that predicts without context.
    """
    _, counts = tokens.unique(return_counts=True)
    counts = counts.double()
    shares = counts / counts.sum()
    return float((shares * -shares.log()).sum())


class OutputMatch(NamedTuple):
    """The comparison of k outputs with a reference at each of n tokens.

    Attributes:
        loss: The cross-entropy of the token that follows, in nats.
        kl: KL(reference || output), in nats.
        top: Whether the most likely token is that of the reference.
    """

    loss: Float[Tensor, "k n"]
    kl: Float[Tensor, "k n"]
    top: Bool[Tensor, "k n"]


def compare_outputs(
    states: Annotated[Float[Tensor, "k n d"], Within(fewest=1)],
    finish: Finish,
    reference: Annotated[Float[Tensor, "n d"], Within()],
    targets: Targets,
    chunk: Count | None = None,
) -> OutputMatch:
    """Return the loss, the KL and whether the top token is the same, computing all logits once.

    The KL is that of an output from the reference, KL(reference ‖ output). There are no gradients.

    Args:
        states: The last residuals of k outputs.
        finish: Maps last residuals (n, d) to logits (n, v): the final norm and the unembedding.
        reference: The last residuals of the reference.
        targets: The next token of each row.
        chunk: How many rows have their logits in memory at a time; None: as many as fit.

    Raises:
        ValueError: A target is not in the vocabulary, or `finish` does not return logits.
    """
    with torch.no_grad():
        return _compare_outputs(states, finish, reference, targets, chunk)


def _compare_outputs(
    states: Float[Tensor, "k n d"],
    finish: Finish,
    reference: Float[Tensor, "n d"],
    targets: Targets,
    chunk: int | None,
) -> OutputMatch:
    """Compare k outputs with a reference at each of n tokens, chunk by chunk to bound the memory.

    The result has for each output and token the cross-entropy of the next token, the KL divergence
    of the output from the reference, and whether both have the same most likely token.

    Args:
        states: The last residual states of k outputs, which `finish` maps to logits.
        finish: The final norm and the unembedding: it maps states (n, d) to logits (n, v).
        reference: The last residual states of the reference.
        targets: The id of the next token of each row.
        chunk: How many rows have their logits in memory at a time; None: as many as fit.
    """
    chunk = chunk or logit_rows_per_chunk(reference, finish)
    chunks = list(
        zip(states.split(chunk, 1), reference.split(chunk), targets.split(chunk), strict=True)
    )
    matches = []
    for states_of_chunk, reference_of_chunk, target_ids in counted(chunks, CHUNK_NAME):
        reference_top, log_p = _top_and_log_probabilities(reference_of_chunk, finish)
        losses = []
        divergences = []
        has_same_top = []
        for states_of_output in states_of_chunk:
            top, log_q = _top_and_log_probabilities(states_of_output, finish)
            _refuse_beyond_vocabulary(target_ids, log_q.shape[-1])
            losses.append(-log_q.gather(-1, target_ids[:, None].long()).squeeze(-1))
            # In the memory of log q, so that at most three tensors of logits exist.
            difference = torch.sub(log_p, log_q, out=log_q)
            divergences.append(difference.mul_(log_p.exp()).sum(-1))
            has_same_top.append(top == reference_top)
            del log_q, difference
        matches.append(
            OutputMatch(torch.stack(losses), torch.stack(divergences), torch.stack(has_same_top))
        )
    return OutputMatch(
        torch.cat([match.loss for match in matches], 1),
        torch.cat([match.kl for match in matches], 1),
        torch.cat([match.top for match in matches], 1),
    )


def _top_and_log_probabilities(
    states: Float[Tensor, "m d"], finish: Finish
) -> tuple[Int[Tensor, " m"], Float[Tensor, "m v"]]:
    """Return the most likely next token of each state, and the log-probabilities of all tokens.

    Args:
        states: The last residuals of m tokens.
        finish: Maps them to logits over v tokens: the final norm and the unembedding.
    """
    logits = logits_of(states, finish)
    return logits.argmax(-1), logits.log_softmax(-1)
