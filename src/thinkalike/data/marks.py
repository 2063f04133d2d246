"""Marks that divide the documents of one text file.

An example is the line `<|endoftext|>` after each story of TinyStories.

They are the special tokens of whatever tokenizer the file was made for, which is seldom that of
the models compared: a rule therefore looks at the text alone, so that all models get the same
documents.

- `<|NAME|>` is no ordinary text. It structures a text where it stands alone on a line, touches
  the text before or behind it, as in `the end.<|endoftext|>Once upon`, or follows another such
  mark. Elsewhere, among words or in quotes, the text is about the mark.
- Of marks that structure a text, those divide it whose names say that a text begins or ends. If
  no mark has such a name, a single mark divides at its lines.
- In a chat, marks also name the speaker of each turn (`<|im_start|>user`, `<|assistant|>`). A mark
  that stands at most turns begins or ends turns and not documents, and so does one that stands
  between the name of the speaker and what is said.
- Several marks divide together if they stand at the same places, as the end of one document and
  the beginning of the next do, or equally often. Otherwise the most frequent one divides, as a
  rare one may be part of one document; but a rarer one does so if it groups the frequent ones all
  through the file.
- `<NAME>`, `</NAME>` and `[NAME]` may be HTML, XML or the heading of a section. They divide a file
  only if their name says that a text begins or ends (`</s>`, `<eos>`, `[SEP]`), they repeat,
  always stand alone on a line, and the file has no other tags.

Marks that may divide documents, but are not used to, are counted, so that a warning can name them.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

PIPED_MARK = re.compile(r"<([|｜])[\w▁/.-]{1,40}\1>")
"""A mark such as <|endoftext|>."""

MARK_LINE = re.compile(r"(?m)^[ \t]*(</?\w{1,40}>|\[\w{1,40}\])[ \t]*$")
"""A line that holds nothing but a mark such as </s> or [SEP], which is the first group."""

BARE_MARK = re.compile(r"</?\w{1,40}>|\[\w{1,40}\]")
"""A mark such as </s> or [SEP]."""

TAG = re.compile(r"<[A-Za-z/!?][^<>\n]*>")
"""Anything that looks like a tag of HTML or XML."""

END_NAME = re.compile(r"(?:^|[^a-z])(?:end|eo[sdt]|sep|stop)|^/s$")
"""Names that say that a text ends."""

START_NAME = re.compile(r"(?:^|[^a-z])(?:begin|start|bos)|^s$")
"""Names that say that a text begins."""

SPEAKER = re.compile(r"(\w{1,32})(?:[ \t]*\n|(?=<[|｜]))")
"""A word between a mark and the end of the line or another mark, such as "user" of a chat."""

STRAIGHT_QUOTES = "\"'`"
"""Quotes that open and close with one character; other quotes show which they do."""

BEFORE_OPENING_QUOTES = "([{=,:"
"""A straight quote behind one of these opens, and so does one behind a blank."""

JOINING = "=:+/\\@#$&<"
"""No text ends with these, so that what follows one is part of the same text, as in EOS=MARK."""

BEGINNING = "\"'*#@/\\¡¿"
"""With these a text may begin. All other punctuation of sentences goes on with what is before."""

MOST_OPENING = 2
"""So many characters may open something, such as ** does. A line of more dashes ends a text."""

OPENING = re.compile(r"(?:^|\s)([^\w\s]+)\Z")
"""What stands between a blank, or the beginning of a text, and a mark."""

MOST_MARKS = 64
"""A tokenizer has a few marks that begin or end a text. Names that differ in more lines, such as
<|end7|>, number something, and looking for thousands of them in a text would not end."""

MOST_SPEAKERS = 16
"""A chat has a few speakers. More different words behind a mark are text, such as titles."""

FEWEST_REPEATS = 2
"""How often a mark has to occur if it could be ordinary text."""

LARGEST_GROUP = 0.25
"""The largest share of the frequent marks of a file that stand between two of a rarer mark, if
the rarer one groups them all through the file. A text that quotes a mark has it in few places, so
that most of the file is before or after these."""


class DividedText(NamedTuple):
    """The documents of a file, and the marks at which it was divided, if there are any.

    Args:
        documents: The documents, without the marks that divide them.
        marks: The marks that divide them.
        unused_marks: How often each other mark occurs that may divide documents as well, so that
            it is unclear whether these are the documents. Empty if it is clear.
    """

    documents: list[str]
    marks: list[str]
    unused_marks: dict[str, int]


class _Occurrence(NamedTuple):
    """A place of the text that a mark structures.

    Args:
        mark: The mark.
        start, end: Its place in the text.
        gap: The number of the gap in the text. All marks with nothing but white space between them
            are in one gap.
    """

    mark: str
    start: int
    end: int
    gap: int


@dataclass
class _MarkUse:
    """How one mark is used in a text.

    Args:
        on_lines: How many lines hold nothing else.
        attached: How often it structures the text within a line.
        mentions: How often it stands elsewhere, as in a text about the mark.
        mentions_at_edges: How many of these begin a line with the mark of a beginning, or end one
            with that of an end.
        gaps: The gaps in the text in which it stands, in their order.
    """

    on_lines: int = 0
    attached: int = 0
    mentions: int = 0
    mentions_at_edges: int = 0
    gaps: list[int] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How often the mark structures the text."""
        return self.on_lines + self.attached

    @property
    def is_unclear(self) -> bool:
        """Whether it may divide the text or not: it repeatedly structures it, or lines of it."""
        is_mostly_at_edges = 2 * self.mentions_at_edges > self.mentions
        repeats_at_edges = is_mostly_at_edges and self.mentions_at_edges >= FEWEST_REPEATS
        return self.count >= FEWEST_REPEATS or repeats_at_edges

    @property
    def is_repeatedly_attached(self) -> bool:
        """Whether it structures the text within lines, and is not for the most part mentioned."""
        return self.attached >= FEWEST_REPEATS and self.count > self.mentions

    def may_divide(self, mark: str) -> bool:
        """Return whether the name and the places of the mark are those of one that divides."""
        return _names_boundary(mark) and (self.on_lines > 0 or self.is_repeatedly_attached)

    def divides_within_lines(self, mark: str) -> bool:
        """Return whether a mark that divides does so not only at its lines."""
        return _names_boundary(mark) and self.is_repeatedly_attached


