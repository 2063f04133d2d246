"""Marks that divide the documents of one text file, such as a line `<|endoftext|>` after each story of TinyStories.

They are the special tokens of whatever tokenizer the file was made for, which is seldom that of the
models compared: a rule therefore looks at the text alone, so that all models get the same documents.

- `<|NAME|>` is no ordinary text. A file is divided at the lines that hold nothing but such a mark.
  If its name says that a text begins or ends, it also divides where it is attached to text, as in
  `the end.<|endoftext|>Once upon`. Where a mark stands among words or in quotes, the text is about
  the mark.
- `<NAME>`, `</NAME>` and `[NAME]` may be HTML, XML or the heading of a section. They divide a file
  only if their name says that a text begins or ends (`</s>`, `<eos>`, `[SEP]`), they repeat, always
  stand alone on a line, and the file has no other tags.
- Of several kinds of marks, as in a chat, those divide whose names say that a text begins or ends,
  and of these the least frequent ones, as turns end more often than chats do.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

PIPED = re.compile(r"<([|｜])[\w▁/.-]{1,40}\1>")
ALONE = re.compile(r"(?m)^[ \t]*(<([|｜])[\w▁/.-]{1,40}\2>|</?\w{1,40}>|\[\w{1,40}\])[ \t]*$")
TAG = re.compile(r"<[A-Za-z/!?][^<>\n]*>")
ENDS = re.compile(r"(?:^|[^a-z])(?:end|eo[sdt]|sep|stop)|^/s$")
BEGINS = re.compile(r"(?:^|[^a-z])(?:begin|start|bos)|^s$")
OPENING, CLOSING = "\"'`([{“‘", "\"'`)]}”’"
FEWEST = 2  # occurrences of a mark that could be ordinary text


class Divided(NamedTuple):
    """The documents of a file, and the marks at which it was divided; none where it is one document."""

    documents: list[str]
    marks: list[str]


def divided(text: str) -> Divided:
    """Return the documents of a text file; marks, and empty lines around them, belong to none of them.

    >>> divided("one\\n<|endoftext|>\\ntwo\\n<|endoftext|>\\n")
    Divided(documents=['one', 'two'], marks=['<|endoftext|>'])
    >>> divided("The mark <|endoftext|> ends a text.").marks
    []
    """
    alone = Counter(match[1] for match in ALONE.finditer(text)) if "<" in text or "[" in text else Counter[str]()
    piped = {match[0] for match in PIPED.finditer(text)} if "<|" in text or "<｜" in text else set[str]()
    attached = ""
    if len(piped) == 1:
        (mark,) = piped
        if _bounds({mark: 1}) and len(re.findall(_attached(mark), text)) >= FEWEST:
            attached = "|" + _attached(mark)
        is_divided = attached or alone[mark] >= FEWEST or (alone[mark] and _bounds({mark: 1}))
        marks = [mark] if is_divided else []
    elif piped:
        marks = _bounds({mark: alone[mark] for mark in piped if alone[mark]})
    else:
        marks = _bare_marks(text, alone)
    if not marks:
        return Divided([text], [])
    parts = (part.strip("\n") for part in re.split(_on_a_line(marks) + attached, text))
    return Divided([part for part in parts if part.strip()], marks)


def _bare_marks(text: str, alone: Counter[str]) -> list[str]:
    """Return the marks of the form <NAME> or [NAME] that divide a text, which has no other tags then."""
    marks = _bounds(alone)
    if not marks or max(alone[mark] for mark in marks) < FEWEST:
        return []
    are_tags = marks[0].startswith("<")
    rivals = {match[0] for match in TAG.finditer(text)} if are_tags else {mark for mark in alone if mark[0] == "["}
    is_inside = any(text.count(mark) > alone[mark] for mark in marks)
    return [] if is_inside or rivals - set(marks) else marks


def _bounds(counts: Mapping[str, int]) -> list[str]:
    """Return the least frequent marks whose names say that a text ends, and those that say that it begins."""
    found: list[str] = []
    for says in (ENDS, BEGINS):
        kinds = [mark for mark in counts if says.search(_name(mark))]
        fewest = min((counts[mark] for mark in kinds), default=0)
        found += [mark for mark in kinds if counts[mark] == fewest]
    return found


def _name(mark: str) -> str:
    return mark.strip("<>[]|｜").casefold()


def _on_a_line(marks: Collection[str]) -> str:
    return rf"(?m)^[ \t]*(?:{'|'.join(map(re.escape, marks))})[ \t]*$"


def _attached(mark: str) -> str:
    """Return a pattern of a mark that follows text directly, or begins a line of it, and is not quoted."""
    written = re.escape(mark)
    quoted = rf"(?<=[{re.escape(OPENING)}]){written}(?=[{re.escape(CLOSING)}])"
    return rf"(?m:(?!{quoted})(?:(?<=\S){written}|^{written}(?=\S)))"
