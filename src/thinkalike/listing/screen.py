"""Lists of results on a screen: cells of several lines, so that they fit 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from thinkalike.errors import listed
from thinkalike.listing.forms import written
from thinkalike.listing.found import Entry
from thinkalike.listing.settings import differing, values_of
from thinkalike.screen import Column, Table, show_table, text_column

COLUMNS = ("job", "models and settings", "result")


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
        print_rows(title, rows)


def print_rows(title: str, rows: Sequence[Sequence[Sequence[str]]], columns: Sequence[str] = COLUMNS) -> None:
    """Print a table of three columns, each cell of several lines."""
    job, said, told = (["\n".join(row[place]) for row in rows] for place in range(3))
    key = Column(columns[0], job)
    show_table(Table(title, [key, text_column(columns[1], said), text_column(columns[2], told)], ruled=True))


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
