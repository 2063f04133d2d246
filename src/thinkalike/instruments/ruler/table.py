"""The tables of a ruler: similarity, equivalent bit widths, and calibration points."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.instruments.ruler.calibration_points import (
    MIXING,
    RulerValues,
    Values,
    calibration_point_in_words,
    difference_interval,
    greatest_at_each_pair,
    is_above_zero,
)
from thinkalike.measures.bit_readings import BITS_OF_COPIES, reading_interval
from thinkalike.measures.estimates import Estimate
from thinkalike.measures.ridge import with_interval
from thinkalike.states.copies import UNTRAINED

EXACT = 1e-12
"""A similarity that is closer to 1 than this counts as that of the very same states."""

COLUMNS_OF_COPIES = (
    "random_control",
    "equivalent_bits",
    "equivalent_bits_low",
    "equivalent_bits_high",
)
"""The columns that a side without copies has empty, after the name of the side."""

BLANK = ("bits", "source_equivalent_bits_high", "target_equivalent_bits_high")
"""Columns that may have empty cells: an untrained twin has no bits, and a value above
all calibration points has no upper end."""


def blank_columns(table: pd.DataFrame) -> tuple[str, ...]:
    """Return the names of the columns of a ruler's table that may have empty cells.

    If a side has no rounded copies, because it is a folder of states that was written without
    them, the columns that need copies are among them.
    """
    columns = list(BLANK)
    for side in ("source", "target"):
        if table[f"{side}_equivalent_bits"].isna().all():
            columns += [f"{side}_{name}" for name in COLUMNS_OF_COPIES]
    return tuple(columns)


def ruler_table(
    names: Sequence[str], pairs: Sequence[tuple[int, int]], values: RulerValues
) -> pd.DataFrame:
    """Return one row for each layer pair: its similarity and its equivalent bit widths.

    There is a bit width for the source and one for the target. It is NaN for a folder of states
    that was written without rounded copies.

    Args:
        names: The names of the source and of the target.
        pairs: The layer pairs.
        values: The similarity of the two models, and of each to its calibration points.
    """
    columns: dict[str, object] = {
        "source": names[0],
        "target": names[1],
        "source_layer": [source_layer for source_layer, _ in pairs],
        "target_layer": [target_layer for _, target_layer in pairs],
    }
    similarity = similarity_columns(values.value, [points[MIXING] for points in values.points])
    columns |= {name: column.numpy() for name, column in similarity.items()}
    above_mixing = Estimate(
        similarity["above_local_mixing"],
        similarity["above_local_mixing_low"],
        similarity["above_local_mixing_high"],
    )
    is_above_mixing = is_above_zero(above_mixing).tolist()

    mean_of_directions = values.value.mean(1)  # (pair, replicate)
    for side, points in zip(("source", "target"), values.points, strict=True):
        columns[f"{side}_local_mixing"] = points[MIXING].mean(1)[:, 0].numpy()
        if UNTRAINED not in points:  # a folder of states without copies
            for name in COLUMNS_OF_COPIES:
                columns[f"{side}_{name}"] = math.nan
            continue

        columns[f"{side}_random_control"] = points[UNTRAINED].mean(1)[:, 0].numpy()
        bit_widths = []
        for index, value in enumerate(mean_of_directions):
            bit_widths.append(
                _equivalent_bit_width(value, points, index, is_above_mixing=is_above_mixing[index])
            )
        columns[f"{side}_equivalent_bits"] = [float(bits.value) for bits in bit_widths]
        columns[f"{side}_equivalent_bits_low"] = [float(bits.low) for bits in bit_widths]
        columns[f"{side}_equivalent_bits_high"] = [float(bits.high) for bits in bit_widths]
    return pd.DataFrame(columns)


def similarity_columns(value: Values, mixing: Sequence[Values]) -> dict[str, Float[Tensor, " l"]]:
    """Return the columns of the similarity of two models, and of its difference from a control.

    The control is local mixing: the similarity of a model to untrained networks that only mix
    earlier tokens. Similarities have the axes (layer pair, direction, replicate). Replicate 0 is
    the value of all documents, and each further one leaves a part of the documents out, which
    gives the intervals.

    Args:
        value: The similarity of the two models.
        mixing: The similarity to local mixing of the source and of the target. At each layer pair,
            the greater of the two is the control.
    """
    mean_of_directions = value.mean(1)  # (pair, replicate)
    interval = with_interval(mean_of_directions)
    control = greatest_at_each_pair(mixing).mean(1)
    above = difference_interval(mean_of_directions - control)
    return {
        "value": interval.value,
        "low": interval.low,
        "high": interval.high,
        "value_forward": value[:, 0, 0],  # replicate 0, the value of all documents
        "value_backward": value[:, 1, 0],
        "above_local_mixing": above.value,
        "above_local_mixing_low": above.low,
        "above_local_mixing_high": above.high,
    }


def _equivalent_bit_width(
    value: Float[Tensor, " replicates"],
    points: Mapping[str, Values],
    pair_index: int,
    *,
    is_above_mixing: bool,
) -> Estimate:
    """Return the equivalent bit width of a layer pair, with its interval.

    This is the number of bits to which a model's weights are rounded in a copy that is as similar
    to the model as the second model is. It is interpolated between the copies that were made.

    Args:
        value: The similarity of the layer pair, the mean of both directions.
        points: The similarity of one side's model to its calibration points, by name. The name of
            a rounded copy is its number of bits.
        pair_index: The index of the layer pair.
        is_above_mixing: Whether the pair is more similar than networks that only mix earlier
            tokens. If not, or if no copy was made, the bit width is the lowest of the scale.
    """
    lowest = torch.tensor(float(BITS_OF_COPIES[0]), dtype=torch.float64)
    bits_of_copies = sorted(int(name) for name in points if name.isdigit())
    if not bits_of_copies:
        unknown = lowest * math.nan
        return Estimate(lowest, lowest, unknown)  # the value and the ends of its interval
    values_of_copies = []
    for bits in bits_of_copies:
        values_of_copies.append(points[str(bits)].mean(1)[pair_index])
    # On this scale, similarity is nearly linear in the number of bits.
    interpolated = reading_interval(
        fisher_z(value), bits_of_copies, fisher_z(torch.stack(values_of_copies))
    )
    if not is_above_mixing:
        return Estimate(lowest, lowest, interpolated.high)
    return interpolated


def fisher_z(similarity: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """Return the Fisher transform, artanh(√R²), of a similarity R² between 0 and 1.

    Values below 0 count as 0, and those above 1 - `EXACT` as 1 - `EXACT`, so that the result is
    finite. Linear interpolation between rounded copies needs this scale: it rises by nearly the
    same amount with every half bit, where R² itself falls ever faster towards few bits.
    Interpolated between copies of whole bits, copies of 2.5 to 4.5 bits are found within a tenth
    of a bit, by R², CKA and mutual neighbours alike.
    """
    correlation = similarity.clamp(0, 1 - EXACT).sqrt()
    return correlation.atanh()


def calibration_points_table(
    names: Sequence[str],
    layers: Sequence[Sequence[int]],
    points: Sequence[Mapping[str, Values]],
) -> pd.DataFrame:
    """Return one row for each calibration point and layer of each model, with their similarity.

    A calibration point is something that a model is compared with to give a scale to its
    similarity to a second model, such as a copy rounded to 4 bits. `value` is the mean of both
    directions, and `low` and `high` are the ends of its interval. `bits` is the number of bits of
    a rounded copy, and NaN for other calibration points.

    Args:
        names: The names of the source and of the target.
        layers: The layers of each model, pair by pair. A layer of several pairs has one row.
        points: For each model, its similarity to each calibration point, by name. The name of a
            rounded copy is its number of bits, such as "4". Similarities have the axes (layer
            pair, direction, replicate). Replicate 0 is the value of all documents, and each
            further one leaves a part of the documents out, which gives the intervals.
    """
    rows = []
    for name, layers_of_model, values_by_point in zip(names, layers, points, strict=True):
        for point, values in values_by_point.items():
            is_rounded_copy = point.isdigit()
            bits = float(point) if is_rounded_copy else math.nan
            for layer, value in zip(layers_of_model, values, strict=True):
                interval = with_interval(value.mean(0))  # over both directions
                forward, backward = value[:, 0].tolist()  # the similarity over all documents
                rows.append(
                    {
                        "model": name,
                        "layer": layer,
                        "calibration_point": calibration_point_in_words(point),
                        "bits": bits,
                        "value": float(interval.value),
                        "low": float(interval.low),
                        "high": float(interval.high),
                        "value_forward": forward,
                        "value_backward": backward,
                    }
                )
    return pd.DataFrame(rows).drop_duplicates(ignore_index=True)
