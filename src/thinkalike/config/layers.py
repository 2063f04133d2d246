"""Which layers are stitched: what `layers=` may be, before any model is known."""

from __future__ import annotations

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


def _is_pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and all(_is_layer(layer) for layer in value)


def _is_layer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
