"""Lists of results on a screen: cells of several lines, so that they fit 80 columns."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from thinkalike.config import LoggerConfig, Made
from thinkalike.errors import StoreError, listed
from thinkalike.listing.found import Entry, Query, differing, moment, search, selected, values_of, written
from thinkalike.loggers import About, publish_table
from thinkalike.screen import Column, Table, show_table, text_column
from thinkalike.store import Result

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


# ------------------------------------------------------------
# Lists of results for machines: a DataFrame, CSV, JSON; numbers in full.


def results(
    store: str | os.PathLike[str],
    kind: str | Sequence[str] = (),
    model: str | Sequence[str] = (),
    since: str | None = None,
) -> pd.DataFrame:
    """Return one row for each finished result of a store, the newest last; an empty table if there is none.

    The columns are kind, key, date (UTC), models, the settings in which the results of a kind differ, the first
    headline number (headline, value, low, high), all headline numbers and scalars by their names, seconds, folder. A
    folder that is damaged or holds something else is left out.

    Args:
        kind: one kind or several, such as "cka"; nothing: all.
        model: results of any of these models, by their names.
        since: a date such as "2026-11-01", or how long ago: "12h", "7d", "2w".

    Raises:
        ConfigError: no result is of such a kind or model, or `since` is no date.
        StoreError: there is no such folder, or no result is all that was asked for.
    """
    found = search(Path(store).expanduser())
    kinds, models = ((each,) if isinstance(each, str) else tuple(each) for each in (kind, model))
    query = Query(found.store, kinds, models, moment(since) if since else None)
    return frame(selected(found, query) if found.entries or kinds or models or since else [])


def frame(entries: Sequence[Entry]) -> pd.DataFrame:
    """Return one row for each result, with the columns that `results` names."""
    shared = _settings(entries)
    return pd.DataFrame([_row(entry, settings) for entry, settings in zip(entries, shared, strict=True)])


def as_json(entries: Sequence[Entry]) -> str:
    """Return a JSON list of results: what `frame` has of each, with the headline numbers and models as lists."""
    shared = _settings(entries)
    found = [
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
        for entry, settings in zip(entries, shared, strict=True)
    ]
    return json.dumps(found, indent=1)


def _settings(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Return of each result the settings in which those of its kind differ."""
    kinds = dict.fromkeys(entry.kind for entry in entries)
    names = {kind: differing([entry for entry in entries if entry.kind == kind]) for kind in kinds}
    return [values_of(entry, names[entry.kind]) for entry in entries]


def _row(entry: Entry, settings: dict[str, Any]) -> dict[str, Any]:
    first = entry.headlines[0]._asdict() if entry.headlines else {}
    numbers = {name: value for each in entry.headlines for name, value in each.numbers.items()}
    return {
        "kind": entry.kind,
        "key": entry.key,
        "date": entry.date,
        "models": ", ".join(entry.models),
        **settings,
        "headline": first.get("name"),
        **{name: first.get(name) for name in ("value", "low", "high")},
        **{name: value for name, value in entry.result.scalars.items() if name not in numbers},
        **numbers,
        "seconds": entry.seconds,
        "folder": str(entry.result.folder),
    }


# ------------------------------------------------------------
# The joint table of a sweep: what was swept, and the headline numbers of each job.

log = logging.getLogger(__name__)


def show_sweep(made: Sequence[Made]) -> None:
    """Print one table of what the jobs of a sweep made; where one of them was logged to W&B, it becomes a run there."""
    jobs = [(each, entry) for each in made if (entry := _read(each))]
    if not jobs:
        return
    swept = _swept([each for each, _ in jobs])
    settings = [{name: each.get(name, "") for name in swept} for each in map(_overrides, (job for job, _ in jobs))]
    rows = [
        ([entry.key, duration(entry.seconds)], [f"{name}={value}" for name, value in own.items()], told(entry))
        for (_, entry), own in zip(jobs, settings, strict=True)
    ]
    print_rows(f"jobs of the sweep: {len(jobs)}", rows, ("job", "swept", "result"))
    logged = next((each.logger for each, _ in jobs if each.logger["kind"] == "wandb"), None)
    if logged:
        store = jobs[0][1].result.folder.parent.parent
        name = f"sweep of {', '.join(swept) or 'one job'}"
        table = joint_table([entry for _, entry in jobs], settings)
        publish_table(LoggerConfig(**logged), About(name, "sweep", store, store), table)


def joint_table(entries: Sequence[Entry], settings: Sequence[Mapping[str, str]]) -> pd.DataFrame:
    """Return one row per job: kind, what was swept, models, headline numbers with their ends, seconds, folder."""
    return pd.DataFrame(
        [
            {
                "kind": entry.kind,
                **own,
                "models": ", ".join(entry.models),
                **{name: value for each in entry.headlines for name, value in each.numbers.items()},
                "seconds": entry.seconds,
                "folder": os.fspath(entry.result.folder),
            }
            for entry, own in zip(entries, settings, strict=True)
        ]
    )


def _read(made: Made) -> Entry | None:
    """Return the result that a job made, or None, with a warning, if it is not there any more."""
    try:
        return Entry.of(Result(Path(made.folder)))
    except StoreError as error:
        log.warning("left out of the sweep's table: %s", error)
        return None


def _overrides(made: Made) -> dict[str, Any]:
    """Return the words of a job by their keys."""
    return {key.lstrip("+~"): value for key, _, value in (word.partition("=") for word in made.words)}


def _swept(made: Sequence[Made]) -> list[str]:
    """Return the keys in which the jobs differ, and of a job that is left alone all that were given."""
    given = [_overrides(each) for each in made]
    keys = dict.fromkeys(key for each in given for key in each)
    return [key for key in keys if len(given) == 1 or len({each.get(key) for each in given}) > 1]


# ------------------------------------------------------------
# The command `thinkalike results`.

USAGE = """\
usage: thinkalike results [STORE] [key=value ...] [--csv | --json]

  thinkalike results                                all finished jobs of the folder results, the newest last
  thinkalike results kind=cka,mutual_knn model=gpt2       those of any of these kinds, and of any of these models
  thinkalike results since=7d sort=mean_penalty     since a date (2026-11-01), or so many hours (12h), days or weeks;
                                                    sort=date|duration|models|kind, or a headline number
  thinkalike results store=DIR --csv                for machines, in full precision; --json, too"""


def list_results(words: Sequence[str]) -> None:
    """Print the results that a command line asks for; what is skipped, and what is unfinished, goes to stderr.

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
        print(as_json(entries))
    else:
        show_entries(entries)
    if found.unfinished:
        folders = ", ".join(f"{each.parent.name}/{each.stem}" for each in found.unfinished[:4])
        more = ", ..." if len(found.unfinished) > 4 else ""
        print(f"unfinished, running or interrupted: {len(found.unfinished)} ({folders}{more})", file=sys.stderr)
