"""The command `thinkalike report`: one HTML page of stores, of folders of results, or of those that were asked for."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from thinkalike.errors import ConfigError
from thinkalike.listing import Query
from thinkalike.loggers import publish_page
from thinkalike.report.gathering import gather
from thinkalike.report.page import page_of, write_page
from thinkalike.report.reports import report_of

EXAMPLES = """\
thinkalike report                                          all finished jobs of the folder results
thinkalike report results --out page.html
thinkalike report results kind=cka,mknn model=gpt2         those of any of these kinds, and of any of these models
thinkalike report --wandb                                  the page also as an artifact of W&B
thinkalike report results since=7d                         since a date (2026-11-01), or 12h, 7d, 2w ago
thinkalike report results/cka/176300a3bb42 other/store     single results, several stores"""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are those of a configuration: one line."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"thinkalike report: {message}; thinkalike report --help says more")


def write_report(words: Sequence[str]) -> Path:
    """Write the page that a command line asks for, and return its path.

    Args:
        words: the command line behind `thinkalike report`.

    Raises:
        ConfigError: the command line cannot be read, or no result is of a kind or model that it names.
        StoreError: there is no finished result that was asked for, or the page cannot be written.
    """
    asked = _parser().parse_args(words)
    query = Query.parsed([word for word in asked.words if "=" in word])
    places = [word for word in asked.words if "=" not in word] or [str(query.store)]
    report = report_of(gather(places, query))
    for sentence in report["left_out"]:
        print(f"left out: {sentence}", file=sys.stderr)
    title = asked.title or ", ".join(Path(place).resolve().name for place in places)
    path = write_page(asked.out, page_of(report, title))
    print(f"{len(report['results'])} results, {path.stat().st_size / 1e6:.2f} MB", file=sys.stderr)
    print(f"page: {path}")
    if asked.wandb:
        publish_page(asked.wandb, path)
    return path


def _parser() -> _Parser:
    parser = _Parser(
        prog="thinkalike report",
        description="Write one HTML page of finished jobs, which needs no network and no server.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "words", nargs="*", metavar="STORE|kind=|model=|since=", help="which results (default: results)"
    )
    parser.add_argument("--out", default="report.html", metavar="PAGE", help="where the page goes (report.html)")
    parser.add_argument("--title", help="what the page is called (the names of the folders)")
    parser.add_argument(
        "--wandb", nargs="?", const="thinkalike", metavar="PROJECT", help="also keep it in W&B, as an artifact"
    )
    return parser
