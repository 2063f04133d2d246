"""Stimuli that users bring in CoNLL-U files: the words of parsed sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import conllu
import numpy as np
import pandas as pd

from thinkalike.data.sources import read_with
from thinkalike.data.stimuli import Kinds, Stimuli
from thinkalike.data.tables import Names, Span, chosen, varied
from thinkalike.errors import DataError

COLUMNS = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")


def read_conllu(path: str | Path, *, features: Names = None, kinds: Kinds | None = None) -> Stimuli:
    """Read the words of a CoNLL-U file, with UPOS, all FEATS, and their length and position.

    The text of a sentence is put together from its forms. Each word of a multiword token has a part of its characters
    where they spell it (don't = do + n't), else all of them (du = de + le). Empty nodes are left out.

    Args:
        features: names such as UPOS and Number; None takes all that there are.
        kinds: what the values do not say; see `Stimuli`.

    Raises:
        DataError: the file cannot be read or is empty, a line is malformed, or a feature has one level.
    """
    text = read_with(Path(path), {".conllu": partial(Path.read_text, encoding="utf-8-sig")})
    sentences = list(_sentences(path, text.split("\n")))  # splitlines would cut at U+2028, too
    if not sentences:
        raise DataError(f"{path} is empty: it has no line of a word")
    words, spans, rows = ([x for each in sentences for x in getattr(each, name)] for name in ("words", "spans", "rows"))
    sentence = np.repeat(np.arange(len(sentences)), [len(each.words) for each in sentences])
    ids = [f"{each.name or n}:{place}" for n, each in enumerate(sentences, 1) for place, _ in enumerate(each.words, 1)]
    ends = ["Word length", "Word position"]
    names = ["UPOS", *sorted({name for row in rows for name in row} - {"UPOS", *ends}), *ends]
    table = pd.DataFrame(rows)[chosen(path, features, names)]
    texts = [each.text for each in sentences]
    return varied(Stimuli(texts, sentence, spans, words, table, kinds or {}, ids, str(path)))


def _sentences(path: str | Path, lines: Sequence[str]) -> Iterator[_Sentence]:
    sentence = _Sentence()
    for number, line in enumerate([*lines, ""], 1):
        try:
            if line.startswith("#"):
                sentence.name = conllu.parse_token_and_metadata(line).metadata.get("sent_id", sentence.name)
            elif line.strip():
                sentence.add(line)
            else:
                sentence.end()
                if sentence.words:
                    yield sentence
                sentence = _Sentence()
        except ValueError as error:
            raise DataError(f"{path} line {number}: {error}") from None


def _token(line: str) -> conllu.Token:
    """Return the columns of a line by name, read by the package conllu.

    It takes lines with more or fewer columns, cuts a cell at two spaces, and takes any FEATS; so these are checked
    here.

    Raises:
        ValueError: The line is not of the format.
    """
    cells = line.split("\t")
    if len(cells) != len(COLUMNS):
        raise ValueError(f"the line has {len(cells)} columns, not 10; separate them by one tab each")
    for name, cell in zip(COLUMNS, cells, strict=True):
        if "  " in cell:
            raise ValueError(f"{name} {cell!r} has two spaces in a row; leave one")
        if not cell.strip() and name not in ("ID", "FORM", "FEATS"):
            raise ValueError(f"{name} is empty; write _ for none")
    _check_feats(cells[5])
    return conllu.parse_token_and_metadata(line)[0]


def _check_feats(cell: str) -> None:
    if cell != "_" and not re.fullmatch(r"[^=|]+=[^=|]+(\|[^=|]+=[^=|]+)*", cell):
        raise ValueError(f"FEATS {cell!r} are not Name=Value|Name=Value, or _ for none")
    names = [part.partition("=")[0] for part in cell.split("|")]
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"FEATS {cell!r} name {repeated} twice; keep one")


@dataclass
class _Sentence:
    """A sentence that is being read line by line; its methods raise a ValueError for a line that is wrong."""

    name: str = ""
    text: str = ""
    words: list[str] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    multiword: list[tuple[int, int, Span]] = field(default_factory=list)  # first word, last word, characters

    def add(self, line: str) -> None:
        """Take in the line of a word, of a multiword token or of an empty node."""
        due, covered = len(self.words) + 1, self.multiword[-1][1] if self.multiword else 0
        given = line.split("\t")[0]
        wrong = f"the ID is {given} where {due} is due; leave an empty line between sentences"
        try:
            token = _token(line)
        except conllu.exceptions.ParseException as error:
            raise ValueError(wrong if "'id'" in str(error) else f"{error} Correct it, or write _ for none") from None
        number, form = token["id"], token["form"]
        if isinstance(number, tuple) and number[1] == ".":  # an empty node
            return
        first, last = (number[0], number[2]) if isinstance(number, tuple) else (number, None)
        if first != due or (last is not None and not covered < due < last):
            raise ValueError(wrong)
        if not form:
            raise ValueError("the word has no FORM; write the word, or leave the line out")
        span = len(self.text), len(self.text) + len(form)
        if due > covered:
            self.text += form if (token["misc"] or {}).get("SpaceAfter") == "No" else form + " "
        if last is not None:
            self.multiword.append((due, last, span))
            return
        self.words.append(form)
        self.spans.append(span if due > covered else self.multiword[-1][2])
        ours = {
            "UPOS": None if token["upos"] == "_" else token["upos"],
            "Word length": len(form),
            "Word position": due - 1,
        }
        self.rows.append((token["feats"] or {}) | ours)

    def end(self) -> None:
        """Check that the sentence is whole, and give the words of multiword tokens their spans."""
        for first, last, (start, stop) in self.multiword:
            if len(self.words) < last:
                raise ValueError(f"the sentence ends within the multiword token {first}-{last}; add its words")
            forms = self.words[first - 1 : last]
            if "".join(forms) == self.text[start:stop]:
                self.spans[first - 1 : last] = pairwise(accumulate(map(len, forms), initial=start))
        self.text = self.text.rstrip(" ")
