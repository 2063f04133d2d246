"""What a ruler's table says on the screen: similarity, as bits of rounded copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import overload

import pandas as pd

from thinkalike.instruments.layer_pairs.screen import beyond_next_in_words
from thinkalike.instruments.ruler.calibration_points import MIXING
from thinkalike.instruments.stitching.screen import bit_width_in_words, layer_pair_labels
from thinkalike.matrices import matrix_of
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
from thinkalike.states.copies import UNTRAINED

RESIDUAL_R2 = "residual R²"
"""What the ruler measures: R² after word, position and local mixing are regressed out."""

MEANING_OF_RESIDUAL_R2 = (
    "Residual R² is the share of the variance of one model's states that a linear map predicts "
    "from the other's, after the word, its position and linear mixing of earlier tokens are "
    "regressed out; it is measured on held-out documents, in both directions. Its intervals are "
    "for maps fitted on as much text; with more text R² rises, and may rise above them."
)
"""What the measure is, in a line under tables."""

NO_MORE_SIMILAR = (
    "no more similar than an untrained network that only mixes earlier tokens is to one of them"
)
"""What follows where a layer pair is not above its control."""


def show_bit_widths(table: pd.DataFrame, title: str, label: str) -> None:
    """Print the similarity of layer pairs, their equivalent bit widths, and the control.

    Lines below the table explain what an equivalent bit width and the local-mixing control are.

    Args:
        table: The table of layer pairs.
        title: The title above the printed table.
        label: What the measure of similarity is called, such as "residual R²".
    """
    values = [span(row.value, row.low, row.high, ".2f") for row in table.itertuples()]
    columns = [Column("layers", layer_pair_labels(table)), Column(label, values)]
    sides = sides_with_bit_widths(table.iloc[0])
    for side, name in sides:
        columns.append(Column(f"equivalent bit width of {name}", bit_width_cells(table, side)))
    # Without its hyphen the header wraps, and the table is at most 80 columns wide.
    columns.append(number_column("local mixing control", local_mixing_control(table), ".2f"))
    show_table(Table(title, columns))
    if sides:
        show_note(_meaning_of_bits(table, [side for side, _ in sides]))
    control = (
        f"The local-mixing control is the greatest {label} of either model with untrained "
        "networks that only mix earlier tokens"
    )
    if label == RESIDUAL_R2:
        control += ", in ways that are not linear and so not regressed out"
    above = "if its value is greater"
    if table["above_local_mixing_low"].notna().any():
        above = "if the interval of the difference is above 0"
    show_note(f"{control}; a layer pair is above it {above}.")


def _meaning_of_bits(table: pd.DataFrame, sides: Sequence[str]) -> str:
    """Return a sentence that defines the equivalent bit width, and the words in its column.

    Only the words that occur in the table are explained.

    Args:
        table: The table of layer pairs.
        sides: The sides that have bit widths: "source", "target" or both.
    """
    sentence = (
        "A model's equivalent bit width is the number of bits to which its weights are rounded in "
        "a copy that is as similar to it as the second model is"
    )
    bits = table[[f"{side}_equivalent_bits" for side in sides]]
    least = BITS_OF_COPIES[0]
    most = BITS_OF_COPIES[-1]
    is_above = is_above_local_mixing(table)
    meanings_of_words = []
    if not is_above.all():
        meanings_of_words.append("none: the layers are not above the local-mixing control")
    if (bits[is_above] <= least).any(axis=None):
        meanings_of_words.append(f"below {least}: less similar than the copy of {least} bits")
    if (bits >= most).any(axis=None):
        meanings_of_words.append(f"{most} or more: at least as similar as the copy of {most} bits")
    text = "; ".join([sentence, *meanings_of_words]) + "."
    if len(table) > 1:
        text += (
            " Each layer is compared with its own copies, so the most similar layers need not "
            "have the most bits."
        )
    return text


def show_further_points(points: pd.DataFrame) -> None:
    """Print for each model a table of its further calibration points, by layer.

    A calibration point is something that a model is compared with to give its similarity to a
    second model a scale. Rounded copies, the untrained copy and local mixing (networks that only
    mix tokens) are not in this table. If there are no other points, such as the model's own
    layers some blocks away, nothing is printed.

    Args:
        points: A row for each calibration point and layer of each model, with the similarity
            `value`. `bits` is NaN except for rounded copies.
    """
    is_further = points["bits"].isna() & ~points["calibration_point"].isin([MIXING, UNTRAINED])
    for model, rows in points[is_further].groupby("model", sort=False):
        cells = matrix_of(rows, index="calibration_point", columns="layer", values="value")
        cells = cells.loc[rows["calibration_point"].unique()]  # `pivot` has sorted the rows
        columns = [text_column("calibration point", cells.index)]
        for layer in cells:
            columns.append(number_column(f"layer {layer}", cells[layer], ".2f"))
        show_table(Table(f"Residual R² of {model} with further calibration points", columns))


def sentence_of_ruler(table: pd.DataFrame, scalars: Mapping[str, float]) -> str:
    """Return in words how similar two models are, and how many documents the intervals are over.

    Args:
        table: The table of layer pairs.
        scalars: The headline numbers of the result, which count its documents.
    """
    answer = sentence_of_pairs_above_control(table, RESIDUAL_R2)
    return f"{answer} 95 % intervals are over {number_of_documents(scalars)}."


def sentence_of_pairs_above_control(table: pd.DataFrame, label: str) -> str:
    """Return at which layer pairs models are similar beyond the control, and how similar at most.

    Args:
        table: The table of layer pairs.
        label: What the measure is called.
    """
    first = table.iloc[0]
    if len(table) == 1:
        return _sentence_of_only_pair(first, label)

    of_models = f"{capitalised(label)} of {first['source']} and {first['target']}"
    is_above = is_above_local_mixing(table)
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
        below = ", ".join(layer_pair_labels(table[~is_above]))
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
    value_of_control = number_text(local_mixing_control(most), ".2f")
    beyond_next = beyond_next_in_words(above, number_format=".2f")
    if beyond_next:
        beyond_next = f", {beyond_next}"
    return (
        f"{of_models} is {control} at {how_many} layer pairs. {which} {layers}: {label} {value}, "
        f"control {value_of_control}{beyond_next}.{_copies_sentence(most)}{exception}"
    )


def _sentence_of_only_pair(row: pd.Series, label: str) -> str:
    """Return a sentence for a table of one layer pair: is it more similar than the control?

    The control is the local-mixing control, of networks that only mix earlier tokens.

    Args:
        row: The row of the layer pair.
        label: The name of the measure of similarity, such as "residual R²".
    """
    layers = (
        f"layer {row['source_layer']} of {row['source']} and layer {row['target_layer']} of "
        f"{row['target']}"
    )
    value = span(row["value"], row["low"], row["high"], ".2f")
    control = number_text(local_mixing_control(row), ".2f")
    of_layers = f"{capitalised(label)} of {layers} is {value}"
    if not is_above_local_mixing(row):
        return (
            f"{of_layers}, not above the local-mixing control of {control}: the layers are "
            f"{NO_MORE_SIMILAR}."
        )
    return f"{of_layers}, above the local-mixing control of {control}.{_copies_sentence(row)}"


def _copies_sentence(row: pd.Series) -> str:
    """Return a sentence with the rounded copies that are as similar as the layers of a row.

    Such as " These layers are as similar as a is to its copy rounded to 4.2 bits." It is "" if
    neither side has rounded copies.
    """
    copies = copies_in_words(row)
    if not copies:
        return ""
    return f" These layers are as similar as {copies}."


@overload
def local_mixing_control(table: pd.DataFrame) -> pd.Series: ...
@overload
def local_mixing_control(table: pd.Series) -> float: ...
def local_mixing_control(table: pd.DataFrame | pd.Series) -> pd.Series | float:
    """Return the local-mixing control: the greater of its values with the source and the target.

    The control is the similarity of a model to networks that only mix earlier tokens. Tables of
    earlier versions lack it; the similarity to an untrained copy of each model takes its place.

    Args:
        table: A table of layer pairs, which gives one control per row, or one of its rows.
    """
    control = "local_mixing" if "source_local_mixing" in table else "random_control"
    of_sides = table[[f"source_{control}", f"target_{control}"]]
    if isinstance(of_sides, pd.DataFrame):
        return of_sides.max(axis=1)
    return float(of_sides.max())


@overload
def is_above_local_mixing(rows: pd.DataFrame) -> pd.Series: ...
@overload
def is_above_local_mixing(rows: pd.Series) -> bool: ...
def is_above_local_mixing(rows: pd.DataFrame | pd.Series) -> pd.Series | bool:
    """Return whether a layer pair is more similar than the local-mixing control.

    The difference from the control must be above 0, and so must the low end of its interval if it
    has one.

    Args:
        rows: A table of layer pairs, which gives an answer per row, or one of its rows.
    """
    is_greater = rows["above_local_mixing"] > 0
    # Without an interval the low end is NaN, so that the value alone decides.
    reaches_zero = rows["above_local_mixing_low"] <= 0
    if isinstance(rows, pd.DataFrame):
        return is_greater & ~reaches_zero
    return bool(is_greater and not reaches_zero)


def copies_in_words(row: pd.Series) -> str:
    """Return in words which rounded copies are as similar to their models as two layers are.

    Such as "a is to its copy rounded to 4.2 bits, and as b is to its copy rounded to 3.9 bits". It
    is "" if neither side has rounded copies.
    """
    clauses = []
    for side, name in sides_with_bit_widths(row):
        bits = bit_width_in_words(row[f"{side}_equivalent_bits"])
        clauses.append(f"{name} is to its copy rounded to {bits} bits")
    return ", and as ".join(clauses)


def sides_with_bit_widths(row: pd.Series) -> list[tuple[str, str]]:
    """Return the sides that have equivalent bit widths, each with the name of its model.

    A side without rounded copies (some folders of states) is left out. A model that is compared
    with itself is one side, "source".

    Args:
        row: A row of the table of layer pairs, which has the names and the bit widths.
    """
    sides = ["source"]
    if row["source"] != row["target"]:
        sides.append("target")
    return [(side, row[side]) for side in sides if not pd.isna(row[f"{side}_equivalent_bits"])]


def bit_width_cells(table: pd.DataFrame, side: str) -> list[str]:
    """Return the cells of a table's column: one side's equivalent bit widths with intervals.

    The equivalent bit width of a model is the number of bits to which its weights are rounded in
    a copy that is as similar to it as the other model is. It is read from a few copies, of
    `BITS_OF_COPIES` bits. Below the fewest bits and from the most bits on, a cell is in words,
    such as "below 2". A layer pair that is no more similar than a layer is to networks that only
    mix earlier tokens (`is_above_local_mixing`) has the cell "none", whatever its bit width.
    Numbers have one decimal, but all have two if both ends of some interval would be the same.

    Args:
        table: A row for each layer pair.
        side: The model whose bit widths are asked for, "source" or "target".
    """
    column = f"{side}_equivalent_bits"
    bits = table[[column, f"{column}_low", f"{column}_high"]]
    fewest_bits = BITS_OF_COPIES[0]
    most_bits = BITS_OF_COPIES[-1]
    is_within_scale = (bits[column] > fewest_bits) & (bits[column] < most_bits)
    number_format = ".1f"
    for _, low, high in bits[is_within_scale].itertuples(index=False):
        if f"{low:.1f}" == f"{high:.1f}":
            number_format = ".2f"

    cells = []
    is_above = is_above_local_mixing(table)
    rows = bits.itertuples(index=False)
    for (value, low, high), is_above_control in zip(rows, is_above, strict=True):
        if not is_above_control:
            cells.append("none")
        elif fewest_bits < value < most_bits:
            cells.append(span(value, low, high, number_format))
        else:
            cells.append(bit_width_in_words(value))
    return cells
