"""The command `thinkalike report`: one HTML page of stores and single results, and the data that it shows.

`gather` reads the results that a user names, `report_of` turns their tables into what the page shows, and `page_of`
packs that with the page's own HTML, CSS and JavaScript into one file.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import html
import itertools
import json
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from thinkalike.config import MEASURES
from thinkalike.errors import one_line
from thinkalike.listing import Entry, Found, Query, parser, records, search, selected
from thinkalike.plugins import instrument
from thinkalike.store import is_sealed, open_result

PARTS = Path(__file__).parent / "page"
SCRIPTS = ("elements", "colours", "data", "matrix", "charts", "results", "pair", "profiles", "claims", "main")
ENTRY_POINT = re.compile(r"(python3?|thinkalike) \S*(train|analyze)\b")
READ = (".csv", ".yaml")  # the endings of the files that a page is made from, beside result.json
ROWS = 60  # of a table that is no grid
TITLES = {  # of kinds, as their instruments have them: importing these takes torch, of which a page needs nothing
    "cka": "CKA", "disagreement": "disagreement of the top token", "distance": "relative distance of states",
    "distance_correlation": "distance correlation", "jaccard": "Jaccard index of neighbours",
    "jsd": "Jensen-Shannon divergence in nats", "mlem": "MLEM", "mutual_knn": "mutual nearest neighbours",
    "procrustes": "angular Procrustes distance", "r2": "R²", "rsa": "RSA", "second_order_cosine": "second-order cosine",
    "soft_matching": "soft matching", "svcca": "SVCCA", "token_rsa": "RSA of tokens",
}  # fmt: skip
Report = dict[str, Any]
Grid = dict[str, Any]

# Grids: tables that the page can draw, told apart by their columns and never by the kind of their result.
#
# A *pair* grid has the layers of a source as rows and those of a target as columns. A *profile* grid has the features
# of one model as rows and its layers as columns. A *layers* grid has one row; its columns are the layers of one model.
# A *steps* grid has features or layers as rows and the steps of a training as columns.

PAIR = ["source", "target", "source_layer", "target_layer"]
PLACES = [*PAIR, "model", "layer", "step", "feature"]
COMPARED = ["measure", "other"]  # two measures, of whose values a row has both
MAIN = ("value", "penalty", "importance", "score", "asymmetry")  # what a grid shows first, where it has one of these
WITH_ENDS = ("value", "importance", "score", "share", "effect", "accuracy", "mean", "rho")  # whose are low and high
LOW_IS_ALIKE = (
    "penalty", "unexplained", "loss", "distance", "kl", "bits_per_byte", "flips", "procrustes", "jsd", "disagreement",
)  # fmt: skip
SIGNED = ("asymmetry", "gap", "difference", "gain")  # of which 0 is the middle
DIGITS = 6  # significant ones that a page holds
MOST_MODELS = 12  # in a table of one layer per row: those of populations have more, and are shown as tables


def write_report(arguments: Sequence[str]) -> None:
    """Write the page that a command line asks for."""
    reads = parser("report", "Write one HTML page of stores and single results, which needs no network and no server.")
    reads.add_argument("--out", default="report.html", metavar="PAGE", help="the file to write (report.html)")
    reads.add_argument("--title", help="the title of the page (the names of the folders)")
    asked = reads.parse_args(arguments)
    query = Query.parsed([word for word in asked.which if "=" in word])
    places = [word for word in asked.which if "=" not in word] or [str(query.store)]
    report = report_of(gather(places, query))
    for sentence in report["left_out"]:
        print(f"left out: {sentence}", file=sys.stderr)
    title = asked.title or ", ".join(Path(place).resolve().name for place in places)
    path = Path(asked.out).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page_of(report, title), encoding="utf-8")
    print(f"{len(report['results'])} results, {path.stat().st_size / 1e6:.2f} MB", file=sys.stderr)
    print(f"page: {path}")


def gather(places: Sequence[str | Path], query: Query | None = None) -> Found:
    """Return the results of stores and of single folders, each once; experiments come after the jobs they rest on.

    Damaged results are left out and named in `skipped`.
    """
    found = Found(Path(", ".join(map(str, places))))
    for place in dict.fromkeys(Path(place).expanduser() for place in places):
        inside = Found(place, [Entry.of(open_result(place))]) if is_sealed(place) else search(place, READ)
        found.entries += inside.entries
        found.skipped += inside.skipped
        found.unfinished += inside.unfinished
    found.entries = list({entry.result.folder.resolve(): entry for entry in found.entries}.values())
    # a table that an experiment repeats is shown under the job that computed it
    chosen = selected(found, query or Query())
    found.entries = sorted(chosen, key=lambda entry: (entry.result.folder / "claims.csv").exists())
    return found


def page_of(report: Report, title: str) -> str:
    """Return the HTML of a page, with its styles, its scripts and its data (see `report_of`) inside."""
    template = (PARTS / "page.html").read_text()
    scripts = "\n".join((PARTS / f"{name}.js").read_text() for name in SCRIPTS)
    made = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    content = json.dumps({"title": title, "made": made, **report}, ensure_ascii=False, allow_nan=False)
    packed = base64.b64encode(gzip.compress(content.encode(), mtime=0)).decode()
    parts = {"TITLE": html.escape(title), "STYLE": (PARTS / "style.css").read_text(), "SCRIPT": scripts, "DATA": packed}
    for name, text in parts.items():
        template = template.replace(f"{{{{{name}}}}}", text)
    return template


def report_of(found: Found) -> Report:
    """Return what a page shows of results.

    Returns:
        `results`, `grids` (see `grids_of`; each with its title and the numbers of the results that hold it), `claims`,
        `tables`, `unfinished`, and `left_out`: a sentence for each thing that was skipped.
    """
    report: Report = {"results": [], "grids": [], "claims": [], "tables": [], "left_out": list(found.skipped)}
    report["unfinished"] = [f"{folder.parent.name}/{folder.stem}" for folder in found.unfinished]
    known: dict[str, Grid] = {}
    for entry, record in zip(found.entries, records(found.entries), strict=True):
        try:
            row, tables = shown(entry, record), entry.result.tables
        except Exception as error:  # a result may come from anywhere
            report["left_out"].append(f"{entry.result.folder} cannot be shown ({one_line(error)})")
            continue
        report["results"].append(row)
        for name, table in tables.items():
            _add(report, known, name, table, repeats="claims" in tables)
    return report


def shown(entry: Entry, record: dict[str, Any]) -> dict[str, Any]:
    """Return the row of one result in the list of results, from its record (`listing.records`).

    Its command line is empty unless that of an entry point computed it; a part of an experiment has the experiment's.
    """
    command, provenance = str(record["command"] or ""), json.dumps(entry.result.provenance, default=str)
    return {
        **{name: record[name] for name in ("kind", "key", "folder", "models", "date")},
        "settings": " ".join(f"{name}={value}" for name, value in record["settings"].items()),
        "headline": "; ".join(map(str, entry.headlines)),
        "is_distance": any(each.name == f"greatest_{entry.result.kind}" for each in entry.headlines),
        "command": command if is_command(command) else "",
        "scalars": {name: _plain(value) for name, value in record["scalars"].items()},
        "provenance": json.loads(provenance, parse_constant=lambda _: None),  # NaN and the infinities
    }


def is_command(text: str) -> bool:
    """Return whether a text is the command line of an entry point and nothing else, as a shell reads it."""
    with contextlib.suppress(ValueError):
        return bool(ENTRY_POINT.match(text)) and shlex.join(shlex.split(text)) == text
    return False


def title_of(kind: str) -> str:
    """Return what a page calls a kind; the instrument of another package says it itself."""
    if kind in TITLES or MEASURES.get(kind, "thinkalike.").startswith("thinkalike."):
        return TITLES.get(kind, kind)
    return str(getattr(instrument(MEASURES[kind]), "name", kind))


def _add(report: Report, known: dict[str, Grid], name: str, table: pd.DataFrame, repeats: bool) -> None:
    """Add a table of the last result of a report: to its claims, its grids, or its plain tables.

    Grids that are `known` by their content, as those that an experiment `repeats`, stay under the result that had them.
    """
    number, entry = len(report["results"]) - 1, report["results"][-1]
    columns, rows = [str(column) for column in table], table.astype(object).itertuples(index=False)
    if {"claim", "verdict"} <= set(table):
        report["claims"] += [{"result": number, **dict(zip(columns, rounded(row), strict=True))} for row in rows]
        return
    run = str(entry["models"][-1]).partition("@")[0] if entry["models"] else ""
    grids = grids_of(table, entry["is_distance"], run)
    for grid in grids:
        # an experiment repeats tables of its jobs, also without a column
        parts = [grid[part] for part in ("role", "models", "rows", "columns", "cells")]
        content = json.dumps([parts, grid["numbers"][grid["main"]]])
        if repeats and content in known:
            known[content]["results"].append(number)
            continue
        known.setdefault(content, grid)
        kind = entry["kind"]
        title = title_of(kind) + (f", {name.replace('_', ' ')}" if name != "table" else "")
        grid.update(title=title, results=[number])
        report["grids"].append(grid)
    if not grids:
        shown = [rounded(row) for row in itertools.islice(rows, ROWS)]
        plain = {"result": number, "name": name, "columns": columns, "rows": shown, "length": len(table)}
        report["tables"].append(plain)


def grids_of(table: pd.DataFrame, is_distance: bool = False, run: str = "") -> list[Grid]:
    """Return the grids of a table, or none if its columns are not those of one, or it sets two measures side by side.

    Each grid has `role` (pair, profile, layers or steps), `models` (source and target, or one), `variant` (what tells
    it from other grids of the same models), `rows`, `columns` (the labels of both axes), `cells` (row * columns +
    column of each number, or None where all are there in order), `main` (which number is shown first) and `numbers`.
    Each of the numbers has `name`, `v`, `colours` (rising, falling or signed), and, if they are there, `low` and
    `high`; what is not finite is None.

    Args:
        is_distance: whether less is closer in the column `value`.
        run: the model whose training has the steps of a table with these.
    """
    table, grids = _with_layer_pairs(table), []
    if set(PAIR) <= set(table) and not set(COMPARED) <= set(table):
        grids = list(_pair_grids(table))
    elif {"model", "layer"} <= set(table) and _numbers(table) and not set(COMPARED) <= set(table):
        grids = list(_layer_grids(table))
    elif "step" in table and "other" not in table:
        grids = list(_step_grids(table, run))
    for number in (number for grid in grids for number in grid["numbers"] if number["name"] == "value"):
        number["colours"] = "falling" if is_distance else number["colours"]
    return grids


def rounded(values: Sequence[Any] | pd.Series) -> list[Any]:
    """Return numbers with `DIGITS` significant digits, None for what is not finite, and all else as text."""
    return [_plain(value) for value in values]


def _plain(value: Any) -> Any:
    if isinstance(value, float | np.floating):
        return float(f"{value:.{DIGITS}g}") if np.isfinite(value) else None
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    return None if value is None or value is pd.NA else str(value)


def _with_layer_pairs(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table of one layer of two models as one of layer pairs, each layer with itself."""
    if not {"source", "target", "layer"} <= set(table) or "source_layer" in table:
        return table
    few = table["source"].nunique() <= MOST_MODELS
    return table.rename(columns={"layer": "source_layer"}).assign(target_layer=table["layer"]) if few else table


