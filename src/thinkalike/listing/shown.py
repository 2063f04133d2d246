"""Lists of results on a screen, for other programs, and of a sweep."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from thinkalike.config import Made
from thinkalike.errors import StoreError, listed
from thinkalike.listing.found import Entry, Query, differing, moment, search, selected
from thinkalike.screen import Column, Table, show_table, text_column
from thinkalike.store import Result

log = logging.getLogger(__name__)

Row = tuple[list[str], list[str], Entry]  # what is said of a job, its settings, and the job


def show_entries(entries: Sequence[Entry]) -> None:
    """Print a table for each kind of result, with the settings in which its results differ."""
    rows: dict[Path, list[Row]] = {}
    for entry, given in zip(entries, differing(entries), strict=True):
        job = [entry.key, f"{entry.date:%Y-%m-%d %H:%M}", duration(entry.seconds)]
        models = entry.models if len(entry.models) <= 2 else [listed(entry.models)]
        settings = [*models, *(_written(*each) for each in given.items())]
        rows.setdefault(entry.result.folder.parent, []).append((job, settings, entry))
    for folder, own in rows.items():
        title = f"{folder}: {len(own)} {'result' if len(own) == 1 else 'results'}"
        _print_rows(title, "models and settings", own)


def _print_rows(title: str, column: str, rows: Sequence[Row]) -> None:
    """Print a table of the lines about each job, of its settings, and of its headline numbers."""
    cells = [(job, given, [f"{each.label} {each.text}" for each in entry.headlines]) for job, given, entry in rows]
    jobs, settings, numbers = (["\n".join(row[place]) for row in cells] for place in range(3))
    columns = [Column("job", jobs), text_column(column, settings), text_column("result", numbers)]
    show_table(Table(title, columns, ruled=True))


def _written(name: str, value: Any) -> str:
    """Return a setting as a command line gives it: stitch=affine, layers=[[0,0]]."""
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return f"{name.removesuffix('.name').removesuffix('.kind')}={text}"


def duration(seconds: float) -> str:
    """Return seconds in words: 31 s, 12 min, 3.5 h."""
    if seconds < 100:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def results(
    store: str | os.PathLike[str],
    kind: str | Sequence[str] = (),
    model: str | Sequence[str] = (),
    since: str | None = None,
) -> pd.DataFrame:
    """Return one row for each finished result of a store, the newest last; an empty table if there is none.

    The columns are kind, key, date (UTC), models, the settings in which the results of a kind differ, the first
    headline number (headline, value, low, high), all headline numbers and scalars by their names, seconds, folder.
    Damaged results and other folders are left out.

    Args:
        kind: one kind or several, such as "cka"; nothing: all.
        model: results of any of these models, by their names.
        since: a date such as "2026-11-01", or how long ago: "12h", "7d", "2w".

    Raises:
        ConfigError: no result is of such a kind or model, or `since` is no date.
        StoreError: there is no such folder, or no such result.
    """
    found = search(Path(store).expanduser())
    kinds, models = ((each,) if isinstance(each, str) else tuple(each) for each in (kind, model))
    query = Query(found.store, kinds, models, moment(since) if since else None)
    return frame(selected(found, query) if found.entries or kinds or models or since else [])


def frame(entries: Sequence[Entry]) -> pd.DataFrame:
    """Return one row for each result, with the columns that `results` names."""
    rows = []
    for entry, record in zip(entries, records(entries), strict=True):
        first = entry.headlines[0]._asdict() if entry.headlines else {}
        said = {"headline": first.get("name")} | {name: first.get(name) for name in ("value", "low", "high")}
        numbers = _numbers(entry)
        others = {name: value for name, value in record["scalars"].items() if name not in numbers}
        row = {"kind": entry.kind, "key": entry.key, "date": entry.date, "models": ", ".join(entry.models)}
        row |= record["settings"] | said | others | numbers
        rows.append(row | {"seconds": entry.seconds, "folder": record["folder"]})
    return pd.DataFrame(rows)


def records(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Return what lists hold of each result: the columns of `frame`, with models and headline numbers as lists."""
    return [
        {
            "kind": entry.kind,
            "key": entry.key,
            "date": entry.date.isoformat(),
            "models": entry.models,
            "settings": settings,
            "headlines": [each._asdict() for each in entry.headlines],
            "scalars": entry.result.scalars,
            "seconds": entry.seconds,
            "command": entry.result.provenance.get("command"),
            "folder": str(entry.result.folder),
        }
        for entry, settings in zip(entries, differing(entries), strict=True)
    ]


def _numbers(entry: Entry) -> dict[str, float]:
    """Return all headline numbers of a result and the ends of their intervals, by name."""
    return {name: value for each in entry.headlines for name, value in each.numbers.items()}


def show_sweep(made: Sequence[Made]) -> None:
    """Print one table of the results of a sweep."""
    jobs = [(each, entry) for each in made if (entry := _read(each))]
    if not jobs:
        return
    entries = [entry for _, entry in jobs]
    given = [
        {key.lstrip("+~"): value for key, _, value in (word.partition("=") for word in job.words)} for job, _ in jobs
    ]
    keys = dict.fromkeys(key for each in given for key in each)
    swept = [key for key in keys if len(given) == 1 or len({each.get(key) for each in given}) > 1]
    settings = [{name: each.get(name, "") for name in swept} for each in given]
    rows = [
        ([entry.key, duration(entry.seconds)], [f"{name}={value}" for name, value in own.items()], entry)
        for entry, own in zip(entries, settings, strict=True)
    ]
    _print_rows(f"jobs of the sweep: {len(jobs)}", "swept", rows)


def _read(made: Made) -> Entry | None:
    """Return the result of a job, or None, with a warning, if it cannot be read any more."""
    try:
        return Entry.of(Result(Path(made.folder)))
    except StoreError as error:
        log.warning("left out of the sweep's table: %s", error)
        return None


USAGE = """\
usage: thinkalike results [STORE] [key=value ...] [--csv | --json]

  thinkalike results                                all finished jobs of the folder results, the newest last
  thinkalike results kind=cka,mutual_knn model=gpt2       those of any of these kinds, and of any of these models
  thinkalike results since=7d sort=mean_penalty     since a date (2026-11-01), or so many hours (12h), days or weeks;
                                                    sort=date|duration|models|kind, or a headline number
  thinkalike results store=DIR --csv                for machines, in full precision; --json, too"""


def list_results(words: Sequence[str]) -> None:
    """Print the results that a command line asks for; skipped folders and unfinished jobs go to stderr.

    Raises:
        ConfigError: a word is not known.
        StoreError: there are no such results.
    """
    if {"-h", "--help"} & set(words):
        print(USAGE)
        return
    query = Query.parsed(words)
    found = search(query.store)
    for line in found.skipped:
        print(f"skipped: {line}", file=sys.stderr)
    entries = selected(found, query)
    if query.form == "csv":
        print(frame(entries).to_csv(index=False), end="")
    elif query.form == "json":
        print(json.dumps(records(entries), indent=1))
    else:
        show_entries(entries)
    if found.unfinished:
        folders = listed([f"{each.parent.name}/{each.stem}" for each in found.unfinished])
        print(f"unfinished, running or interrupted: {len(found.unfinished)} ({folders})", file=sys.stderr)