def divide_at_marks(text: str) -> DividedText:
    """Divide a text file at marks such as <|endoftext|>; marks themselves are left out.

    A mark such as <|NAME|> divides the text at each line that holds nothing else, if it repeats or
    its name says that a text begins or ends. With such a name it also divides where it repeatedly
    touches text on its line. Of several such marks, those divide whose names say that a text
    begins or ends, except at the turns of a chat. Without any, marks such as <NAME> or [NAME] may
    divide the text, under stricter conditions (`_bare_marks`). A text that has no marks, or only
    mentions them, is one document.

    >>> divide_at_marks("one\\n<|endoftext|>\\ntwo\\n<|endoftext|>\\n").documents
    ['one', 'two']
    >>> divide_at_marks("one<|endoftext|>two<|endoftext|> Here <|pad|> is a word.").marks
    ['<|endoftext|>']
    >>> divide_at_marks("The mark <|endoftext|> ends a text.").marks
    []
    """
    occurrences, uses = _structure(text)
    structuring = {mark: use for mark, use in uses.items() if use.count}
    if not structuring:
        divided = _divide_at_bare_marks(text)
        unclear = {mark: use for mark, use in uses.items() if use.is_unclear}
        return divided._replace(unused_marks={**divided.unused_marks, **_counts_in(unclear)})

    if len(structuring) == 1:
        ((mark, use),) = structuring.items()
        divides = use.may_divide(mark) or use.on_lines >= FEWEST_REPEATS
        marks = [mark] if divides else []
        candidates = {mark: use}
    else:
        candidates = _marks_of_documents(text, occurrences, structuring)
        marks = _marks_of_one_level(candidates)

    if not marks:
        unclear = {mark: use for mark, use in uses.items() if use.is_unclear}
        return DividedText([text], [], _counts_in(unclear))
    # Marks of turns are more frequent than those of documents: a rarer one may be no such mark.
    count = min(uses[mark].count for mark in marks)
    rarer_marks = {
        mark: use
        for mark, use in structuring.items()
        if use.may_divide(mark) and use.count < count
    }
    unused = {
        mark: use for mark, use in {**candidates, **rarer_marks}.items() if mark not in marks
    }

    divides_within_lines = {mark: uses[mark].divides_within_lines(mark) for mark in marks}
    pieces = []
    start = 0
    for occurrence in occurrences:
        if occurrence.mark not in divides_within_lines:
            continue
        if divides_within_lines[occurrence.mark] or _is_on_line(text, occurrence):
            pieces.append(text[start : occurrence.start])
            start = occurrence.end
    pieces.append(text[start:])
    documents = [_without_empty_ends(piece) for piece in pieces if piece.strip()]
    # Marks of ends are named first.
    marks.sort(key=lambda mark: not END_NAME.search(_name_in(mark)))
    return DividedText(documents, marks, _counts_in(unused))