def _pair_grids(table: pd.DataFrame) -> Iterator[Grid]:
    for (source, target), rows in table.groupby(["source", "target"], sort=False) if _numbers(table) else ():
        for variant, cells in _variants(rows, PAIR[2:]):
            axes = cells["source_layer"], cells["target_layer"]
            yield _grid("pair", [str(source), str(target)], variant, cells, axes)


def _layer_grids(table: pd.DataFrame) -> Iterator[Grid]:
    for model, rows in table.groupby("model", sort=False):
        labels = _texts(rows, "fiub", PLACES[:-1])
        feature = rows[labels].astype(str).agg(" × ".join, axis=1) if labels else pd.Series("", index=rows.index)
        keyed = rows.drop(columns=labels).assign(feature=feature)
        for variant, cells in _variants(keyed, ["feature", "layer"]):
            role = "profile" if labels else "layers"
            yield _grid(role, [str(model)], variant, cells, (cells["feature"], cells["layer"]))


def _step_grids(table: pd.DataFrame, run: str) -> Iterator[Grid]:
    of_layers = "feature" in table  # then each layer has a grid
    layer = "layer " + table["layer"].astype(str) if "layer" in table else pd.Series("", index=table.index)
    for variant, cells in table.groupby(layer) if of_layers else [("", table)]:
        rows = cells["feature"] if of_layers else layer
        yield _grid("steps", [run], str(variant), cells, (rows, cells["step"]))


