"""One HTML page of results, which needs no network and no server."""

from __future__ import annotations

import base64
import errno
import gzip
import hashlib
import html
import io
import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TypedDict

from thinkalike.catalogue import title_of
from thinkalike.columns import Columns
from thinkalike.errors import (
    StoreError,
    ThinkalikeError,
    checked_path,
    in_home,
    one_line,
    plain,
    plain_line,
    reason_in_words,
)
from thinkalike.files import write_whole
from thinkalike.listing import (
    ListedResult,
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
from thinkalike.report.grids import Cell, Grid, grids_of, plain_value, plain_values
from thinkalike.screen import watched
from thinkalike.store import Result, is_sealed, open_result
from thinkalike.store.manifest import MOST_LISTED_BYTES

PAGE_FOLDER = Path(__file__).parent / "page"
SCRIPTS = (
    "elements",
    "colours",
    "data",
    "matrix",
    "charts",
    "results",
    "pair",
    "profiles",
    "claims",
    "main",
)
# how the command lines of this program begin
PROGRAMS = (
    ("python", "train.py"),
    ("python", "analyze.py"),
    ("thinkalike", "train"),
    ("thinkalike", "analyze"),
)
# key=value and group=option, but none of Hydra's own
SETTING = re.compile(r"(?!\+*hydra\b)\+{0,2}[a-z_][\w./]*(@target)?=.*")
# a path from the root or the home folder, or upwards; an address; FILE.py:NAME; ${...} and other
# characters that a shell interprets
OUTSIDE = re.compile(r"(^|[^\w.-])[/~]|\.\.|://|\.py:|[$`\\;&|<>]")
READ_ENDINGS = (".csv", ".yaml")  # of the files that a page is made from, beside result.json
MOST_COLUMNS = 1000  # of a table on a page
MOST_ROWS = 60  # of a table that is no grid
CLAIM_COLUMNS = ("claim", "verdict", "numbers", "units", "tolerance")  # that a page shows
MOST_CLAIMS = 1000  # of a table; the papers have about ten for each figure


class ReportRow(TypedDict):
    """A result in the list of a page."""

    kind: str
    key: str
    folder: str
    models: list[str]
    date: str
    settings: str
    headline: str
    is_distance: bool
    command: str
    scalars: dict[str, Cell]
    provenance: dict[str, object]


class PlainTable(TypedDict):
    """A table that a page shows as rows.

    Attributes:
        result: the number of its result.
        length: how many rows the whole table has.
    """

    result: int
    name: str
    columns: list[str]
    rows: list[list[Cell]]
    length: int


class Report(TypedDict):
    """What a page shows of results.

    Attributes:
        results: a row for each.
        grids: see `grids_of`; each with its title and the numbers of the results that have it.
        claims: the columns of claims, each with the number of its result.
        tables: all other tables.
        left_out: a sentence for each result that was skipped.
        unfinished: the jobs that are running or were interrupted.
    """

    results: list[ReportRow]
    grids: list[Grid]
    claims: list[dict[str, Cell]]
    tables: list[PlainTable]
    left_out: list[str]
    unfinished: list[str]


def write_report(arguments: Sequence[str]) -> None:
    """Write the page that a command line asks for."""
    parser = command_parser(
        "report",
        "Write one HTML page of stores and single results, which needs no network and no server.",
    )
    parser.add_argument(
        "--out", default="report.html", metavar="PAGE", help="the file to write (report.html)"
    )
    parser.add_argument("--title", help="the title of the page (the names of the folders)")
    options = parser.parse_args(arguments)
    folders, settings = stores_and_settings(options.which)
    # With one of the folders, the query refuses a store= beside it, which would be ignored.
    query = Query.parsed([*folders[:1], *settings])
    if not folders:
        folders = [str(query.store)]

    with watched():
        report = report_of(gather(folders, query))
    for sentence in report["left_out"]:
        print(plain_line(f"left out: {sentence}"), file=sys.stderr)
    title = options.title or ", ".join(Path(folder).resolve().name for folder in folders)
    page = in_home(options.out)
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        write_whole(page, report_page(report, title))
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        reason = one_line(error)
        remedy = "choose --out PAGE"
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = "free some space, or choose --out PAGE elsewhere"
        raise StoreError(
            f"--out {plain(options.out)} cannot be written: {reason}; {remedy}"
        ) from error
    megabytes = page.stat().st_size / 1e6
    print(f"{len(report['results'])} results, {megabytes:.2f} MB", file=sys.stderr)
    print(f"page: {page}")


def gather(folders: Sequence[str | Path], query: Query | None = None) -> StoreContent:
    """Return the results of stores and of single folders, each once.

    Experiments come after the jobs that they use, so that a table which both have is shown under
    the job that computed it. Damaged results are left out and named in `skipped`.
    """
    content = StoreContent(Path(", ".join(map(str, folders))))
    entry_of_folder: dict[Path, ListedResult] = {}
    paths = [in_home(checked_path("store", folder)) for folder in folders]
    for folder in dict.fromkeys(paths):
        if is_sealed(folder):
            inside = StoreContent(folder, [_single_entry(folder)])
        else:
            inside = search(folder, READ_ENDINGS)
        for entry in inside.entries:
            entry_of_folder[entry.result.folder.resolve()] = entry
        content.skipped += inside.skipped
        content.unfinished += inside.unfinished
    content.entries = list(entry_of_folder.values())

    chosen = selected(content, query or Query())
    content.entries = sorted(chosen, key=lambda entry: "claims.csv" in entry.result.files)
    return content


def _single_entry(folder: Path) -> ListedResult:
    """Return the result in a folder; a StoreError says why it cannot be read."""
    result = open_result(folder)
    try:
        return ListedResult.of(result)
    except ThinkalikeError:
        raise
    except Exception as error:  # a result may come from anywhere
        reason = reason_in_words(error)
        raise StoreError(f"{folder} cannot be read ({reason})") from error


def report_page(report: Report, title: str) -> str:
    """Return the HTML of a page, with its styles, its scripts and its data inside."""
    template = (PAGE_FOLDER / "page.html").read_text()
    scripts = [(PAGE_FOLDER / f"{name}.js").read_text() for name in SCRIPTS]
    date = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    contents = {
        "TITLE": html.escape(title),
        "STYLE": (PAGE_FOLDER / "style.css").read_text(),
        "SCRIPT": "\n".join(scripts),
        "DATA": packed_json({"title": title, "made": date, **report}),
    }
    # They are replaced at once, as a title may hold the mark of another content.
    return re.sub(r"\{\{(TITLE|STYLE|SCRIPT|DATA)\}\}", lambda mark: contents[mark[1]], template)


def packed_json(content: Mapping[str, object]) -> str:
    """Return a JSON object, compressed, in base64.

    It is compressed piece by piece: its whole text would take more memory than all the rest.
    """
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=6, mtime=0) as file:
        separator = b"{"
        for name, value in content.items():
            file.write(separator)
            file.write(_json_bytes(name))
            file.write(b": ")
            if isinstance(value, list):
                _write_list(file, value)
            else:
                file.write(_json_bytes(value))
            separator = b", "
        file.write(b"}")
    return base64.b64encode(packed.getbuffer()).decode()


