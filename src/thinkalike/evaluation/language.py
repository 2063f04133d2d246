"""Losses of language models on text: of the next token, and of tokens that are hidden."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn.functional import cross_entropy

from thinkalike.data.rows import Corpus
from thinkalike.measures.bootstrapping import bootstrap_interval, effective_number, sum_by_document
from thinkalike.measures.estimates import FEWEST_GROUPS, Estimate, interval_around
from thinkalike.measures.losses import CHUNK, token_loss, unigram_entropy
from thinkalike.memory import Budget, LiveBytes
from thinkalike.models.frozen import FrozenModel
from thinkalike.progress import counted

BATCH_TOKENS = 8192  # of a report


def rows_at_once(corpus: Corpus) -> int:
    """Return how many rows of a corpus a report reads together where there is enough memory."""
    return max(BATCH_TOKENS // corpus.report.context, 1)


def halved(most: int, fits: Callable[[int], bool]) -> int:
    """Return the first of most, most / 2, ... down to 1 that fits into memory; 1 if none does."""
    while most > 1 and not fits(most):
        most //= 2
    return most


def next_token_losses(
    model: FrozenModel, states: Sequence[Float[Tensor, "b t d"]], tokens: Int[Tensor, "b t"]
) -> list[Float[Tensor, "b u"]]:
    """Return the cross-entropy in nats of tokens 1.. (u = t - 1), given each of several last residuals."""
    following = tokens[:, 1:].to(model.device)
    joined = torch.stack([state[:, :-1] for state in states])
    losses = token_loss(joined.flatten(0, 2), model.finish, following.repeat(len(states), 1, 1).flatten())
    return list(losses.view(len(states), *following.shape))


class DocumentSums(dict[str, Tensor]):
    """Sums over the tokens of each document by name, (*b, documents) in float64; tokens of document -1 are left out."""

    def __init__(self, documents: Int[Tensor, "rows t"]):
        super().__init__()
        self.count = int(documents.max()) + 1

    def add(self, documents: Int[Tensor, " n"], values: Mapping[str, Float[Tensor, "*b n"]]) -> None:
        """Add the values of some tokens, given the document of each."""
        kept = documents >= 0
        for name, each in values.items():
            summed = sum_by_document(each.cpu()[..., kept], documents[kept], self.count)
            self[name] = self[name] + summed if name in self else summed


def masked_losses(
    model: Callable[[Tensor], Any], tokens: Int[Tensor, "b t"], tokenizer: Any, generator: torch.Generator
) -> tuple[Float[Tensor, " hidden"], Bool[Tensor, "b t"]]:
    """Return the cross-entropies of hidden tokens in nats, and which they were (Devlin et al. 2019, section 3.1).

    15 % of the tokens that are not special are chosen; of these 80 % become [MASK], 10 % a random token, and 10 % stay.
    The model takes tokens to a tuple that begins with logits (b, t, v).
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

    `documents` and `effective_documents` are those of `document_numbers`. A model that predicts hidden tokens is asked
    for those that `masked_losses` hides, the same each time.
    """
    rows = corpus.report
    batch, sums = _that_fit(model, rows.tokens, rows_at_once(corpus)), DocumentSums(rows.documents)
    asked, generator = [], torch.Generator().manual_seed(0)
    parts = zip(rows.tokens.long().split(batch), rows.documents.split(batch), strict=True)
    for part, documents in counted(parts, "batch", -(-len(rows) // batch)):
        losses, predicted = _losses(model, part, generator)
        sums.add(documents[predicted], {"loss": losses, "tokens": torch.ones_like(losses)})
        asked.append(part[predicted])
    entropy = {"unigram_entropy": unigram_entropy(torch.cat(asked))}
    return with_ends("loss", sums["loss"], sums["tokens"]) | entropy | document_numbers(sums["tokens"])


def _that_fit(model: FrozenModel, rows: Int[Tensor, "rows context"], most: int) -> int:
    """Return how many rows fit into memory, at most `most`, from what the rows of one chunk and of two take."""
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


def with_ends(
    column: str, sums: Shaped[Tensor, "*b documents"], counts: Shaped[Tensor, " documents"]
) -> dict[str, Any]:
    """Return a column of means per token with their 95 % intervals, see `bootstrap_interval` and `ends_of`."""
    return ends_of(column, bootstrap_interval(sums.double(), counts.double()))


def mean_over_documents(
    values: Float[Tensor, "*b n"], documents: Int[Tensor, " n"], level: float = 0.95, *, together: bool = False
) -> Estimate:
    """Return means over n tokens with intervals over documents, without ends if these are fewer than `FEWEST_GROUPS`.

    Args:
        documents: the number of the document of each token; each number below the largest occurs.
        together: see `bootstrap_interval`.
    """
    count = int(documents.max()) + 1
    if count < FEWEST_GROUPS:
        return interval_around(values.double().mean(-1), math.inf)
    sums = sum_by_document(values, documents, count)
    return bootstrap_interval(sums, torch.bincount(documents).double(), level=level, together=together)


def ends_of(column: str, estimate: Estimate) -> dict[str, Any]:
    """Return a column of values, and the columns `_low` and `_high` of the ends of their intervals."""
    return {f"{column}{end}": values.tolist() for end, values in zip(("", "_low", "_high"), estimate, strict=True)}


def document_numbers(counts: Shaped[Tensor, " documents"]) -> dict[str, float]:
    """Return the number of documents that have tokens, and their `effective_number`."""
    return {"documents": float((counts > 0).sum()), "effective_documents": effective_number(counts)}
