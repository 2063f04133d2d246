"""The alignment of a source's tokens with a target's where their tokenizers cut a text
differently.

A target token gets the state of the last source token that has seen no character beyond those that
the target token and the ones before it hold. The character offsets of fast tokenizers say where a
token ends, with three corrections:

- All tokens of one character (its bytes, or several letters in place of a ligature) have the
  offsets of the whole character. A token reaches as far as the bytes that it holds. Where that
  cannot be told, a target's token does not hold the character, and a source's token has seen it.
- A ▁ or a space that a tokenizer puts in front has the offsets of the first character, although it
  says nothing about that character.
- A normaliser that composes (NFC, NFKC) leaves an accent out of the offsets of the letter that it
  was joined to, and reorders several accents. A letter and its accents count as one character if
  there is a normaliser.

Positions in a text are counted in quarters of a character, because a character has at most four
bytes. If several tokens end at one position, as after a ligature, they are ordered by how many
more of them follow, so that two tokenizers that cut a text alike are aligned token by token.
"""

from __future__ import annotations

import contextlib
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from thinkalike.advice import named_setting
from thinkalike.digests import BYTE_OF, PROBES, tokenizer_facts
from thinkalike.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

QUARTERS_PER_CHARACTER = 4

MOST_TIES = 2**20
"""More tokens than ever end at one position, which `_break_ties` multiplies positions by."""

BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
"""How tokenizers that fall back to bytes write one."""

FIRST_COMBINING_CODE_POINT = 0x300
"""Unicode has no character below that joins what is before it."""

WHITE_SPACE_CODE_POINTS = [code for code in range(0x3001) if chr(code).isspace()]

Positions = NDArray[np.int64]


class IndexedText:
    """A document of c characters, with counts of characters and bytes before each position."""

    def __init__(self, text: str):
        """Store the text with its code points."""
        self.text = text
        # One code point for each character, in four bytes.
        self.code_points = np.frombuffer(
            text.encode("utf-32-le", "surrogatepass"), np.uint32
        )  # (c,)

    @cached_property
    def is_after_space(self) -> NDArray[np.bool_]:
        """Whether the character before each position is white space, (c + 1,)."""
        is_space = np.isin(self.code_points, WHITE_SPACE_CODE_POINTS)
        return np.concatenate([[False], is_space])

    @cached_property
    def visible_before(self) -> Positions:
        """The number of characters before each position that are not white space, (c + 1,)."""
        # The first entry of `is_after_space` is of the start of the text, and no character.
        return np.cumsum(~self.is_after_space) - 1

    @cached_property
    def bytes_before(self) -> Positions:
        """The number of UTF-8 bytes before each position, (c + 1,)."""
        sizes = np.ones(len(self.code_points), np.int64)
        # From each of these code points on, a character has one byte more.
        for first_with_more_bytes in (0x80, 0x800, 0x10000):
            sizes += self.code_points >= first_with_more_bytes
        return np.concatenate([[0], np.cumsum(sizes)])


