"""The command `thinkalike results`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from thinkalike.errors import ConfigError, listed, plain_line, refuse_words
from thinkalike.listing.frames import csv_of, json_of, records
from thinkalike.listing.query import Query, selected
from thinkalike.listing.store_content import StoreContent, search
from thinkalike.listing.tables import show_entries

EXAMPLES = """\
thinkalike {name}                                     all finished jobs of the folder results
thinkalike {name} kind=cka,mutual_knn model=gpt2      those of any of these kinds and models
thinkalike {name} store=DIR sort=mean_penalty         sort=date|duration|models|kind,
                                                      or a headline number
"""


def command_parser(name: str, description: str) -> argparse.ArgumentParser:
    """Return the parser of a command that selects results of a store."""
    parser = argparse.ArgumentParser(
        prog=f"thinkalike {name}",
        description=description,
        epilog=EXAMPLES.format(name=name),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.error = refuse_words  # type: ignore[method-assign]
    parser.add_argument(
        "which", nargs="*", metavar="STORE|key=value", help="kind=, model= and sort= choose"
    )
    return parser


def list_results(words: Sequence[str]) -> None:
    """Print the results that a command line asks for.

    Lines about damaged results and unfinished jobs go to stderr.
    """
    parser = command_parser("results", "List the finished jobs of a store, the newest last.")
    for_programs = "for other programs, in full precision, and nothing else"
    parser.add_argument("--csv", action="store_true", help=for_programs)
    parser.add_argument("--json", action="store_true", help=for_programs)
    options = parser.parse_args(words)
    if options.csv and options.json:
        raise ConfigError("--csv and --json exclude each other; leave one of them out")

    query = Query.parsed(options.which)
    content = search(query.store)
    try:
        entries = selected(content, query)
    finally:
        for sentence in content.skipped:
            print(plain_line(f"skipped: {sentence}"), file=sys.stderr)

    if options.csv:
        print(csv_of(entries), end="")
    elif options.json:
        print(json_of(records(entries)))
    else:
        show_entries(entries)
    _show_unfinished(content)


def _show_unfinished(content: StoreContent) -> None:
    """Print to stderr how many jobs are running or were interrupted, and the first of them."""
    if not content.unfinished:
        return
    names = [f"{folder.parent.name}/{folder.stem}" for folder in content.unfinished]
    count = len(content.unfinished)
    line = f"unfinished, running or interrupted: {count} ({listed(names)})"
    print(plain_line(line), file=sys.stderr)
