"""Which results a page is of: those of stores and single ones; what is none is named and left out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from thinkalike.errors import StoreError
from thinkalike.listing import Entry, Found, Query, search, selected
from thinkalike.store import damage, is_sealed, open_result


def gather(places: Sequence[str | Path], query: Query | None = None) -> Found:
    """Return the results of stores and of single folders, each once, those that a table repeats after its job's.

    What in a store is no finished result, or a damaged one, is left out, and `skipped` of what is returned names it.

    Args:
        places: stores such as `results`, or folders of single results.
        query: which of the results; None: all.

    Raises:
        ConfigError: no result is of a kind or model that was asked for.
        StoreError: a place is no folder, or nothing is left.
    """
    found = Found(Path(", ".join(map(str, places))))
    for place in dict.fromkeys(Path(place).expanduser() for place in places):
        _add(place, found)
    once = {entry.result.folder.resolve(): entry for entry in found.entries}
    found.entries = list(once.values())
    if not found.entries and found.skipped:
        raise StoreError(f"{found.store} holds no finished results: {found.skipped[0]}")
    found.entries = sorted(selected(found, query or Query()), key=_experiments_last)
    return found


def _add(place: Path, found: Found) -> None:
    """Add what a store or the folder of a result holds.

    Raises:
        StoreError: it is no folder.
    """
    if not place.is_dir():
        raise StoreError(f"{place} is no folder; name a store, such as results, or the folder of a result")
    inside = Found(place, [Entry.of(open_result(place))]) if is_sealed(place) else search(place)
    for entry in inside.entries:
        if wrong := damage(entry.result.folder):
            found.skipped.append(wrong)
        else:
            found.entries.append(entry)
    found.skipped += inside.skipped
    found.unfinished += inside.unfinished


def _experiments_last(entry: Entry) -> bool:
    """The order of results: a table that an experiment repeats is shown under the job that computed it."""
    return (entry.result.folder / "claims.csv").exists()
