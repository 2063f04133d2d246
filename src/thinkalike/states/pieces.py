"""Stretches of held-out text that fit into every model's context, with the words of each."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from thinkalike.advice import named_setting, text_label
from thinkalike.config import DataConfig
from thinkalike.data.documents import beginning, group_of
from thinkalike.data.splits import DocumentSplit
from thinkalike.data.words import Span, is_unspaced, word_spans
from thinkalike.errors import DataError
from thinkalike.measures.seeds import seeded
from thinkalike.states.folder import StateFolder, folder_of_rows
from thinkalike.states.source import TextReader
from thinkalike.states.spans import has_own_state

log = logging.getLogger(__name__)

WORDS_PER_PIECE = 128
"""The most words of a piece."""

TIMES_AS_MUCH_TEXT = 4
"""So many times as much text is read as is compared, so that it is of more documents."""

MOST_DOCUMENT_BYTES = 4096
"""How much of a document is read, as long as there are enough documents."""


@dataclass(frozen=True)
class Pieces:
    """Stretches of text, with the words of each and the number of its document."""

    texts: list[str]

    words: list[list[Span]]
    """The characters of each word, for each text."""

    documents: list[int] = field(default_factory=list)

    left_out: list[str] = field(default_factory=list)
    """The words that are left out because a token of some model goes on beyond them."""

    @property
    def count(self) -> int:
        """The number of words."""
        return sum(len(spans) for spans in self.words)

    def written_words(self) -> list[str]:
        """Return the words of all texts as strings, in the order of the texts."""
        written = []
        for text, spans in zip(self.texts, self.words, strict=True):
            written += [text[start:stop] for start, stop in spans]
        return written

    @property
    def forms(self) -> Int[Tensor, " words"]:
        """A number for each word, in the order of the texts; equal words have equal numbers."""
        number_of_form: dict[str, int] = {}
        form_numbers = []
        for word in self.written_words():
            form_numbers.append(number_of_form.setdefault(word, len(number_of_form)))
        return torch.tensor(form_numbers)

    @property
    def owners(self) -> Int[Tensor, " words"]:
        """The number of the document of each word."""
        counts = torch.tensor([len(spans) for spans in self.words])
        return torch.tensor(self.documents).repeat_interleave(counts)

    def select(self, indices: Int[Tensor, " u"]) -> Pieces:
        """Return the texts with these indices, in the order of the indices.

        Their `left_out` is empty, since words that are left out are listed for all texts together.
        """
        selected = indices.tolist()
        return Pieces(
            [self.texts[index] for index in selected],
            [self.words[index] for index in selected],
            [self.documents[index] for index in selected],
        )


class _Piece(NamedTuple):
    """A text with the words that have a state of their own, and those that have none."""

    text: str
    words: list[Span]
    left_out: list[str]


class _EncodedText(NamedTuple):
    """A text as a model reads it: its tokens, and the characters of each."""

    model: TextReader
    tokens: list[int]
    offsets: list[Span]


def pieces_of_texts(texts: Iterable[str], models: Sequence[TextReader], word_count: int) -> Pieces:
    """Cut texts into pieces that fit into the context of each model, until there are enough words.

    Words whose last token, in some model, also holds letters after the word are left out, because
    their state is not theirs alone. A piece is dropped if none of its words is left.

    Args:
        texts: Documents. Those of one group count as one document.
        models: The models that read the pieces.
        word_count: How many words the pieces have at least, if the texts have so many.

    Raises:
        DataError: A word is longer than the context of a model.
    """
    pieces = Pieces([], [], [])
    words_needed = word_count
    document_numbers: dict[object, int] = {}
    for position, text in enumerate(texts):
        group = group_of(text) or position  # a text without a group is one by itself
        document = document_numbers.setdefault(group, len(document_numbers))
        for piece in _pieces_of_text(text, models):
            pieces.left_out.extend(piece.left_out)
            if not piece.words:
                continue
            pieces.texts.append(piece.text)
            pieces.words.append(piece.words)
            pieces.documents.append(document)
            words_needed -= len(piece.words)
            if words_needed <= 0:
                return pieces
    return pieces


def _pieces_of_text(text: str, models: Sequence[TextReader]) -> Iterator[_Piece]:
    """Yield a text in pieces of at most `WORDS_PER_PIECE` words that all models can read."""
    spans = word_spans(text)
    for start in range(0, len(spans), WORDS_PER_PIECE):
        yield from _fitting_pieces(text, spans[start : start + WORDS_PER_PIECE], models)


def _fitting_pieces(
    text: str, spans: list[Span], models: Sequence[TextReader]
) -> Iterator[_Piece]:
    """Yield the part of a text that has these words, in pieces that fit into each model's context.

    A part that is too long is halved, as often as needed.

    Args:
        text: The text.
        spans: The span of each word; there is at least one.
        models: The models that read the pieces.

    Raises:
        DataError: A single word does not fit into a model.
    """
    piece_start = spans[0][0]
    piece_stop = spans[-1][1]
    piece_text = text[piece_start:piece_stop]
    words = [(start - piece_start, stop - piece_start) for start, stop in spans]
    encodings = _encoded_by(models, piece_text)
    model_that_cannot_read = None
    for encoding in encodings:
        if len(encoding.tokens) > encoding.model.context:
            model_that_cannot_read = encoding.model
            break
    if model_that_cannot_read is None:
        yield _with_own_states(piece_text, words, encodings)
        return
    if len(spans) == 1:
        raise DataError(
            f"the word {piece_text[:40]!r} is longer than the context of "
            f"{model_that_cannot_read.name}: leave it out, or choose a text that both models are "
            f"made for, {named_setting('data', like='NAME')}"
        )
    middle = len(spans) // 2
    yield from _fitting_pieces(text, spans[:middle], models)
    yield from _fitting_pieces(text, spans[middle:], models)


def _encoded_by(models: Sequence[TextReader], text: str) -> list[_EncodedText]:
    """Return the tokens of a text and their spans for each model, in the order of the models."""
    encodings = []
    for model in models:
        tokens, offsets = model.encoded(text)
        encodings.append(_EncodedText(model, tokens, offsets))
    return encodings


def _with_own_states(text: str, words: list[Span], encodings: Sequence[_EncodedText]) -> _Piece:
    """Return a text with its words divided into those to compare and those to leave out.

    A word is left out if, in some model, its last token also holds letters after the word, or is
    the last token of a later word as well: its state is then not that of the word alone.

    Args:
        text: The text.
        words: The span of each of its words.
        encodings: The tokens of the text in each model.
    """
    has_state_in_all = [True] * len(words)
    for encoding in encodings:
        has_state_in_model = has_own_state(text, words, encoding.offsets, encoding.model.name)
        for index, has_state in enumerate(has_state_in_model):
            has_state_in_all[index] &= has_state
    words_with_state = []
    left_out = []
    for (start, stop), has_state in zip(words, has_state_in_all, strict=True):
        if has_state:
            words_with_state.append((start, stop))
        else:
            left_out.append(text[start:stop])
    return _Piece(text, words_with_state, left_out)


def pieces_of_rows(folder: StateFolder, models: Sequence[TextReader], word_count: int) -> Pieces:
    """Draw rows of text from a folder of stored states, and return each row as a piece.

    Rows are not cut, because the states of a part of a row are not stored. Repeated rows are left
    out.

    Args:
        folder: The folder of states.
        models: The models and folders that read the rows.
        word_count: Rows are drawn until they have so many words, or until none is left.

    Raises:
        DataError: A row is longer than the context of a model.
    """
    pieces = Pieces([], [], [])
    row_numbers: list[int] = []
    for row in folder.shuffled_rows().tolist():
        text = folder.text(row)
        encodings = _encoded_by(models, text)
        for encoding in encodings:
            length = len(encoding.tokens)
            name = encoding.model.name
            if length > encoding.model.context:
                raise DataError(
                    f"{folder.name} has a row of {length} tokens of {name}, which reads "
                    f"{encoding.model.context}: write shorter rows by "
                    "thinkalike.write_states(context=...)"
                )
        piece = _with_own_states(text, word_spans(text), encodings)
        pieces.left_out.extend(piece.left_out)
        if piece.words:
            pieces.texts.append(piece.text)
            pieces.words.append(piece.words)
            pieces.documents.append(folder.rows.rows[row].document)
            row_numbers.append(row)
        if pieces.count >= word_count:
            break
    # The rows were drawn at random. Return them in the order of the folder.
    order_of_rows = torch.tensor(row_numbers, dtype=torch.long).argsort()
    return replace(pieces.select(order_of_rows), left_out=pieces.left_out)


def held_out_texts(config: DataConfig) -> Iterator[str]:
    """Yield the documents for the evaluation of a job that fits nothing, without copies."""
    for text, is_for_evaluation in DocumentSplit(config, is_fitted=False):
        if is_for_evaluation:
            yield text


def drawn_pieces(data: DataConfig, models: Sequence[TextReader], word_count: int) -> Pieces:
    """Return pieces of held-out text, drawn at random.

    They are drawn from `TIMES_AS_MUCH_TEXT` times as many words as are needed, and at first only
    from the first `MOST_DOCUMENT_BYTES` of each document, so that they come from many documents.
    Whole documents are read if their beginnings have too few words.

    Args:
        data: The settings of the text.
        models: The models that read the pieces.
        word_count: How many words the pieces have at least, if the text has so many.

    Raises:
        DataError: All words are left out, or a word is longer than the context of a model.
    """
    if data.source == "states":
        pieces = pieces_of_rows(folder_of_rows(data, models), models, word_count)
    else:
        words_to_read = TIMES_AS_MUCH_TEXT * word_count
        # Whole documents are read only if their beginnings have too few words.
        beginnings = (beginning(text, MOST_DOCUMENT_BYTES) for text in held_out_texts(data))
        pieces = pieces_of_texts(beginnings, models, words_to_read)
        if pieces.count < word_count:
            pieces = pieces_of_texts(held_out_texts(data), models, words_to_read)
    _report_words(pieces, data, models)

    order = torch.randperm(len(pieces.texts), generator=seeded(0))
    counts = torch.tensor([len(pieces.words[index]) for index in order])
    # The pieces whose words are too few together, and one more that completes them.
    piece_count = int((counts.cumsum(0) < word_count).sum()) + 1
    return pieces.select(order[:piece_count].sort().values)


def _report_words(pieces: Pieces, data: DataConfig, models: Sequence[TextReader]) -> None:
    """Warn if words are single characters of scripts without spaces, or if words are left out.

    Args:
        pieces: The pieces of text.
        data: The settings of the text, for its name.
        models: The models that read it, for their names.

    Raises:
        DataError: All words are left out.
    """
    words = pieces.written_words()
    total = len(words) + len(pieces.left_out)
    characters = [word for word in [*words, *pieces.left_out] if is_unspaced(word)]
    if characters:
        share = percentage(len(characters), total)
        log.warning(
            f"warning: {text_label(data.name)}: {len(characters)} of {total} words ({share}) "
            f"are single characters, such as {characters[0]!r}, as their script puts no white "
            "space between words"
        )
    if not pieces.left_out:
        return
    names = " or ".join(dict.fromkeys(model.name for model in models))
    cause = f"a token of {names} goes on beyond them, such as {pieces.left_out[0]!r}"
    if not words:
        raise DataError(
            f"{text_label(data.name)}: all {total} words are left out, as {cause}; choose other "
            "models or text"
        )
    missing = len(pieces.left_out)
    share = percentage(missing, total)
    log.warning(
        f"warning: {text_label(data.name)}: {missing} of {total} words ({share}) are left out, "
        f"as {cause}"
    )


def percentage(count: int, total: int) -> str:
    """Return count / total in percent, such as "12 %".

    It has no decimals from 10 % on, and one significant digit below. `total` must not be 0.
    """
    percent = 100 * count / total
    # From 9.5 on, one significant digit would round to 1e+01.
    format_spec = ".1g" if percent < 9.5 else ".0f"
    return f"{percent:{format_spec}} %"