@dataclass(frozen=True)
class TokenisedText:
    """The n tokens that a tokenizer cuts a text into."""

    ids: Sequence[int]

    offsets: NDArray[np.int64]
    """(n, 2): the first character of each token and one past its last, white space included."""

    token_text: Callable[[int], str]
    """Returns how the vocabulary writes a token id."""

    composes: bool
    """Whether a normaliser may have joined characters."""

    def certain_ends(self, text: IndexedText) -> Positions:
        """Return a lower bound of the position that each token and those before it reach, (n,).

        A model that has read a token knows the text at least up to this position. Offsets of
        tokens are inexact where a normaliser joins characters or a token is part of a character,
        so there is an upper bound, too (`possible_ends`). Positions are in quarters of a
        character, because a character has at most four bytes.
        """
        next_starts = self._next_starts(text)
        ends = np.minimum(self._ends, next_starts)
        # A cluster is a range of characters that a normaliser may join, such as a letter and its
        # accents. A token that ends within one is taken to hold all of it if no later token
        # begins in it, or else nothing of it.
        for token in self._ending_in_cluster(text, ends):
            cluster_start, cluster_end = _cluster(text.text, int(ends[token]))
            holds_all = next_starts[token] >= cluster_end
            ends[token] = cluster_end if holds_all else cluster_start
        quarters = self._in_quarters(text, ends)
        return np.maximum.accumulate(quarters)  # the furthest end of the tokens so far

    def possible_ends(self, text: IndexedText) -> Positions:
        """Return an upper bound of the position that each token and those before it reach, (n,).

        A model that has read a token knows nothing of the text beyond this position. Offsets of
        tokens are inexact where a normaliser joins characters or a token is part of a character,
        so there is a lower bound, too (`certain_ends`). Positions are in quarters of a character,
        because a character has at most four bytes.
        """
        next_starts = self._next_starts(text)
        # Between a token and the next one there may be a gap of characters that belong to neither,
        # such as those that a normaliser removed. If all of them are white space, they were merely
        # skipped before the next token, unless this token ends in white space and may stand for a
        # whole run of it. Any other gap may be known to this token.
        gap_ends = np.maximum(next_starts, self._ends)  # the token's own end without a gap
        has_visible = text.visible_before[gap_ends] > text.visible_before[self._ends]
        may_know_gap = has_visible | text.is_after_space[self._ends]
        ends = np.where(may_know_gap, gap_ends, self._ends)
        # A token that ends within a cluster of characters, such as a letter and its accents, may
        # know all of it.
        for token in self._ending_in_cluster(text, ends):
            _, cluster_end = _cluster(text.text, int(ends[token]))
            ends[token] = cluster_end
        quarters = self._in_quarters(text, ends)
        return np.maximum.accumulate(quarters)  # the furthest end of the tokens so far

    @cached_property
    def _ends(self) -> Positions:
        """One past the last character of each token and of all tokens before it, (n,)."""
        return np.maximum.accumulate(self.offsets[:, 1])

    def _next_starts(self, text: IndexedText) -> Positions:
        """Return, for each token, the first character that any later token has, (n,).

        For the last token, this is the end of the text.
        """
        starts = np.append(self.offsets[:, 0], len(text.code_points))[1:]
        # Offsets may be out of order, so this is the minimum over all later tokens.
        return np.minimum.accumulate(starts[::-1])[::-1]

    def _ending_in_cluster(self, text: IndexedText, ends: Positions) -> Positions:
        """Return the indices of the tokens that may end within a cluster of joined characters.

        A normaliser may join the character after such a token to the characters before, such as an
        accent to its letter. There are no such tokens if the tokenizer has no normaliser.

        Args:
            text: The text.
            ends: The position after each token, (n,), in characters.
        """
        if not self.composes:
            return np.zeros(0, np.int64)
        # The 0 stands behind the last character, and joins nothing.
        next_code_points = np.append(text.code_points, 0)[ends]
        candidates = np.flatnonzero(next_code_points >= FIRST_COMBINING_CODE_POINT)
        tokens = [token for token in candidates if _joins(text.text, int(ends[token]))]
        return np.array(tokens, np.int64)

    def _in_quarters(self, text: IndexedText, ends: Positions) -> Positions:
        """Return the ends of tokens, (n,), in quarters of a character instead of characters.

        Where a token and the next one share a character, the token ends after those bytes of the
        character that it holds: a quarter is counted for each. If these cannot be told, the end
        stays as it is.
        """
        quarters = ends * QUARTERS_PER_CHARACTER
        next_starts = self._next_starts(text)
        tokens_that_overlap = np.flatnonzero(next_starts < self._ends)
        for token in tokens_that_overlap:
            character = int(next_starts[token])  # in which the next token begins as well
            byte_count = self._bytes_of_character(text.text, int(token), character)
            if byte_count is not None:
                quarters[token] = QUARTERS_PER_CHARACTER * character + byte_count
        return quarters

    def _bytes_of_character(self, text: str, token: int, character: int) -> int | None:
        """Return how many bytes of a character a token and the tokens before it hold.

        For example, a byte-level tokenizer may write one character as two tokens. None means that
        they hold the whole character, or that the number cannot be told.

        Args:
            text: The text.
            token: The index of the token, in whose offsets the character is.
            character: The index of the character.
        """
        is_last_of_token = self._ends[token] == character + 1
        if not is_last_of_token:
            return None
        if self.composes:
            cluster_start, cluster_end = _cluster(text, character)
            if cluster_end - cluster_start > 1:  # the tokens may hold the bytes of a joined form
                return None

        # The first token whose offsets hold the character.
        first_token = token
        while first_token > 0 and self._ends[first_token - 1] > character:
            first_token -= 1
        token_ids = self.ids[first_token : token + 1]
        token_bytes = b"".join(_token_bytes(self.token_text(token_id)) for token_id in token_ids)

        is_space = text[character] == " "
        if self.composes:  # a normaliser may write other white space as a space
            is_space = text[character].isspace()
        if not is_space and not token_bytes.strip():
            return 0  # the token is a space that the tokenizer added in front of the character

        # The tokens hold the first bytes of the character; later tokens hold the others.
        character_bytes = text[character].encode("utf-8", "surrogatepass")
        for count in range(1, len(character_bytes)):
            if token_bytes.endswith(character_bytes[:count]):
                return count
        return None


