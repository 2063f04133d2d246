"""Which tokens a text goes on with, as a tokenizer cuts it."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from thinkalike.data.contrasts.contrasts import BOUNDARY, Contrasts
from thinkalike.errors import DataError

SPACES = ("Ġ", "▁", "Ċ", "ĉ", " ")  # with which tokenizers begin a token that follows white space, or is some


def ids_of(tokenizer: Any, text: str) -> list[int]:
    """Return the tokens of a text, without special ones."""
    found: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    return found


def continuations(
    contrasts: Contrasts, tokenizer: Any, vocabulary: int
) -> tuple[Bool[Tensor, "n v"], Bool[Tensor, "n v"]]:
    """Return which tokens are meant by the `up` and the `down` of each pair, of as many as the model has logits for.

    Raises:
        DataError: one of them is not one token where it follows the text, or its counterpart, or both are the same.
    """
    boundary = boundary_tokens(tokenizer, vocabulary)
    masks = []
    for ends in (contrasts.up, contrasts.down):
        rows = torch.zeros(len(contrasts), vocabulary, dtype=torch.bool)
        for place, end in enumerate(ends):
            if end == BOUNDARY:
                rows[place] = boundary
            else:
                rows[place, _next_token(contrasts, place, end, tokenizer)] = True
        masks.append(rows)
    up, down = masks
    for place in (up & down).any(1).nonzero()[:, 0].tolist()[:1]:
        raise DataError(
            f"{contrasts.source} row {place + 1}: up={contrasts.up[place]!r} and down={contrasts.down[place]!r} have a "
            "token in common; give two that exclude each other"
        )
    return up, down


def boundary_tokens(tokenizer: Any, vocabulary: int) -> Bool[Tensor, " v"]:
    """Return which tokens do not go on with the word before: white space, punctuation, special tokens."""
    found = torch.zeros(vocabulary, dtype=torch.bool)
    tokens = tokenizer.convert_ids_to_tokens(list(range(min(len(tokenizer), vocabulary))))
    ends = [str(token).startswith(SPACES) or not str(token)[:1].isalnum() for token in tokens]
    found[: len(ends)] = torch.tensor(ends)
    return found


def _next_token(contrasts: Contrasts, place: int, end: str, tokenizer: Any) -> int:
    """Return the token that an end adds to the text of a pair, and to its counterpart."""
    after: list[int] = []
    for text in (contrasts.counterparts[place].text, contrasts.texts[place].text):
        before, after = ids_of(tokenizer, text), ids_of(tokenizer, text + end)
        if after[:-1] != before:
            cut = " ".join(map(str, tokenizer.convert_ids_to_tokens(ids_of(tokenizer, end))))
            raise DataError(
                f"{contrasts.source} row {place + 1}: {end!r} after {text[-40:]!r} is not one token (by itself it is "
                f"{cut}); give what adds one, with its space, such as ' is', or {BOUNDARY}"
            )
    return after[-1]
