"""Stimuli that users bring in CoNLL-U files: the words of parsed sentences (universaldependencies.org/format)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from thinkalike.data.sources import read_with
from thinkalike.data.stimuli import Kinds, Names, Span, Stimuli, chosen
from thinkalike.errors import DataError

ENDS = ["Word length", "Word position"]
ID = re.compile(r"(\d+)(?:([-.])(\d+))?")  # of a word, a multiword token 3-4, or an empty node 3.1


def read_conllu(path: str | Path, *, features: Names = None, kinds: Kinds | None = None) -> Stimuli:
    """Read the words of a CoNLL-U file, with UPOS, all FEATS, and their length and position.

    The text of a sentence is put together from its forms. Each word of a multiword token has a part of its characters
    where they spell it (don't = do + n't), else all of them (du = de + le). Empty nodes are left out.

    Args:
        features: names such as UPOS and Number; None takes all that there are.
        kinds: the kinds that values do not show; see `Stimuli`.

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
    names = ["UPOS", *sorted({name for row in rows for name in row} - {"UPOS", *ENDS}), *ENDS]
    table = pd.DataFrame(rows)[chosen(path, features, names)]
    texts = [each.text.rstrip(" ") for each in sentences]
    return Stimuli(texts, sentence, spans, words, table, kinds or {}, ids, str(path)).varied()


@dataclass
class _Sentence:
    """A sentence that is read line by line."""

    name: str = ""
    text: str = ""
    words: list[str] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    multiword: list[tuple[int, int, Span]] = field(default_factory=list)  # first word, last word, characters

    def add(self, line: str) -> None:
        """Read the line of a word, of a multiword token or of an empty node; a malformed one is a ValueError."""
        number, form, _, upos, _, feats, _, _, _, misc = line.split("\t")
        match = ID.fullmatch(number)
        due, covered = len(self.words) + 1, self.multiword[-1][1] if self.multiword else 0
        if match and match[2] == ".":
            return
        last = int(match[3]) if match and match[2] else None
        if not match or not form or int(match[1]) != due or (last is not None and not covered < due < last):
            raise ValueError(f"the ID is {number} of {form!r} where {due} is due; empty lines divide sentences")
        span = len(self.text), len(self.text) + len(form)
        if due > covered:
            self.text += form if "SpaceAfter=No" in misc.split("|") else form + " "
        if last is not None:
            self.multiword.append((due, last, span))
            return
        self.words.append(form)
        self.spans.append(span if due > covered else self.multiword[-1][2])
        pairs: list[list[str]] = [] if feats == "_" else [each.split("=") for each in feats.split("|")]
        if len({pair[0] for pair in pairs}) < len(pairs) or any(len(pair) != 2 or not all(pair) for pair in pairs):
            raise ValueError(f"FEATS {feats!r} are not Name=Value|Name=Value with different names, or _ for none")
        ends = dict(zip(ENDS, (len(form), due - 1), strict=True))
        self.rows.append({**dict(pairs), "UPOS": None if upos == "_" else upos, **ends})

    def end(self) -> None:
        """Give the words of multiword tokens their spans."""
        for first, last, (start, stop) in self.multiword:
            if len(self.words) < last:
                raise ValueError(f"the sentence ends within the multiword token {first}-{last}")
            forms = self.words[first - 1 : last]
            if "".join(forms) == self.text[start:stop]:
                self.spans[first - 1 : last] = pairwise(accumulate(map(len, forms), initial=start))


def _sentences(path: str | Path, lines: list[str]) -> Iterator[_Sentence]:
    sentence = _Sentence()
    for number, line in enumerate([*lines, ""], 1):
        try:
            if match := re.match(r"#\s*sent_id\s*=\s*(.*\S)", line):
                sentence.name = match[1]
            elif line.strip() and not line.startswith("#"):
                sentence.add(line)
            elif not line.strip():
                sentence.end()
                if sentence.words:
                    yield sentence
                sentence = _Sentence()
        except ValueError as error:
            raise DataError(f"{path} line {number}: {error}") from None
