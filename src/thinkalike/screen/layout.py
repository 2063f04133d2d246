"""Where the columns of a table go in a given width: in one table, in several below each other, or in lists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from thinkalike.screen.columns import Column
from thinkalike.screen.words import wrapped

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