def _write_list(file: gzip.GzipFile, items: Sequence[object]) -> None:
    file.write(b"[")
    for number, item in enumerate(items):
        if number:
            file.write(b", ")
        file.write(_json_bytes(item))
    file.write(b"]")


def _json_bytes(value: object) -> bytes:
    """Return a value in JSON; halves of surrogate pairs, which cannot be encoded, are replaced."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode(errors="replace")


def report_of(content: StoreContent) -> Report:
    """Return what a page shows of results."""
    report = Report(
        results=[],
        grids=[],
        claims=[],
        tables=[],
        left_out=list(content.skipped),
        unfinished=[f"{folder.parent.name}/{folder.stem}" for folder in content.unfinished],
    )
    known_grids: dict[bytes, Grid] = {}
    entries_and_records = zip(content.entries, records(content.entries), strict=True)
    for entry, record in counted(entries_and_records, "table", len(content.entries)):
        with skipping(entry.result.folder, report["left_out"]):
            # All that can fail comes before the first change of the report.
            row = report_row(entry, record)
            tables = _tables_of(entry.result)
            grids = {name: _grids_of(table, row) for name, table in tables.items()}

            report["results"].append(row)
            is_experiment = "claims" in tables
            for name, table in tables.items():
                if _holds_claims(table):
                    _add_claims(report, table)
                elif grids[name]:
                    _add_grids(report, known_grids, name, grids[name], is_experiment)
                else:
                    _add_plain_table(report, name, table)
    return report


def _tables_of(result: Result) -> dict[str, Columns]:
    """Return the tables by name; `details`, which has all columns, takes the place of `table`."""
    tables = {}
    for file_name, table_name in result.table_files.items():
        tables[table_name] = result.columns_of(file_name, MOST_LISTED_BYTES, MOST_COLUMNS)
    if "details" in tables:
        tables["table"] = tables.pop("details")
    return tables


def _grids_of(table: Columns, row: ReportRow) -> list[Grid]:
    """Return the grids of a table of a result, given the row of the result in the list."""
    if _holds_claims(table):
        return []
    trained_model = ""
    if row["models"]:
        trained_model = str(row["models"][-1]).partition("@")[0]
    return grids_of(table, row["is_distance"], trained_model)


def _holds_claims(table: Columns) -> bool:
    return table.has("claim", "verdict") and len(table) <= MOST_CLAIMS


def report_row(entry: ListedResult, record: ListRecord) -> ReportRow:
    """Return the row of one result in the list of a page.

    Its command line is empty unless it is one of this program; a part of an experiment has that of
    the experiment.
    """
    command = str(record["command"] or "")
    if not is_command(command):
        command = ""
    settings = [f"{name}={value}" for name, value in record["settings"].items()]
    distance_name = f"highest_{entry.result.kind}"
    provenance = json.dumps(entry.result.provenance, default=str)
    return ReportRow(
        kind=record["kind"],
        key=record["key"],
        folder=record["folder"],
        models=record["models"],
        date=record["date"],
        settings=" ".join(settings),
        headline="; ".join(map(str, entry.headlines)),
        is_distance=any(headline.name == distance_name for headline in entry.headlines),
        command=command,
        scalars={name: plain_value(value) for name, value in record["scalars"].items()},
        # JSON has neither NaN nor infinity
        provenance=json.loads(provenance, parse_constant=lambda _: None),
    )


def is_command(text: str) -> bool:
    """Return whether a text is a command line of this program that one may copy safely.

    Whoever wrote the result, it is as `shlex.join` writes it, so that a shell reads nothing else
    in it, and it has only settings: no option, none of Hydra's own, and no value that names code,
    an address, a variable or a file outside of the working folder.
    """
    try:
        words = shlex.split(text)
    except ValueError:
        return False
    if not text.isprintable() or shlex.join(words) != text or tuple(words[:2]) not in PROGRAMS:
        return False
    return all(SETTING.fullmatch(word) and not OUTSIDE.search(word) for word in words[2:])


def _add_claims(report: Report, table: Columns) -> None:
    """Add the claims of the last result.

    No other columns are added: one of the name `result` would put the claim under another result.
    """
    columns = [column for column in CLAIM_COLUMNS if table.has(column)]
    result_number = len(report["results"]) - 1
    for values in table.keys(columns):
        claim = dict(zip(columns, plain_values(values), strict=True))
        claim["result"] = result_number
        report["claims"].append(claim)


def _add_grids(
    report: Report,
    known_grids: dict[bytes, Grid],
    name: str,
    grids: Sequence[Grid],
    is_experiment: bool,
) -> None:
    """Add the grids of a table of the last result.

    An experiment repeats tables of its jobs, also without some columns. Grids that are known by
    their content then stay under the result that had them first.
    """
    result_number = len(report["results"]) - 1
    kind = report["results"][-1]["kind"]
    title = title_of(kind)
    if name != "table":
        title += f", {name.replace('_', ' ')}"
    for grid in grids:
        content = _digest_of_grid(grid)
        if is_experiment and content in known_grids:
            known_grids[content]["results"].append(result_number)
            continue
        known_grids.setdefault(content, grid)
        grid["title"] = title
        grid["results"] = [result_number]
        report["grids"].append(grid)


def _digest_of_grid(grid: Grid) -> bytes:
    """Return a digest of the layout of a grid and of the numbers that it shows first."""
    main_numbers = None
    if grid["numbers"]:
        main_numbers = grid["numbers"][grid["main"]]
    layout = [grid["role"], grid["models"], grid["rows"], grid["columns"], grid["cells"]]
    return hashlib.sha256(json.dumps([layout, main_numbers]).encode()).digest()


def _add_plain_table(report: Report, name: str, table: Columns) -> None:
    """Add a table of the last result that is neither of claims nor of grids."""
    plain_table = PlainTable(
        result=len(report["results"]) - 1,
        name=name,
        columns=table.names,
        rows=[plain_values(row) for row in table.rows(MOST_ROWS)],
        length=len(table),
    )
    report["tables"].append(plain_table)
