"""Text in lines of a given width: a line ends between words, and never inside a name or a number."""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as Drawn
from rich.text import Text

# an interval, "95 %", "p = 0.01" and "R² →" are one word
WORD = re.compile(r"(?:\[\S+, \S+\]\S*|\S+(?: = \S+| [%→←](?!\S))?) *")
LONG = 40  # columns of a word that may continue on the next line after a comma, an equals sign or a folder of a path


@lru_cache(maxsize=4096)  # a table is laid out in many widths
def parts(text: str) -> tuple[str, ...]:
    """Return what a line may end after: words, with the space that follows them, and the parts of long lists."""
    return tuple(part for word in WORD.findall(text) for part in _pieces(word))


def plain(text: str) -> str:
    """Return a text without control characters, by which a forged name could write anywhere on a terminal."""
    return "".join("\ufffd" if unicodedata.category(each) in ("Cc", "Cf") and each != "\n" else each for each in text)


def wrapped(text: str, width: int) -> list[str]:
    """Return the lines of a text in so many columns; a word that is wider than that has a line to itself."""
    return [line for given in plain(text).split("\n") for line in _filled(given, width)]


def longest(text: str) -> int:
    """Return the columns of the widest part of a text."""
    return max((cell_len(part.rstrip()) for part in parts(text)), default=0)


def widest(text: str) -> int:
    """Return the columns of the widest line of a text."""
    return max(map(cell_len, text.split("\n")))


def _filled(line: str, width: int) -> Iterator[str]:
    filled = ""
    for part in parts(line):
        if filled and cell_len(filled + part.rstrip()) > width:
            yield filled.rstrip()
            filled = ""
        filled += part
    yield filled.rstrip()


def _pieces(word: str) -> list[str]:
    """Return a word, or the parts of a long list or path; the name of a model, ORG/NAME at most, is one part."""
    if cell_len(word.rstrip()) <= LONG:
        return [word]
    marks = ",=/" if word.count("/") > 1 else ",="
    return re.findall(rf"[^{marks}]*[{marks}]+ *|[^{marks}]+$", word)


# ------------------------------------------------------------
# How wide the screen is.

PIPE = 80  # columns of a pipe, a file and a terminal of unknown size


def screen_width() -> int:
    """Return the columns of the screen: $COLUMNS if it is set, else those of the terminal, else those of a pipe."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given):
        return int(given)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or PIPE
    except (OSError, ValueError, AttributeError):  # a pipe, a stream without a file, no stdout at all
        return PIPE


# ------------------------------------------------------------
# A column of a table: what it says, and how wide and how high that is.


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: the header, which wraps between words.
        cells: one for each row; a cell may have several lines.
        wraps: whether cells are words, on the left, which wrap; else they are numbers, on the right, and never do.
        follows: whether it stays in one table with the column before it.
    """

    name: str
    cells: Sequence[str]
    wraps: bool = False
    follows: bool = False

    @cached_property
    def least(self) -> int:
        """The fewest columns of the screen that it needs."""
        return max(longest(self.name), *((longest if self.wraps else widest)(cell) for cell in self.cells), 1)

    @cached_property
    def most(self) -> int:
        """The columns of the screen that it takes where nothing wraps."""
        return max(widest(self.name), *map(widest, self.cells), 1)

    def header(self, room: int) -> list[str]:
        """Return the lines of the header in so many columns of the screen."""
        return wrapped(self.name, room)

    def lines(self, row: int, room: int) -> list[str]:
        """Return the lines of a cell in so many columns of the screen."""
        return wrapped(self.cells[row], room) if self.wraps else plain(self.cells[row]).split("\n")

    def height(self, room: int) -> int:
        """Return how many lines header and cells have in so many columns of the screen."""
        inside = sum(len(self.lines(row, room)) for row in range(len(self.cells))) if self.wraps else 0
        return len(self.header(room)) + inside

    def taken(self, room: int) -> int:
        """Return how many of so many columns of the screen the widest line takes."""
        inside = [line for row in range(len(self.cells)) for line in self.lines(row, room)]
        return max(map(cell_len, [*self.header(room), *inside]))


def text_column(name: str, cells: Iterable[object], follows: bool = False) -> Column:
    """Return a column of text, which wraps between words."""
    return Column(name, [str(cell) for cell in cells], wraps=True, follows=follows)


def number_column(name: str, cells: Iterable[object], form: str = "", follows: bool = False) -> Column:
    """Return a column of numbers in a format, which never wrap."""
    return Column(name, [f"{cell:{form}}" for cell in cells], follows=follows)


# ------------------------------------------------------------
# Where the columns of a table go in a given width: in one table, in several below each other, or in lists.

