"""What a ruler's table says on the screen: what layer pairs share, as bits of copies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import overload

import pandas as pd

from thinkalike.instruments.ruler.rungs import MIXING, UNTRAINED
from thinkalike.measures.ladder import RUNGS
from thinkalike.screen import (
    Column,
    Table,
    number_column,
    number_of_documents,
    show_table,
    span,
    text_column,
)


def show_readings(table: pd.DataFrame, title: str, label: str) -> None:
    """Print the values of layer pairs, their readings in bits, and what local mixing shares.

    Args:
        table: The table of layer pairs.
        title: The title.
        label: The header of the column of values.
    """
    layers = []
    values = []
    for row in table.itertuples():
        layers.append(f"{row.source_layer} → {row.target_layer}")
        values.append(span(row.value, row.low, row.high, ".2f"))
    columns = [Column("layers", layers), Column(label, values)]
    for side, name in sides_with_readings(table.iloc[0]):
        bits = [bits_in_words(row, side) for _, row in table.iterrows()]
        columns.append(Column(f"bits of {name}", bits))
    columns.append(number_column("local mixing", local_mixing(table), ".2f"))
    show_table(Table(title, columns))


def show_further_rungs(rungs: pd.DataFrame) -> None:
    """Print what each model shares, by layer, with its rungs other than copies of fewer bits."""
    is_further = rungs["bits"].isna() & ~rungs["calibration_point"].isin([MIXING, UNTRAINED])
    for model, rows in rungs[is_further].groupby("model", sort=False):
        cells = rows.pivot(index="calibration_point", columns="layer", values="value")
        cells = cells.loc[rows["calibration_point"].unique()]
        columns = [text_column("rung", cells.index)]
        for layer in cells:
            columns.append(number_column(str(layer), cells[layer], ".2f"))
        show_table(Table(f"What {model} shares, by layer, with", columns))


def sentence_of_ruler(table: pd.DataFrame, scalars: Mapping[str, float]) -> str:
    """Return what a ruler's table says of the middle layer pair, in words.

    Args:
        table: The table of layer pairs.
        scalars: The headline numbers of the result.
    """
    row = table.iloc[len(table) // 2]
    layers = "these layers"
    if len(table) > 1:
        layers = f"layers {row['source_layer']} and {row['target_layer']}"
    documents = f"over {number_of_documents(scalars)}"
    mixing = f"{100 * float(local_mixing(row)):.0f} %"
    beyond = (
        f"Beyond the word, its position and its neighbours, {layers} of {row['source']} and "
        f"{row['target']}"
    )
    if not shares_more(row):
        return (
            f"{beyond} share no more than a network does that only mixes neighbouring words "
            f"({row['value']:.2f} of what varies, against {mixing}, {documents})."
        )
    return (
        f"{beyond} share {100 * row['value']:.0f} % of what varies, {documents}: as much as "
        f"{copies_in_words(row, 'shares')}. A network that only mixes neighbouring words shares "
        f"{mixing}."
    )


@overload
def local_mixing(table: pd.DataFrame) -> pd.Series: ...
@overload
def local_mixing(table: pd.Series) -> float: ...
def local_mixing(table: pd.DataFrame | pd.Series) -> pd.Series | float:
    """Return what local mixing shares with the source or with the target, whichever is more.

    Results of earlier versions have an untrained twin in its place.

    Args:
        table: A table of layer pairs, or one of its rows.
    """
    control = "local_mixing" if "source_local_mixing" in table else "random_control"
    of_sides = table[[f"source_{control}", f"target_{control}"]]
    if isinstance(of_sides, pd.DataFrame):
        return of_sides.max(axis=1)
    return float(of_sides.max())


@overload
def shares_more(rows: pd.DataFrame) -> pd.Series: ...
@overload
def shares_more(rows: pd.Series) -> bool: ...
def shares_more(rows: pd.DataFrame | pd.Series) -> pd.Series | bool:
    """Return whether a layer pair shares more than local mixing does.

    Where there is an interval, it must lie above 0.

    Args:
        rows: A table, or one of its rows.
    """
    is_more = rows["above_local_mixing"] > 0
    interval_holds_zero = rows["above_local_mixing_low"] <= 0
    if isinstance(rows, pd.DataFrame):
        return is_more & ~interval_holds_zero
    return bool(is_more and not interval_holds_zero)


def copies_in_words(row: pd.Series, verb: str) -> str:
    """Return with which copies the models of a layer pair share as much, in words.

    Args:
        row: A row of the table.
        verb: "shares" or "has".
    """
    # Only the first clause has the verb: "A shares with its copy ..., and B with its copy ...".
    subject_ends = f" {verb}"
    clauses = []
    for side, name in sides_with_readings(row):
        clauses.append(f"{name}{subject_ends} with its copy of {bits_in_words(row, side)} bits")
        subject_ends = ""
    return ", and ".join(clauses)


def sides_with_readings(row: pd.Series) -> list[tuple[str, str]]:
    """Return the sides that have readings, each with the name of its model.

    A model that is compared with itself is one side.
    """
    sides = ["source"]
    if row["source"] != row["target"]:
        sides.append("target")
    return [(side, row[side]) for side in sides if not pd.isna(row[f"{side}_equivalent_bits"])]


def bits_in_words(row: pd.Series, side: str) -> str:
    """Return the reading of a layer pair in bits of one side's model."""
    column = f"{side}_equivalent_bits"
    bits = row[column]
    if bits <= RUNGS[0]:
        return f"below {RUNGS[0]}"
    if bits >= RUNGS[-1]:
        return f"{RUNGS[-1]} or more"
    return span(bits, row[f"{column}_low"], row[f"{column}_high"], ".1f")