@dataclass(frozen=True)
class Alignment:
    """The alignment of a document's tokens; the last token of each model ends the document."""

    aligned: NDArray[np.int32]
    """For each target token, the index of the source token whose state it gets; -1 for none."""

    is_exact: NDArray[np.bool_]
    """Whether that source token ends where the target token does."""

    target_bytes: NDArray[np.int32]
    """How many bytes of text each target token adds."""

    source_bytes: NDArray[np.int32]
    """How many bytes of text each source token adds."""


def align(document: str, target: TokenisedText, source: TokenisedText) -> Alignment:
    """Align each target token with the last source token that has seen no later text.

    Each model's end-of-document token is appended, and these two are aligned.

    Args:
        document: The text.
        target, source: The tokens of the two models, without the token that ends the document.
    """
    text = IndexedText(document)
    # Positions are in quarters of a character. The token that ends the document is placed one
    # character behind its last one.
    end = QUARTERS_PER_CHARACTER * (len(document) + 1)
    target_ends = np.append(target.certain_ends(text), end)
    source_ends = np.append(source.possible_ends(text), end)

    target_order = _break_ties(target_ends)
    source_order = _break_ties(source_ends)
    # The last source token that does not end later; -1: all of them do.
    aligned = np.searchsorted(source_order, target_order, "right") - 1
    is_exact = (aligned >= 0) & (source_order[aligned] == target_order)
    return Alignment(
        aligned=aligned.astype(np.int32),
        is_exact=is_exact,
        target_bytes=_added_bytes(text, target_ends),
        source_bytes=_added_bytes(text, source_ends),
    )


def _break_ties(ends: Positions) -> Positions:
    """Return numbers that are ordered like the ends of tokens, and strictly increase.

    Of the tokens that end at one position, the last one has position · MOST_TIES, and each earlier
    one has that minus the number of tokens that follow it there. So two tokenizers that cut a text
    alike are aligned token by token.

    Args:
        ends: The position at which each token ends, in ascending order.
    """
    last_at_position = np.searchsorted(ends, ends, "right") - 1
    tokens_that_follow = last_at_position - np.arange(len(ends))
    return ends * MOST_TIES - tokens_that_follow


