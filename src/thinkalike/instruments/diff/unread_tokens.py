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
"""About so many positions of the text get a token."""

GAP = 8
"""Positions that get a token are so many tokens apart."""

FEWEST_ROWS = 2


@torch.no_grad()
def unread_numbers(
    base: FrozenModel, changed: FrozenModel, rows: TokenRows, changed_tokens: Sequence[int]
) -> dict[str, float]:
    """Return headline numbers of what follows changed tokens that the text lacks.

    About `POSITIONS` positions get such a token, each a different one while there are enough.
    Intervals are over rows.

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
    tokens, is_put_in = _with_tokens_put_in(rows, torch.tensor(unread))
    kl, flips = _changes_after(base, changed, tokens, is_put_in)
    row_numbers = torch.arange(len(tokens))[:, None].expand_as(is_put_in)[is_put_in]
    mean_kl = mean_over_documents(kl, row_numbers, bounds=BOUNDS["kl"])
    mean_flips = mean_over_documents(flips, row_numbers, bounds=BOUNDS["flips"])
    numbers |= interval_columns("unread_kl", mean_kl)
    numbers |= interval_columns("unread_flips", mean_flips)
    return numbers


def _with_tokens_put_in(
    rows: TokenRows, unread: Int[Tensor, " u"]
) -> tuple[Int[Tensor, "rows t"], Bool[Tensor, "rows t"]]:
    """Return some rows with unread tokens put into them, and where these are.

    Args:
        rows: The text.
        unread: The tokens, which repeat if there are more positions than tokens.
    """
    row_count = max(POSITIONS * GAP // rows.context, FEWEST_ROWS)
    tokens = rows.tokens[:row_count].long().clone()
    is_put_in = torch.zeros_like(tokens, dtype=torch.bool)
    is_put_in[:, GAP // 2 : -1 : GAP] = True
    positions = int(is_put_in.sum())
    in_random_order = unread[torch.randperm(len(unread), generator=seeded(0))]
    repeats = -(-positions // len(in_random_order))  # rounded up
    tokens[is_put_in] = in_random_order.repeat(repeats)[:positions]
    return tokens, is_put_in


def _changes_after(
    base: FrozenModel,
    changed: FrozenModel,
    tokens: Int[Tensor, "rows t"],
    is_chosen: Bool[Tensor, "rows t"],
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Return KL(base ‖ changed) in nats after some tokens, and 1 where the most likely one flips.

    Args:
        base, changed: The models.
        tokens: The rows that both read.
        is_chosen: After which n tokens predictions are compared.
    """
    rows_at_once = max(LOGITS_AT_ONCE // (base.vocabulary * tokens.shape[1]), 1)
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
    """Return the log-probabilities of what follows the n chosen tokens, in float32."""
    states = model.head(tokens, model.n_layers - 1)[is_chosen]
    return model.finish(states).float().log_softmax(-1)