def _counts_in(uses: Mapping[str, _MarkUse]) -> dict[str, int]:
    """Return how often each mark occurs, mentions included."""
    return {mark: use.count + use.mentions for mark, use in uses.items()}


def _without_empty_ends(piece: str) -> str:
    """Return a piece without the line breaks at its ends, and blanks on the lines of marks."""
    return re.sub(r"\A[ \t]*\n|\n[ \t]*\Z", "", piece).strip("\n")


def _structure(text: str) -> tuple[list[_Occurrence], dict[str, _MarkUse]]:
    """Return where marks of the form <|NAME|> structure a text, and how each such mark is used.

    The marks may have full-width bars.
    """
    if "<|" not in text and "<｜" not in text:
        return [], {}
    occurrences: list[_Occurrence] = []
    uses: dict[str, _MarkUse] = {}
    gap = 0
    end_of_last = 0
    last_is_text = False  # whether the last mark was only mentioned
    for match in PIPED_MARK.finditer(text):
        mark = match[0]
        start, end = match.span()
        follows_mark = not last_is_text and not text[end_of_last:start].strip()  # or begins text
        end_of_last = end
        occurrence = _Occurrence(mark, start, end, gap if follows_mark else gap + 1)
        use = uses.setdefault(mark, _MarkUse())
        if _is_on_line(text, occurrence):
            use.on_lines += 1
        elif not _is_inside_sentence(text, start, end) and (
            follows_mark or _touches_text(text, start, end)
        ):
            use.attached += 1
        else:
            use.mentions += 1
            use.mentions_at_edges += _is_at_its_edge(text, occurrence)
            last_is_text = True
            continue
        last_is_text = False
        gap = occurrence.gap
        if not use.gaps or use.gaps[-1] != gap:
            use.gaps.append(gap)
        occurrences.append(occurrence)
    return occurrences, uses


def _is_at_its_edge(text: str, occurrence: _Occurrence) -> bool:
    """Return whether the mark of a beginning begins a line, or that of an end ends it."""
    name = _name_in(occurrence.mark)
    begins_line, ends_line = _edges(text, occurrence)
    is_begun = begins_line and START_NAME.search(name)
    is_ended = ends_line and END_NAME.search(name)
    return bool(is_begun or is_ended)


def _is_on_line(text: str, occurrence: _Occurrence) -> bool:
    """Return whether the line of a mark holds nothing else."""
    return all(_edges(text, occurrence))


def _edges(text: str, occurrence: _Occurrence) -> tuple[bool, bool]:
    """Return whether a mark begins its line, and whether it ends it, apart from blanks."""
    before = occurrence.start
    while before > 0 and text[before - 1] in " \t":
        before -= 1
    after = occurrence.end
    while after < len(text) and text[after] in " \t":
        after += 1
    begins_line = before == 0 or text[before - 1] == "\n"
    ends_line = after == len(text) or text[after] == "\n"
    return begins_line, ends_line


def _touches_text(text: str, start: int, end: int) -> bool:
    """Return whether a mark directly follows text, or stands directly before it.

    Within a line, only a letter or digit behind the mark shows that text begins there, as a
    sentence about the mark may have a comma behind it.
    """
    after = text[end : end + 1]
    begins_line = start == 0 or text[start - 1] == "\n"
    if begins_line:
        return not after.isspace()
    return after.isalnum() or not text[start - 1].isspace()


def _is_inside_sentence(text: str, start: int, end: int) -> bool:
    """Return whether a sentence goes on over a mark, so that it is about the mark.

    This is so if the mark is quoted; if it is behind a character that opens or joins, as in
    `(MARK` and `EOS=MARK`, or behind others that follow a blank, as in `is **MARK`; and if what is
    behind it closes or goes on, as `MARK</code>`, `MARK)` and `MARK, which` do.
    """
    after = text[end : end + 1]
    if text.startswith("</", end) or _goes_on(after):
        return True
    before = text[start - 1 : start]
    if not before or before.isspace():
        return False
    if before in JOINING or unicodedata.category(before) in ("Ps", "Pi"):
        return True
    opening = OPENING.search(text, max(start - MOST_OPENING - 1, 0), start)
    opens_behind_blank = opening is not None and not _may_end_text(opening[1][0])
    return opens_behind_blank or _is_in_straight_quotes(text, start, end)


