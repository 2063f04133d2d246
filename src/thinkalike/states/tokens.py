"""States of models at the tokens of shared rows."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.config import DataConfig
from thinkalike.data.documents import beginning, group_of
from thinkalike.data.splits import DocumentSplit
from thinkalike.data.words import Span, is_unspaced, word_spans
from thinkalike.errors import DataError
from thinkalike.measures.estimates import seeded
from thinkalike.models.families import EMBED, Layer, Place
from thinkalike.states.folder import StateFolder, folder_of_rows
from thinkalike.states.source import AnyLayer, StateSource, TextReader, WordReader

log = logging.getLogger(__name__)
WORDS_AT_ONCE = 128  # of a piece of text, at most
SPREAD = 4  # times as much text is read as is compared, so that it is of more documents
LONGEST = 4096  # bytes of a document, as long as there are enough of them


def sites(
    model: StateSource, embed: bool = False, layers: Iterable[int] | None = None
) -> list[Layer]:
    """Return these layers of a model at its sites, by default all, before them EMBED if asked for."""
    before: list[Layer] = [EMBED] if embed else []
    return [*before, *model.sites_at(model.layers if layers is None else layers)]


def site_numbers(sites: Iterable[Layer]) -> list[Any]:
    """Return what tables call sites: numbers of layers, where -1 stands for EMBED, or names if there are several."""
    listed = list(sites)
    if len({(site.site, site.head) for site in listed if isinstance(site, Place)}) > 1:
        return [*map(str, listed)]
    return [-1 if site == EMBED else int(site) for site in listed]


def counted(
    rows: Int[Tensor, "b t"], skip_first: int = 0, special: Iterable[int] = ()
) -> Bool[Tensor, "b t"]:
    """Return which tokens count: not the first few of a row, and none of these special ones."""
    kept = ~torch.isin(rows, torch.tensor(sorted(special), dtype=rows.dtype))
    kept[:, :skip_first] = False
    return kept


@dataclass(frozen=True)
class Pieces:
    """Stretches of text that fit into every model's context, with the words of each and the number of its document.

    Attributes:
        left_out: the words that are not there as a token of some model goes on beyond them.
    """

    texts: list[str]
    words: list[list[Span]]
    documents: list[int] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

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
        return torch.tensor(self.documents).repeat_interleave(
            torch.tensor([len(spans) for spans in self.words])
        )

    def chosen(self, numbers: Int[Tensor, " u"]) -> Pieces:
        own = numbers.tolist()
        return Pieces(
            [self.texts[n] for n in own],
            [self.words[n] for n in own],
            [self.documents[n] for n in own],
        )


def pieces(texts: Iterable[str], models: Sequence[TextReader], words: int) -> Pieces:
    """Return the first texts, of at least `words` words if there are so many, in pieces that fit into all models.

    Words beyond which a token of some model goes on are left out, see `has_own_state`.
    """
    found, left, numbers = Pieces([], [], []), words, dict[object, int]()
    for place, text in enumerate(texts):
        number = numbers.setdefault(group_of(text) or place, len(numbers))
        spans = word_spans(text)
        for start in range(0, len(spans), WORDS_AT_ONCE):
            for piece in _fitting(text, spans[start : start + WORDS_AT_ONCE], models):
                found.left_out.extend(piece.left_out)
                if not piece.words:
                    continue
                found.texts.append(piece.text)
                found.words.append(piece.words)
                found.documents.append(number)
                left -= len(piece.words)
                if left <= 0:
                    return found
    return found


def pieces_of_rows(folder: StateFolder, models: Sequence[TextReader], words: int) -> Pieces:
    """Return rows of a folder of states as pieces of text, drawn until they have so many words, or all rows.

    A row is a piece as it is, since there are no states of a part of it.
    """
    found = Pieces([], [], [])
    numbers: list[int] = []
    for row in torch.randperm(len(folder.rows), generator=seeded(0)).tolist():
        text = folder.text(row)
        spans = word_spans(text)
        read = _read_by(models, text)
        for model, tokens, _ in read:
            if len(tokens) > model.context:
                raise DataError(
                    f"{folder.name} has a row of {len(tokens)} tokens of {model.name}, which reads {model.context}: "
                    "raise model.context, or write shorter rows by thinkalike.write_states(context=...)"
                )
        piece = _with_own_states(text, spans, read)
        found.left_out.extend(piece.left_out)
        if piece.words:
            found.texts.append(piece.text)
            found.words.append(piece.words)
            found.documents.append(folder.rows.rows[row].document)
            numbers.append(row)
        if found.count >= words:
            break
    in_order = torch.tensor(numbers, dtype=torch.long).argsort()
    return replace(found.chosen(in_order), left_out=found.left_out)


def held_out_texts(config: DataConfig) -> Iterator[str]:
    """Yield the documents of a report of words, which nothing is fitted on, in order and without copies."""
    return (text for text, for_report in DocumentSplit(config, is_fitted=False) if for_report)


def drawn_pieces(data: DataConfig, models: Sequence[TextReader], words: int) -> Pieces:
    """Return pieces of at least so many held-out words, drawn from `SPREAD` times as many, so of more documents.

    Documents are their first `LONGEST` bytes, as long as there are enough of them.
    """
    if data.source == "states":
        found = pieces_of_rows(folder_of_rows(data, models), models, words)
    else:
        found = pieces(
            (beginning(text, LONGEST) for text in held_out_texts(data)), models, SPREAD * words
        )
        if found.count < words:
            found = pieces(held_out_texts(data), models, SPREAD * words)
    _say_which(found, data, models)
    order = torch.randperm(len(found.texts), generator=seeded(0))
    counts = torch.tensor([len(found.words[place]) for place in order])
    return found.chosen(order[: int((counts.cumsum(0) < words).sum()) + 1].sort().values)


def _say_which(found: Pieces, data: DataConfig, models: Sequence[TextReader]) -> None:
    """Say which words are characters, and how many are left out; that all are is a DataError."""
    words = [
        text[start:stop]
        for text, spans in zip(found.texts, found.words, strict=True)
        for start, stop in spans
    ]
    every = len(words) + len(found.left_out)
    if characters := [word for word in (*words, *found.left_out) if is_unspaced(word)]:
        log.warning(
            f"warning: data {data.name}: {len(characters)} of {every} words ({_percent(len(characters), every)}) are "
            f"single characters, such as {characters[0]!r}, as their script puts no white space between words"
        )
    if not found.left_out:
        return
    names = " or ".join(dict.fromkeys(model.name for model in models))
    cause = f"a token of {names} goes on beyond them, such as {found.left_out[0]!r}"
    if not words:
        raise DataError(
            f"data {data.name}: all {every} words are left out, as {cause}; choose other models or text"
        )
    share = _percent(len(found.left_out), every)
    log.warning(
        f"warning: data {data.name}: {len(found.left_out)} of {every} words ({share}) are left out, as {cause}"
    )


def _percent(count: int, every: int) -> str:
    share = 100 * count / every
    return f"{share:{'.1g' if share < 9.5 else '.0f'}} %"


class _Piece(NamedTuple):
    text: str
    words: list[Span]
    left_out: list[str]


def _fitting(text: str, spans: list[Span], models: Sequence[TextReader]) -> Iterator[_Piece]:
    """Yield a text in halves that fit into all models.

    Each has the words that have a state of their own in all of them.
    """
    first = spans[0][0]
    piece, words = (
        text[first : spans[-1][1]],
        [(start - first, stop - first) for start, stop in spans],
    )
    read = _read_by(models, piece)
    too_short = [model for model, tokens, _ in read if len(tokens) > model.context]
    if not too_short:
        yield _with_own_states(piece, words, read)
    elif len(spans) == 1:
        found = f"the word {piece[:40]!r} is longer than the context of {too_short[0].name}"
        raise DataError(
            f"{found}: choose a text that both models are made for, data=NAME, or raise model.context"
        )
    else:
        for half in (spans[: len(spans) // 2], spans[len(spans) // 2 :]):
            yield from _fitting(text, half, models)


def _read_by(
    models: Sequence[TextReader], text: str
) -> list[tuple[TextReader, list[int], list[Span]]]:
    """Return for each model the tokens of a text, and the characters of each."""
    return [(model, *model.encoded(text)) for model in models]


def _with_own_states(
    text: str, words: list[Span], read: Sequence[tuple[TextReader, list[int], list[Span]]]
) -> _Piece:
    """Return a text with those of its words that have a state of their own in all models."""
    owned = [has_own_state(text, words, offsets, model.name) for model, _, offsets in read]
    is_kept = (
        [all(of_models) for of_models in zip(*owned, strict=True)]
        if owned
        else [True] * len(words)
    )
    kept = [word for word, is_own in zip(words, is_kept, strict=True) if is_own]
    left_out = [
        text[slice(*word)] for word, is_own in zip(words, is_kept, strict=True) if not is_own
    ]
    return _Piece(text, kept, left_out)


class WordStates(NamedTuple):
    """States of words by layer, and which of the words they are of."""

    states: list[Float[Tensor, "kept d"]]
    has_own: Bool[Tensor, " words"]


def word_states(
    model: WordReader[AnyLayer],
    batch: Pieces,
    at: Sequence[AnyLayer] | None = None,
    token: str = "last",
) -> list[Float[Tensor, "words d"]]:
    """Return the states of all words of a batch that have one of their own; a warning says how many have none.

    See `states_of_words`; `pieces` gives words that all have one.
    """
    states, has_own = states_of_words(model, batch, at, token)
    if not has_own.all():
        missing = int((~has_own).sum())
        log.warning(
            f"warning: {missing} of {len(has_own)} words are left out, as a token of {model.name} goes on beyond them"
        )
    return states


@torch.no_grad()
def states_of_words(
    model: WordReader[AnyLayer],
    batch: Pieces,
    at: Sequence[AnyLayer] | None = None,
    token: str = "last",
) -> WordStates:
    """Return the states of the words of a batch at some layers of a model, by default all: those of their last tokens.

    With token="first" they are those of their first tokens, of a whole text of the first of all, such as [CLS]; with
    token="mean" the means over their tokens. A text has the special tokens that its tokenizer gives it, and BOS before
    it if the model expects that. Words without a state of their own have none, see `has_own_state`.
    """
    encoded = [model.encoded(text) for text in batch.texts]
    longest = max(len(tokens) for tokens, _ in encoded)
    tokens, mask = torch.zeros(2, len(encoded), longest, dtype=torch.long)
    chosen: list[tuple[int, int]] = []  # the first and the last token of each word
    has_own: list[bool] = []
    for row, (numbers, offsets) in enumerate(encoded):
        tokens[row, : len(numbers)], mask[row, : len(numbers)] = torch.tensor(numbers), 1
        text, words = batch.texts[row], batch.words[row]
        ends = last_tokens(text, words, offsets, model.name)
        starts = ends if token == "last" else _first_tokens(text, words, offsets, token)
        chosen += [
            (row * longest + start, row * longest + end)
            for start, end in zip(starts, ends, strict=True)
        ]
        has_own += has_own_state(text, words, offsets, model.name, token)
    layers = at if at is not None else cast(Sequence[AnyLayer], sites(cast(StateSource, model)))
    kept = torch.tensor(has_own, dtype=torch.bool)
    chosen = [place for place, is_own in zip(chosen, has_own, strict=True) if is_own]
    states = [state.flatten(0, 1) for state in model.residuals(tokens, layers, mask)]
    if not chosen:
        return WordStates([state[:0] for state in states], kept)
    if token == "mean":
        means = [
            torch.stack([state[start : end + 1].mean(0) for start, end in chosen])
            for state in states
        ]
        return WordStates(means, kept)
    places = torch.tensor([each[token == "last"] for each in chosen], device=model.device)
    return WordStates([state[places] for state in states], kept)


def has_own_state(
    text: str, words: Sequence[Span], offsets: Sequence[Span], name: str, token: str = "last"
) -> list[bool]:
    """Return of each word whether its state tells of nothing that follows, and of no word beside it.

    The last token of a word may hold letters after it, as `cannot` does of `can`, or as tokens of several words do: its
    state is then that of a longer text. So may the first token hold letters before it, which matters where states are
    of first tokens or of all of them. Two words of one last token, as punctuation may be, have the state of the later.
    """
    ends = last_tokens(text, words, offsets, name)
    starts = ends if token == "last" else _first_tokens(text, words, offsets, token)
    furthest: dict[int, int] = {}
    for (_, stop), end in zip(words, ends, strict=True):
        furthest[end] = max(furthest.get(end, 0), stop)
    found = []
    for (begin, stop), first, last in zip(words, starts, ends, strict=True):
        checked = {"last": (last,), "first": (first,)}.get(token, (first, last))
        after = "".join(text[stop : offsets[number][1]] for number in checked)
        before = "" if token == "last" else text[offsets[first][0] : begin]
        is_shared = token != "first" and stop < furthest[last]
        found.append(not (is_shared or any(character.isalnum() for character in before + after)))
    return found


def _first_tokens(
    text: str, words: Sequence[Span], offsets: Sequence[Span], token: str
) -> list[int]:
    """Return for each word the number of the first token that holds a character of it; 0 for the first of a text."""
    whole = (0, len(text)) if token == "first" else None
    held = [(number, start, stop) for number, (start, stop) in enumerate(offsets) if start < stop]
    return [
        0
        if word == whole
        else next(number for number, start, stop in held if start < word[1] and word[0] < stop)
        for word in words
    ]


def last_tokens(text: str, words: Sequence[Span], offsets: Sequence[Span], name: str) -> list[int]:
    """Return for each word the number of the last token that holds a character of it, by the characters of each token.

    A normaliser may leave the last character out of all offsets, such as an accent that it composes or strips; what is
    read up to the last one that a token holds is then the whole word. The message of an error calls the model `name`.
    """
    owner = {
        place: number
        for number, (start, stop) in enumerate(offsets)
        for place in range(start, stop)
    }
    found = []
    for start, stop in words:
        held = next(
            (owner[place] for place in range(stop - 1, start - 1, -1) if place in owner), None
        )
        if held is None:
            raise DataError(
                f"{name}: no token holds the word {text[start:stop]!r} in: {text[:200]}"
            )
        found.append(held)
    return found
