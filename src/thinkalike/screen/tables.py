"""Tables and sentences that fit the screen: lines end between words, and only very long words are broken.

A table that is too wide becomes several below each other, each with the key columns.
"""

from __future__ import annotations

import itertools
import math
import shutil
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as Drawn
from rich.text import Text

if TYPE_CHECKING:
    import pandas as pd

LONG = 40  # columns of a word that may be broken where it wraps, such as a list of layers
BESIDE, EDGE = 3, 1  # columns of the screen for the frame: of each column, and of the table
ROWS = 16  # of the tables of a screen
SHADES = " ░▒▓█"
MAP_ROWS, MAP_WIDTH = 18, 48  # lines and columns of the screen, at most, beside the labels


def span(value: Any, low: Any, high: Any, spec: str = "+.3f") -> str:
    """Return a number with its interval, if that is known: "+0.037 [+0.032, +0.043]"."""
    return f"{value:{spec}}" if math.isnan(low) or math.isnan(high) else f"{value:{spec}} [{low:{spec}}, {high:{spec}}]"


def screen_width() -> int:
    """Return the columns of the screen: $COLUMNS if it is set, else those of the terminal, else 80."""
    return shutil.get_terminal_size().columns


def plain(text: str) -> str:
    """Return a text without control characters, by which a forged name could write anywhere on a terminal."""
    return "".join("\ufffd" if unicodedata.category(each) in ("Cc", "Cf") and each != "\n" else each for each in text)


def wrapped(text: str, width: int) -> list[str]:
    """Return the lines of a text in this many columns; only a word that is wider than that is broken."""
    lines = Text(plain(text)).wrap(Console(), max(width, 1))
    return [line.plain.rstrip() for line in lines]


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
        words, cells = self.name.split(), "\n".join(self.cells)
        if self.wraps:
            return max(min(cell_len(word), LONG) for word in ("", *words, *cells.split()))
        return max(map(cell_len, [*words, *cells.split("\n")]))

    @cached_property
    def most(self) -> int:
        """The columns of the screen that it takes where nothing wraps."""
        return max(self.least, *map(cell_len, "\n".join([self.name, *self.cells]).split("\n")))


def text_column(name: str, cells: Iterable[object]) -> Column:
    """Return a column of text, which wraps between words."""
    return Column(name, [str(cell) for cell in cells], wraps=True)


def number_column(name: str, cells: Iterable[object], form: str = "", follows: bool = False) -> Column:
    """Return a column of numbers in a format, which never wrap."""
    return Column(name, [f"{cell:{form}}" for cell in cells], follows=follows)


@dataclass(frozen=True)
class Table:
    """A table to print.

    Attributes:
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
    for block in stacked(table.columns, table.keys, width):
        drawn = Drawn(box=box.HEAVY_HEAD, show_lines=table.ruled)
        for column, room in zip(block, widths(block, width), strict=True):
            drawn.add_column(
                Text(plain(column.name)), justify="left" if column.wraps else "right", width=room, overflow="fold"
            )
        for row in zip(*(column.cells for column in block), strict=True):
            drawn.add_row(*(Text(plain(cell)) for cell in row))
        console.print(drawn, crop=False)


def show_text(text: str, indent: int = 0) -> None:
    """Print a text to stdout in lines as wide as the screen at most; those after the first begin further right."""
    first, *others = wrapped(text, screen_width() - indent - 2)
    print("\n".join([" " * indent + first, *(" " * (indent + 2) + line for line in others)]))


def stacked(columns: Sequence[Column], keys: int, width: int) -> list[list[Column]]:
    """Return the columns of each table that a table becomes in this width; all have its first `keys` columns."""
    starts = [place for place in range(keys, len(columns)) if place == keys or not columns[place].follows]
    blocks = [list(columns[:keys])]
    for start, stop in itertools.pairwise([*starts, len(columns)]):
        group = columns[start:stop]
        if not _fits([*blocks[-1], *group], width) and len(blocks[-1]) > keys:
            blocks.append(list(columns[:keys]))
        blocks[-1] += group
    return blocks


def _fits(block: Sequence[Column], width: int) -> bool:
    return sum(column.least + BESIDE for column in block) + EDGE <= width


def widths(block: Sequence[Column], width: int) -> list[int]:
    """Return how wide each column is in a table of this width: the room is shared by how much each would wrap."""
    wanted = [column.most - column.least for column in block]
    spare = max(width - EDGE - sum(column.least + BESIDE for column in block), 0)
    share = min(spare / max(sum(wanted), 1), 1)
    return [column.least + int(share * more) for column, more in zip(block, wanted, strict=True)]


def few(count: int, most: int = ROWS) -> list[int]:
    """Return the places of at most this many of `count` rows, evenly spaced, the first and the last among them."""
    shown = min(count, max(most, 2))
    return sorted({round(place * (count - 1) / max(shown - 1, 1)) for place in range(shown)})


def show_map(values: pd.DataFrame, less_is_closer: bool = False) -> None:
    """Print a matrix as shaded cells, the darker the closer; the closest cell of each row has a dot."""
    import numpy as np

    width = max(2, *(len(str(name)) for name in values.columns)) + 1
    rows, columns = few(len(values), MAP_ROWS), few(len(values.columns), MAP_WIDTH // width)
    cells = values.iloc[rows, columns].to_numpy(float)
    if not np.isfinite(cells).any():
        return
    low, high = float(np.nanmin(cells)), float(np.nanmax(cells))
    depth = (high - cells if less_is_closer else cells - low) / ((high - low) or 1)
    names, edge = [str(values.index[row]) for row in rows], max(len(str(name)) for name in values.index) + 2
    print(" " * (edge + 1) + "".join(f"{values.columns[column]!s:>{width}}" for column in columns))
    for name, own in zip(names, depth, strict=True):
        shades = ["?" if np.isnan(each) else SHADES[min(int(each * len(SHADES)), len(SHADES) - 1)] for each in own]
        closest = -1 if np.isnan(own).all() else int(np.nanargmax(own))
        drawn = [shade * (width - 1) + ("●" if place == closest else shade) for place, shade in enumerate(shades)]
        print(f"{name:>{edge}} " + "".join(drawn))
    ends = (high, low) if less_is_closer else (low, high)
    left_out = "" if len(rows) * len(columns) == values.size else "; some layers are left out"
    show_text(f"scale: blank {ends[0]:.3f} to {SHADES[-1]} {ends[1]:.3f}; ● the closest in its row{left_out}", edge)


def number_of_documents(numbers: Mapping[str, float]) -> str:
    """Return over how many documents an interval is, in words: "58 documents (as 41.3 of equal length)"."""
    return f"{numbers['documents']:.0f} documents (as {numbers['effective_documents']:.1f} of equal length)"
