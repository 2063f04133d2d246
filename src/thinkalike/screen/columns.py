"""A column of a table: what it says, and how wide and how high that is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from rich.cells import cell_len

from thinkalike.screen.words import longest, widest, wrapped


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
        return wrapped(self.cells[row], room) if self.wraps else self.cells[row].split("\n")

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