def _variants(rows: pd.DataFrame, places: list[str]) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the parts of rows in which each place comes once, named by the columns that tell them apart."""
    if not rows.duplicated(places).any():
        yield "", rows
        return
    by: list[str] = []
    for name in rows.columns.difference(PLACES, sort=False):
        if not rows.duplicated([*places, *by]).any():
            break
        few = rows[name].dtype.kind not in "f" and 1 < rows[name].nunique() <= MOST_MODELS
        if few and rows.duplicated([*places, *by, name]).sum() < rows.duplicated([*places, *by]).sum():
            by.append(str(name))
    again = rows.groupby([*places, *by]).cumcount().rename("repetition")
    if again.any():
        rows, by = rows.assign(repetition=again + 1), [*by, "repetition"]
    for values, part in rows.groupby(by, sort=False) if by else [((), rows)]:
        yield ", ".join(f"{name} {value}" for name, value in zip(by, values, strict=True)), part


def _grid(role: str, models: list[str], variant: str, cells: pd.DataFrame, axes: tuple[pd.Series, pd.Series]) -> Grid:
    first, second = (list(dict.fromkeys(axis)) for axis in axes)
    for labels in (first, second):  # layers from the first to the last, and features as they come
        if all(isinstance(label, int | float | np.number) for label in labels):
            labels.sort()
    width = len(second)
    row, column = ({label: i for i, label in enumerate(labels)} for labels in (first, second))
    place = axes[0].map(row).to_numpy() * width + axes[1].map(column).to_numpy()
    cells, place = cells.iloc[np.argsort(place)], np.sort(place)
    names = _numbers(cells)
    order = [name for name in MAIN if name in names] or names
    return {
        "role": role,
        "models": models,
        "variant": variant,
        "rows": rounded(first),
        "columns": rounded(second),
        "cells": None if len(place) == len(first) * width else place.tolist(),
        "main": names.index(order[0]),
        "numbers": [_number(cells, name) for name in names],
        "words": [{"name": name, "v": rounded(cells[name].astype(object))} for name in _texts(cells, "fiu", PLACES)],
    }


def _number(cells: pd.DataFrame, name: str) -> dict[str, Any]:
    """Return a column with its interval, and how its colours run: rising, falling (low is alike), or signed."""
    colours = "signed" if _says(name, SIGNED) else "falling" if _says(name, LOW_IS_ALIKE) else "rising"
    number: dict[str, Any] = {"name": name, "v": rounded(cells[name]), "colours": colours}
    if ends := _ends(list(cells.columns), name):
        number |= {"low": rounded(cells[ends[0]]), "high": rounded(cells[ends[1]])}
    return number


def _says(name: str, words: Sequence[str]) -> bool:
    return any(f"_{word}_" in f"_{name.lower()}_" for word in words)


def _ends(columns: list[str], name: str) -> list[str]:
    """Return the columns of an interval: NAME_low and NAME_high, or low and high of the column that these are of."""
    if {f"{name}_low", f"{name}_high"} <= set(columns):
        return [f"{name}_low", f"{name}_high"]
    if not {"low", "high"} <= set(columns):
        return []
    before = columns[: columns.index("low")][-1:]
    return ["low", "high"] if name in [each for each in (*WITH_ENDS, *before) if each in columns][:1] else []


def _numbers(table: pd.DataFrame) -> list[str]:
    """Return the columns of numbers that are neither places nor ends of intervals."""
    columns = [str(name) for name in table.columns]
    other = {*PLACES, "repetition", *(end for name in columns for end in _ends(columns, name))}
    return [str(name) for name in table.select_dtypes("number") if name not in other]


def _texts(table: pd.DataFrame, numbers: str, places: Sequence[str]) -> list[str]:
    """Return the columns of other kinds than these numbers (NumPy's letters), without those that name a place."""
    return [str(name) for name in table.columns if table[name].dtype.kind not in numbers and name not in places]
