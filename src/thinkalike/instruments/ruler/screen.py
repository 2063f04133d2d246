"""What a ruler's table says on the screen: similarity, as bits of rounded copies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import overload

import pandas as pd

from thinkalike.instruments.ruler.calibration_points import MIXING, UNTRAINED
from thinkalike.instruments.stitching.screen import in_bits
from thinkalike.measures.bit_readings import BITS_OF_COPIES
from thinkalike.screen import (
    Column,
    Table,
    capitalised,
    number_column,
    number_of_documents,
    number_text,
    show_table,
    span,
    text_column,
)

RESIDUAL_R2 = "residual R²"
"""What the ruler measures: R² after word, position and local mixing are regressed out."""


def show_readings(table: pd.DataFrame, title: str, label: str) -> None:
    """Print the values of layer pairs, their equivalent bit widths, and the local-mixing control.

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
        columns.append(Column(f"equivalent bit width of {name}", bits))
    columns.append(number_column("local-mixing control", local_mixing(table), ".2f"))
    show_table(Table(title, columns))


def show_further_points(points: pd.DataFrame) -> None:
    """Print the calibration points of each model that are not rounded copies, by layer."""
    is_further = points["bits"].isna() & ~points["calibration_point"].isin([MIXING, UNTRAINED])
    for model, rows in points[is_further].groupby("model", sort=False):
        cells = rows.pivot(index="calibration_point", columns="layer", values="value")
        cells = cells.loc[rows["calibration_point"].unique()]
        columns = [text_column("calibration point", cells.index)]
        for layer in cells:
            columns.append(number_column(f"layer {layer}", cells[layer], ".2f"))
        show_table(Table(f"Residual R² of {model} with further calibration points", columns))


def sentence_of_ruler(table: pd.DataFrame, scalars: Mapping[str, float]) -> str:
    """Return what a ruler's table says of the middle layer pair, in words.

    Args:
        table: The table of layer pairs.
        scalars: The headline numbers of the result.
    """
    row = table.iloc[len(table) // 2]
    answer = sentence_of_reading(row, RESIDUAL_R2)
    return f"{answer} 95 % intervals are over {number_of_documents(scalars)}."


def sentence_of_reading(row: pd.Series, label: str) -> str:
    """Return how similar a layer pair is, beside its control and its equivalent bit widths.

    Args:
        row: A row of the table.
        label: What the measure is called.
    """
    layers = (
        f"layer {row['source_layer']} of {row['source']} and layer {row['target_layer']} of "
        f"{row['target']}"
    )
    value = span(row["value"], row["low"], row["high"], ".2f")
    control = number_text(local_mixing(row), ".2f")
    of_layers = f"{capitalised(label)} of {layers} is {value}"
    if not shares_more(row):
        return (
            f"{of_layers}, not above the local-mixing control of {control}: the layers are no "
            "more similar than a network that only mixes neighbouring tokens is to one of them."
        )
    return (
        f"{of_layers}, above the local-mixing control of {control}. They are as similar as "
        f"{copies_in_words(row)}."
    )


@overload
def local_mixing(table: pd.DataFrame) -> pd.Series: ...
@overload
def local_mixing(table: pd.Series) -> float: ...
def local_mixing(table: pd.DataFrame | pd.Series) -> pd.Series | float:
    """Return the value of local mixing with the source or with the target, whichever is more.

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


def copies_in_words(row: pd.Series) -> str:
    """Return which rounded copies are as similar to their model as a layer pair is, in words."""
    clauses = []
    for side, name in sides_with_readings(row):
        bits = in_bits(row[f"{side}_equivalent_bits"])
        clauses.append(f"{name} is to its copy rounded to {bits} bits")
    return ", and as ".join(clauses)


def sides_with_readings(row: pd.Series) -> list[tuple[str, str]]:
    """Return the sides that have readings, each with the name of its model.

    A model that is compared with itself is one side.
    """
    sides = ["source"]
    if row["source"] != row["target"]:
        sides.append("target")
    return [(side, row[side]) for side in sides if not pd.isna(row[f"{side}_equivalent_bits"])]


def bits_in_words(row: pd.Series, side: str) -> str:
    """Return the equivalent bit width of one side's model at a layer pair, with its interval."""
    column = f"{side}_equivalent_bits"
    bits = row[column]
    if BITS_OF_COPIES[0] < bits < BITS_OF_COPIES[-1]:
        return span(bits, row[f"{column}_low"], row[f"{column}_high"], ".1f")
    return in_bits(bits)
