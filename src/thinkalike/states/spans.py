"""Which tokens hold the characters of a word, and whether it has a state of its own."""

from __future__ import annotations

from collections.abc import Sequence

from thinkalike.data.words import Span
from thinkalike.errors import DataError


def last_tokens(text: str, words: Sequence[Span], offsets: Sequence[Span], name: str) -> list[int]:
    """Return, for each word, the index of the last token that holds a character of it.

    A normaliser may leave the last character out of all offsets, such as an accent that it
    composes or strips. The whole word has then been read with the last token that holds any of it.

    Args:
        text: A text.
        words: The characters of each word.
        offsets: The characters of each token.
        name: What errors call the model.

    Raises:
        DataError: No token holds a word.
    """
    # Several tokens may hold a part of a character: the last of them counts.
    token_of_character: dict[int, int] = {}
    for token, (start, stop) in enumerate(offsets):
        for character in range(start, stop):
            token_of_character[character] = token

    tokens = []
    for start, stop in words:
        last_token = None
        for character in reversed(range(start, stop)):
            if character in token_of_character:
                last_token = token_of_character[character]
                break
        if last_token is None:
            word = text[start:stop]
            raise DataError(f"{name}: no token holds the word {word!r} in: {text[:200]}")
        tokens.append(last_token)
    return tokens


def first_tokens(
    text: str, words: Sequence[Span], offsets: Sequence[Span], token: str
) -> list[int]:
    """Return, for each word, the index of the first token that holds a character of it.

    Args:
        text: A text.
        words: The characters of each word; some token holds each word.
        offsets: The characters of each token.
        token: With "first", that of a whole text is its first token, such as [CLS].
    """
    tokens = []
    for word in words:
        is_whole_text = word == (0, len(text))
        if token == "first" and is_whole_text:
            tokens.append(0)
        else:
            tokens.append(_first_overlapping(word, offsets))
    return tokens


def _first_overlapping(word: Span, offsets: Sequence[Span]) -> int:
    """Return the index of the first token that holds a character of a word.

    Raises:
        ValueError: No token does.
    """
    word_start, word_stop = word
    for token, (start, stop) in enumerate(offsets):
        is_special = start == stop
        if not is_special and start < word_stop and word_start < stop:
            return token
    raise ValueError(f"no token holds the characters {word_start} to {word_stop}")


def has_own_state(
    text: str, words: Sequence[Span], offsets: Sequence[Span], name: str, token: str = "last"
) -> list[bool]:
    """Return, for each word, whether its state says nothing about text beside the word.

    The last token of a word may hold letters after it, as `cannot` does of `can`, or as tokens of
    several words do: its state is then that of a longer text. In the same way the first token may
    hold letters before the word, which matters if states are of first tokens or of all of them. If
    two words have one last token, as punctuation may, the state is that of the later word.

    Args:
        text: A text.
        words: The characters of each word.
        offsets: The characters of each token.
        name: What errors call the model.
        token: Which token's state is that of a word: "last", "first" or "mean".
    """
    last = last_tokens(text, words, offsets, name)
    first = last
    if token != "last":
        first = first_tokens(text, words, offsets, token)

    latest_stop: dict[int, int] = {}  # by last token: where the last of its words ends
    for (_, stop), last_token in zip(words, last, strict=True):
        latest_stop[last_token] = max(latest_stop.get(last_token, 0), stop)

    has_own = []
    for (start, stop), first_token, last_token in zip(words, first, last, strict=True):
        # The characters beside the word that the tokens hold whose states count: those before it
        # in its first token, and those after it in its last or first one.
        characters_beside = ""
        if token != "last":
            characters_beside += text[offsets[first_token][0] : start]
        if token != "first":
            characters_beside += text[stop : offsets[last_token][1]]
        if token != "last":
            characters_beside += text[stop : offsets[first_token][1]]
        has_other_letters = any(character.isalnum() for character in characters_beside)
        has_later_word = token != "first" and stop < latest_stop[last_token]
        has_own.append(not has_other_letters and not has_later_word)
    return has_own
