"""States of models at the tokens of shared rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.config import DataConfig
from thinkalike.data.documents import Sides, beginning, group_of
from thinkalike.errors import DataError
from thinkalike.measures.estimates import seeded
from thinkalike.models.families import EMBED, Layer, Place
from thinkalike.models.frozen import FrozenModel

Span = tuple[int, int]  # characters: first, one past the last
WORDS_AT_ONCE = 128  # of a piece of text, at most
READ_AHEAD = 512  # documents of a hub set that are read before the first of them is given out
SPREAD = 4  # times as much text is read as is compared, so that it is of more documents
LONGEST = 4096  # bytes of a document, as long as there are enough of them


def sites(model: FrozenModel, embed: bool = False, layers: Iterable[int] | None = None) -> list[Layer]:
    """Return these layers of a model at its sites, by default all, before them EMBED if asked for."""
    before: list[Layer] = [EMBED] if embed else []
    chosen = range(model.n_layers) if layers is None else layers
    return [*before, *(model.sites.at(chosen) if model.sites else chosen)]


def site_numbers(sites: Iterable[Layer]) -> list[Any]:
    """Return what tables call sites: numbers of layers, where -1 stands for EMBED, or names if there are several."""
    listed = list(sites)
    if len({(site.site, site.head) for site in listed if isinstance(site, Place)}) > 1:
        return [*map(str, listed)]
    return [-1 if site == EMBED else int(site) for site in listed]


def counted(rows: Int[Tensor, "b t"], skip_first: int = 0, special: Iterable[int] = ()) -> Bool[Tensor, "b t"]:
    """Return which tokens count: not the first few of a row, and none of these special ones."""
    kept = ~torch.isin(rows, torch.tensor(sorted(special), dtype=rows.dtype))
    kept[:, :skip_first] = False
    return kept


@runtime_checkable
class TextReader(Protocol):
    """What decides how much text fits into a row of a model."""

    @property
    def name(self) -> str: ...
    @property
    def tokenizer(self) -> Any: ...
    @property
    def context(self) -> int: ...


class _LengthLimit(NamedTuple):
    name: str
    tokenizer: Any
    context: int


def text_reader(model: TextReader) -> TextReader:
    """Return what decides how much text fits into a row of a model, without the model's weights."""
    return _LengthLimit(model.name, model.tokenizer, model.context)


@dataclass(frozen=True)
class Pieces:
    """Stretches of text that fit into every model's context, with the words of each and the number of its document."""

    texts: list[str]
    words: list[list[Span]]
    documents: list[int] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(map(len, self.words))

    @property
    def forms(self) -> Int[Tensor, " words"]:
        """A number for the form of each word, as it is written; equal words have equal numbers."""
        numbers: dict[str, int] = {}
        parts = zip(self.texts, self.words, strict=True)
        words = [text[start:stop] for text, spans in parts for start, stop in spans]
        return torch.tensor([numbers.setdefault(word, len(numbers)) for word in words])

    @property
    def owners(self) -> Int[Tensor, " words"]:
        """The number of the document of each word."""
        return torch.tensor(self.documents).repeat_interleave(torch.tensor([len(spans) for spans in self.words]))

    def chosen(self, numbers: Int[Tensor, " u"]) -> Pieces:
        own = numbers.tolist()
        return Pieces([self.texts[n] for n in own], [self.words[n] for n in own], [self.documents[n] for n in own])


def pieces(texts: Iterable[str], models: Sequence[TextReader], words: int) -> Pieces:
    """Return the first texts, of at least `words` words if there are so many, in pieces that fit into all models."""
    found, left, numbers = Pieces([], [], []), words, dict[object, int]()
    for place, text in enumerate(texts):
        number = numbers.setdefault(group_of(text) or place, len(numbers))
        spans = [match.span() for match in re.finditer(r"\S+", text)]
        for start in range(0, len(spans), WORDS_AT_ONCE):
            for part in _fitting(text, spans[start : start + WORDS_AT_ONCE], models):
                first, last = part[0][0], part[-1][1]
                found.texts.append(text[first:last])
                found.words.append([(a - first, b - first) for a, b in part])
                found.documents.append(number)
                left -= len(part)
                if left <= 0:
                    return found
    return found


def held_out_texts(config: DataConfig) -> Iterator[str]:
    """Yield the documents that nothing is fitted on, in order and without copies.

    Those of a set of the hub are compared with all documents to fit on up to `READ_AHEAD` documents further.
    """
    sides = Sides(config)
    reading, given = iter(sides), 0
    if sides.settled:
        yield from (text for text, for_report in reading if for_report)
        return
    while batch := list(islice(reading, READ_AHEAD)):
        held_out = [text for text, for_report in batch if for_report]
        yield from (text for text, gone in zip(held_out, sides.repeats(given), strict=True) if not gone)
        given += len(held_out)


