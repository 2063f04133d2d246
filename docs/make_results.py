"""Write the tables of all claims of a store's experiments: python docs/make_results.py results > docs/results.md"""

from __future__ import annotations

import sys

from thinkalike.config import options
from thinkalike.store import Result, finished


def table(result: Result) -> str:
    """Return the claims of an experiment's result as a table of Markdown."""
    rows = [f"| {row.claim} | {row.verdict} | {row.numbers} |" for row in result.tables["claims"].itertuples()]
    scale = result.config["scale"]
    command = f"python analyze.py experiment={result.config['experiment']} scale={scale}"
    head = f"## {result.config['experiment']}, scale {scale}\n`{command}`\n"
    return "\n".join([head, "| claim | verdict | numbers |", "|---|---|---|", *rows])


def main(store: str) -> None:
    print(
        "# What the papers claim, and what was found\nMade by `python docs/make_results.py STORE` from `claims.csv`.\n"
    )
    for name in options("experiment"):
        for result in finished(store, name.replace("/", "-")):
            print(table(result), end="\n\n")


if __name__ == "__main__":
    main(sys.argv[1])
