"""Next-token distributions: losses through a frozen unembedding that never hold all logits, and measures of logits;
and how much documents in a row have the same tokens.

At 2^14 tokens and 48,262 entries the logits alone are 3.2 GB in float32, and their gradient as much again. Each token's
loss depends on its own state only, so the logits of a chunk are dropped as soon as its losses and gradients are known.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from thinkalike.arguments import Count, Within
from thinkalike.errors import one_line
from thinkalike.processes import counted

CHUNK, LOGITS = 1024, 2**25  # tokens, at most, and logits, at most, of a chunk
CHUNKS = "chunk of logits"  # what progress counts: with 262,144 entries one layer pair takes minutes

FEWEST_NEIGHBOURS = 20  # documents that are looked at
CODES, ORDERS = 64, 200  # numbers of a token, and random orders of documents
ALIKE = 0.05  # correlation of neighbours, from which four of one source widen intervals by a tenth

# Takes log-probabilities (m, v) to losses (m); if asked to, overwrites the former by the gradients of the logits
_Loss = Callable[[Tensor, bool], Tensor]
Finish = Callable[[Tensor], Tensor]  # final norm and unembedding, row by row: (n, d) to (n, vocabulary)


Targets = Annotated[Int[Tensor, " n"], Within(least=0)]  # ids of tokens


def token_loss(
    states: Annotated[Float[Tensor, "n d"], Within()], finish: Finish, targets: Targets, chunk: Count | None = None
) -> Float[Tensor, " n"]:
    """Return the cross-entropy of each token in nats, -log softmax(finish(states))[targets], at least 0.

    It is in float32 (float64 for float64 states), and differentiable once in `states`, the last residuals, and not in
    the weights of `finish`. The logits of one chunk of tokens are in memory at a time.

    >>> token_loss(torch.zeros(2, 3), torch.nn.Identity(), torch.tensor([0, 2]))  # ln 3 for a guess among three
    tensor([1.0986, 1.0986])
    """

    def chunked(rows: slice) -> _Loss:
        following = targets[rows, None].long()

        def loss(log_shares: Tensor, wanted: bool) -> Tensor:
            if not wanted:  # each step of a training would wait for the answer
                _refuse_beyond_vocabulary(following, log_shares.shape[-1])
            losses = -log_shares.gather(-1, following).squeeze(-1)
            if wanted:  # softmax minus one-hot
                log_shares.exp_().scatter_add_(-1, following, log_shares.new_full((), -1.0).expand_as(following))
            return losses

        return loss

    return _in_chunks(states, finish, chunked, chunk)


def _refuse_beyond_vocabulary(targets: Int[Tensor, "*n"], vocabulary: int) -> None:
    """Raise a ValueError if a target is no id of the vocabulary.

    Targets on a GPU are left to torch, as every chunk would wait for the answer.
    """
    if targets.device.type != "cpu" or not targets.numel():
        return
    lowest, highest = (int(end) for end in targets.aminmax())
    if lowest < 0 or highest >= vocabulary:
        worst = lowest if lowest < 0 else highest
        raise ValueError(
            f"targets holds {worst}, and `finish` gives logits of {vocabulary} tokens: 0 to {vocabulary - 1}"
        )


def token_kl(
    states: Annotated[Float[Tensor, "*k n d"], Within()],
    finish: Finish,
    reference: Annotated[Float[Tensor, "n d"], Within()],
    chunk: Count | None = None,
) -> Float[Tensor, "*k n"]:
    """Return KL(p || q) of each token in nats, p = softmax(finish(reference)), q = softmax(finish(states)); at least 0.

    The states are the last residuals, once or k times with the same reference, which gets no gradient.
    """

    def chunked(rows: slice) -> _Loss:
        with torch.no_grad():
            standard = logits_of(reference[rows], finish).log_softmax(-1)
            shares = standard.exp()

        def loss(log_shares: Tensor, wanted: bool) -> Tensor:
            losses = torch.sub(standard, log_shares).mul_(shares).sum(-1)
            if wanted:  # q minus p
                log_shares.exp_().sub_(shares)
            return losses

        return loss

    return _in_chunks(states, finish, chunked, chunk)


def logits_of(states: Tensor, finish: Finish) -> Tensor:
    """Return the logits of states, at least in float32."""
    logits = _finished(states, finish)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _finished(states: Float[Tensor, "*k n d"], finish: Finish) -> Float[Tensor, "*k n v"]:
    """Return the logits of states in the dtype that `finish` has; a ValueError if it gives something else."""
    try:
        logits = finish(states)
    except (RuntimeError, TypeError, ValueError) as error:
        if "memory" in str(error):
            raise
        shape = f"{states.dtype} of shape {tuple(states.shape)}"
        raise ValueError(f"finish does not take states, {shape}: {one_line(error)}") from error
    is_tensor = isinstance(logits, Tensor) and logits.is_floating_point()
    if not is_tensor or logits.shape[:-1] != states.shape[:-1] or not logits.shape[-1]:
        made = f"{logits.dtype} of shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(f"finish gives {made} for states of shape {tuple(states.shape)}: it must give their logits")
    return logits


def rows_of_logits(states: Float[Tensor, "*k n d"], finish: Finish) -> int:
    """Return of how many tokens the logits exist at the same time: `CHUNK`, or fewer of a large vocabulary."""
    with torch.no_grad():
        vocabulary = _finished(states.detach().reshape(-1, states.shape[-1])[:1], finish).shape[-1]
    return min(CHUNK, max(LOGITS // vocabulary, 1))


def bytes_of_logits(vocabulary: int) -> float:
    """Return the bytes of the logits of a chunk and of their log-probabilities in float32."""
    return 8.0 * min(CHUNK * vocabulary, LOGITS)


def _in_chunks(states: Tensor, finish: Finish, chunked: Callable[[slice], _Loss], chunk: int | None) -> Tensor:
    chunk = chunk or rows_of_logits(states, finish)
    flat = states.reshape(math.prod(states.shape[:-2]), *states.shape[-2:])
    if torch.is_grad_enabled() and states.requires_grad:
        values = _ChunkedLoss.apply(flat, finish, chunked, chunk)
    else:
        with torch.no_grad():
            values, _ = _losses(flat, finish, chunked, chunk, wanted=False)
    return values.view(states.shape[:-1])  # type: ignore[no-any-return]


class _ChunkedLoss(torch.autograd.Function):
    """A loss whose forward pass takes the gradient of each chunk, so that the backward pass is one product."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, finish: Finish, chunked: Callable[[slice], _Loss], chunk: int) -> Tensor:
        values, gradient = _losses(states.detach(), finish, chunked, chunk, wanted=True)
        ctx.save_for_backward(gradient)
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Any) -> Any:
        (gradient,) = ctx.saved_tensors
        return gradient * outer[0][..., None].to(gradient.dtype), None, None, None


