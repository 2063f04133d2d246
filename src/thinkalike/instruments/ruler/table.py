"""The tables of a ruler: what layer pairs share, their readings in bits, and its points."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.instruments.ruler.calibration_points import (
    MIXING,
    UNTRAINED,
    RulerValues,
    Values,
    difference_interval,
    greatest_by_layer,
    is_beyond,
    point_in_words,
)
from thinkalike.measures.bit_readings import BITS_OF_COPIES, reading_interval
from thinkalike.measures.estimates import Estimate
from thinkalike.measures.ridge import with_interval

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

    Among them are those of a side without copies.
    """
    columns = list(BLANK)
    for side in ("source", "target"):
        if table[f"{side}_equivalent_bits"].isna().all():
            columns += [f"{side}_{name}" for name in COLUMNS_OF_COPIES]
    return tuple(columns)


def ruler_table(
    names: Sequence[str], pairs: Sequence[tuple[int, int]], values: RulerValues
) -> pd.DataFrame:
    """Return one row for each layer pair: what it shares, and its readings in bits of each side.

    Args:
        names: The names of the source and of the target.
        pairs: The layer pairs.
        values: What they share, and what the points of both sides share with their models.
    """
    columns: dict[str, object] = {
        "source": names[0],
        "target": names[1],
        "source_layer": [source_layer for source_layer, _ in pairs],
        "target_layer": [target_layer for _, target_layer in pairs],
    }
    shared = shared_columns(values.value, [points[MIXING] for points in values.points])
    columns |= {name: column.numpy() for name, column in shared.items()}
    difference = Estimate(
        shared["above_local_mixing"],
        shared["above_local_mixing_low"],
        shared["above_local_mixing_high"],
    )
    beyond = is_beyond(difference).tolist()

    both_ways = values.value.mean(1)
    for side, points in zip(("source", "target"), values.points, strict=True):
        columns[f"{side}_local_mixing"] = points[MIXING].mean(1)[:, 0].numpy()
        if UNTRAINED not in points:  # a folder of states has no copies
            for name in COLUMNS_OF_COPIES:
                columns[f"{side}_{name}"] = math.nan
            continue

        columns[f"{side}_random_control"] = points[UNTRAINED].mean(1)[:, 0].numpy()
        readings = []
        for layer in range(len(pairs)):
            readings.append(
                _reading_in_bits(both_ways[layer], points, layer, is_beyond=beyond[layer])
            )
        columns[f"{side}_equivalent_bits"] = [float(reading.value) for reading in readings]
        columns[f"{side}_equivalent_bits_low"] = [float(reading.low) for reading in readings]
        columns[f"{side}_equivalent_bits_high"] = [float(reading.high) for reading in readings]
    return pd.DataFrame(columns)


def shared_columns(value: Values, mixing: Sequence[Values]) -> dict[str, Float[Tensor, " l"]]:
    """Return columns of what layer pairs share, and of how much more that is than mixing shares.

    Args:
        value: What layer pairs share, there and back.
        mixing: What local mixing shares with each of the models.
    """
    both_ways = value.mean(1)
    interval = with_interval(both_ways)
    above = difference_interval(both_ways - greatest_by_layer(mixing).mean(1))
    return {
        "value": interval.value,
        "low": interval.low,
        "high": interval.high,
        "value_forward": value[:, 0, 0],
        "value_backward": value[:, 1, 0],
        "above_local_mixing": above.value,
        "above_local_mixing_low": above.low,
        "above_local_mixing_high": above.high,
    }


def _reading_in_bits(
    value: Float[Tensor, " replicates"],
    points: Mapping[str, Values],
    layer: int,
    *,
    is_beyond: bool,
) -> Estimate:
    """Return the reading of a layer pair in bits, with its interval.

    Args:
        value: What the layer pair shares, the mean of there and back.
        points: What the calibration points of one side share with their model, by name.
        layer: The index of the layer pair.
        is_beyond: Whether the pair shares more than local mixing does. Otherwise its reading is
            the lowest.
    """
    lowest = torch.tensor(float(BITS_OF_COPIES[0]), dtype=torch.float64)
    bits = sorted(int(point) for point in points if point.isdigit())
    if not bits:
        return Estimate(lowest, lowest, lowest * math.nan)
    of_copies = torch.stack([points[str(count)].mean(1)[layer] for count in bits])
    reading = reading_interval(fisher_z(value), bits, fisher_z(of_copies))
    if not is_beyond:
        return Estimate(lowest, lowest, reading.high)
    return reading


def fisher_z(similarity: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """Return the Fisher transform, artanh(R), of a similarity R² between 0 and 1.

    Values below 0 count as 0. The transform rises by nearly the same amount with every half bit of
    a copy, where the similarity itself falls ever faster towards few bits. Interpolated between
    copies of whole bits, it reads copies of 2.5 to 4.5 bits within a tenth of a bit, by R², CKA
    and mutual neighbours alike.
    """
    correlation = similarity.clamp(0, 1 - EXACT).sqrt()
    return correlation.atanh()


def calibration_points_table(
    names: Sequence[str],
    layers: Sequence[Sequence[int]],
    points: Sequence[Mapping[str, Values]],
) -> pd.DataFrame:
    """Return one row for each calibration point and layer of each model.

    Args:
        names: The names of the source and of the target.
        layers: The layers of each, pair by pair.
        points: What the calibration points of each share with their model, by name.
    """
    rows = []
    for name, layers_of_model, values_by_point in zip(names, layers, points, strict=True):
        for point, values in values_by_point.items():
            for layer, value in zip(layers_of_model, values, strict=True):
                interval = with_interval(value.mean(0))
                rows.append(
                    {
                        "model": name,
                        "layer": layer,
                        "calibration_point": point_in_words(point),
                        "bits": float(point) if point.isdigit() else math.nan,
                        "value": float(interval.value),
                        "low": float(interval.low),
                        "high": float(interval.high),
                        "value_forward": float(value[0, 0]),
                        "value_backward": float(value[1, 0]),
                    }
                )
    return pd.DataFrame(rows).drop_duplicates(ignore_index=True)
