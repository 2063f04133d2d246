"""What a page shows, as plain data: results, grids of layers, claims and further tables, each once."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from thinkalike.report.command_lines import command_of, settings_of
from thinkalike.report.gathering import Gathered
from thinkalike.report.grids import Grid, grids_of, rounded
from thinkalike.store import Result

ROWS = 60  # of a table that is no grid
NAMES = {
    "cka": "CKA",
    "mknn": "mutual nearest neighbours",
    "r2": "R²",
    "rsa": "RSA",
    "mlem": "MLEM",
    "stitching": "stitching",
    "asymmetry": "asymmetry of stitching",
}

Report = dict[str, Any]


def report_of(gathered: Gathered) -> Report:
    """Return what a page shows of results.

    Returns:
        `results`, `grids` (see `grids_of`; each with its title and the numbers of the results that hold it), `claims`,
        `tables`, and `left_out`, to which results were added that cannot be read.
    """
    report: Report = {"results": [], "grids": [], "claims": [], "tables": [], "left_out": list(gathered.left_out)}
    known: dict[str, Grid] = {}
    for result in sorted(gathered.results, key=_experiments_last):
        if reason := _unreadable(result):
            report["left_out"].append(f"{result.folder} is no result of this package ({reason:.100})")
            continue
        report["results"].append(entry_of(result))
        for name, table in result.tables.items():
            _add(report, known, len(report["results"]) - 1, name, table)
    return report


def _unreadable(result: Result) -> str:
    """Read a result, and return why that fails, or nothing."""
    try:
        _ = result.kind, result.key, result.headlines, result.scalars, result.settings, result.provenance, result.tables
    except Exception as error:  # whatever reading a file raises that another program wrote
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


def entry_of(result: Result) -> dict[str, Any]:
    """Return what the list of results says of one, with the command that computes it again."""
    command = command_of(result)
    provenance = result.provenance
    return {
        "kind": result.kind,
        "key": result.key,
        "folder": str(result.folder),
        "models": [str(model["name"]) for model in provenance.get("models", [])],
        "settings": settings_of(command) if command else _flat(result.settings),
        "date": str(provenance.get("date", "")),
        "headline": _headline(result),
        "command": command,
        "scalars": {name: rounded([value])[0] for name, value in result.scalars.items()},
        "provenance": json.loads(json.dumps(_without_nan(provenance), default=str)),
    }


def _experiments_last(result: Result) -> tuple[bool, str]:
    """The order of results: a table that an experiment repeats is shown under the job that computed it."""
    return (result.folder / "claims.csv").exists(), str(result.folder)


def _headline(result: Result) -> str:
    """Return the numbers that sum a result up, as one line."""
    if headlines := result.headlines:
        return "; ".join(f"{each.label} {each.text}" for each in headlines)
    shown = [f"{name.replace('_', ' ')} {value:.4g}" for name, value in result.scalars.items()]
    return "; ".join(shown[:3])


def _flat(settings: Mapping[str, Any], before: str = "") -> str:
    """Return nested settings as words, without those of models."""
    words = []
    for name, value in settings.items():
        if name not in ("model", "target") or before:
            words.append(_flat(value, f"{before}{name}.") if isinstance(value, Mapping) else f"{before}{name}={value}")
    return " ".join(words)


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _without_nan(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_without_nan(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _add(report: Report, known: dict[str, Grid], number: int, name: str, table: pd.DataFrame) -> None:
    """Add a table of a result to what it is: claims, grids, or a plain table."""
    if {"claim", "verdict"} <= set(table):
        report["claims"] += [{"result": number, **claim} for claim in _records(table)]
        return
    grids = grids_of(table)
    entry = report["results"][number]
    for grid in grids:
        content = _content(grid)
        if content in known:
            known[content]["results"].append(number)
            continue
        known[content] = grid
        kind = NAMES.get(entry["kind"], entry["kind"])
        title = kind if name == "table" else f"{kind}, {name.replace('_', ' ')}"
        report["grids"].append(grid)
        grid.update(title=title, results=[number])
    if not grids:
        shown = table.head(ROWS)
        columns = [str(column) for column in table.columns]
        rows = [rounded(row) for row in shown.astype(object).itertuples(index=False)]
        plain = {"result": number, "name": name, "columns": columns, "rows": rows, "length": len(table)}
        report["tables"].append(plain)


def _content(grid: Grid) -> str:
    """Return what grids share that show the same: an experiment repeats tables of its jobs, also without a column."""
    main = grid["numbers"][grid["main"]]
    return json.dumps([[grid[part] for part in ("role", "models", "rows", "columns", "cells")], main])


def _records(table: pd.DataFrame) -> Sequence[dict[str, Any]]:
    rows = (rounded(row) for row in table.astype(object).itertuples(index=False))
    return [dict(zip(map(str, table.columns), row, strict=True)) for row in rows]
