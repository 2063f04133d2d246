"""Write one line for each claim of a store's experiments: python docs/contrib/make_results.py STORE > PAGE.md"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from thinkalike.config import options
from thinkalike.contrib.papers.claims import VERDICTS
from thinkalike.store import Result

SETTINGS = {  # an experiment may be run with several values of these; the value that needs no override
    ("population", "name"): "planted",
    ("stimuli", "kind"): "controlled",
    ("measure", "difference"): "indicator",
}
SHARED = {  # claims that an experiment makes about many subjects, with the number of the table that has a row for each
    r"(?P<row>.+) (?P<column>ranks .+ every decoy).*": 0,
    r"(?P<column>verdicts are right) for sources of kind (?P<row>[\w -]+)(?P<more>.*)": 1,
}
INTERVAL = re.compile(r"[+-]?\d[\d.]* \[[^\]]*\]")
MOST_INTERVALS, MOST_WORDS = 4, 20  # of a cell
INTRODUCTION = """# All claims of the papers
Which claims of the papers hold on the bundled models? `python docs/contrib/make_results.py STORE` makes this page
from the `claims.csv` of each result, which also has the units, the tolerance and all numbers of each claim.

A claim *holds* if its simultaneous 95 % intervals lie within its tolerance, *does not hold* if one of them lies
outside, and is *undecided* if one lies partly inside and partly outside. If a claim rests on many intervals,
the table shows half the width of the widest one (±), which is the smallest effect that could have been
detected.
"""


def markdown(table: pd.DataFrame) -> str:
    """Return a table in Markdown."""
    rows = [[str(name).replace("_", " ") for name in table], ["---"] * len(table.columns)]
    rows += [list(map(str, row)) for row in table.itertuples(index=False)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def newest(store: str) -> list[Result]:
    """Return the newest result of each command, in the order of the commands."""
    found: dict[str, Result] = {}
    for name in options("experiment"):
        sealed = Path(store).glob(f"{name.replace('/', '-')}/*/manifest.json")
        for result in map(Result, sorted((each.parent for each in sealed), key=lambda folder: folder.stat().st_mtime)):
            found[command(result)] = result
    return [found[key] for key in sorted(found)]


def command(result: Result) -> str:
    """Return the command line of an experiment's result."""
    config = result.config
    overrides = [f"experiment={config['experiment']}", f"scale={config['scale']}"]
    overrides += ["recipe=paper"] if config.get("recipe") == "paper" else []
    for (part, name), usual in SETTINGS.items():
        chosen = (config.get(part) or {}).get(name, usual)
        key = part if name in ("name", "kind") else f"{part}.{name}"
        overrides += [f"{key}={chosen}"] if chosen != usual else []
    return " ".join(["python analyze.py", *overrides])


def overview(claims: pd.DataFrame) -> str:
    """Return how many claims of each paper have each verdict."""
    paper = claims["command"].str.extract(r"experiment=(?P<paper>\w+)/\S+ scale=(?P<scale>\w+)")
    counts = paper.assign(verdict=claims["verdict"]).groupby(["paper", "scale", "verdict"]).size()
    return markdown(counts.unstack(fill_value=0).reindex(columns=list(VERDICTS), fill_value=0).reset_index())


def section(name: str, claims: pd.DataFrame) -> str:
    """Return the claims of an experiment under the commands that test them, one column for each command."""
    lines = list(dict.fromkeys(claims["command"]))
    numbered = {line: f" ({number})" if len(lines) > 1 else "" for number, line in enumerate(lines, 1)}
    commands = "\n".join(f"- `{line}`{numbered[line]}" for line in lines)
    tables: dict[int, dict[str, dict[str, str]]] = {}
    for claim in claims.itertuples():
        table, row, column = placed(claim.claim)
        own = tables.setdefault(table, {}).setdefault(row, {})
        own[f"{column}{numbered[claim.command]}".strip()] = cell(claim)
    drawn = [pd.DataFrame.from_dict(cells, orient="index").fillna("") for cells in tables.values()]
    texts = [markdown(each.rename_axis("claim").reset_index()) for each in drawn]
    return "\n\n".join([f"## {name}\n{commands}", *texts])


def placed(claim: str) -> tuple[int, str, str]:
    """Return the table, the row and the column of a claim."""
    for pattern, number in SHARED.items():
        if found := re.fullmatch(pattern, claim):
            return number, found["row"], found["column"].strip() or "verdict"
    return -1, claim, "verdict"


def cell(claim) -> str:
    """Return the verdict on a claim with its numbers, if they are few, or with its smallest effect."""
    found, said = list(INTERVAL.finditer(claim.numbers)), claim.numbers
    if found and len(found) <= MOST_INTERVALS:
        behind = said[found[-1].end() :].partition("; intervals hold")[0]
        said = ", ".join(each[0] for each in found) + behind * (len(behind.split()) <= MOST_WORDS)
    elif len(said.split()) > MOST_WORDS:
        widest = claim.smallest_effect
        said = "" if widest is None or pd.isna(widest) else f"±{float(widest):.2g}"
    return f"{claim.verdict}: {said}" if said else claim.verdict


def page(claims: pd.DataFrame) -> Iterable[str]:
    """Yield the parts of the page; claims has experiment, command and the columns of `claims.csv`."""
    yield INTRODUCTION
    yield overview(claims) + "\n"
    for name, own in claims.groupby("experiment", sort=False):
        yield section(str(name), own) + "\n"


def claims_of(results: Sequence[Result]) -> pd.DataFrame:
    """Return the claims of all results, each with its experiment and its command line."""
    parts = [
        each.tables["claims"].assign(experiment=each.config["experiment"], command=command(each)) for each in results
    ]
    return pd.concat(parts, ignore_index=True)


def main(store: str) -> None:
    """Print the page of a store."""
    results = newest(store)
    print("\n".join(page(claims_of(results))) if results else "No experiment is finished.")


if __name__ == "__main__":
    main(sys.argv[1])
