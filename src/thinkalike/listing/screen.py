"""Lists of results on a screen: cells of several lines, so that they fit 80 columns and no name is cut."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from thinkalike.errors import listed
from thinkalike.listing.forms import written
from thinkalike.listing.found import Entry
from thinkalike.listing.settings import differing, values_of

COLUMNS = ("job", "models and settings", "result")
WIDTHS = (16, 21)  # of a date with its time, and of an interval: what the first and the last column need
FRAME = 3 * len(COLUMNS) + 1  # columns of a screen that lines and spaces between cells take


def show_entries(entries: Sequence[Entry]) -> None:
    """Print a table for each kind of result, with the settings in which its results differ."""
    for kind in dict.fromkeys(entry.kind for entry in entries):
        own = [entry for entry in entries if entry.kind == kind]
        names = differing(own)
        rows = [
            (
                _job(entry),
                [*_models(entry), *(written(*each) for each in values_of(entry, names).items())],
                told(entry),
            )
            for entry in own
        ]
        folder = own[0].result.folder.parent
        title = f"{folder}: {len(own)} {'result' if len(own) == 1 else 'results'}"
        print_rows(title, rows, {word for entry in own for name in _models(entry) for word in name.split()})


def print_rows(
    title: str, rows: Sequence[Sequence[Sequence[str]]], whole: Collection[str], columns: Sequence[str] = COLUMNS
) -> None:
    """Print a table of three columns, each cell of several lines.

    Args:
        whole: names in the second column that are never cut; if need be the table is wider than the screen.
    """
    table = Table(title=title, show_lines=True)
    widths = (WIDTHS[0], max(map(len, whole), default=0), WIDTHS[1])
    for name, width in zip(columns, widths, strict=True):
        table.add_column(name, min_width=width, overflow="fold")
    for row in rows:
        table.add_row(*(Text("\n".join(lines)) for lines in row))
    console = Console()
    console.width = max(console.width, sum(widths) + FRAME)
    console.print(table)


def _job(entry: Entry) -> list[str]:
    return [entry.key, f"{entry.date:%Y-%m-%d %H:%M}", duration(entry.seconds)]


def _models(entry: Entry) -> list[str]:
    return entry.models if len(entry.models) <= 2 else [listed(entry.models)]


def told(entry: Entry) -> list[str]:
    """Return the headline numbers of a result, a line each."""
    return [f"{each.label} {each.text}" for each in entry.headlines]


def duration(seconds: float) -> str:
    """Return seconds as a reader says them: 31 s, 12 min, 3.5 h."""
    if seconds < 100:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