BESIDE, EDGE = 3, 1  # columns of the screen for the frame: of each column, and of the table
STEPS = 30  # in which what is left is given to columns


def stacked(columns: Sequence[Column], keys: int, width: int) -> list[list[Column]] | None:
    """Return the columns of each table that a table becomes in this width, or None if one would be too wide.

    Args:
        keys: how many of the columns, from the first on, every table has.
    """
    first = list(columns[:keys])
    blocks = [first]
    for group in _groups(columns[keys:]):
        if not _fits([*blocks[-1], *group], width) and len(blocks[-1]) > keys:
            blocks.append(first)
        blocks[-1] = [*blocks[-1], *group]
    return blocks if all(_fits(block, width) for block in blocks) else None


def widths(block: Sequence[Column], width: int) -> list[int]:
    """Return how wide each column is where all of them have this width; what has the most lines grows first."""
    given = [column.least for column in block]
    spare = width - _frame(block) - sum(given)
    step = max(spare // STEPS, 1)
    while spare >= step and (growing := [place for place, each in enumerate(block) if given[place] < each.most]):
        tallest = max(growing, key=lambda place: block[place].height(given[place]))
        given[tallest] += step
        spare -= step
    return [column.taken(room) for column, room in zip(block, given, strict=True)]


def records(columns: Sequence[Column], keys: int, width: int) -> Iterator[str]:
    """Yield the lines of a table whose rows are lists: the keys, and below them a line for each other column."""
    for row in range(len(columns[0].cells)):
        for place, column in enumerate(columns):
            indent = 0 if place < keys else 2
            text = f"{column.name}: {column.cells[row]}"
            first, *rest = wrapped(text, width - indent - 2)
            yield f"{' ' * indent}{first}"
            yield from (f"{' ' * (indent + 2)}{line}" for line in rest)


def _groups(columns: Sequence[Column]) -> Iterator[list[Column]]:
    """Yield columns that stay in one table."""
    group: list[Column] = []
    for column in columns:
        if group and not column.follows:
            yield group
            group = []
        group.append(column)
    if group:
        yield group


def _fits(block: Sequence[Column], width: int) -> bool:
    return sum(column.least for column in block) + _frame(block) <= width


def _frame(block: Sequence[Column]) -> int:
    return BESIDE * len(block) + EDGE


# ------------------------------------------------------------
# Tables that fit the screen: headers and prose wrap between words, and what is still too wide is stacked.
#
# A table that is too wide becomes several below each other, each with the key columns; where not even one column fits
# beside those, every row becomes lines of "column: cell". Every table that a job prints is laid out here.


@dataclass(frozen=True)
class Table:
    """A table as what it says.

    Attributes:
        title: what stands above it.
        columns: all have as many cells.
        keys: how many of the columns, from the first on, say what a row is of.
        ruled: whether there is a line between rows.
    """

    title: str
    columns: Sequence[Column]
    keys: int = 1
    ruled: bool = False


def show_table(table: Table) -> None:
    """Print a table to stdout, as wide as the screen at most."""
    width = screen_width()
    console = Console(width=width, highlight=False)
    console.print(Text("\n".join(wrapped(table.title, width)), style="italic"), soft_wrap=True)
    if (blocks := stacked(table.columns, table.keys, width)) is None:
        console.print(Text("\n".join(records(table.columns, table.keys, width))), soft_wrap=True)
        return
    for block in blocks:
        console.print(_drawn(table, block, width), crop=False)


def show_text(text: str, indent: int = 0) -> None:
    """Print a text to stdout in lines as wide as the screen at most; those after the first begin further right."""
    first, *rest = wrapped(text, max(screen_width() - indent - 2, 1))
    for line in (f"{' ' * indent}{first}", *(f"{' ' * (indent + 2)}{line}" for line in rest)):
        print(line.rstrip())


def _drawn(table: Table, block: Sequence[Column], width: int) -> Drawn:
    drawn = Drawn(box=box.HEAVY_HEAD, show_lines=table.ruled)
    rooms = widths(block, width)
    for column, room in zip(block, rooms, strict=True):
        header = Text("\n".join(column.header(room)))
        drawn.add_column(header, justify="left" if column.wraps else "right", no_wrap=True, width=room)
    for row in range(len(block[0].cells)):
        cells = zip(block, rooms, strict=True)
        drawn.add_row(*(Text("\n".join(column.lines(row, room))) for column, room in cells))
    return drawn


def number_of_documents(numbers: Mapping[str, float]) -> str:
    """Return over how many documents an interval is, in words: "58 documents (as 41.3 of equal length)".

    Args:
        numbers: something that has `documents` and `effective_documents` by name.
    """
    return f"{numbers['documents']:.0f} documents (as {numbers['effective_documents']:.1f} of equal length)"