def _goes_on(character: str) -> bool:
    """Return whether a character closes or continues a sentence, and begins no text."""
    if not character or character in BEGINNING:
        return False
    return character == "&" or unicodedata.category(character) in ("Pe", "Pf", "Po")


def _may_end_text(character: str) -> bool:
    """Return whether a character may end a text also if a blank is in front of it, as in ` }`."""
    category = unicodedata.category(character)
    return category == "Pe" or (category == "Po" and character not in BEGINNING)


def _is_in_straight_quotes(text: str, start: int, end: int) -> bool:
    """Return whether a mark is between straight quotes, or behind one that opens within a line.

    A quote behind a blank is not considered.
    """
    if text[start - 1 : start] not in tuple(STRAIGHT_QUOTES):
        return False
    is_between_quotes = text[end : end + 1] in tuple(STRAIGHT_QUOTES)
    quote_opens = text[start - 2 : start - 1] in tuple(BEFORE_OPENING_QUOTES)
    return is_between_quotes or quote_opens


def _marks_of_documents(
    text: str, occurrences: Sequence[_Occurrence], uses: Mapping[str, _MarkUse]
) -> dict[str, _MarkUse]:
    """Return the marks whose names and places say that a document begins or ends.

    Left out are the marks of the turns of a chat: those in front of the name of a speaker, those
    behind it, and, if there are several speakers, those that stand at more than half of the turns
    and elsewhere less often than there.
    """
    speakers_by_mark, closing_marks = _headers(text, occurrences)
    turn_gaps: set[int] = set()
    speakers: set[str] = set()
    for mark, use in uses.items():
        if mark in closing_marks:
            continue
        if mark in speakers_by_mark:
            speakers |= speakers_by_mark[mark]
            turn_gaps.update(use.gaps)
        elif not _names_boundary(mark):
            speakers.add(mark)  # such as <|assistant|>
            turn_gaps.update(use.gaps)
    is_chat = len(speakers) > 1
    outer_gaps = {0}  # before the first text; behind the last one there may be another
    if not text[occurrences[-1].end :].strip():
        outer_gaps.add(occurrences[-1].gap)
    turn_gaps -= outer_gaps

    candidates = {}
    for mark, use in uses.items():
        is_in_header = mark in speakers_by_mark or mark in closing_marks
        if not use.may_divide(mark) or is_in_header:
            continue
        if is_chat:
            gaps = set(use.gaps) - outer_gaps
            gaps_at_turns = len(gaps & turn_gaps)
            is_at_most_turns = 2 * gaps_at_turns > len(turn_gaps)
            is_mostly_at_turns = 2 * gaps_at_turns > len(gaps)
            if is_at_most_turns and is_mostly_at_turns:
                continue
        candidates[mark] = use
    return candidates


def _headers(
    text: str, occurrences: Sequence[_Occurrence]
) -> tuple[dict[str, set[str]], set[str]]:
    """Return the speakers that each mark introduces, and the marks that follow their names.

    In `<|start_header_id|>user<|end_header_id|>` and `<|im_start|>user`, followed by a text, the
    speaker is "user". A mark introduces speakers if a single word and a text follow it at more
    than half of its places, and there are at most `MOST_SPEAKERS` different words. A mark that
    follows the name of a speaker does so at more than half of its places as well.
    """
    counts: Counter[str] = Counter()
    speakers_by_mark: dict[str, set[str]] = {}
    count_with_speaker: Counter[str] = Counter()
    closing_by_mark: dict[str, Counter[str]] = {}
    places = [(occurrence.start, occurrence.end) for occurrence in occurrences]
    places += [(len(text), len(text))] * 2  # so that two marks follow each
    for index, (mark, _, end, _) in enumerate(occurrences):
        counts[mark] += 1
        match = SPEAKER.match(text, end)
        if END_NAME.search(_name_in(mark)) or match is None:
            continue
        next_start, next_end = places[index + 1]
        is_closed_by_mark = match.end() == next_start
        text_start, text_end = match.end(), next_start
        if is_closed_by_mark and index + 1 < len(occurrences):
            text_start, text_end = next_end, places[index + 2][0]
        if not text[text_start:text_end].strip():
            continue
        count_with_speaker[mark] += 1
        speakers_by_mark.setdefault(mark, set()).add(match[1])
        if is_closed_by_mark:
            closing_mark = occurrences[index + 1].mark
            closing_by_mark.setdefault(mark, Counter())[closing_mark] += 1

    closing_counts: Counter[str] = Counter()
    for mark, speakers in list(speakers_by_mark.items()):
        if 2 * count_with_speaker[mark] > counts[mark] and len(speakers) <= MOST_SPEAKERS:
            closing_counts.update(closing_by_mark.get(mark, {}))
        else:
            del speakers_by_mark[mark]
    closing_marks = {mark for mark, count in closing_counts.items() if 2 * count > counts[mark]}
    return speakers_by_mark, closing_marks