def _losses(
    states: Float[Tensor, "k n d"], finish: Finish, chunked: Callable[[slice], _Loss], chunk: int, *, wanted: bool
) -> tuple[Float[Tensor, "k n"], Float[Tensor, "k n d"] | None]:
    """Return the losses, and, if wanted, the gradient of each with respect to its state.

    The log-probabilities of all chunks share one piece of memory.
    """
    gradient = torch.empty_like(states) if wanted else None
    values, space = [], states.new_empty(0)
    starts = range(0, max(states.shape[1], 1), chunk)  # no tokens are one empty chunk
    for start in starts if wanted else counted(starts, CHUNKS):  # of a training the steps are counted
        rows = slice(start, start + chunk)
        loss = chunked(rows)
        columns = []
        for number, part in enumerate(states[:, rows]):
            part = part.detach().requires_grad_(wanted)
            with torch.set_grad_enabled(wanted):
                logits = _finished(part, finish)
            if space.numel() < logits.numel():
                wide = torch.promote_types(logits.dtype, torch.float32)
                space = torch.empty(logits.numel(), dtype=wide, device=logits.device)
            log_shares = space[: logits.numel()].view(logits.shape)
            torch.log_softmax(logits.detach(), -1, dtype=space.dtype, out=log_shares)
            columns.append(loss(log_shares, wanted))
            if gradient is not None:
                (gradient[number, rows],) = torch.autograd.grad(logits, part, log_shares.to(logits.dtype))
            del logits  # else they would live until the next chunk has its own
        values.append(torch.stack(columns))
    return torch.cat(values, 1), gradient


