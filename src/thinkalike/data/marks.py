"""Marks that divide the documents of one text file.

An example is the line `<|endoftext|>` after each story of TinyStories.

They are the special tokens of whatever tokenizer the file was made for, which is seldom that of
the models compared: a rule therefore looks at the text alone, so that all models get the same
documents.

- `<|NAME|>` is no ordinary text. A file is divided at the lines that hold nothing but such a mark.
  If its name says that a text begins or ends, it also divides where it is attached to text, as in
  `the end.<|endoftext|>Once upon`. Where a mark stands among words or in quotes, the text is about
  the mark.
- `<NAME>`, `</NAME>` and `[NAME]` may be HTML, XML or the heading of a section. They divide a file
  only if their name says that a text begins or ends (`</s>`, `<eos>`, `[SEP]`), they repeat,
  always stand alone on a line, and the file has no other tags.
- Of several kinds of marks, as in a chat, those divide whose names say that a text begins or ends,
  and of these the least frequent ones, as turns end more often than chats do.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

PIPED_MARK = re.compile(r"<([|｜])[\w▁/.-]{1,40}\1>")
"""A mark such as <|endoftext|>."""

MARK_LINE = re.compile(r"(?m)^[ \t]*(<([|｜])[\w▁/.-]{1,40}\2>|</?\w{1,40}>|\[\w{1,40}\])[ \t]*$")
"""A line that holds nothing but a mark of any form, which is the first group."""

TAG = re.compile(r"<[A-Za-z/!?][^<>\n]*>")
"""Anything that looks like a tag of HTML or XML."""

END_NAME = re.compile(r"(?:^|[^a-z])(?:end|eo[sdt]|sep|stop)|^/s$")
"""Names that say that a text ends."""

START_NAME = re.compile(r"(?:^|[^a-z])(?:begin|start|bos)|^s$")
"""Names that say that a text begins."""

OPENING_QUOTES = "\"'`([{“‘"
CLOSING_QUOTES = "\"'`)]}”’"

MOST_MARKS = 64
"""A tokenizer has a few marks that begin or end a text. Names that differ in more lines, such as
<|end7|>, number something, and looking for thousands of them in a text would not end."""

FEWEST_REPEATS = 2
"""How often a mark that could be ordinary text has to occur."""


class DividedText(NamedTuple):
    """The documents of a file, and the marks at which it was divided, if there are any."""

    documents: list[str]
    marks: list[str]


def divide_at_marks(text: str) -> DividedText:
    """Divide a text file at marks such as <|endoftext|>; marks themselves are left out.

    A mark such as <|NAME|> divides the text at each line that holds nothing else, if it repeats or
    its name says that a text begins or ends. With such a name it also divides where it repeatedly
    touches text on its line. If there are several such marks, those divide whose names say that
    a text begins or ends. Without any, marks such as <NAME> or [NAME] may divide the text, under
    stricter conditions (`_bare_marks`). A text that has no marks, or only mentions them, is one
    document.

    >>> divide_at_marks("one\\n<|endoftext|>\\ntwo\\n<|endoftext|>\\n")
    DividedText(documents=['one', 'two'], marks=['<|endoftext|>'])
    >>> divide_at_marks("The mark <|endoftext|> ends a text.").marks
    []
    """
    line_counts = _counts_on_lines(text)
    piped_marks = _piped_marks(text)

    is_divided_within_lines = False
    if len(piped_marks) == 1:
        (mark,) = piped_marks
        # Of a single mark, only its name matters here, and not how often it occurs.
        names_a_boundary = bool(_boundary_marks({mark: 1}))
        if names_a_boundary:
            attached_marks = re.findall(_pattern_of_attached_mark(mark), text)
            is_divided_within_lines = len(attached_marks) >= FEWEST_REPEATS
        is_repeated_on_lines = line_counts[mark] >= FEWEST_REPEATS
        is_boundary_on_line = names_a_boundary and line_counts[mark] > 0
        divides = is_divided_within_lines or is_repeated_on_lines or is_boundary_on_line
        marks = [mark] if divides else []
    elif piped_marks:
        counts_of_piped_marks = {
            mark: line_counts[mark] for mark in piped_marks if line_counts[mark] > 0
        }
        marks = _boundary_marks(counts_of_piped_marks)
    else:
        marks = _bare_marks(text, line_counts)

    if not marks:
        return DividedText([text], [])
    pattern = _pattern_of_mark_lines(marks)
    if is_divided_within_lines:
        pattern += "|" + _pattern_of_attached_mark(marks[0])
    pieces = [piece for piece in re.split(pattern, text) if piece.strip()]
    return DividedText([piece.strip("\n") for piece in pieces], marks)


def _counts_on_lines(text: str) -> Counter[str]:
    """Return, for each mark such as <|endoftext|>, how many lines hold nothing else."""
    if "<" not in text and "[" not in text:
        return Counter()
    return Counter(match[1] for match in MARK_LINE.finditer(text))


def _piped_marks(text: str) -> set[str]:
    """Return the marks of the form <|NAME|>, or with full-width bars, that occur in a text."""
    if "<|" not in text and "<｜" not in text:
        return set()
    return {match[0] for match in PIPED_MARK.finditer(text)}


def _bare_marks(text: str, line_counts: Counter[str]) -> list[str]:
    """Return the marks of the form <NAME> or [NAME] that divide a text into documents.

    As such marks may be HTML or headings, there are none unless one of them repeats, they always
    stand alone on a line, and the text has no other tags of their form.

    Args:
        text: The text.
        line_counts: How many lines hold nothing but each mark.
    """
    marks = _boundary_marks(line_counts)
    if not marks or max(line_counts[mark] for mark in marks) < FEWEST_REPEATS:
        return []
    occurs_within_line = any(text.count(mark) > line_counts[mark] for mark in marks)
    if marks[0].startswith("<"):
        tags_of_same_form = {match[0] for match in TAG.finditer(text)}
    else:
        tags_of_same_form = {mark for mark in line_counts if mark.startswith("[")}
    has_other_tags = bool(tags_of_same_form - set(marks))
    if occurs_within_line or has_other_tags:
        return []
    return marks


def _boundary_marks(counts: Mapping[str, int]) -> list[str]:
    """Return the marks whose names say that a text ends or begins, such as <|endoftext|>.

    In a chat, the end of a turn has a mark as well as the end of the chat, and turns end more
    often. So of the marks of an end, only the least frequent ones are returned, and behind them
    the least frequent ones of a beginning. The list is empty if it would have more than
    `MOST_MARKS`.

    Args:
        counts: How often each mark occurs.
    """
    boundary_marks: list[str] = []
    for name_pattern in (END_NAME, START_NAME):
        marks = [mark for mark in counts if name_pattern.search(_name_in(mark))]
        fewest = min((counts[mark] for mark in marks), default=0)
        boundary_marks += [mark for mark in marks if counts[mark] == fewest]
    if len(boundary_marks) > MOST_MARKS:
        return []
    return boundary_marks


def _name_in(mark: str) -> str:
    """Return the name in a mark, such as "endoftext" of <|endoftext|>, in lower case."""
    return mark.strip("<>[]|｜").casefold()


def _pattern_of_mark_lines(marks: Collection[str]) -> str:
    """Return a regular expression for a line that holds nothing but one of the marks."""
    alternatives = "|".join(re.escape(mark) for mark in marks)
    return rf"(?m)^[ \t]*(?:{alternatives})[ \t]*$"


def _pattern_of_attached_mark(mark: str) -> str:
    """Return a regular expression for a mark that touches text and is not in quotes.

    It touches text if it follows text directly, as in `end.<|endoftext|>`, or if it begins a line
    and text follows directly.
    """
    literal = re.escape(mark)
    opening_quote = rf"[{re.escape(OPENING_QUOTES)}]"
    closing_quote = rf"[{re.escape(CLOSING_QUOTES)}]"
    in_quotes = rf"(?<={opening_quote}){literal}(?={closing_quote})"
    behind_text = rf"(?<=\S){literal}"
    at_start_of_line = rf"^{literal}(?=\S)"
    return rf"(?m:(?!{in_quotes})(?:{behind_text}|{at_start_of_line}))"
