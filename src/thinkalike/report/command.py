"""The command `thinkalike report`: writes one HTML page that shows the results of stores and of single folders."""

from __future__ import annotations

import base64
import gzip
import html
import json
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from thinkalike.listing import Entry, Found, Query, parser, search, selected
from thinkalike.report.reports import Report, report_of
from thinkalike.store import damage, is_sealed, open_result

PARTS = Path(__file__).parent / "page"
SCRIPTS = ("elements", "colours", "data", "matrix", "charts", "results", "pair", "profiles", "claims", "main")


def write_report(arguments: Sequence[str]) -> None:
    """Write the page that a command line asks for.

    Raises:
        ConfigError: no result is of a kind or model that it names.
        StoreError: there is no finished result that was asked for.
    """
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

    Args:
        places: stores such as `results`, or folders of single results.

    Raises:
        ConfigError: no result is of a kind or model that was asked for.
        StoreError: a place cannot be read, or nothing is left.
    """
    found = Found(Path(", ".join(map(str, places))))
    for place in dict.fromkeys(Path(place).expanduser() for place in places):
        inside = Found(place, [Entry.of(open_result(place))]) if is_sealed(place) else search(place)
        wrong = [damage(entry.result.folder) for entry in inside.entries]
        found.entries += [entry for entry, reason in zip(inside.entries, wrong, strict=True) if not reason]
        found.skipped += [*filter(None, wrong), *inside.skipped]
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
