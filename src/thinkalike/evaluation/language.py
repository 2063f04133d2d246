"""Losses of language models on text: of the next token, and of tokens that are hidden."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from thinkalike.data import Corpus
from thinkalike.evaluation.intervals import document_numbers, with_ends
from thinkalike.evaluation.shares import halved
from thinkalike.measures import CHUNK, sum_by_document, token_loss, unigram_entropy
from thinkalike.memory import Budget, LiveBytes
from thinkalike.models import FrozenModel
from thinkalike.progress import counted

BATCH_TOKENS = 8192  # of a report


def rows_at_once(corpus: Corpus) -> int:
    """Return how many rows of a corpus a report reads together where there is enough memory."""
    return max(BATCH_TOKENS // corpus.report.context, 1)


def next_token_losses(
    model: FrozenModel, states: Sequence[Float[Tensor, "b t d"]], tokens: Int[Tensor, "b t"]
) -> list[Float[Tensor, "b u"]]:
    """Return the cross-entropy in nats of tokens 1.. (u = t - 1), given each of several last residuals."""
    following = tokens[:, 1:].to(model.device)
    joined = torch.stack([state[:, :-1] for state in states])
    losses = token_loss(joined.flatten(0, 2), model.finish, following.repeat(len(states), 1, 1).flatten())
    return list(losses.view(len(states), *following.shape))


def masked_losses(
    model: Callable[[Tensor], Any], tokens: Int[Tensor, "b t"], tokenizer: Any, generator: torch.Generator
) -> tuple[Float[Tensor, " hidden"], Bool[Tensor, "b t"]]:
    """Return the cross-entropies of hidden tokens in nats, and which they were (Devlin et al. 2019, section 3.1).

    15 % of the tokens that are not special are chosen; of these 80 % become [MASK], 10 % a random token, and 10 % stay.

    Args:
        model: tokens to a tuple that begins with logits (b, t, v).
    """
    chance, action = (torch.rand(tokens.shape, generator=generator).to(tokens.device) for _ in range(2))
    noise = torch.randint(len(tokenizer), tokens.shape, generator=generator).to(tokens.device)
    special = torch.isin(tokens, torch.tensor(tokenizer.all_special_ids, device=tokens.device))
    chosen = (chance < 0.15) & ~special
    visible = torch.where(chosen & (action < 0.8), tokenizer.mask_token_id, tokens)
    visible = torch.where(chosen & (action >= 0.9), noise, visible)
    return cross_entropy(model(visible)[0][chosen], tokens[chosen], reduction="none"), chosen


@torch.no_grad()
def held_out_loss(model: FrozenModel, corpus: Corpus) -> dict[str, float]:
    """Return the loss on the report rows with its interval over documents, and the tokens' unigram entropy, in nats.

    `documents` and `effective_documents` say over how many, see `document_numbers`.

    A model that predicts hidden tokens is asked for those that `masked_losses` hides, the same each time.
    """
    rows = corpus.report
    batch = _that_fit(model, rows.tokens, rows_at_once(corpus))
    count = int(rows.documents.max()) + 1
    sums, tokens = torch.zeros(2, count, dtype=torch.float64)
    asked, generator = [], torch.Generator().manual_seed(0)
    parts = zip(rows.tokens.long().split(batch), rows.documents.split(batch), strict=True)
    for part, documents in counted(parts, "batch", -(-len(rows) // batch)):
        losses, predicted = _losses(model, part, generator)
        owners = documents[predicted]
        sums = sums + sum_by_document(losses, owners, count)
        tokens = tokens + sum_by_document(torch.ones_like(losses), owners, count)
        asked.append(part[predicted])
    entropy = {"unigram_entropy": unigram_entropy(torch.cat(asked))}
    return with_ends("loss", sums, tokens) | entropy | document_numbers(tokens)


def _that_fit(model: FrozenModel, rows: Int[Tensor, "rows context"], most: int) -> int:
    """Return how many of at most so many rows fit into memory, from what the rows of one chunk and of two take."""
    few = -(-49 * CHUNK // (50 * rows.shape[1]))  # 98 % of a chunk count as one
    if 2 * few > min(most, len(rows)):
        return most
    taken = []
    for count in (few, 2 * few):
        with LiveBytes(model.device) as live:
            _losses(model, rows[:count].long(), torch.Generator().manual_seed(0))
        taken.append(live.peak)
    slope, room = (taken[1] - taken[0]) / few, Budget.of(model.device).room
    return halved(most, lambda count: taken[0] + slope * (count - few) <= room)


def _losses(
    model: FrozenModel, tokens: Int[Tensor, "b t"], generator: torch.Generator
) -> tuple[Float[Tensor, " n"], Bool[Tensor, "b t"]]:
    """Return the losses of the tokens that the model predicts, and which they are."""
    if not model.predicts_next:
        losses, hidden = masked_losses(model.module, tokens.to(model.device), model.tokenizer, generator)
        return losses.cpu(), hidden.cpu()
    losses = next_token_losses(model, [model.head(tokens, model.n_layers - 1)], tokens)[0].flatten().cpu()
    later = torch.ones_like(tokens, dtype=torch.bool)
    later[:, 0] = False
    return losses, later
