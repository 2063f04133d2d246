"""Tables that fit the screen."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from thinkalike.advice import shown_in_words
from thinkalike.errors import plain
from thinkalike.screen.text import number_text, only_sentences_count, screen_width, wrapped

LONGEST_WORD = 40  # columns of a word that is never broken; a list of layers may be longer
# columns of the screen for the frame of each column, and of the table
COLUMN_FRAME = 3
TABLE_FRAME = 1
MOST_ROWS = 16  # of the tables of a screen


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: the header, which wraps between words.
        cells: one for each row; a cell may have several lines.
        wraps: whether cells are text, which is on the left and wraps; numbers are on the right and
            never wrap.
        follows: whether it stays in one table with the column before it.
    """

    name: str
    cells: Sequence[str]
    wraps: bool = False
    follows: bool = False

    @cached_property
    def least_width(self) -> int:
        """The fewest columns of the screen that it needs."""
        content = "\n".join(self.cells)
        longest = math.inf
        pieces = content.split("\n")
        if self.wraps:
            pieces = content.split()
            longest = LONGEST_WORD
        words = ["", *self.name.split(), *pieces]
        return max(int(min(cell_len(word), longest)) for word in words)

    @property
    def full_width(self) -> int:
        """The columns of the screen in which nothing wraps."""
        lines = "\n".join([self.name, *self.cells]).split("\n")
        return max(map(cell_len, lines))


def text_column(name: str, cells: Iterable[object]) -> Column:
    """Return a column of text, which wraps between words."""
    return Column(name, [str(cell) for cell in cells], wraps=True)


def number_column(
    name: str, cells: Iterable[object], form: str = "", follows: bool = False
) -> Column:
    """Return a column of numbers in a format, which never wrap."""
    return Column(name, [number_text(cell, form) for cell in cells], follows=follows)


@dataclass(frozen=True)
class Table:
    """A table to print.

    Attributes:
        title: stands above the table.
        columns: they have equally many cells.
        keys: how many columns, from the first on, say what a row is about.
        ruled: whether there is a line between rows.
    """

    title: str
    columns: Sequence[Column]
    keys: int = 1
    ruled: bool = False


def show_table(table: Table) -> None:
    """Print a table to stdout, at most as wide as the screen."""
    if only_sentences_count():
        return
    width = screen_width()
    # In a notebook, rich would display the table in a cell of its own.
    console = Console(width=width, highlight=False, force_jupyter=False)
    title = "\n".join(wrapped(table.title, width))
    console.print(Text(title, style="italic"), soft_wrap=True)
    for block in stacked(table.columns, table.keys, width):
        block_widths = widths(block, width)
        is_plain = not console.is_terminal and not console.options.ascii_only
        if is_plain and _framed_width(block_widths) <= width:
            for line in drawn_lines(block, block_widths, table.ruled):
                console.file.write(f"{line}\n")
        else:
            console.print(_rich_table(block, block_widths, table.ruled), crop=False)


def _framed_width(column_widths: Sequence[int]) -> int:
    return sum(width + COLUMN_FRAME for width in column_widths) + TABLE_FRAME


def _rich_table(block: Sequence[Column], column_widths: Sequence[int], ruled: bool) -> RichTable:
    drawn = RichTable(box=box.HEAVY_HEAD, show_lines=ruled)
    for column, width in zip(block, column_widths, strict=True):
        header = Text(plain(column.name))
        if column.wraps:
            drawn.add_column(header, justify="left", width=width, overflow="fold")
        else:
            drawn.add_column(header, justify="right", width=width, overflow="fold")
    for row in zip(*(column.cells for column in block), strict=True):
        drawn.add_row(*(Text(plain(cell)) for cell in row))
    return drawn


def drawn_lines(
    block: Sequence[Column], column_widths: Sequence[int], ruled: bool
) -> Iterator[str]:
    """Yield the lines of a table as rich draws them without a terminal.

    Rich needs a millisecond for each row.
    """
    rules = ["─" * (width + 2) for width in column_widths]
    heavy_rules = ["━" * (width + 2) for width in column_widths]
    names = [column.name for column in block]
    yield f"┏{'┳'.join(heavy_rules)}┓"
    yield from _row_lines(names, block, column_widths, "┃", at_bottom=True)
    yield f"┡{'╇'.join(heavy_rules)}┩"
    for number, row in enumerate(zip(*(column.cells for column in block), strict=True)):
        if ruled and number:
            yield f"├{'┼'.join(rules)}┤"
        yield from _row_lines(row, block, column_widths, "│")
    yield f"└{'┴'.join(rules)}┘"


