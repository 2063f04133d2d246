"""The states of models at the words of texts, which models with different tokenizers share."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from thinkalike.states.pieces import Pieces
from thinkalike.states.source import AnyLayer, StateSource, WordReader
from thinkalike.states.spans import first_tokens, has_own_state, last_tokens
from thinkalike.states.tokens import sites

log = logging.getLogger(__name__)


class WordStates(NamedTuple):
    """States of words."""

    states: list[Float[Tensor, "kept _"]]
    """By layer: the states of the words that have one of their own."""

    has_own: Bool[Tensor, " words"]
    """Which words have a state of their own, see `has_own_state`."""


def word_states(
    model: WordReader[AnyLayer],
    texts: Pieces,
    layers: Sequence[AnyLayer] | None = None,
    token: str = "last",
) -> list[Float[Tensor, "words _"]]:
    """Return, for each layer, the states of the words that have a state of their own.

    A word has none if its token also holds letters of a neighbouring word. Such words are left
    out, and a warning says how many.

    Args:
        model: The reader of the texts.
        texts: Texts, and the spans of the words of each.
        layers: The layers; None: all.
        token: Which token's state is that of a word: its "last" or "first" one, or the "mean" over
            its tokens.

    Raises:
        DataError: No token holds a word.
    """
    states, has_own = states_of_words(model, texts, layers, token)
    if not has_own.all():
        missing = int((~has_own).sum())
        log.warning(
            f"warning: {missing} of {len(has_own)} words are left out, as a token of {model.name} "
            "goes on beyond them"
        )
    return states


@torch.no_grad()
def states_of_words(
    model: WordReader[AnyLayer],
    texts: Pieces,
    layers: Sequence[AnyLayer] | None = None,
    token: str = "last",
) -> WordStates:
    """Return the states of words at some layers of a model, in the order of the texts.

    Words whose token also holds letters of a neighbouring word have no state of their own. They
    are left out of the states, and `has_own` of the result marks the others. A text is read with
    the special tokens that its tokenizer adds, and with BOS if the model expects it.

    Args:
        model: The reader of the texts.
        texts: Texts, and the spans of the words of each.
        layers: The layers; None: all.
        token: Which token's state is that of a word: its "last" one; its "first" one, which for a
            whole text is the first of all, such as [CLS]; or the "mean" over its tokens.

    Raises:
        DataError: No token holds a word.
    """
    encoded = [model.encoded(text) for text in texts.texts]
    longest = max(len(token_ids) for token_ids, _ in encoded)
    tokens = torch.zeros(len(encoded), longest, dtype=torch.long)
    mask = torch.zeros(len(encoded), longest, dtype=torch.long)
    # The first and the last token of each word, counted through all rows.
    token_ranges: list[tuple[int, int]] = []
    has_own: list[bool] = []
    for row, (token_ids, offsets) in enumerate(encoded):
        tokens[row, : len(token_ids)] = torch.tensor(token_ids)
        mask[row, : len(token_ids)] = 1
        text = texts.texts[row]
        words = texts.words[row]
        last = last_tokens(text, words, offsets, model.name)
        first = last if token == "last" else first_tokens(text, words, offsets, token)
        row_start = row * longest
        for first_token, last_token in zip(first, last, strict=True):
            token_ranges.append((row_start + first_token, row_start + last_token))
        has_own += has_own_state(text, words, offsets, model.name, token)

    if layers is None:
        layers = cast(Sequence[AnyLayer], sites(cast(StateSource, model)))
    # (texts * longest, width) for each layer.
    flat_states = [state.flatten(0, 1) for state in model.residuals(tokens, layers, mask)]
    own_ranges = [span for span, is_own in zip(token_ranges, has_own, strict=True) if is_own]
    states = _states_at(flat_states, own_ranges, token, model.device)
    return WordStates(states, torch.tensor(has_own, dtype=torch.bool))


def _states_at(
    states: Sequence[Float[Tensor, "tokens _"]],
    token_ranges: Sequence[tuple[int, int]],
    token: str,
    device: torch.device,
) -> list[Float[Tensor, "words _"]]:
    """Return, for each layer, the states of words, given the states of all tokens.

    Args:
        states: The states of all tokens at each layer.
        token_ranges: The first and the last token of each word. Without any, there are no rows.
        token: Which token's state is that of a word: "last", "first", or the "mean" of all.
        device: Where the states are.
    """
    if not token_ranges:
        return [state[:0] for state in states]
    if token == "mean":
        means = []
        for state in states:
            of_words = [state[first : last + 1].mean(0) for first, last in token_ranges]
            means.append(torch.stack(of_words))
        return means
    indices = [last if token == "last" else first for first, last in token_ranges]
    positions = torch.tensor(indices, device=device)
    return [state[positions] for state in states]
