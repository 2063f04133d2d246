"""Lists of results for machines: a DataFrame, CSV, JSON; numbers in full."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from thinkalike.listing.found import Entry, search
from thinkalike.listing.query import Query, moment, selected
from thinkalike.listing.settings import differing, values_of


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
