"""What a job of autoencoders prints: its starts before and after training, and what one saves against another."""

from __future__ import annotations

import pandas as pd
from rich.console import Console
from rich.table import Table

from thinkalike.evaluation import number_of_documents
from thinkalike.measures import span
from thinkalike.store import Result

SHARES = (1 / 16, 1 / 4, 1 / 2, 1)  # of the tokens of a job: the budgets that are printed


def show_saes(result: Result) -> None:
    """Print the tables."""
    table, sae = result.table, result.config["sae"]
    first = table.iloc[0]
    kind = f"Top{sae['k']}" if sae["activation"] == "topk" else "ReLU"
    title = f"{first['model']}, layer {first['layer']}: {kind} of {sae['width']} latents, {sae['seeds']} seed(s), "
    printed = Table(title=f"{title}95 % intervals over {number_of_documents(result.scalars)} and seeds")
    columns = ("start", "tokens", "rate", "TFLOP", "explained variance", "loss recovered", "penalty", "active", "dead")
    for name in columns:
        printed.add_column(name, justify="left" if name == "start" else "right")
    for row in table.to_dict("records"):
        printed.add_row(
            row["start"],
            f"{row['tokens']:,}",
            f"{row['rate']:g}" if row["rate"] else "",
            f"{row['flops'] / 1e12:.3g}",
            *(_with_ends(row, name, form) for name, form in (("explained_variance", ".3f"), ("loss_recovered", ".3f"))),
            f"{row['penalty']:+.3f}",
            f"{row['active_latents']:.1f}",
            f"{row['dead_latents']:.1%}",
        )
    _console().print(printed)
    if "savings" in result.tables and len(result.tables["savings"]):
        _console().print(_savings(result.tables["savings"], result.tables["break_even"]))


def budgets(savings: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the budgets that are spoken of: a sixteenth, a quarter, a half and all of the tokens."""
    asked = [savings["tokens"].max() * share for share in SHARES]
    return savings[savings["tokens"].isin(asked)]


def _savings(savings: pd.DataFrame, break_even: pd.DataFrame) -> Table:
    """Return the table of savings at the budgets."""
    printed = Table(title="share of all FLOPs saved on the way to what the other start explains after so many tokens")
    own = budgets(savings)
    for name in ("start", "against", *(f"{tokens:,}" for tokens in own["tokens"].unique()), "saves from"):
        printed.add_column(name, justify="left" if name in ("start", "against") else "right")
    for (start, against), rows in own.groupby(["start", "against"], sort=False):
        even = break_even[(break_even["start"] == start) & (break_even["against"] == against)].iloc[0]
        tokens = even["break_even_tokens"]
        cells = [_with_ends(row, "saved", "+.1%") for row in rows.to_dict("records")]
        printed.add_row(start, against, *cells, "not here" if pd.isna(tokens) else f"{tokens:,.0f} tokens")
    return printed


def _with_ends(row: dict, name: str, form: str) -> str:
    """Return a number with its interval, or alone where that has no ends; nothing for none."""
    if pd.isna(row[name]):
        return ""
    ends = row[f"{name}_low"], row[f"{name}_high"]
    return f"{row[name]:{form}}" if any(map(pd.isna, ends)) else span(row[name], *ends, form)


def _console() -> Console:
    return Console(width=max(Console().width, 150))