def _row_lines(
    cells: Sequence[str],
    block: Sequence[Column],
    column_widths: Sequence[int],
    edge: str,
    at_bottom: bool = False,
) -> Iterator[str]:
    """Yield the lines of one row, as many as its highest cell has.

    Args:
        edge: the character between cells.
        at_bottom: whether lower cells stand at the bottom of the row, and not at its top.
    """
    cell_lines = []
    for cell, column, width in zip(cells, block, column_widths, strict=True):
        lines = _wrapped_cell(cell, width)
        cell_lines.append([_padded(line, width, column.wraps) for line in lines])

    height = max(map(len, cell_lines))
    for lines, width in zip(cell_lines, column_widths, strict=True):
        blank_lines = [" " * width] * (height - len(lines))
        if at_bottom:
            lines[:] = [*blank_lines, *lines]
        else:
            lines += blank_lines

    for pieces in zip(*cell_lines, strict=True):
        content = f" {edge} ".join(pieces)
        yield f"{edge} {content} {edge}"


def _wrapped_cell(cell: str, width: int) -> list[str]:
    lines = []
    for line in plain(cell).split("\n"):
        is_narrow = line.isascii() and len(line) <= width
        if is_narrow:
            lines.append(line.rstrip())
        else:
            lines += wrapped(line, width) or [""]
    return lines


def _padded(line: str, width: int, is_left: bool) -> str:
    """Return a line with spaces on its right if it `is_left`, and else on its left."""
    line_width = len(line)
    if not line.isascii():
        line_width = cell_len(line)
    spaces = " " * (width - line_width)
    if is_left:
        return line + spaces
    return spaces + line


def stacked(columns: Sequence[Column], keys: int, width: int) -> list[list[Column]]:
    """Return the columns of each table that a table becomes in this width.

    All of them have the first `keys` columns.
    """
    key_columns = list(columns[:keys])
    # where a table may be divided: before each column that does not follow the one before it
    starts = []
    for position in range(keys, len(columns)):
        if position == keys or not columns[position].follows:
            starts.append(position)

    blocks = [key_columns]
    for start, stop in itertools.pairwise([*starts, len(columns)]):
        group = columns[start:stop]
        wider = [*blocks[-1], *group]
        fits = _framed_width([column.least_width for column in wider]) <= width
        is_first_group = len(blocks[-1]) == keys
        if fits or is_first_group:
            blocks[-1] = wider
        else:
            blocks.append([*key_columns, *group])
    return blocks


def widths(block: Sequence[Column], width: int) -> list[int]:
    """Return how wide each column is in a table of this width.

    Spare room is shared in proportion to how much the lines of each column would wrap.
    """
    least_widths = [column.least_width for column in block]
    wanted_widths = []
    for column, least_width in zip(block, least_widths, strict=True):
        wanted_widths.append(max(column.full_width - least_width, 0))
    spare = max(width - _framed_width(least_widths), 0)
    share = min(spare / max(sum(wanted_widths), 1), 1)
    return [
        least_width + int(share * wanted_width)
        for least_width, wanted_width in zip(least_widths, wanted_widths, strict=True)
    ]


def with_share(title: str, counts: Mapping[str, tuple[int, int]], table: str = "details") -> str:
    """Return the title of a table, with how much it shows of a result's, if that is not all.

    Args:
        title: The title.
        counts: How many are shown and how many there are, by what they are, such as "layers".
        table: The name of the table in the result.
    """
    share = shown_in_words(counts, table)
    return f"{title} ({share})" if share else title


def few(count: int, most: int = MOST_ROWS) -> list[int]:
    """Return the numbers of some of `count` rows, evenly spaced, with the first and the last.

    Args:
        most: how many, but at least two.
    """
    shown = min(count, max(most, 2))
    intervals = max(shown - 1, 1)
    return sorted({round(position * (count - 1) / intervals) for position in range(shown)})
