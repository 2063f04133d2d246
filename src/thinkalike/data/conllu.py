"""Reads the words of CoNLL-U files (universaldependencies.org/format) as stimuli."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from thinkalike.data.sources import read_by_ending, whole_text
from thinkalike.data.stimuli import Kinds, Names, Stimuli, check_unique, select_names
from thinkalike.data.words import Span
from thinkalike.errors import DataError

WORD_LENGTH = "Word length"
WORD_POSITION = "Word position"

COLUMN_COUNT = 10
"""How many columns a line of CoNLL-U has."""

WORD_ID = re.compile(r"(\d{1,9})(?:([-.])(\d{1,9}))?")
"""The ID of a word (3), a multiword token (3-4), or an empty node (3.1)."""

SENTENCE_ID = re.compile(r"#\s*sent_id\s*=\s*(.*\S)")
"""The comment that gives the name of a sentence."""


def read_conllu(
    path: str | Path, *, features: Names = None, kinds: Kinds | None = None
) -> Stimuli:
    """Read the words of a CoNLL-U file with UPOS, all FEATS, length and position.

    The text of a sentence is put together from its forms. Each word of a multiword token has a
    part of its characters if they spell it (don't = do + n't), and otherwise all of them (du = de
    + le). Empty nodes are left out.

    Args:
        path: The file.
        features: Names such as UPOS and Number; None takes all.
        kinds: The kinds that values do not show, see `Stimuli`.

    Raises:
        DataError: The file cannot be read or is empty, a line is malformed, or a feature has one
            level.
    """
    text = read_by_ending(Path(path), {".conllu": whole_text})
    sentences = list(_sentences_in(path, text.split("\n")))  # splitlines would cut at U+2028, too
    if not sentences:
        raise DataError(f"{path} has no line of a word")

    words: list[str] = []
    spans: list[Span] = []
    rows: list[dict[str, str | int | None]] = []
    ids: list[str] = []
    for number, sentence in enumerate(sentences, 1):
        words += sentence.words
        spans += sentence.spans
        rows += sentence.features
        name = sentence.name or number
        ids += [f"{name}:{position}" for position in range(1, len(sentence.words) + 1)]

    all_names = {name for row in rows for name in row}
    morphological = sorted(all_names - {"UPOS", WORD_LENGTH, WORD_POSITION})
    available = ["UPOS", *morphological, WORD_LENGTH, WORD_POSITION]
    names = select_names(path, features, available)
    check_unique(path, "feature", names)
    table = pd.DataFrame([{name: row.get(name) for name in names} for row in rows])
    words_per_sentence = [len(sentence.words) for sentence in sentences]
    stimuli = Stimuli(
        texts=[sentence.text.rstrip(" ") for sentence in sentences],
        sentence=np.repeat(np.arange(len(sentences)), words_per_sentence),
        span=spans,
        words=words,
        features=table,
        kinds=kinds or {},
        ids=ids,
        source=str(path),
    )
    stimuli.check_features_vary()
    return stimuli


class _MultiwordToken(NamedTuple):
    """A token of several words, such as "don't"."""

    first_word: int
    """The ID of its first word, from 1."""

    last_word: int
    """The ID of its last word."""

    span: Span


@dataclass
class _Sentence:
    """A sentence that is read line by line."""

    name: str = ""
    text: str = ""
    words: list[str] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    features: list[dict[str, str | int | None]] = field(default_factory=list)
    multiword_tokens: list[_MultiwordToken] = field(default_factory=list)

    def add(self, line: str) -> None:
        """Read the line of a word, of a multiword token or of an empty node.

        Raises:
            ValueError: The line is malformed.
        """
        columns = line.split("\t")
        if len(columns) != COLUMN_COUNT:
            count = "1 column" if len(columns) == 1 else f"{len(columns)} columns"
            raise ValueError(
                f"it has {count}, and CoNLL-U has {COLUMN_COUNT}, divided by single tabs"
            )
        # The columns are ID, FORM, LEMMA, UPOS, XPOS, FEATS, HEAD, DEPREL, DEPS and MISC.
        number, form, _, upos, _, feats, _, _, _, misc = columns
        word_id = WORD_ID.fullmatch(number)
        is_empty_node = word_id is not None and word_id[2] == "."
        if is_empty_node:
            return
        next_word = len(self.words) + 1
        last_covered = 0  # by a multiword token
        if self.multiword_tokens:
            last_covered = self.multiword_tokens[-1].last_word
        if not form:
            raise ValueError(
                f"the word with the ID {number[:40]} has no form, which is the second column"
            )
        if word_id is None or int(word_id[1]) != next_word:
            raise _unexpected_id(number, form, next_word)
        # The last word of a multiword token such as 3-4; None for a single word.
        last_word = int(word_id[3]) if word_id[2] else None
        # A multiword token begins behind the one before, and covers at least two words.
        if last_word is not None and not last_covered < next_word < last_word:
            raise _unexpected_id(number, form, next_word)

        span = (len(self.text), len(self.text) + len(form))
        is_covered = next_word <= last_covered
        if not is_covered:
            self.text += form
            if "SpaceAfter=No" not in misc.split("|"):
                self.text += " "
        if last_word is not None:
            self.multiword_tokens.append(_MultiwordToken(next_word, last_word, span))
            return
        self.words.append(form)
        self.spans.append(self.multiword_tokens[-1].span if is_covered else span)
        features = _parse_features(feats)
        features["UPOS"] = None if upos == "_" else upos
        features[WORD_LENGTH] = len(form)
        features[WORD_POSITION] = next_word - 1
        self.features.append(features)

    def end(self) -> None:
        """Finish the sentence: give each word of a multiword token its own span where possible.

        If the forms of the words, joined, are the token (do + n't = don't), each word gets its
        part of the characters. Otherwise (de + le = du) they keep the span of the whole token.

        Raises:
            ValueError: The sentence ends within a multiword token.
        """
        for token in self.multiword_tokens:
            if len(self.words) < token.last_word:
                raise ValueError(
                    f"the sentence ends within the multiword token {token.first_word}-"
                    f"{token.last_word}"
                )
            first_index = token.first_word - 1
            forms = self.words[first_index : token.last_word]
            start, stop = token.span
            if "".join(forms) == self.text[start:stop]:
                # For do + n't from character 10 on: 10, 12 and 15, and so (10, 12) and (12, 15).
                boundaries = accumulate(map(len, forms), initial=start)
                self.spans[first_index : token.last_word] = pairwise(boundaries)


def _unexpected_id(number: str, form: str, next_word: int) -> ValueError:
    """Return the error for a word whose ID is not the next number of its sentence.

    Args:
        number: The ID as it is written.
        form: The form of the word.
        next_word: The number that the ID should be.
    """
    return ValueError(
        f"the ID is {number[:40]} of {form!r} where {next_word} is due; empty lines divide "
        "sentences"
    )


def _parse_features(feats: str) -> dict[str, str | int | None]:
    """Return the morphological features of a word by name; "_" stands for no features.

    Args:
        feats: The column FEATS, such as "Case=Nom|Number=Sing".

    Raises:
        ValueError: The column is malformed, or a feature has the name of one of the features that
            every word has, such as "UPOS".
    """
    if feats == "_":
        return {}
    features: dict[str, str | int | None] = {}
    for pair in feats.split("|"):
        name, _, value = pair.partition("=")
        if not name or not value or "=" in value or name in features:
            raise ValueError(
                f"FEATS {feats!r} are not Name=Value|Name=Value with different names, or _ for "
                "none"
            )
        features[name] = value
    reserved = features.keys() & {"UPOS", WORD_LENGTH, WORD_POSITION}
    if reserved:
        raise ValueError(
            f"FEATS {feats!r} name {min(reserved)}, which is a feature of its own; rename it in "
            "FEATS"
        )
    return features


def _sentences_in(path: str | Path, lines: list[str]) -> Iterator[_Sentence]:
    """Yield the sentences of a file, which are divided by empty lines.

    Sentences without words are left out, and comments other than `# sent_id = NAME` are ignored.

    Args:
        path: What errors call the file.
        lines: Its lines.

    Raises:
        DataError: A line is malformed; the message has its number.
    """
    sentence = _Sentence()
    for number, line in enumerate([*lines, ""], 1):  # an empty line ends the last sentence, too
        sentence_id = SENTENCE_ID.match(line)
        is_empty = not line.strip()
        try:
            if sentence_id is not None:
                sentence.name = sentence_id[1]
            elif is_empty:
                sentence.end()
                if sentence.words:
                    yield sentence
                sentence = _Sentence()
            elif not line.startswith("#"):
                sentence.add(line)
        except ValueError as error:
            raise DataError(f"{path} line {number}: {error}") from None
