"""Changed tokens that the text lacks: they are put into it, and what follows them is compared."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.data.rows import TokenRows
from thinkalike.evaluation.changes import LOGITS_AT_ONCE
from thinkalike.evaluation.columns import interval_columns
from thinkalike.evaluation.document_means import mean_over_documents
from thinkalike.instruments.diff.tables import BOUNDS
from thinkalike.measures.changes import divergence
from thinkalike.measures.seeds import seeded
from thinkalike.models.frozen import FrozenModel

POSITIONS = 512
"""A token is inserted at about this many positions of the text."""

GAP = 8
"""Positions at which a token is inserted are this many tokens apart."""

FEWEST_ROWS = 2
"""Tokens are inserted in at least this many rows."""


@torch.no_grad()
def numbers_after_unread_tokens(
    base: FrozenModel, changed: FrozenModel, rows: TokenRows, changed_tokens: Sequence[int]
) -> dict[str, float]:
    """Return headline numbers about tokens whose embedding differs and that the text lacks.

    These tokens are inserted into the text at about `POSITIONS` positions, however many they are.
    The predictions of both models after them are compared: KL and flips (the share of positions
    where the most likely next token differs), with intervals over rows.
    Tokens are repeated if there are fewer of them than positions; if there are more, a random
    sample is inserted. If the text lacks none of them, only two counts are returned: how many
    tokens have a different embedding, and how many of these the text lacks.

    Args:
        base, changed: The models.
        rows: The text.
        changed_tokens: The tokens whose row of the embedding differs.
    """
    tokens_of_text = set(rows.tokens[:, :-1].unique().tolist())
    unread = [token for token in changed_tokens if token not in tokens_of_text]
    numbers = {
        "tokens_changed": float(len(changed_tokens)),
        "tokens_unread": float(len(unread)),
    }
    if not unread:
        return numbers
    tokens, is_inserted = _rows_with_inserted_tokens(rows, torch.tensor(unread))
    kl, flips = _kl_and_flips_after(base, changed, tokens, is_inserted)
    row_of_inserted, _ = is_inserted.nonzero(as_tuple=True)
    # Rows take the place of documents.
    mean_kl = mean_over_documents(kl, row_of_inserted, bounds=BOUNDS["kl"])
    mean_flips = mean_over_documents(flips, row_of_inserted, bounds=BOUNDS["flips"])
    numbers |= interval_columns("unread_kl", mean_kl)
    numbers |= interval_columns("unread_flips", mean_flips)
    return numbers


def _rows_with_inserted_tokens(
    rows: TokenRows, unread: Int[Tensor, " u"]
) -> tuple[Int[Tensor, "rows t"], Bool[Tensor, "rows t"]]:
    """Return the first rows with every `GAP`th token replaced, and a mask of the replaced tokens.

    "Inserted" tokens are put in place of others, so that rows keep their length. There are as many
    rows as it takes to replace about `POSITIONS` tokens, and at least `FEWEST_ROWS`.

    Args:
        rows: The text.
        unread: Tokens that the text lacks, in any order. They replace tokens in random order. They
            repeat if there are fewer of them than positions, and some are left out if there are
            more.
    """
    row_count = max(POSITIONS * GAP // rows.context, FEWEST_ROWS)
    tokens = rows.tokens[:row_count].long().clone()
    is_inserted = torch.zeros_like(tokens, dtype=torch.bool)
    # Not the last token of a row: what follows it is not predicted.
    is_inserted[:, GAP // 2 : -1 : GAP] = True
    n_positions = int(is_inserted.sum())
    in_random_order = unread[torch.randperm(len(unread), generator=seeded(0))]
    repeats = -(-n_positions // len(in_random_order))  # rounded up
    tokens[is_inserted] = in_random_order.repeat(repeats)[:n_positions]
    return tokens, is_inserted


def _kl_and_flips_after(
    base: FrozenModel,
    changed: FrozenModel,
    tokens: Int[Tensor, "rows t"],
    is_chosen: Bool[Tensor, "rows t"],
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Return two numbers for each chosen token: KL(base ‖ changed) after it, and its flip.

    KL is in nats. The flip is 1 where the most likely next token differs, and else 0. Rows are
    read in chunks whose logits fit into memory.

    Args:
        base, changed: The models.
        tokens: The rows that both read.
        is_chosen: A mask of the n tokens after which predictions are compared.
    """
    logits_per_row = base.vocabulary * tokens.shape[1]
    rows_at_once = max(LOGITS_AT_ONCE // logits_per_row, 1)
    kl = []
    flips = []
    for batch, chosen in zip(
        tokens.split(rows_at_once), is_chosen.split(rows_at_once), strict=True
    ):
        before = _log_probabilities(base, batch, chosen)
        after = _log_probabilities(changed, batch, chosen)
        kl.append(divergence(before, after).cpu())
        flips.append((before.argmax(1) != after.argmax(1)).cpu())
    return torch.cat(kl), torch.cat(flips).double()


def _log_probabilities(
    model: FrozenModel, tokens: Int[Tensor, "b t"], is_chosen: Bool[Tensor, "b t"]
) -> Float[Tensor, "n v"]:
    """Return the log-probabilities of the next token after each of n chosen tokens, in float32."""
    last_states = model.head(tokens, model.n_layers - 1)  # after the last block, (b, t, d)
    logits = model.finish(last_states[is_chosen])  # by the final norm and the unembedding
    return logits.float().log_softmax(-1)
