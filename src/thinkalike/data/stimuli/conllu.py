"""Stimuli that users bring in CoNLL-U files: the words of parsed sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from thinkalike.data.files import read_with
from thinkalike.data.stimuli.columns import Kinds
from thinkalike.data.stimuli.stimuli import Stimuli
from thinkalike.data.stimuli.tables import Names, Span, chosen, varied
from thinkalike.errors import DataError


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
                key, _, value = line[1:].partition("=")
                sentence.name = value.strip() if key.strip() == "sent_id" else sentence.name
            elif line.strip():
                sentence.add(line.split("\t"))
            else:
                sentence.end()
                if sentence.words:
                    yield sentence
                sentence = _Sentence()
        except ValueError as error:
            raise DataError(f"{path} line {number}: {error}") from None


@dataclass
class _Sentence:
    """A sentence of which some lines are read; its methods raise ValueErrors that say what is wrong with a line."""

    name: str = ""
    text: str = ""
    words: list[str] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    multiword: list[tuple[int, int, Span]] = field(default_factory=list)  # first word, last word, characters

    def add(self, cells: list[str]) -> None:
        """Take in the line of a word, of a multiword token or of an empty node."""
        if len(cells) != 10:
            raise ValueError(f"the line has {len(cells)} columns, not 10; separate them by one tab each")
        number, form, upos, feats, misc = (cells[column] for column in (0, 1, 3, 5, 9))
        if re.fullmatch(r"\d+\.\d+", number):  # an empty node
            return
        due, covered = len(self.words) + 1, self.multiword[-1][1] if self.multiword else 0
        first, dash, last = number.partition("-")
        if first != str(due) or (dash and not (last.isdecimal() and covered < due < int(last))):
            raise ValueError(f"the ID is {number} where {due} is due; leave an empty line between sentences")
        if not form:
            raise ValueError("the word has no FORM; write the word, or leave the line out")
        span = len(self.text), len(self.text) + len(form)
        if due > covered:
            self.text += form if "SpaceAfter=No" in misc.split("|") else form + " "
        if dash:
            self.multiword.append((due, int(last), span))
            return
        self.words.append(form)
        self.spans.append(span if due > covered else self.multiword[-1][2])
        ours = {"UPOS": None if upos == "_" else upos, "Word length": len(form), "Word position": due - 1}
        self.rows.append(_feats(feats) | ours)

    def end(self) -> None:
        """Check that the sentence is whole, and give the words of multiword tokens their spans."""
        for first, last, (start, stop) in self.multiword:
            if len(self.words) < last:
                raise ValueError(f"the sentence ends within the multiword token {first}-{last}; add its words")
            forms = self.words[first - 1 : last]
            if "".join(forms) == self.text[start:stop]:
                self.spans[first - 1 : last] = pairwise(accumulate(map(len, forms), initial=start))
        self.text = self.text.rstrip(" ")


def _feats(cell: str) -> dict[str, str]:
    if cell != "_" and not re.fullmatch(r"[^=|]+=[^=|]+(\|[^=|]+=[^=|]+)*", cell):
        raise ValueError(f"FEATS {cell!r} are not Name=Value|Name=Value, or _ for none")
    return dict(re.findall(r"([^=|]+)=([^=|]+)", cell))