def _added_bytes(text: IndexedText, ends: Positions) -> NDArray[np.int32]:
    """Return how many UTF-8 bytes of the text each token adds to those before it.

    All bytes of a character count for the token that completes it.

    Args:
        text: The text.
        ends: The position at which each token ends, in quarters of a character.
    """
    complete_characters = ends // QUARTERS_PER_CHARACTER  # before each end
    # The token that ends the document lies one character behind the text.
    complete_characters = np.minimum(complete_characters, len(text.code_points))
    bytes_so_far = text.bytes_before[complete_characters]
    return np.diff(bytes_so_far, prepend=0).astype(np.int32)


def _token_bytes(token_text: str) -> bytes:
    """Return the bytes that the written form of a token in a vocabulary stands for.

    A form such as <0x0A> is one byte. A byte-level vocabulary writes each byte as a character of
    its own (`BYTE_OF`). Any other form is text in which ▁ stands for a space.
    """
    byte_token = BYTE_TOKEN.fullmatch(token_text)
    if byte_token is not None:
        return bytes([int(byte_token[1], 16)])
    is_byte_level = all(character in BYTE_OF for character in token_text)
    if is_byte_level:
        return bytes(BYTE_OF[character] for character in token_text)
    return token_text.replace("▁", " ").encode("utf-8", "surrogatepass")


def _cluster(text: str, position: int) -> tuple[int, int]:
    """Return the range (first, end) of characters that a normaliser may join into one.

    These are the character at `position` and its neighbours, such as a letter and its accents;
    `end` is one past the last of them. A character that joins nothing is a range of its own.
    """
    first = position
    while first > 0 and _joins(text, first):
        first -= 1
    end = position + 1
    while end < len(text) and _joins(text, end):
        end += 1
    return first, end


def _joins(text: str, position: int) -> bool:
    """Return whether a normaliser may join the character at a position to those before it.

    It may in two cases: the character is a combining one, such as an accent; or the Unicode
    normalisation NFKC turns the character and up to three characters before it into something else
    together than separately. The first character of a text is joined to nothing.
    """
    before = text[max(position - 3, 0) : position]
    if not before:
        return False
    character = text[position]
    if unicodedata.combining(character):
        return True
    together = unicodedata.normalize("NFKC", before + character)
    separately = unicodedata.normalize("NFKC", before) + unicodedata.normalize("NFKC", character)
    return together != separately


@runtime_checkable
class HasTokenizer(Protocol):
    """A model, or anything else that has a tokenizer."""

    @property
    def name(self) -> str: ...
    @property
    def tokenizer(self) -> PreTrainedTokenizerBase: ...


@runtime_checkable
class HasVocabulary(HasTokenizer, Protocol):
    """A model, or anything else that reads token ids."""

    @property
    def vocabulary(self) -> int:
        """One more than the largest token id."""


def check_same_tokenizer(source: HasTokenizer, target: HasTokenizer) -> None:
    """Check that the tokenizers of two models turn every text into the same token ids.

    Args:
        source: A model, or anything else that has a tokenizer.
        target: The same.

    Raises:
        ModelError: A fact that decides the token ids differs, such as the vocabulary; the message
            names it.
    """
    source_facts = tokenizer_facts(source.tokenizer)
    target_facts = tokenizer_facts(target.tokenizer)
    names = sorted(source_facts.keys() | target_facts.keys())
    differing = [name for name in names if source_facts.get(name) != target_facts.get(name)]
    if differing:
        raise ModelError(
            f"{source.name} and {target.name} have different tokenizers ({', '.join(differing)}); "
            f"choose models of one tokenizer, {_remedy_for_different_tokens()}"
        )


