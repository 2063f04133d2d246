"""Rows of tokens: a few fixed ones, with which every model is checked when it is loaded, and what no model reads."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

Tokens = Int[Tensor, "b t"]


def sample_tokens(vocabulary: int, context: int, rows: int = 2, at_most: int = 16) -> Tokens:
    """Return two short rows, unless others are asked for, which are the same each time."""
    return torch.randint(vocabulary, (rows, min(at_most, context)), generator=torch.Generator().manual_seed(0))


def sample_padding(tokens: Tokens) -> tuple[Tokens, Tokens]:
    """Return a mask and types for these tokens: the last row ends in padding, and each row is a pair of texts."""
    mask, types = torch.ones_like(tokens), torch.zeros_like(tokens)
    mask[-1, 3 * tokens.shape[1] // 4 :] = 0
    types[:, tokens.shape[1] // 2 :] = 1
    return mask, types


def unreadable(tokens: Tokens, vocabulary: int, context: int, error: Exception) -> str:
    """Return what of these tokens led to an error of a model that reads them, or nothing if no fault of theirs did."""
    if isinstance(error, torch.OutOfMemoryError):
        return ""
    if not tokens.numel():
        return f"there are no tokens in rows of shape {tuple(tokens.shape)}"
    least, most = int(tokens.min()), int(tokens.max())
    if least < 0 or most >= vocabulary:
        return f"tokens lie between {least} and {most}, and those of its vocabulary in 0 to {vocabulary - 1}"
    longer = tokens.shape[1] > context
    return f"rows of {tokens.shape[1]} tokens are longer than its context of {context}" if longer else ""
