"""What a ruler's table says on the screen: similarity, as bits of rounded copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import overload

import pandas as pd

from thinkalike.instruments.ruler.calibration_points import MIXING, UNTRAINED
from thinkalike.instruments.stitching.screen import arrows, in_bits
from thinkalike.measures.bit_readings import BITS_OF_COPIES
from thinkalike.screen import (
    Column,
    Table,
    capitalised,
    number_column,
    number_of_documents,
    number_text,
    show_note,
    show_table,
    span,
    text_column,
)

RESIDUAL_R2 = "residual R²"
"""What the ruler measures: R² after word, position and local mixing are regressed out."""

MEANING_OF_RESIDUAL_R2 = (
    "Residual R² is the share of the variance of one model's states that a linear map predicts "
    "from the other's, after the word, its position and linear mixing of earlier tokens are "
    "regressed out; it is measured on held-out documents, in both directions."
)
"""What the measure is, in a line under tables."""

NO_MORE_SIMILAR = (
    "no more similar than an untrained network that only mixes neighbouring tokens is to one of "
    "them"
)
"""What follows where a layer pair is not above its control."""


def show_readings(table: pd.DataFrame, title: str, label: str) -> None:
    """Print the values of layer pairs, their equivalent bit widths, and the local-mixing control.

    Args:
        table: The table of layer pairs.
        title: The title.
        label: The header of the column of values.
    """
    values = [span(row.value, row.low, row.high, ".2f") for row in table.itertuples()]
    columns = [Column("layers", arrows(table)), Column(label, values)]
    sides = sides_with_readings(table.iloc[0])
    for side, name in sides:
        columns.append(Column(f"equivalent bit width of {name}", bits_in_words(table, side)))
    # Without its hyphen the header wraps, and the table is at most 80 columns wide.
    columns.append(number_column("local mixing control", local_mixing(table), ".2f"))
    show_table(Table(title, columns))
    if sides:
        show_note(_meaning_of_bits(table, [side for side, _ in sides]))
    control = (
        f"The local-mixing control is the greatest {label} of either model with untrained "
        "networks that only mix neighbouring tokens"
    )
    if label == RESIDUAL_R2:
        control += ", in ways that are not linear and so not regressed out"
    show_note(f"{control}.")


def _meaning_of_bits(table: pd.DataFrame, sides: Sequence[str]) -> str:
    """Return what an equivalent bit width is, and what stands where there is no number."""
    sentence = (
        "A model's equivalent bit width is the number of bits to which its weights are rounded in "
        "a copy that is as similar to it as the second model is"
    )
    bits = table[[f"{side}_equivalent_bits" for side in sides]]
    least = BITS_OF_COPIES[0]
    most = BITS_OF_COPIES[-1]
    is_above = shares_more(table)
    ends = []
    if not is_above.all():
        ends.append("none: the layers are not above the local-mixing control")
    if (bits[is_above] <= least).any(axis=None):
        ends.append(f"below {least}: less similar than the copy of {least} bits")
    if (bits >= most).any(axis=None):
        ends.append(f"{most} or more: at least as similar as the copy of {most} bits")
    text = "; ".join([sentence, *ends]) + "."
    if len(table) > 1:
        text += " Each layer is compared with its own copies, so bits may order layers otherwise."
    return text


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
    """Return what a ruler's table says, in words.

    Args:
        table: The table of layer pairs.
        scalars: The headline numbers of the result.
    """
    answer = sentence_of_readings(table, RESIDUAL_R2)
    return f"{answer} 95 % intervals are over {number_of_documents(scalars)}."


def sentence_of_readings(table: pd.DataFrame, label: str) -> str:
    """Return at which layer pairs models are similar beyond the control, and how similar at most.

    Args:
        table: The table of layer pairs.
        label: What the measure is called.
    """
    first = table.iloc[0]
    if len(table) == 1:
        return _sentence_of_only_pair(first, label)

    of_models = f"{capitalised(label)} of {first['source']} and {first['target']}"
    is_above = shares_more(table)
    above = table[is_above]
    control = "above the local-mixing control"
    if above.empty:
        return (
            f"{of_models} is {control} at none of {len(table)} layer pairs: their layers are "
            f"{NO_MORE_SIMILAR}."
        )
    how_many = f"{len(above)} of {len(table)}"
    exception = ""
    if len(above) == len(table):
        how_many = f"all {len(table)}"
    else:
        below = ", ".join(arrows(table[~is_above]))
        exception = f" At {below} it is not above: the layers are {NO_MORE_SIMILAR}."

    most = above.iloc[int(above["value"].argmax())]
    which = f"The most similar of these {len(above)} pairs is"
    if len(above) == 1:
        which = "That pair is"
    layers = f"layer {most['source_layer']} and layer {most['target_layer']}"
    if most["source"] != most["target"]:
        layers = (
            f"layer {most['source_layer']} of {most['source']} and layer {most['target_layer']} "
            f"of {most['target']}"
        )
    value = span(most["value"], most["low"], most["high"], ".2f")
    return (
        f"{of_models} is {control} at {how_many} layer pairs. {which} {layers}: {label} {value}, "
        f"control {number_text(local_mixing(most), '.2f')}.{_copies_sentence(most)}{exception}"
    )


def _sentence_of_only_pair(row: pd.Series, label: str) -> str:
    """Return how similar a layer pair is, beside its control and its equivalent bit widths."""
    layers = (
        f"layer {row['source_layer']} of {row['source']} and layer {row['target_layer']} of "
        f"{row['target']}"
    )
    value = span(row["value"], row["low"], row["high"], ".2f")
    control = number_text(local_mixing(row), ".2f")
    of_layers = f"{capitalised(label)} of {layers} is {value}"
    if not shares_more(row):
        return (
            f"{of_layers}, not above the local-mixing control of {control}: the layers are "
            f"{NO_MORE_SIMILAR}."
        )
    return f"{of_layers}, above the local-mixing control of {control}.{_copies_sentence(row)}"


def _copies_sentence(row: pd.Series) -> str:
    """Return a sentence of the copies that are as similar; "" if no side has copies."""
    copies = copies_in_words(row)
    if not copies:
        return ""
    return f" These layers are as similar as {copies}."


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


def bits_in_words(table: pd.DataFrame, side: str) -> list[str]:
    """Return the equivalent bit widths of one side's model by layer pair, with their intervals.

    They have two decimals where an interval is so narrow that one decimal shows no width. A layer
    pair that is not above the local-mixing control has none, whatever its copies share.
    """
    column = f"{side}_equivalent_bits"
    bits = table[[column, f"{column}_low", f"{column}_high"]]
    has_number = (bits[column] > BITS_OF_COPIES[0]) & (bits[column] < BITS_OF_COPIES[-1])
    form = ".1f"
    for _, low, high in bits[has_number].itertuples(index=False):
        if f"{low:.1f}" == f"{high:.1f}":
            form = ".2f"

    cells = []
    is_above = shares_more(table)
    for (value, low, high), is_above_control in zip(
        bits.itertuples(index=False), is_above, strict=True
    ):
        if not is_above_control:
            cells.append("none")
        elif BITS_OF_COPIES[0] < value < BITS_OF_COPIES[-1]:
            cells.append(span(value, low, high, form))
        else:
            cells.append(in_bits(value))
    return cells
