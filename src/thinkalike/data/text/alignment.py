"""Which state of a source goes to which token of a target, where their tokenizers cut a text differently.

A target token gets the state of the last source token that has seen no character beyond what the target token and those
before it hold. Character offsets of fast tokenizers say that, with three corrections, for they are not what they seem:

- The tokens of one character (bytes, or several letters in place of a ligature) all have the offsets of the whole. A
  token reaches as far as the bytes that it holds; where that cannot be told, a target's token does not hold the
  character, and a source's token has seen it.
- A ▁ or a space that a tokenizer puts in front has the offsets of the first character, of which it says nothing.
- A normaliser that composes (NFC, NFKC) leaves an accent out of the offsets of the letter that it joined.

Places in the text are counted in quarters of a character, which has at most four bytes. Where several tokens end at one
place, as after a ligature, they are told apart by how many more follow, so that two tokenizers that cut a text alike
are aligned token by token.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from thinkalike.tokenizers import BYTE_OF

QUARTERS = 4
TIES = 2**20  # more than ever end at one place
BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # of a tokenizer that falls back to bytes
BLANK = [code for code in range(0x3001) if chr(code).isspace()]

Places = NDArray[np.int64]


class Text:
    """A document, and what of its characters alignment asks for."""

    def __init__(self, text: str):
        self.text = text
        self.codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)

    @cached_property
    def blank(self) -> NDArray[np.bool_]:
        """Whether each character is white space."""
        return np.isin(self.codes, BLANK)

    @cached_property
    def ink(self) -> Places:
        """The number of characters before each place that are no white space."""
        return np.concatenate([[0], np.cumsum(~self.blank)])

    @cached_property
    def bytes(self) -> Places:
        """The number of bytes before each character, in UTF-8, and at last of all."""
        sizes = 1 + sum((self.codes >= least).astype(np.int64) for least in (0x80, 0x800, 0x10000))
        return np.concatenate([[0], np.cumsum(sizes)])


@dataclass(frozen=True)
class Cut:
    """The tokens of a text: their ids, their offsets without any trimming, and what each id looks like."""

    ids: Sequence[int]
    offsets: NDArray[np.int64]
    look: Callable[[int], str]

    def held(self, text: Text) -> Places:
        """Return how much of the text a reader of each token and those before it holds for sure, in quarters."""
        places = np.where(self._split(text), self._later(text), self._ends)
        return np.maximum.accumulate(self._in_quarters(text, places))

    def seen(self, text: Text, composes: bool) -> Places:
        """Return how much of the text each token and those before it may tell of, in quarters.

        Args:
            composes: whether a normaliser may have joined characters.
        """
        ends, later, size = self._ends, self._later(text), len(text.codes)
        swallowed = text.ink[np.maximum(later, ends)] > text.ink[ends]
        swallowed |= (ends > 0) & text.blank[ends - 1] if size else False
        places = np.where((later > ends) & swallowed, later, ends)
        for number in np.flatnonzero((places < size) & (text.codes[np.minimum(places, size - 1)] >= 0x300)):
            while composes and places[number] < size and _joins(text.text, places[number]):
                places[number] += 1
        return np.maximum.accumulate(self._in_quarters(text, places))

    @cached_property
    def _ends(self) -> Places:
        return np.maximum.accumulate(self.offsets[:, 1])

    def _later(self, text: Text) -> Places:
        """Return where what follows each token begins."""
        starts = np.append(self.offsets[1:, 0], len(text.codes))
        return np.minimum.accumulate(starts[::-1])[::-1]

    def _split(self, text: Text) -> NDArray[np.bool_]:
        """Return whether a token ends within a character."""
        return self._later(text) < self._ends

    def _in_quarters(self, text: Text, places: Places) -> Places:
        quarters = places * QUARTERS
        later = self._later(text)
        for number in np.flatnonzero(self._split(text)):
            if (part := self._part(text.text, int(number), int(later[number]))) is not None:
                quarters[number] = QUARTERS * later[number] + part
        return quarters

    def _part(self, text: str, number: int, character: int) -> int | None:
        """Return how many bytes of a character a token and those before it hold, or None if that cannot be told."""
        ends, first = self._ends, number
        if ends[number] != character + 1:
            return None
        while first and ends[first - 1] > character:
            first -= 1
        bytes_held = b"".join(_bytes_of(self.look(each)) for each in self.ids[first : number + 1])
        if not (bytes_held.strip() or text[character].isspace()):
            return 0  # a space that is not in the text
        whole = text[character].encode("utf-8", "surrogatepass")
        return next((count for count in range(1, len(whole)) if bytes_held.endswith(whole[:count])), None)


@dataclass(frozen=True)
class Alignment:
    """What a target and a source make of a document; the last token of both ends it.

    Attributes:
        last: for each target token the number of the source token whose state it gets, or -1.
        exact: whether that source token ends where the target token does.
        target_bytes, source_bytes: how much text each token adds.
    """

    last: NDArray[np.int32]
    exact: NDArray[np.bool_]
    target_bytes: NDArray[np.int32]
    source_bytes: NDArray[np.int32]


def align(document: str, target: Cut, source: Cut, composes: bool) -> Alignment:
    """Align the tokens of a document.

    Args:
        composes: whether the source has a normaliser, which may join characters.
    """
    text = Text(document)
    end = QUARTERS * (len(document) + 1)
    held, seen = np.append(target.held(text), end), np.append(source.seen(text, composes), end)
    theirs = _apart(seen)
    last = np.searchsorted(theirs, _apart(held), "right") - 1
    exact = (last >= 0) & (theirs[last] == _apart(held))
    return Alignment(last.astype(np.int32), exact, _bytes_added(text, held), _bytes_added(text, seen))


def _apart(places: Places) -> Places:
    """Return places that rise from token to token: of several tokens at one place the last one is there."""
    following = np.searchsorted(places, places, "right") - 1 - np.arange(len(places))
    return places * TIES - following


def _bytes_added(text: Text, places: Places) -> NDArray[np.int32]:
    characters = np.minimum(places // QUARTERS, len(text.codes))
    return np.diff(text.bytes[characters], prepend=0).astype(np.int32)


def _bytes_of(look: str) -> bytes:
    """Return the bytes that a token stands for: one by its number, those of a byte-level tokenizer, or its letters."""
    if match := BYTE.fullmatch(look):
        return bytes([int(match[1], 16)])
    if all(character in BYTE_OF for character in look):
        return bytes(BYTE_OF[character] for character in look)
    return look.replace("▁", " ").encode("utf-8", "surrogatepass")


def _joins(text: str, place: int) -> bool:
    """Return whether a normaliser may join the character at a place to what is before it."""
    pair = text[max(place - 1, 0) : place + 1]
    return bool(unicodedata.combining(text[place])) or len(unicodedata.normalize("NFC", pair)) < len(pair)