def check_same_tokens(
    source: HasVocabulary, target: HasVocabulary, rows: Int[Tensor, "b t"]
) -> None:
    """Raise an error unless two models cut the text of some rows into the same token ids.

    Their tokenizers need not be the same: those with different settings are accepted if they cut
    this very text alike.

    Args:
        source: The model whose tokenizer gave the token ids of the rows.
        target: The model that is to read the same rows.
        rows: b rows of text, each as t token ids.

    Raises:
        ModelError: They cut the text differently, or a token id lies outside of a vocabulary.
    """
    largest_id = int(rows.max())
    if largest_id >= min(source.vocabulary, target.vocabulary):
        token = source.tokenizer.decode([largest_id])
        raise ModelError(
            f"the text holds {token!r}, for which only one of the models has an embedding"
        )
    if tokenizer_facts(source.tokenizer) == tokenizer_facts(target.tokenizer):
        return

    texts = source.tokenizer.batch_decode(
        rows, skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    for text in texts:
        source_ids = source.tokenizer(text, add_special_tokens=False)["input_ids"]
        target_ids = target.tokenizer(text, add_special_tokens=False)["input_ids"]
        if source_ids != target_ids:
            first = _first_difference(source_ids, target_ids)
            source_piece = source.tokenizer.decode(source_ids[first : first + 3])
            target_piece = target.tokenizer.decode(target_ids[first : first + 3])
            raise ModelError(
                f"{source.name} and {target.name} cut a text into different tokens: where one has "
                f"{source_piece!r}, the other has {target_piece!r}; choose models that cut texts "
                f"alike, {_remedy_for_different_tokens()}"
            )


def _first_difference(source_ids: Sequence[int], target_ids: Sequence[int]) -> int:
    """Return the index of the first token id that differs between two lists.

    If one list is the beginning of the other one, this is its length.

    Raises:
        ValueError: The lists are equal.
    """
    for index, (source_id, target_id) in enumerate(zip_longest(source_ids, target_ids)):
        if source_id != target_id:
            return index
    raise ValueError("the lists are equal")


def check_alignable(source: HasTokenizer, target: HasTokenizer) -> None:
    """Check that the tokens of two models can be aligned by the characters that they stand for.

    Both tokenizers must tell the characters of each token (offsets), and must normalise some test
    words, `PROBES`, to the same letters.

    Args:
        source: A model, or anything else that has a tokenizer.
        target: The same.

    Raises:
        ModelError: A tokenizer has no offsets, or the two normalise a word differently.
    """
    for model in (source, target):
        if not getattr(model.tokenizer, "is_fast", False):
            raise ModelError(
                f"the tokenizer of {model.name} is not a fast one (tokenizer.json): it knows no "
                "offsets"
            )
    for word in PROBES:
        word_of_source = _normalised_word(source.tokenizer, word)
        word_of_target = _normalised_word(target.tokenizer, word)
        if word_of_source != word_of_target:
            raise ModelError(
                f"{source.name} reads {word!r} as {word_of_source!r} and {target.name} as "
                f"{word_of_target!r}, so their texts cannot be aligned; choose models that read "
                "letters alike"
            )


def _normalised_word(tokenizer: PreTrainedTokenizerBase, word: str) -> str:
    """Return a word as a tokenizer's normaliser writes it, in NFKC and without any white space.

    A tokenizer without a normaliser leaves the word as it is.
    """
    normalised = word
    normalizer = tokenizer.backend_tokenizer.normalizer
    if normalizer is not None:
        normalised = normalizer.normalize_str(word)
        # Some normalisers write bytes as the characters of a byte-level vocabulary. Any other word
        # cannot be read so, and stays as it is.
        with contextlib.suppress(KeyError, UnicodeDecodeError):
            normalised = bytes(BYTE_OF[character] for character in normalised).decode()
    composed = unicodedata.normalize("NFKC", normalised)
    pieces = composed.replace("▁", " ").split()
    return "".join(pieces)


def _remedy_for_different_tokens() -> str:
    """Return the end of an error: settings that compare models in spite of different tokens."""
    return (
        f"or use {named_setting('task', 'stitch')} or words ({named_setting('measure', 'cka')}, "
        f"{named_setting('measure.unit', 'word')})"
    )
