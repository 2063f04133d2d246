"""The command `thinkalike results`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from thinkalike.listing.found import search
from thinkalike.listing.query import Query, selected
from thinkalike.listing.records import as_json, frame
from thinkalike.listing.screen import show_entries

USAGE = """\
usage: thinkalike results [STORE] [key=value ...] [--csv | --json]

  thinkalike results                                all finished jobs of the folder results, the newest last
  thinkalike results kind=cka,mknn model=gpt2       those of any of these kinds, and of any of these models
  thinkalike results since=7d sort=mean_penalty     since a date (2026-11-01), or so many hours (12h), days or weeks;
                                                    sort=date|duration|models|kind, or a headline number
  thinkalike results store=DIR --csv                for machines, in full precision; --json, too"""


def list_results(words: Sequence[str]) -> None:
    """Print the results that a command line asks for; what is skipped, and what is unfinished, goes to stderr.

    Raises:
        ConfigError: a word is not known.
        StoreError: there are no such results.
    """
    if {"-h", "--help"} & set(words):
        print(USAGE)
        return
    query = Query.parsed(words)
    found = search(query.store)
    for line in found.skipped:
        print(f"skipped: {line}", file=sys.stderr)
    entries = selected(found, query)
    if query.form == "csv":
        print(frame(entries).to_csv(index=False), end="")
    elif query.form == "json":
        print(as_json(entries))
    else:
        show_entries(entries)
    if found.unfinished:
        folders = ", ".join(f"{each.parent.name}/{each.stem}" for each in found.unfinished[:4])
        more = ", ..." if len(found.unfinished) > 4 else ""
        print(f"unfinished, running or interrupted: {len(found.unfinished)} ({folders}{more})", file=sys.stderr)
