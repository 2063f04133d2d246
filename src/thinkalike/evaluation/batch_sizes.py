"""How many tokens and rows of text are read together."""

from __future__ import annotations

from collections.abc import Callable

import torch

from thinkalike.data.rows import TokenRows

BATCH_TOKENS = 8192
"""How many tokens a model reads together where there is enough memory."""

CPU_BATCH_TOKENS = 2048
"""The same on a CPU, whose caches hold the activations of so many: a sixth less time than 8192."""


def tokens_per_batch(device: torch.device) -> int:
    """Return how many tokens a model on a device reads together if memory allows."""
    if device.type == "cpu":
        return min(CPU_BATCH_TOKENS, BATCH_TOKENS)
    return BATCH_TOKENS


def rows_per_batch(rows: TokenRows, batch_tokens: int | None = None) -> int:
    """Return how many rows have at most `batch_tokens` together; None: `BATCH_TOKENS`."""
    if batch_tokens is None:
        batch_tokens = BATCH_TOKENS
    return max(min(batch_tokens // rows.context, len(rows)), 1)


def halve_until(fits: Callable[[int], bool], largest: int) -> int:
    """Return the first of largest, largest / 2, ... that fits into memory; 1 if none does."""
    size = largest
    while size > 1 and not fits(size):
        size //= 2
    return size
