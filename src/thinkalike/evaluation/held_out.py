"""The loss of a model on held-out text: of next tokens, or of hidden ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from thinkalike.data.rows import Corpus
from thinkalike.errors import ModelError
from thinkalike.evaluation.batch_sizes import rows_per_batch
from thinkalike.evaluation.columns import document_counts, mean_columns
from thinkalike.evaluation.document_sums import DocumentSums
from thinkalike.evaluation.forward import next_token_losses
from thinkalike.measures.losses import unigram_entropy
from thinkalike.models.frozen import FrozenModel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

HIDDEN_SHARE = 0.15
"""The share of tokens that are predicted."""

MASKED_BELOW = 0.8
"""Of the hidden tokens, 80 % become [MASK]."""

RANDOM_FROM = 0.9
"""Of the hidden tokens, 10 % become a random token; the remaining 10 % stay."""


def masked_losses(
    model: Callable[[Tensor], Sequence[Tensor]],
    tokens: Int[Tensor, "b t"],
    tokenizer: PreTrainedTokenizerBase,
    generator: torch.Generator,
) -> tuple[Float[Tensor, " hidden"], Bool[Tensor, "b t"]]:
    """Return a masked language model's cross-entropies of hidden tokens, and which are hidden.

    15 % of the tokens that are not special are hidden. Of these 80 % become [MASK], 10 % a random
    token, and 10 % stay (Devlin et al. 2019, section 3.1). The cross-entropies are in nats.

    Args:
        model: Takes tokens to a tuple that begins with logits, (b, t, v).
        tokens: The token ids of rows of text.
        tokenizer: Says the special tokens, the id of [MASK], and how many tokens there are.
        generator: Draws what is hidden, on the CPU, so that all devices hide the same.
    """
    device = tokens.device
    # Uniform numbers in [0, 1): one decides whether a token is hidden, the other by what.
    hiding = torch.rand(tokens.shape, generator=generator).to(device)
    action = torch.rand(tokens.shape, generator=generator).to(device)
    random_tokens = torch.randint(len(tokenizer), tokens.shape, generator=generator).to(device)

    special_ids = torch.tensor(tokenizer.all_special_ids, device=device)
    is_special = torch.isin(tokens, special_ids)
    is_hidden = (hiding < HIDDEN_SHARE) & ~is_special
    is_masked = is_hidden & (action < MASKED_BELOW)
    is_random = is_hidden & (action >= RANDOM_FROM)  # between the two, the token stays
    input_tokens = torch.where(is_masked, tokenizer.mask_token_id, tokens)
    input_tokens = torch.where(is_random, random_tokens, input_tokens)

    logits = model(input_tokens)[0]
    losses = cross_entropy(logits[is_hidden], tokens[is_hidden], reduction="none")
    return losses, is_hidden


def _predicted_losses(
    model: FrozenModel, tokens: Int[Tensor, "b t"], generator: torch.Generator
) -> tuple[Float[Tensor, " n"], Bool[Tensor, "b t"]]:
    """Return the losses in nats of the tokens that a model predicts, and which tokens these are.

    For a causal model they are all tokens of a row but the first. For a masked language model,
    such as BERT, they are the tokens that are hidden at random. Both results are on the CPU, the
    losses in the order of the tokens.

    Args:
        model: The model.
        tokens: The token ids of rows of text.
        generator: Draws which tokens are hidden.

    Raises:
        ModelError: The model predicts neither next nor hidden tokens.
    """
    if model.predicts not in ("next", "hidden"):
        raise ModelError(f"{model.name} predicts no tokens; choose a language model")
    if model.predicts == "hidden":
        losses, is_hidden = masked_losses(
            model.module, tokens.to(model.device), model.tokenizer, generator
        )
        return losses.cpu(), is_hidden.cpu()
    after_last_block = model.head(tokens, model.n_layers - 1)
    (losses,) = next_token_losses(model, [after_last_block], tokens)
    is_predicted = torch.ones_like(tokens, dtype=torch.bool)
    is_predicted[:, 0] = False
    return losses.flatten().cpu(), is_predicted


@torch.no_grad()
def held_out_loss(model: FrozenModel, corpus: Corpus) -> dict[str, float]:
    """Return the loss of a language model on the evaluation text of a corpus, in nats per token.

    A masked language model, such as BERT, predicts tokens that are hidden at random, the same in
    each call.

    Returns:
        `loss` with `loss_low` and `loss_high`, its interval over documents; `unigram_entropy` of
        the predicted tokens, in nats; `documents`, how many there are; and
        `effective_sample_size`, how many of equal length would give intervals as narrow.

    Raises:
        ModelError: The model predicts no tokens.
    """
    rows = corpus.report  # the evaluation text
    sums = DocumentSums(rows.documents)
    generator = torch.Generator().manual_seed(0)
    predicted_tokens = []
    for batch in rows.batches(rows_per_batch(rows)):
        losses, is_predicted = _predicted_losses(model, batch.tokens, generator)
        values = {"loss": losses, "tokens": torch.ones_like(losses)}  # a sum of ones counts tokens
        sums.add(batch.documents[is_predicted], values)
        predicted_tokens.append(batch.tokens[is_predicted])
    facts = mean_columns("loss", sums["loss"], sums["tokens"])
    facts["unigram_entropy"] = unigram_entropy(torch.cat(predicted_tokens))
    return facts | document_counts(sums["tokens"])
