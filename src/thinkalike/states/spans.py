"""Which tokens hold the characters of a word, and whether it has a state of its own."""

from __future__ import annotations

from collections.abc import Sequence

from thinkalike.data.words import Span
from thinkalike.errors import DataError


def last_tokens(text: str, words: Sequence[Span], offsets: Sequence[Span], name: str) -> list[int]:
    """Return, for each word, the index of the last token that holds a character of it.

    The last characters of a word may be in no token, such as an accent that the tokenizer's
    normaliser removes. The last token that holds any character of the word counts.

    Args:
        text: A text.
        words: The span of each word in the text.
        offsets: The span of each token in the text.
        name: What errors call the model.

    Raises:
        DataError: No token holds a word.
    """
    # If several tokens hold parts of one character, the last of them counts.
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
        words: The span of each word, of which some token must hold a character.
        offsets: The span of each token; that of a special token is empty.
        token: With "first", a word that is the whole text gets token 0, which may be a special
            token such as [CLS]. With "mean", it is treated like any other word.
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

    Special tokens, whose span is empty, are skipped.

    Raises:
        ValueError: No token holds a character of the word.
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
    """Return, for each word, whether the tokens whose state it gets hold no other letters.

    For example, the word `can` in `cannot` has no state of its own if `cannot` is one token. If
    two words have the same last token, as punctuation may, only the later one has its state. With
    `token` "last", only letters after the word count.

    Args:
        text: A text.
        words: The span of each word in the text.
        offsets: The span of each token in the text.
        name: What errors call the model.
        token: Which token's state a word gets: that of its "last" or "first" token, or the "mean"
            over its tokens.
    """
    last_token_counts = token != "first"
    first_token_counts = token != "last"
    last = last_tokens(text, words, offsets, name)
    first = last  # not read unless first tokens count
    if first_token_counts:
        first = first_tokens(text, words, offsets, token)

    latest_stop: dict[int, int] = {}  # for each last token, where the latest of its words ends
    for (_, stop), last_token in zip(words, last, strict=True):
        latest_stop[last_token] = max(latest_stop.get(last_token, 0), stop)

    has_own = []
    for (start, stop), first_token, last_token in zip(words, first, last, strict=True):
        # Characters outside of the word that a token holds whose state counts: before or after the
        # word in its first token, and after the word in its last token.
        characters_beside = ""
        if first_token_counts:
            characters_beside += text[offsets[first_token][0] : start]
            characters_beside += text[stop : offsets[first_token][1]]
        if last_token_counts:
            characters_beside += text[stop : offsets[last_token][1]]
        has_other_letters = any(character.isalnum() for character in characters_beside)
        has_later_word = last_token_counts and stop < latest_stop[last_token]
        has_own.append(not has_other_letters and not has_later_word)
    return has_own