def drawn_pieces(data: DataConfig, models: Sequence[TextReader], words: int) -> Pieces:
    """Return pieces of at least so many held-out words, drawn from `SPREAD` times as many, so of more documents.

    Documents are their first `LONGEST` bytes, as long as there are enough of them.
    """
    found = pieces((beginning(text, LONGEST) for text in held_out_texts(data)), models, SPREAD * words)
    if found.count < words:
        found = pieces(held_out_texts(data), models, SPREAD * words)
    order = torch.randperm(len(found.texts), generator=seeded(0))
    counts = torch.tensor([len(found.words[place]) for place in order])
    return found.chosen(order[: int((counts.cumsum(0) < words).sum()) + 1].sort().values)


def _fitting(text: str, spans: list[Span], models: Sequence[TextReader]) -> Iterator[list[Span]]:
    piece = text[spans[0][0] : spans[-1][1]]
    too_short = [model for model in models if len(model.tokenizer(piece, verbose=False)["input_ids"]) > model.context]
    if not too_short:
        yield spans
    elif len(spans) == 1:
        found = f"the word {piece[:40]!r} is longer than the context of {too_short[0].name}"
        raise DataError(f"{found}: choose a text that both models are made for, data=NAME, or raise model.context")
    else:
        for half in (spans[: len(spans) // 2], spans[len(spans) // 2 :]):
            yield from _fitting(text, half, models)


@torch.no_grad()
def word_states(
    model: FrozenModel, batch: Pieces, at: Sequence[Layer] | None = None, token: str = "last"
) -> list[Float[Tensor, "words d"]]:
    """Return the states of all words of a batch at some layers of a model, by default all: those of their last tokens.

    With token="first" they are those of their first tokens, of a whole text of the first of all, such as [CLS]; with
    token="mean" the means over their tokens. A text has the special tokens that its tokenizer gives it, and BOS before
    it if the model expects that.
    """
    encoded = [_encoded(model, text) for text in batch.texts]
    longest = max(len(tokens) for tokens, _ in encoded)
    tokens, mask = torch.zeros(2, len(encoded), longest, dtype=torch.long)
    chosen: list[tuple[int, int]] = []  # the first and the last token of each word
    for row, (numbers, offsets) in enumerate(encoded):
        tokens[row, : len(numbers)], mask[row, : len(numbers)] = torch.tensor(numbers), 1
        ends = last_tokens(batch.texts[row], batch.words[row], offsets, model.name)
        starts = ends if token == "last" else _first_tokens(batch.texts[row], batch.words[row], offsets, token)
        chosen += [(row * longest + start, row * longest + end) for start, end in zip(starts, ends, strict=True)]
    states = [state.flatten(0, 1) for state in model.residuals(tokens, at or sites(model), mask)]
    if token == "mean":
        return [torch.stack([state[start : end + 1].mean(0) for start, end in chosen]) for state in states]
    places = torch.tensor([each[token == "last"] for each in chosen], device=model.device)
    return [state[places] for state in states]


def _encoded(model: FrozenModel, text: str) -> tuple[list[int], list[Span]]:
    """Return tokens and the characters of each; special tokens have none."""
    encoded = model.tokenizer(text, return_offsets_mapping=True, verbose=False)
    numbers, offsets, bos = encoded["input_ids"], encoded["offset_mapping"], model.tokenizer.bos_token_id
    if model.bos_each_row and bos is not None and numbers[:1] != [bos]:
        return [bos, *numbers], [(0, 0), *offsets]
    return numbers, offsets


def _first_tokens(text: str, words: Sequence[Span], offsets: Sequence[Span], token: str) -> list[int]:
    """Return for each word the number of the first token that holds a character of it; 0 for the first of a text."""
    whole = (0, len(text)) if token == "first" else None
    held = [(number, start, stop) for number, (start, stop) in enumerate(offsets) if start < stop]
    return [
        0 if word == whole else next(number for number, start, stop in held if start < word[1] and word[0] < stop)
        for word in words
    ]


def last_tokens(text: str, words: Sequence[Span], offsets: Sequence[Span], name: str) -> list[int]:
    """Return for each word the number of the last token that holds a character of it, by the characters of each token.

    A normaliser may leave the last character out of all offsets, such as an accent that it composes or strips; what is
    read up to the last one that a token holds is then the whole word. The message of an error calls the model `name`.
    """
    owner = {place: number for number, (start, stop) in enumerate(offsets) for place in range(start, stop)}
    found = []
    for start, stop in words:
        held = next((owner[place] for place in range(stop - 1, start - 1, -1) if place in owner), None)
        if held is None:
            raise DataError(f"{name}: no token holds the word {text[start:stop]!r} in: {text[:200]}")
        found.append(held)
    return found
