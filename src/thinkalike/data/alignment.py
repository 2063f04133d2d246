"""The alignment of the tokens of a source with those of a target, where their tokenizers cut a text differently.

A target token gets the state of the last source token that has seen no character beyond what the target token and those
before it hold. Character offsets of fast tokenizers say that, with three corrections, for they are not what they seem:

- The tokens of one character (bytes, or several letters in place of a ligature) all have the offsets of the whole. A
  token reaches as far as the bytes that it holds; where that cannot be told, a target's token does not hold the
  character, and a source's token has seen it.
- A ▁ or a space that a tokenizer puts in front has the offsets of the first character, of which it says nothing.
- A normaliser that composes (NFC, NFKC) leaves an accent out of the offsets of the letter that it joined, and changes
  the order of several. A letter and its accents are one where there is a normaliser.

Places in the text are counted in quarters of a character, which has at most four bytes. Where several tokens end at one
place, as after a ligature, they are told apart by how many more follow, so that two tokenizers that cut a text alike
are aligned token by token.
"""

from __future__ import annotations

import contextlib
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from thinkalike.digests import BYTE_OF, PROBES, tokenizer_facts
from thinkalike.errors import ModelError

QUARTERS = 4
TIES = 2**20  # more than ever end at one place
BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # of a tokenizer that falls back to bytes
BLANK = [code for code in range(0x3001) if chr(code).isspace()]
OTHERWISE = "or use task=stitch or words (measure=cka measure.level=word)"

Places = NDArray[np.int64]


class Text:
    """A document, and what of its characters alignment asks for."""

    def __init__(self, text: str):
        self.text = text
        self.codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)

    @cached_property
    def blank_before(self) -> NDArray[np.bool_]:
        """Whether there is white space before each place."""
        return np.concatenate([[False], np.isin(self.codes, BLANK)])

    @cached_property
    def ink(self) -> Places:
        """The number of characters before each place that are no white space."""
        return np.cumsum(~self.blank_before) - 1

    @cached_property
    def bytes(self) -> Places:
        """The number of bytes before each character, in UTF-8, and at last of all."""
        sizes = 1 + sum((self.codes >= least).astype(np.int64) for least in (0x80, 0x800, 0x10000))
        return np.concatenate([[0], np.cumsum(sizes)])


@dataclass(frozen=True)
class Cut:
    """The tokens of a text."""

    ids: Sequence[int]
    offsets: NDArray[np.int64]  # the characters of each, first and one past the last, white space included
    look: Callable[[int], str]  # how the vocabulary writes an id
    composes: bool  # whether a normaliser may have joined characters

    def held(self, text: Text) -> Places:
        """Return how much of the text a reader of each token and those before it holds for sure, in quarters."""
        ends, later = self._ends, self._later(text)
        places = np.where(later < ends, later, ends)
        for number in self._composed(text, places):
            first, end = _cluster(text.text, int(places[number]))
            places[number] = end if later[number] >= end else first
        return np.maximum.accumulate(self._in_quarters(text, places))

    def seen(self, text: Text) -> Places:
        """Return how much of the text each token and those before it may tell of, in quarters."""
        ends, later = self._ends, self._later(text)
        swallowed = text.ink[np.maximum(later, ends)] > text.ink[ends]
        swallowed |= text.blank_before[ends]
        places = np.where((later > ends) & swallowed, later, ends)
        for number in self._composed(text, places):
            places[number] = _cluster(text.text, int(places[number]))[1]
        return np.maximum.accumulate(self._in_quarters(text, places))

    def _composed(self, text: Text, places: Places) -> Places:
        """Return the numbers of the tokens that seem to end within what a normaliser may have joined."""
        if not self.composes:
            return np.zeros(0, np.int64)
        following = np.append(text.codes, 0)[places] >= 0x300  # what joins comes after the letters of Europe
        return np.array([at for at in np.flatnonzero(following) if _joins(text.text, int(places[at]))], np.int64)

    @cached_property
    def _ends(self) -> Places:
        return np.maximum.accumulate(self.offsets[:, 1])

    def _later(self, text: Text) -> Places:
        """Return where what follows each token begins."""
        starts = np.append(self.offsets[:, 0], len(text.codes))[1:]
        return np.minimum.accumulate(starts[::-1])[::-1]

    def _in_quarters(self, text: Text, places: Places) -> Places:
        """Return places in quarters; a token that ends within a character ends after the bytes of it that it holds."""
        quarters, later = places * QUARTERS, self._later(text)
        for number in np.flatnonzero(later < self._ends):
            if (part := self._part(text.text, int(number), int(later[number]))) is not None:
                quarters[number] = QUARTERS * later[number] + part
        return quarters

    def _part(self, text: str, number: int, character: int) -> int | None:
        """Return how many bytes of a character a token and those before it hold, or None if that cannot be told."""
        ends, first = self._ends, number
        if ends[number] != character + 1 or (self.composes and len(range(*_cluster(text, character))) > 1):
            return None
        while first and ends[first - 1] > character:
            first -= 1
        bytes_held = b"".join(_bytes_of(self.look(each)) for each in self.ids[first : number + 1])
        space = text[character].isspace() if self.composes else text[character] == " "
        if not (space or bytes_held.strip()):
            return 0  # a space that is not in the text
        whole = text[character].encode("utf-8", "surrogatepass")
        return next((count for count in range(1, len(whole)) if bytes_held.endswith(whole[:count])), None)