def unigram_entropy(tokens: Annotated[Int[Tensor, " n"], Within(least=0, fewest=1)]) -> float:
    """Return the entropy in nats of the tokens' own frequencies: the loss of the best model without context."""
    counts = tokens.unique(return_counts=True)[1].double()
    shares = counts / counts.sum()
    return float((shares * -shares.log()).sum())


class OutputMatch(NamedTuple):
    """The comparison of k outputs with a reference at each of n tokens."""

    loss: Float[Tensor, "k n"]  # cross-entropy of the token that follows, in nats
    kl: Float[Tensor, "k n"]  # KL(reference || ours), in nats
    top: Bool[Tensor, "k n"]  # whether the most likely token is that of the reference


@torch.no_grad()
def compare_outputs(
    states: Annotated[Float[Tensor, "k n d"], Within(fewest=1)],
    finish: Finish,
    reference: Annotated[Float[Tensor, "n d"], Within()],
    targets: Targets,
    chunk: Count | None = None,
) -> OutputMatch:
    """Return `token_loss`, `token_kl` and whether the top token is the same, computing all logits once."""

    def distribution(states: Float[Tensor, "m d"]) -> tuple[Int[Tensor, " m"], Float[Tensor, "m v"]]:
        logits = logits_of(states, finish)
        return logits.argmax(-1), logits.log_softmax(-1)

    chunk = chunk or rows_of_logits(reference, finish)
    parts = []
    pieces = [*zip(states.split(chunk, 1), reference.split(chunk), targets.split(chunk), strict=True)]
    for own, theirs, following in counted(pieces, CHUNKS):
        (top, standard), matches = distribution(theirs), []
        for each in own:
            likely, logs = distribution(each)
            _refuse_beyond_vocabulary(following, logs.shape[-1])
            loss = -logs.gather(-1, following[:, None].long()).squeeze(-1)
            kl = torch.sub(standard, logs, out=logs).mul_(standard.exp()).sum(-1)  # three tensors of logits at most
            matches.append((loss, kl, likely == top))
            del logs
        parts.append([torch.stack(values) for values in zip(*matches, strict=True)])
    return OutputMatch(*(torch.cat(values, 1) for values in zip(*parts, strict=True)))


def neighbours_alike(tokens: Int[Tensor, "*n"], documents: Int[Tensor, "*n"]) -> float:
    """Return the intraclass correlation of documents that follow each other in a source, 0 if chance explains it.

    Each document is the mean random code of its tokens, less that of all, times the root of their number. The
    correlation Σ x'y / Σ x'x, over neighbours x and y, is compared with that of the same documents in random orders.
    """
    used, owners = documents.flatten().unique(return_inverse=True)
    if len(used) < FEWEST_NEIGHBOURS:
        return 0.0
    generator, tokens = torch.Generator().manual_seed(0), tokens.flatten().long()
    codes = torch.randn(int(tokens.max()) + 1, CODES, generator=generator)[tokens]
    counts = owners.bincount(minlength=len(used))[:, None]
    means = torch.zeros(len(used), CODES).index_add_(0, owners, codes - codes.mean(0)) / counts.sqrt()
    orders = [torch.arange(len(used)), *(torch.randperm(len(used), generator=generator) for _ in range(ORDERS))]
    products = [(means[order[1:]] * means[order[:-1]]).sum() for order in orders]
    found = torch.stack(products) / means.square().sum()
    return float(found[0]) if found[0] > max(found[1:].max(), ALIKE) else 0.0
