"""Which rows of a table of layer pairs its sentences are about: layers of equal relative depth."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeGuard

import pandas as pd

from thinkalike.store import Result

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


def at_equal_depth(
    table: pd.DataFrame, layer_counts: Mapping[str, int] = MappingProxyType({})
) -> pd.DataFrame:
    """Return the rows of a table of layer pairs whose two layers have equal relative depth.

    If a model is compared with itself, the rows of consecutive layers are returned instead. If
    there are no such rows, as for a single layer that is compared with itself, all rows that
    compare the two models are returned.

    Args:
        table: The table of layer pairs.
        layer_counts: By name, how many layers a model has; see `rows_at_equal_depth`.
    """
    rows_of_both = rows_between_models(table)
    compared = rows_at_equal_depth(rows_of_both, layer_counts)
    if compared.empty:
        return rows_of_both
    return compared


def layer_counts_of(result: Result) -> dict[str, int]:
    """Return by name how many layers the models of a result have, where that is stored."""
    counts = {}
    for model in result.provenance.get("models", []):
        if "layers" in model:
            counts[model["name"]] = int(model["layers"])
    return counts


def rows_at_equal_depth(
    rows_of_both: pd.DataFrame, layer_counts: Mapping[str, int] = MappingProxyType({})
) -> pd.DataFrame:
    """Return the row of each source layer with the target layer of the closest relative depth.

    If a model is compared with itself, return the row of each layer with the next one instead.

    Args:
        rows_of_both: The rows of a table that compare the two models. Pairs without a row or a
            value are left out.
        layer_counts: By name, how many layers a model has, of which the table may have a few. The
            depth of a layer is then that within its model; else it is that within the table.
    """
    sources = rows_of_both["source_layer"].unique().tolist()
    targets = rows_of_both["target_layer"].unique().tolist()
    source = rows_of_both["source"].iloc[0]
    target = rows_of_both["target"].iloc[0]
    source_count = layer_counts.get(source, 0)
    target_count = layer_counts.get(target, 0)
    has_all_pairs = len(rows_of_both) == len(sources) * len(targets)
    pairs: list[tuple[LayerName, LayerName]]
    if source == target:
        pairs = list(itertools.pairwise(sources))
    elif (
        has_all_pairs
        and _are_numbers(sources)
        and _are_numbers(targets)
        and (_lacks_layers(sources, source_count) or _lacks_layers(targets, target_count))
    ):
        pairs = _pairs_by_number(sources, targets, source_count, target_count)
    else:
        pairs = _pairs_at_equal_depth(sources, targets)
    by_layers = rows_of_both.set_index(["source_layer", "target_layer"])
    # A pair without a row in the table gets a row of NaN, and is dropped.
    return by_layers.reindex(pairs).dropna(subset="value").reset_index()


def _lacks_layers(layers: Sequence[int], count: int) -> bool:
    """Return whether the layers of a table are known not to be all of a model.

    Args:
        layers: The numbers of the layers in the table. -1 is the embedding, which does not count.
        count: How many layers the model has; 0: it is not known.
    """
    if not count:
        return False
    return {layer for layer in layers if layer >= 0} != set(range(count))


def _pairs_by_number(
    sources: Sequence[int],
    targets: Sequence[int],
    source_count: int = 0,
    target_count: int = 0,
) -> list[tuple[LayerName, LayerName]]:
    """Return a pair for each source layer: this layer, and the target layer closest in depth.

    The relative depth of a layer is its number divided by that of the last layer of its model,
    whether the table has the last layer or not. Of two layers that are equally close, it is the
    first in `targets`.

    Args:
        sources, targets: The layers of each model that are compared.
        source_count, target_count: How many layers the models have; 0: it is not known, and the
            greatest number in the list counts as the last layer.
    """
    last_source = max(source_count - 1, *sources, 1)
    last_target = max(target_count - 1, *targets, 1)
    pairs: list[tuple[LayerName, LayerName]] = []
    for source in sources:
        distances = [abs(source / last_source - target / last_target) for target in targets]
        pairs.append((source, targets[distances.index(min(distances))]))
    return pairs


def _pairs_at_equal_depth(
    sources: list[LayerName], targets: list[LayerName]
) -> list[tuple[LayerName, LayerName]]:
    """Return a pair for each source layer: this layer, and the target layer closest in depth.

    The relative depth of a layer is its index in the list divided by the last index. If the lists
    have different lengths and a list skips layers, such as [0, 2, 3], it is the number of the
    layer divided by the greatest number in the list.
    """
    if _are_numbers(sources) and _are_numbers(targets) and _depth_is_by_number(sources, targets):
        return _pairs_by_number(sources, targets)
    pairs: list[tuple[LayerName, LayerName]] = []
    last_source_index = max(len(sources) - 1, 1)  # 1: a single layer has depth 0
    last_target_index = len(targets) - 1
    for index, layer in enumerate(sources):
        pairs.append((layer, targets[round(index * last_target_index / last_source_index)]))
    return pairs


def _are_numbers(layers: list[LayerName]) -> TypeGuard[list[int]]:
    """Return whether tables call all layers by their numbers."""
    return all(isinstance(layer, int) for layer in layers)


def _depth_is_by_number(sources: Sequence[int], targets: Sequence[int]) -> bool:
    """Return whether the depth of a layer is to be told by its number, not by its place in a list.

    That is the case if the lists have different lengths and one of them does not have the first
    layers of its model without a gap, as [0, 2, 3] has not. A list that begins with the embedding,
    layer -1, is taken to have them.

    Args:
        sources, targets: The numbers of the layers of each model that are compared.
    """
    if len(sources) == len(targets):  # layers at the same place in both lists are then paired
        return False
    for layers in (sources, targets):
        if min(layers) >= 0 and list(layers) != list(range(len(layers))):
            return True
    return False