@dataclass(frozen=True)
class Alignment:
    """The tokens of a document for a target and a source; the last token of both ends it."""

    last: NDArray[np.int32]  # for each target token the number of the source token whose state it gets, or -1
    exact: NDArray[np.bool_]  # whether that source token ends where the target token does
    target_bytes: NDArray[np.int32]  # how much text each token adds
    source_bytes: NDArray[np.int32]


def align(document: str, target: Cut, source: Cut) -> Alignment:
    """Align the tokens of a document, and what ends it for both."""
    text = Text(document)
    end = QUARTERS * (len(document) + 1)
    held, seen = np.append(target.held(text), end), np.append(source.seen(text), end)
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


def _cluster(text: str, place: int) -> tuple[int, int]:
    """Return the first character of those around a place that a normaliser may join, and the one after the last."""
    first, end = place, place + 1
    while first and _joins(text, first):
        first -= 1
    while end < len(text) and _joins(text, end):
        end += 1
    return first, end


def _joins(text: str, place: int) -> bool:
    """Return whether a normaliser may join the character at a place to what is before it, or move it there."""
    before, here = text[max(place - 3, 0) : place], text[place]
    apart = unicodedata.normalize("NFKC", before) + unicodedata.normalize("NFKC", here)
    return bool(before) and (bool(unicodedata.combining(here)) or unicodedata.normalize("NFKC", before + here) != apart)


def same_vocabulary(source: Any, target: Any) -> None:
    """Raise a ModelError unless two models, or anything with `name` and `tokenizer`, cut every text alike."""
    first, second = tokenizer_facts(source.tokenizer), tokenizer_facts(target.tokenizer)
    if others := sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name)):
        raise ModelError(
            f"{source.name} and {target.name} have different tokenizers ({', '.join(others)}); choose models of one "
            f"tokenizer, {OTHERWISE}"
        )


def check_rows(source: Any, target: Any, rows: Int[Tensor, "b t"]) -> None:
    """Check that two models cut the text of rows, which are of the source, into the same tokens, and have them all."""
    if (largest := int(rows.max())) >= min(source.vocabulary, target.vocabulary):
        raise ModelError(f"the text holds {source.tokenizer.decode([largest])!r}, for which only one model has a row")
    if tokenizer_facts(source.tokenizer) == tokenizer_facts(target.tokenizer):
        return
    for text in source.tokenizer.batch_decode(rows, skip_special_tokens=True, clean_up_tokenization_spaces=False):
        mine, theirs = (model.tokenizer(text, add_special_tokens=False)["input_ids"] for model in (source, target))
        if mine != theirs:
            place = next(place for place, (own, other) in enumerate(zip_longest(mine, theirs)) if own != other)
            pieces = [repr(model.tokenizer.decode(ids[place : place + 3]))
                      for model, ids in ((source, mine), (target, theirs))]  # fmt: skip
            raise ModelError(
                f"{source.name} and {target.name} cut a text into different tokens: where one has {pieces[0]}, the "
                f"other has {pieces[1]}; choose models that cut texts alike, {OTHERWISE}"
            )


def check_alignable(source: Any, target: Any) -> None:
    """Check that two models, or anything with `name` and `tokenizer`, read the same letters, however they cut them."""
    for model in (source, target):
        if not getattr(model.tokenizer, "is_fast", False):
            raise ModelError(f"the tokenizer of {model.name} is not a fast one (tokenizer.json): it knows no offsets")
    for word in PROBES:
        mine, theirs = (_as_read(model.tokenizer, word) for model in (source, target))
        if mine != theirs:
            raise ModelError(
                f"{source.name} reads {word!r} as {mine!r} and {target.name} as {theirs!r}, so their texts cannot be "
                "aligned; choose models that read letters alike"
            )


def _as_read(tokenizer: Any, word: str) -> str:
    """Return a word as a tokenizer's normaliser writes it, without added spaces."""
    read = word
    if normalizer := tokenizer.backend_tokenizer.normalizer:
        read = normalizer.normalize_str(word)
        with contextlib.suppress(KeyError, UnicodeDecodeError):  # it may write bytes as a byte-level tokenizer does
            read = bytes(BYTE_OF[character] for character in read).decode()
    return "".join(unicodedata.normalize("NFKC", read).replace("▁", " ").split())
