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
    """Return how many tokens a model reads in one batch on this device, if memory allows."""
    if device.type == "cpu":
        return min(CPU_BATCH_TOKENS, BATCH_TOKENS)
    return BATCH_TOKENS


def rows_per_batch(rows: TokenRows, batch_tokens: int | None = None) -> int:
    """Return how many rows of text have at most `batch_tokens` tokens together, at least one.

    Args:
        rows: All rows, of one length; the result is at most their number.
        batch_tokens: The greatest number of tokens of a batch; None: `BATCH_TOKENS`.
    """
    if batch_tokens is None:
        batch_tokens = BATCH_TOKENS
    return max(min(batch_tokens // rows.context, len(rows)), 1)


def halve_until(fits: Callable[[int], bool], largest: int) -> int:
    """Return the first of largest, largest // 2, largest // 4, ... that fits; 1 if none does.

    Args:
        fits: Returns whether a batch of this size fits into memory.
        largest: The greatest size that is tried.
    """
    size = largest
    while size > 1 and not fits(size):
        size //= 2
    return size
