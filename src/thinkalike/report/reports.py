"""What a page shows, as plain data: results, grids of layers, claims and further tables, each once."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from thinkalike.config import MEASURES
from thinkalike.instruments import instrument
from thinkalike.listing import Entry, Found
from thinkalike.report.command_lines import command_of, settings_of, written
from thinkalike.report.grids import Grid, grids_of, rounded
from thinkalike.store import Result

MODELS = ("model.", "target.")
ROWS = 60  # of a table that is no grid
NAMES = {
    "rsa": "RSA",
    "mlem": "MLEM",
    "asymmetry": "asymmetry of stitching",
    "transfer_maps": "maps in both directions",
}

Report = dict[str, Any]


def report_of(found: Found) -> Report:
    """Return what a page shows of results.

    Returns:
        `results`, `grids` (see `grids_of`; each with its title and the numbers of the results that hold it), `claims`,
        `tables`, `unfinished`, and `left_out`: a sentence for what was skipped, and for results that cannot be read.
    """
    report: Report = {"results": [], "grids": [], "claims": [], "tables": [], "left_out": list(found.skipped)}
    report["unfinished"] = [f"{folder.parent.name}/{folder.stem}" for folder in found.unfinished]
    known: dict[str, Grid] = {}
    for entry in found.entries:
        if reason := _unreadable(entry.result):
            report["left_out"].append(f"{entry.result.folder} is no result of this package ({reason:.100})")
            continue
        report["results"].append(shown(entry))
        repeats = "claims" in entry.result.tables
        for name, table in entry.result.tables.items():
            _add(report, known, len(report["results"]) - 1, name, table, repeats)
    return report


def _unreadable(result: Result) -> str:
    """Read the tables of a result, and return why that fails, or nothing."""
    try:
        _ = result.tables
    except Exception as error:  # whatever reading a file raises that another program wrote
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


def shown(entry: Entry) -> dict[str, Any]:
    """Return what the list of results says of one, with the command that computes it again."""
    command = command_of(entry.result)
    settings = (f"{name}={written(value)}" for name, value in entry.settings.items() if not name.startswith(MODELS))
    return {
        "kind": entry.kind,
        "key": entry.key,
        "folder": str(entry.result.folder),
        "models": entry.models,
        "settings": settings_of(command) if command else " ".join(settings),
        "date": entry.date.isoformat(),
        "headline": "; ".join(f"{each.label} {each.text}" for each in entry.headlines),
        "is_distance": any(each.name == f"least_{entry.kind}" for each in entry.headlines),
        "command": command,
        "scalars": {name: rounded([value])[0] for name, value in entry.result.scalars.items()},
        "provenance": json.loads(json.dumps(_without_nan(entry.result.provenance), default=str)),
    }


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _without_nan(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_without_nan(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _add(
    report: Report, known: dict[str, Grid], number: int, name: str, table: pd.DataFrame, repeats: bool = False
) -> None:
    """Add a table of a result to what it is: claims, grids, or a plain table.

    Args:
        known: the grids so far, by what they show.
        repeats: whether grids that are known stand under the result that had them first, as those of an experiment do.
    """
    if {"claim", "verdict"} <= set(table):
        report["claims"] += [{"result": number, **claim} for claim in _records(table)]
        return
    entry = report["results"][number]
    grids = grids_of(table, entry["is_distance"])
    for grid in grids:
        content = _content(grid)
        if repeats and content in known:
            known[content]["results"].append(number)
            continue
        known.setdefault(content, grid)
        kind = _name(entry["kind"])
        title = kind if name == "table" else f"{kind}, {name.replace('_', ' ')}"
        report["grids"].append(grid)
        grid.update(title=title, results=[number])
    if not grids:
        shown = table.head(ROWS)
        columns = [str(column) for column in table.columns]
        rows = [rounded(row) for row in shown.astype(object).itertuples(index=False)]
        plain = {"result": number, "name": name, "columns": columns, "rows": rows, "length": len(table)}
        report["tables"].append(plain)


def _name(kind: str) -> str:
    """Return what figures call a kind; one of a plugin has no other name."""
    known = instrument(MEASURES[kind]) if kind in MEASURES else None
    return NAMES.get(kind) or str(getattr(known, "name", kind))


def _content(grid: Grid) -> str:
    """Return what grids share that show the same: an experiment repeats tables of its jobs, also without a column."""
    main = grid["numbers"][grid["main"]]
    return json.dumps([[grid[part] for part in ("role", "models", "rows", "columns", "cells")], main])


def _records(table: pd.DataFrame) -> Sequence[dict[str, Any]]:
    rows = (rounded(row) for row in table.astype(object).itertuples(index=False))
    return [dict(zip(map(str, table.columns), row, strict=True)) for row in rows]
