"""Write the tables of all claims of a store's experiments: python docs/make_results.py results > docs/results.md"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pandas as pd

from thinkalike.config import options
from thinkalike.papers.claims import VERDICTS
from thinkalike.store import Result, finished

SETTINGS = {  # that one and the same experiment is made with, and what it is made with if nothing is said
    ("population", "name"): "planted",
    ("stimuli", "kind"): "controlled",
    ("measure", "difference"): "indicator",
}
COLUMNS = ("claim", "verdict", "numbers", "units", "tolerance", "smallest_effect")


def markdown(table: pd.DataFrame) -> str:
    """Return a table as one of Markdown."""
    rows = [[str(name).replace("_", " ") for name in table], ["---"] * len(table.columns)]
    rows += [[_cell(value) for value in row] for row in table.itertuples(index=False)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return "" if pd.isna(value) else f"{value:.2g}"
    return str(value)


def newest(store: str) -> list[Result]:
    """Return the newest result of each command, in the order of the commands."""
    found: dict[str, Result] = {}
    for name in options("experiment"):
        for result in sorted(finished(store, name.replace("/", "-")), key=lambda each: each.folder.stat().st_mtime):
            found[command(result)] = result
    return [found[key] for key in sorted(found)]


def command(result: Result) -> str:
    """Return the command that makes a result of an experiment at its scale, by its recipe and with its settings."""
    config = result.config
    words = [f"experiment={config['experiment']}", f"scale={config['scale']}"]
    words += ["recipe=paper"] if config.get("recipe") == "paper" else []
    for (part, name), usual in SETTINGS.items():
        chosen = (config.get(part) or {}).get(name, usual)
        word = part if name in ("name", "kind") else f"{part}.{name}"
        words += [f"{word}={chosen}"] if chosen != usual else []
    return " ".join(["python analyze.py", *words])


def claims_of(result: Result) -> pd.DataFrame:
    """Return one row per claim of an experiment's result."""
    return result.tables["claims"].reindex(columns=list(COLUMNS)).fillna({"units": "", "tolerance": ""})


def overview(results: Sequence[Result]) -> str:
    """Return how many claims of each paper have each verdict, and then all claims with their verdicts.

    An experiment that was made in several ways has its claims once, with a column for each way.
    """
    parts = [
        claims_of(each).assign(experiment=each.config["experiment"], scale=each.config["scale"], made=made(each))
        for each in results
    ]
    claims = pd.concat(parts, ignore_index=True)
    claims["paper"] = claims["experiment"].str.partition("/")[0]
    counts = claims.groupby(["paper", "scale", "verdict"]).size().unstack(fill_value=0)
    counts = counts.reindex(columns=list(VERDICTS), fill_value=0).reset_index()
    several = claims.groupby("experiment")["made"].transform("nunique") > 1
    shown = claims[~several][["experiment", "made", "claim", "verdict", "units", "smallest_effect"]]
    tables = [markdown(counts), markdown(shown)] if len(shown) else [markdown(counts)]
    for name, rows in claims[several].groupby("experiment", sort=False):
        beside = rows.pivot_table("verdict", "claim", "made", aggfunc="first", sort=False).fillna("").reset_index()
        tables.append(f"{name}, by what it was made with:\n\n{markdown(beside)}")
    return "\n\n".join(tables)


def made(result: Result) -> str:
    """Return what the command says beside the experiment: its scale, and the paper's recipe."""
    return command(result).partition(" scale=")[2]


def section(result: Result) -> str:
    """Return the claims of an experiment's result with their numbers, under the command that makes it."""
    return (
        f"## {result.config['experiment']}, scale {made(result)}\n`{command(result)}`\n\n{markdown(claims_of(result))}"
    )


def main(store: str) -> None:
    """Print the overview, and a section for each experiment."""
    results = newest(store)
    print("# What the papers claim, and what was found")
    print("Made by `python docs/make_results.py STORE` from `claims.csv`.\n")
    print(
        "A claim *holds* if the whole of its intervals (95 %, of all its numbers together) is as the tolerance says, "
        "*does not hold* if one is wholly elsewhere, and is *undecided* if one has a part on either side. The smallest "
        "effect is half the widest interval.\n"
    )
    print(f"## Overview\n{overview(results)}\n" if results else "No experiment is finished.")
    for result in results:
        print(section(result), end="\n\n")


if __name__ == "__main__":
    main(sys.argv[1])
