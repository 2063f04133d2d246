"""Which rows of a table of layer pairs its sentences are about: layers of equal relative depth."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TypeGuard

import pandas as pd

LayerName = int | str
"""What tables call a layer: its number, or the name of its hook point."""


def rows_across(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows across the two models, which come first in a table."""
    first = table.iloc[0]
    is_across = (table["source"] == first["source"]) & (table["target"] == first["target"])
    rows_across: pd.DataFrame = table[is_across]
    return rows_across


def at_equal_depth(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a table that its sentences are about, and all rows if there are none.

    See `rows_at_equal_depth`.
    """
    across = rows_across(table)
    compared = rows_at_equal_depth(across)
    if compared.empty:
        return across
    return compared


def rows_at_equal_depth(across: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of layers of equal relative depth.

    Where a model is compared with itself, these are the rows of any two consecutive layers.

    Args:
        across: The rows across the two models.
    """
    sources = across["source_layer"].unique().tolist()
    targets = across["target_layer"].unique().tolist()
    is_itself = across["source"].iloc[0] == across["target"].iloc[0]
    if is_itself:
        pairs = list(itertools.pairwise(sources))
    else:
        pairs = _pairs_at_equal_depth(sources, targets)
    by_layers = across.set_index(["source_layer", "target_layer"])
    return by_layers.reindex(pairs).dropna(subset="value").reset_index()


def _pairs_at_equal_depth(
    sources: list[LayerName], targets: list[LayerName]
) -> list[tuple[LayerName, LayerName]]:
    """Return each source layer with the target layer of the closest relative depth.

    Depth is the position in the list, or the number of the layer where a side lacks some layers.
    """
    pairs: list[tuple[LayerName, LayerName]] = []
    if _are_numbers(sources) and _are_numbers(targets) and _have_gaps(sources, targets):
        for number in sources:
            pairs.append((number, _closest_in_depth(number, sources, targets)))
        return pairs
    last_source = max(len(sources) - 1, 1)
    last_target = len(targets) - 1
    for index, layer in enumerate(sources):
        pairs.append((layer, targets[round(index * last_target / last_source)]))
    return pairs


def _are_numbers(layers: list[LayerName]) -> TypeGuard[list[int]]:
    """Return whether tables call all layers by their numbers."""
    return all(isinstance(layer, int) for layer in layers)


def _have_gaps(sources: Sequence[int], targets: Sequence[int]) -> bool:
    """Return whether the sides have different numbers of layers, and one side lacks some layers.

    The position of a layer in its list then does not tell its depth. A side with the embedding,
    which is layer -1, lacks no layers.
    """
    if len(sources) == len(targets):
        return False
    for layers in (sources, targets):
        if min(layers) >= 0 and list(layers) != list(range(len(layers))):
            return True
    return False


def _closest_in_depth(layer: int, sources: Sequence[int], targets: Sequence[int]) -> int:
    """Return the target layer of the closest depth, relative to the deepest layer of each side.

    Of two layers that are equally close it is the first in `targets`.
    """
    depth = layer / max(*sources, 1)
    deepest_target = max(*targets, 1)
    return min(targets, key=lambda target: abs(target / deepest_target - depth))