def _marks_of_one_level(candidates: Mapping[str, _MarkUse]) -> list[str]:
    """Return the marks that divide a text together.

    These are the most frequent one, or the rarest one that groups it all through the file, and
    those that stand equally often or at the same places. The list is empty if it would have more
    than `MOST_MARKS`.

    Args:
        candidates: The use of each mark whose name and places say that a document begins or ends.
    """
    if not candidates:
        return []
    by_count = sorted(candidates, key=lambda mark: len(candidates[mark].gaps))
    most_frequent = candidates[by_count[-1]]
    level = most_frequent
    for mark in by_count:
        if _groups_evenly(candidates[mark].gaps, most_frequent.gaps):
            level = candidates[mark]
            break

    marks = []
    level_gaps = set(level.gaps)
    for mark, use in candidates.items():
        common = len(level_gaps.intersection(use.gaps))
        is_at_same_places = 2 * common >= max(len(level_gaps), len(use.gaps))
        if is_at_same_places or use.count == level.count:
            marks.append(mark)
    if len(marks) > MOST_MARKS:
        return []
    return marks


def _groups_evenly(rare_gaps: Sequence[int], frequent_gaps: Sequence[int]) -> bool:
    """Return whether a mark is at most half as frequent as another, and groups it evenly."""
    if 2 * len(rare_gaps) > len(frequent_gaps):
        return False
    bounds = [frequent_gaps[0] - 1, *rare_gaps, frequent_gaps[-1]]
    positions = [bisect_right(frequent_gaps, bound) for bound in bounds]
    largest = max(after - before for before, after in pairwise(positions))
    return largest <= LARGEST_GROUP * len(frequent_gaps)


def _divide_at_bare_marks(text: str) -> DividedText:
    """Divide a text at lines such as </s> or [SEP], if it has any that divide documents."""
    line_counts = _counts_on_lines(text)
    marks = _bare_marks(text, line_counts)
    if not marks:
        return DividedText([text], [], _attached_bare_marks(text))
    alternatives = "|".join(re.escape(mark) for mark in marks)
    pieces = re.split(rf"(?m)^[ \t]*(?:{alternatives})[ \t]*$", text)
    documents = [piece.strip("\n") for piece in pieces if piece.strip()]
    return DividedText(documents, marks, {})


def _counts_on_lines(text: str) -> Counter[str]:
    """Return, for each mark such as </s> or [SEP], how many lines hold nothing else."""
    if "<" not in text and "[" not in text:
        return Counter()
    return Counter(match[1] for match in MARK_LINE.finditer(text))


def _attached_bare_marks(text: str) -> dict[str, int]:
    """Return how often marks such as </s> touch text, if they repeat and there are no other tags.

    They are too much like HTML to divide the text.
    """
    tags = Counter(match[0] for match in TAG.finditer(text))
    if not all(_names_boundary(tag) for tag in tags):
        return {}
    counts: Counter[str] = Counter()
    for match in BARE_MARK.finditer(text):
        start, end = match.span()
        is_attached = _touches_text(text, start, end) and not _is_inside_sentence(text, start, end)
        if _names_boundary(match[0]) and is_attached:
            counts[match[0]] += 1
    return {mark: count for mark, count in counts.items() if count >= FEWEST_REPEATS}


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


def _names_boundary(mark: str) -> bool:
    """Return whether the name in a mark says that a text begins or ends."""
    name = _name_in(mark)
    return bool(END_NAME.search(name) or START_NAME.search(name))


def _name_in(mark: str) -> str:
    """Return the name in a mark, such as "endoftext" of <|endoftext|>, in lower case."""
    return mark.strip("<>[]|｜").casefold()
