"""A few fixed rows of tokens, with which every model is checked when it is loaded."""

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
