"""The command `thinkalike report`: one HTML page of stores and single results, and the data that it shows.

`gather` reads the results that a user names, `report_of` turns their tables into what the page shows, and `page_of`
packs that with the page's own HTML, CSS and JavaScript into one file.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import io
import json
import re
import shlex
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from thinkalike.catalogue import title_of
from thinkalike.columns import Columns
from thinkalike.errors import StoreError, ThinkalikeError, one_line, plain, plain_line
from thinkalike.listing import (
    Entry,
    ListRecord,
    Query,
    StoreContent,
    command_parser,
    records,
    search,
    selected,
    skipping,
    stores_and_settings,
)
from thinkalike.processes import counted
from thinkalike.report.grids import Grid, grids_of, plain_value, rounded
from thinkalike.screen import watched
from thinkalike.store import Result, is_sealed, open_result
from thinkalike.store.manifest import MOST_LISTED_BYTES

PARTS = Path(__file__).parent / "page"
SCRIPTS = ("elements", "colours", "data", "matrix", "charts", "results", "pair", "profiles", "claims", "main")
PROGRAMS = {("python", "train.py"), ("python", "analyze.py"), ("thinkalike", "train"), ("thinkalike", "analyze")}
SETTING = re.compile(r"(?!\+*hydra\b)\+{0,2}[a-z_][\w./]*(@target)?=.*")  # key=value, group=option
# a path from the root or the home folder, or upwards; an address; FILE.py:NAME; ${...} and other signs of a shell
OUTSIDE = re.compile(r"(^|[^\w.-])[/~]|\.\.|://|\.py:|[$`\\;&|<>]")
READ = (".csv", ".yaml")  # the endings of the files that a page is made from, beside result.json
MOST_COLUMNS = 1000  # of a table that a page has
ROWS = 60  # of a table that is no grid
CLAIM = ("claim", "verdict", "numbers", "units", "tolerance")  # the columns of claims that a page shows
MOST_CLAIMS = 1000  # of a table; the papers have some ten for each figure
Report = dict[str, Any]


def write_report(arguments: Sequence[str]) -> None:
    """Write the page that a command line asks for."""
    reads = command_parser("report", "Write one HTML page of stores and results.")
    reads.add_argument("--out", default="report.html", metavar="PAGE", help="the file to write (report.html)")
    reads.add_argument("--title", help="the title of the page (the names of the folders)")
    asked = reads.parse_args(arguments)
    places, settings = stores_and_settings(asked.which)
    query = Query.parsed([*places[:1], *settings])  # with one of them, as a store= beside it would be ignored
    places = places or [str(query.store)]
    with watched():
        report = report_of(gather(places, query))
    for sentence in report["left_out"]:
        print(plain_line(f"left out: {sentence}"), file=sys.stderr)
    title = asked.title or ", ".join(Path(place).resolve().name for place in places)
    path = Path(asked.out).expanduser()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page_of(report, title), encoding="utf-8", errors="replace")
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        raise StoreError(f"--out {plain(asked.out)} cannot be written: {one_line(error)}; choose --out PAGE") from error
    print(f"{len(report['results'])} results, {path.stat().st_size / 1e6:.2f} MB", file=sys.stderr)
    print(f"page: {path}")


def gather(places: Sequence[str | Path], query: Query | None = None) -> StoreContent:
    """Return the results of stores and of single folders, each once; experiments come after the jobs they rest on.

    Damaged results are left out and named in `skipped`.
    """
    found = StoreContent(Path(", ".join(map(str, places))))
    for place in dict.fromkeys(Path(place).expanduser() for place in places):
        inside = StoreContent(place, [_single(place)]) if is_sealed(place) else search(place, READ)
        found.entries += inside.entries
        found.skipped += inside.skipped
        found.unfinished += inside.unfinished
    found.entries = list({entry.result.folder.resolve(): entry for entry in found.entries}.values())
    # a table that an experiment repeats is shown under the job that computed it
    chosen = selected(found, query or Query())
    found.entries = sorted(chosen, key=lambda entry: "claims.csv" in entry.result.files)
    return found


def _single(folder: Path) -> Entry:
    """Return the result that a user names by its own folder; a StoreError says why it cannot be read."""
    result = open_result(folder)
    try:
        return Entry.of(result)
    except ThinkalikeError:
        raise
    except Exception as error:  # a result may come from anywhere
        raise StoreError(f"{folder} cannot be read ({type(error).__name__}: {one_line(error)})") from error


def page_of(report: Report, title: str) -> str:
    """Return the HTML of a page, with its styles, its scripts and its data (see `report_of`) inside."""
    template = (PARTS / "page.html").read_text()
    scripts = "\n".join((PARTS / f"{name}.js").read_text() for name in SCRIPTS)
    made = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    packed = packed_json({"title": title, "made": made, **report})
    parts = {"TITLE": html.escape(title), "STYLE": (PARTS / "style.css").read_text(), "SCRIPT": scripts, "DATA": packed}
    # all at once, as a title may hold what looks like the place of another part
    return re.sub(r"\{\{(TITLE|STYLE|SCRIPT|DATA)\}\}", lambda place: parts[place[1]], template)


def packed_json(content: dict[str, Any]) -> str:
    """Return a JSON object in base64, compressed piece by piece: its text would take more memory than all the rest."""

    def write(part: Any) -> None:
        # half a surrogate pair, which JSON can hold, is in no encoding
        file.write(json.dumps(part, ensure_ascii=False, allow_nan=False).encode(errors="replace"))

    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=6, mtime=0) as file:
        for place, (name, part) in enumerate(content.items()):
            file.write(b", " if place else b"{")
            write(name)
            file.write(b": ")
            if not isinstance(part, list):
                write(part)
                continue
            file.write(b"[")
            for number, item in enumerate(part):
                if number:
                    file.write(b", ")
                write(item)
            file.write(b"]")
        file.write(b"}")
    return base64.b64encode(packed.getbuffer()).decode()


def report_of(found: StoreContent) -> Report:
    """Return what a page shows of results.

    Returns:
        `results`, `grids` (see `grids_of`; each with its title and the numbers of the results that hold it), `claims`,
        `tables`, `unfinished`, and `left_out`: a sentence for each thing that was skipped.
    """
    report: Report = {"results": [], "grids": [], "claims": [], "tables": [], "left_out": list(found.skipped)}
    report["unfinished"] = [f"{folder.parent.name}/{folder.stem}" for folder in found.unfinished]
    known: dict[bytes, Grid] = {}
    for entry, record in counted(zip(found.entries, records(found.entries), strict=True), "table", len(found.entries)):
        with skipping(entry.result.folder, report["left_out"]):
            # all that can fail comes before the first change of the report
            row = shown(entry, record)
            tables = _tables_of(entry.result)
            grids = {name: _grids_of(table, row) for name, table in tables.items()}
            report["results"].append(row)
            for name, table in tables.items():
                _add(report, known, name, table, grids[name], repeats="claims" in tables)
    return report


def _tables_of(result: Result) -> dict[str, Columns]:
    """Return the tables by name; `details`, which has all columns, stands in the place of `table`."""
    names = [Path(name) for name in result.files if Path(name).suffix == ".csv"]
    tables = {name.stem: Columns.read(result.folder / name, MOST_LISTED_BYTES, MOST_COLUMNS) for name in names}
    if "details" in tables:
        tables["table"] = tables.pop("details")
    return tables


def _grids_of(table: Columns, row: dict[str, Any]) -> list[Grid]:
    """Return the grids of a table of a result, given the row of the result in the list."""
    if _holds_claims(table):
        return []
    run = str(row["models"][-1]).partition("@")[0] if row["models"] else ""
    return grids_of(table, row["is_distance"], run)


def _holds_claims(table: Columns) -> bool:
    return table.has("claim", "verdict") and len(table) <= MOST_CLAIMS


def shown(entry: Entry, record: ListRecord) -> dict[str, Any]:
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
        "scalars": {name: plain_value(value) for name, value in record["scalars"].items()},
        "provenance": json.loads(provenance, parse_constant=lambda _: None),  # NaN and the infinities
    }


def is_command(text: str) -> bool:
    """Return whether a text is a command line of this program that one may copy, whoever wrote the result.

    It is as `shlex.join` writes it, so that a shell reads nothing else in it, and has settings alone: no option, none
    of Hydra's own, and no value that names code, an address, a variable or a file outside of the working folder.
    """
    try:
        words = shlex.split(text)
    except ValueError:
        return False
    is_ours = text.isprintable() and shlex.join(words) == text and tuple(words[:2]) in PROGRAMS
    return is_ours and all(SETTING.fullmatch(word) and not OUTSIDE.search(word) for word in words[2:])


def _add(report: Report, known: dict[bytes, Grid], name: str, table: Columns, grids: list[Grid], repeats: bool) -> None:
    """Add a table of the last result of a report: to its claims, its grids, or its plain tables.

    Grids that are `known` by their content, as those that an experiment `repeats`, stay under the result that had them.
    """
    number, entry = len(report["results"]) - 1, report["results"][-1]
    if _holds_claims(table):
        # no others: a column of the name `result` would put the claim under another result
        columns = [column for column in CLAIM if table.has(column)]
        for values in table.keys(columns):
            claim = dict(zip(columns, rounded(values), strict=True))
            report["claims"].append({**claim, "result": number})
        return
    for grid in grids:
        # an experiment repeats tables of its jobs, also without a column
        parts = [grid[part] for part in ("role", "models", "rows", "columns", "cells")]
        numbers = grid["numbers"][grid["main"]] if grid["numbers"] else None
        content = hashlib.sha256(json.dumps([parts, numbers]).encode()).digest()
        if repeats and content in known:
            known[content]["results"].append(number)
            continue
        known.setdefault(content, grid)
        title = title_of(entry["kind"]) + (f", {name.replace('_', ' ')}" if name != "table" else "")
        grid.update(title=title, results=[number])
        report["grids"].append(grid)
    if not grids:
        shown = [rounded(row) for row in table.rows(ROWS)]
        plain = {"result": number, "name": name, "columns": table.names, "rows": shown, "length": len(table)}
        report["tables"].append(plain)
