"""What a job of autoencoders prints: its starts before and after training, and what one saves against another."""

from __future__ import annotations

import pandas as pd

from thinkalike.evaluation import number_of_documents
from thinkalike.measures import span
from thinkalike.screen import Column, Table, number_column, show_table, text_column
from thinkalike.store import Result

SHARES = (1 / 16, 1 / 4, 1 / 2, 1)  # of the tokens of a job: the budgets that are printed


def show_saes(result: Result) -> None:
    """Print the tables."""
    table, sae = result.table, result.config["sae"]
    first = table.iloc[0]
    kind = f"Top{sae['k']}" if sae["activation"] == "topk" else "ReLU"
    title = f"{first['model']}, layer {first['layer']}: {kind} of {sae['width']} latents, {sae['seeds']} seed(s), "
    title += f"95 % intervals over {number_of_documents(result.scalars)} and seeds"
    rows = table.to_dict("records")
    columns = [
        text_column("start", table["start"]),
        number_column("tokens", table["tokens"], ","),
        Column("rate", [f"{rate:g}" if rate else "" for rate in table["rate"]]),
        number_column("TFLOP", table["flops"] / 1e12, ".3g"),
        Column("explained variance", [_with_ends(row, "explained_variance", ".3f") for row in rows]),
        Column("loss recovered", [_with_ends(row, "loss_recovered", ".3f") for row in rows]),
        number_column("penalty", table["penalty"], "+.3f"),
        number_column("active", table["active_latents"], ".1f"),
        number_column("dead", table["dead_latents"], ".1%"),
    ]
    show_table(Table(title, columns, keys=2))
    if "savings" in result.tables and len(result.tables["savings"]):
        show_table(_savings(result.tables["savings"], result.tables["break_even"]))


def budgets(savings: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the budgets that are spoken of: a sixteenth, a quarter, a half and all of the tokens."""
    asked = [savings["tokens"].max() * share for share in SHARES]
    return savings[savings["tokens"].isin(asked)]


def _savings(savings: pd.DataFrame, even: pd.DataFrame) -> Table:
    """Return the table of savings at the budgets."""
    own = budgets(savings)
    pairs = list(own[["start", "against"]].drop_duplicates().itertuples(index=False, name=None))
    columns = [text_column(name, [pair[place] for pair in pairs]) for place, name in enumerate(("start", "against"))]
    first = [even[(even["start"] == start) & (even["against"] == against)] for start, against in pairs]
    for tokens in own["tokens"].unique():
        cells = own[own["tokens"] == tokens].set_index(["start", "against"]).loc[pairs]
        columns.append(Column(f"{tokens:,}", [_with_ends(row, "saved", "+.1%") for row in cells.to_dict("records")]))
    columns.append(Column("saves from", [_tokens(each.iloc[0]["break_even_tokens"]) for each in first]))
    title = "share of all FLOPs saved on the way to what the other start explains after so many tokens"
    return Table(title, columns, keys=2)


def _tokens(count: float) -> str:
    return "not here" if pd.isna(count) else f"{count:,.0f} tokens"


def _with_ends(row: dict, name: str, form: str) -> str:
    """Return a number with its interval, or alone where that has no ends; nothing for none."""
    if pd.isna(row[name]):
        return ""
    ends = row[f"{name}_low"], row[f"{name}_high"]
    return f"{row[name]:{form}}" if any(map(pd.isna, ends)) else span(row[name], *ends, form)
