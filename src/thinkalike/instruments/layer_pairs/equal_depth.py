"""Which rows of a table of layer pairs its sentences are about: layers of equal relative depth."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TypeGuard

import pandas as pd

LayerName = int | str
"""What tables call a layer: its number, or the name of its hook point."""


def rows_between_models(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that compare the two models of a table, without rows within one model.

    Rows of both models come first in a table of layer pairs, so they are those that have the same
    source and target as its first row. All rows are returned if a model is compared with itself.
    """
    first = table.iloc[0]
    is_of_both = (table["source"] == first["source"]) & (table["target"] == first["target"])
    rows_of_both: pd.DataFrame = table[is_of_both]
    return rows_of_both


def at_equal_depth(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a table of layer pairs whose two layers have equal relative depth.

    If a model is compared with itself, the rows of consecutive layers are returned instead. If
    there are no such rows, as for a single layer that is compared with itself, all rows that
    compare the two models are returned.
    """
    rows_of_both = rows_between_models(table)
    compared = rows_at_equal_depth(rows_of_both)
    if compared.empty:
        return rows_of_both
    return compared


def rows_at_equal_depth(rows_of_both: pd.DataFrame) -> pd.DataFrame:
    """Return the row of each source layer with the target layer of the closest relative depth.

    If a model is compared with itself, return the row of each layer with the next one instead.

    Args:
        rows_of_both: The rows of a table that compare the two models. Pairs without a row or a
            value are left out.
    """
    sources = rows_of_both["source_layer"].unique().tolist()
    targets = rows_of_both["target_layer"].unique().tolist()
    is_itself = rows_of_both["source"].iloc[0] == rows_of_both["target"].iloc[0]
    if is_itself:
        pairs = list(itertools.pairwise(sources))
    else:
        pairs = _pairs_at_equal_depth(sources, targets)
    by_layers = rows_of_both.set_index(["source_layer", "target_layer"])
    # A pair without a row in the table gets a row of NaN, and is dropped.
    return by_layers.reindex(pairs).dropna(subset="value").reset_index()


def _pairs_at_equal_depth(
    sources: list[LayerName], targets: list[LayerName]
) -> list[tuple[LayerName, LayerName]]:
    """Return a pair for each source layer: this layer, and the target layer closest in depth.

    The relative depth of a layer is its index in the list divided by the last index. If the lists
    have different lengths and a list skips layers, such as [0, 2, 3], it is the number of the
    layer divided by the greatest number in the list.
    """
    pairs: list[tuple[LayerName, LayerName]] = []
    if _are_numbers(sources) and _are_numbers(targets) and _have_gaps(sources, targets):
        for number in sources:
            pairs.append((number, _closest_in_depth(number, sources, targets)))
        return pairs
    last_source_index = max(len(sources) - 1, 1)  # 1: a single layer has depth 0
    last_target_index = len(targets) - 1
    for index, layer in enumerate(sources):
        pairs.append((layer, targets[round(index * last_target_index / last_source_index)]))
    return pairs


def _are_numbers(layers: list[LayerName]) -> TypeGuard[list[int]]:
    """Return whether tables call all layers by their numbers."""
    return all(isinstance(layer, int) for layer in layers)


def _have_gaps(sources: Sequence[int], targets: Sequence[int]) -> bool:
    """Return whether the depth of a layer is to be told by its number, not by its place in a list.

    That is the case if the lists have different lengths and one of them skips layers, such as
    layer 1 in [0, 2, 3]. A list with the embedding, layer -1, counts as complete.

    Args:
        sources, targets: The numbers of the layers of each model that are compared.
    """
    if len(sources) == len(targets):  # layers at the same place in both lists are then paired
        return False
    for layers in (sources, targets):
        if min(layers) >= 0 and list(layers) != list(range(len(layers))):
            return True
    return False


def _closest_in_depth(layer: int, sources: Sequence[int], targets: Sequence[int]) -> int:
    """Return the target layer whose relative depth, number / greatest number, is closest.

    Of two layers that are equally close, it is the first in `targets`.

    Args:
        layer: The number of a layer of the source.
        sources, targets: The numbers of all layers of either side.
    """
    depth = layer / max(*sources, 1)
    deepest_target = max(*targets, 1)
    return min(targets, key=lambda target: abs(target / deepest_target - depth))
