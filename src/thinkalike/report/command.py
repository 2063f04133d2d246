"""The command `thinkalike report`: one HTML page of stores, of folders of results, or of those that a search finds."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from thinkalike.errors import ConfigError, StoreError
from thinkalike.report.gathering import gather
from thinkalike.report.page import page_of, write_page
from thinkalike.report.reports import Report, report_of


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are those of a configuration: one line."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"thinkalike report: {message}; thinkalike report --help says more")


def write_report(words: Sequence[str]) -> Path:
    """Write the page that a command line asks for, and return its path.

    Args:
        words: the command line behind `thinkalike report`.

    Raises:
        ConfigError: the command line cannot be read.
        StoreError: there is no finished result, none that the search finds, or the page cannot be written.
    """
    asked = _parser().parse_args(words)
    gathered = gather(asked.places)
    report = report_of(gathered)
    for sentence in report["left_out"]:
        print(f"left out: {sentence}", file=sys.stderr)
    if asked.search:
        report = selected(report, asked.search)
    title = asked.title or ", ".join(Path(place).resolve().name for place in asked.places)
    path = write_page(asked.out, page_of(report, title))
    print(f"{len(report['results'])} results, {path.stat().st_size / 1e6:.2f} MB", file=sys.stderr)
    print(f"page: {path}")
    return path


def selected(report: Report, search: str) -> Report:
    """Return what a report says of the results in whose entries all words of a search stand, as the page searches.

    Raises:
        StoreError: there is none.
    """
    kept = [number for number, entry in enumerate(report["results"]) if _matches(entry, search)]
    if not kept:
        raise StoreError(f"--search {search!r} finds none of {len(report['results'])} results; leave a word out")
    renumbered = {old: new for new, old in enumerate(kept)}
    grids = []
    for grid in report["grids"]:
        if numbers := [renumbered[number] for number in grid["results"] if number in renumbered]:
            grids.append({**grid, "results": numbers})
    rest = {
        part: [{**each, "result": renumbered[each["result"]]} for each in report[part] if each["result"] in renumbered]
        for part in ("claims", "tables")
    }
    return {**report, "results": [report["results"][number] for number in kept], "grids": grids, **rest}


def _matches(entry: dict, search: str) -> bool:
    said = [entry["kind"], entry["key"], *entry["models"], entry["settings"], entry["date"], entry["headline"]]
    text = " ".join(said).lower()
    return all(word in text for word in search.lower().split())


def _parser() -> _Parser:
    parser = _Parser(
        prog="thinkalike report",
        description="Write one HTML page of finished results, which needs no network and no server.",
    )
    parser.add_argument("places", nargs="*", default=["results"], help="stores, or folders of results (results)")
    parser.add_argument("--out", default="report.html", help="where the page goes (report.html)")
    parser.add_argument("--search", help="only the results in whose entries all of these words stand")
    parser.add_argument("--title", help="what the page is called (the names of the folders)")
    return parser
