"""Which layers are stitched: what `layers=` may be, and what it means for two models."""

from __future__ import annotations

import itertools
from typing import Any

from thinkalike.errors import ConfigError


def check_layers(layers: Any) -> None:
    """Check that `layers=` is same, all, or a list of different pairs of layers.

    Raises:
        ConfigError: it is not.
    """
    if isinstance(layers, str) and layers in ("same", "all"):
        return
    if not (isinstance(layers, list) and layers and all(_is_pair(pair) for pair in layers)):
        raise ConfigError(f"layers={layers} is not known; give same, all, or a list of pairs such as [[0,0],[1,2]]")
    pairs = [tuple(pair) for pair in layers]
    for place, pair in enumerate(pairs):
        if pair in pairs[:place]:
            raise ConfigError(f"layers={layers} names [{pair[0]},{pair[1]}] twice; name each pair once")


def pairs_of_layers(layers: Any, source_layers: int, target_layers: int) -> list[tuple[int, int]]:
    """Return the pairs (source layer, target layer) that `layers=` means.

    Raises:
        ConfigError: it is neither same, all, nor a list of different pairs of layers that exist.
    """
    check_layers(layers)
    if layers == "same":
        return [(layer, layer) for layer in range(min(source_layers, target_layers))]
    if layers == "all":
        return list(itertools.product(range(source_layers), range(target_layers)))
    pairs = [(pair[0], pair[1]) for pair in layers]
    for layer, depth in pairs:
        if not (0 <= layer < source_layers and 0 <= depth < target_layers):
            raise ConfigError(
                f"layers: [{layer},{depth}] is out of range; the source has layers 0 to {source_layers - 1}, "
                f"the target 0 to {target_layers - 1}"
            )
    return pairs


def _is_pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and all(_is_layer(layer) for layer in value)


def _is_layer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
