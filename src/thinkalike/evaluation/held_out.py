"""The loss of a model on held-out text: of next tokens, or of hidden ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from thinkalike.data.corpus import Corpus
from thinkalike.errors import ModelError
from thinkalike.evaluation.language import DocumentSums, document_numbers, next_token_losses, rows_at_once, with_ends
from thinkalike.measures.losses import unigram_entropy
from thinkalike.models.frozen import FrozenModel


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


def _predicted(
    model: FrozenModel, tokens: Int[Tensor, "b t"], generator: torch.Generator
) -> tuple[Float[Tensor, " n"], Bool[Tensor, "b t"]]:
    """Return the losses of the tokens that the model predicts, and which they are."""
    if model.predicts not in ("next", "hidden"):
        raise ModelError(f"{model.name} predicts no tokens; choose a language model")
    if model.predicts == "hidden":
        losses, hidden = masked_losses(model.module, tokens.to(model.device), model.tokenizer, generator)
        return losses.cpu(), hidden.cpu()
    losses = next_token_losses(model, [model.head(tokens, model.n_layers - 1)], tokens)[0].flatten().cpu()
    later = torch.ones_like(tokens, dtype=torch.bool)
    later[:, 0] = False
    return losses, later


@torch.no_grad()
def held_out_loss(model: FrozenModel, corpus: Corpus) -> dict[str, float]:
    """Return the loss on the report rows with its interval over documents, and the tokens' unigram entropy, in nats.

    `documents` and `effective_documents` are those of `document_numbers`. A model that predicts hidden tokens is asked
    for those that `masked_losses` hides, the same each time.
    """
    rows = corpus.report
    sums, asked, generator = DocumentSums(rows.documents), [], torch.Generator().manual_seed(0)
    for part, documents in rows.batches(rows_at_once(rows)):
        losses, predicted = _predicted(model, part, generator)
        sums.add(documents[predicted], {"loss": losses, "tokens": torch.ones_like(losses)})
        asked.append(part[predicted])
    entropy = {"unigram_entropy": unigram_entropy(torch.cat(asked))}
    return with_ends("loss", sums["loss"], sums["tokens"]) | entropy | document_numbers(sums["tokens"])
