"""Tables that fit the screen: headers and prose wrap between words, and what is still too wide is stacked.

A table that is too wide becomes several below each other, each with the key columns; where not even one column fits
beside those, every row becomes lines of "column: cell". Every table that a job prints is laid out here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table as Drawn
from rich.text import Text

from thinkalike.screen.columns import Column
from thinkalike.screen.layout import records, stacked, widths
from thinkalike.screen.width import screen_width
from thinkalike.screen.words import wrapped


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
