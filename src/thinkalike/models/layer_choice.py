"""Which layers of two models are compared or stitched, as `layers=` says."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import cast

from thinkalike.config import ModelConfig
from thinkalike.errors import ConfigError, ModelError
from thinkalike.models.families import outline

# What `layers=` may be: "same", "all", or a list of pairs, or of layers that are paired with
# themselves.
LayerChoice = str | Sequence[int | list[int]]


def check_stitchable(
    source: ModelConfig, target: ModelConfig, layers: LayerChoice, asked: str
) -> None:
    """Refuse models and layers that cannot be stitched, as far as is known without weights.

    Args:
        source, target: The models.
        layers: "same", "all", or a list of pairs, or of layers that are paired with themselves.
        asked: The command or measure that stitches them, for the error.

    Raises:
        ModelError: A model predicts no next token.
        ConfigError: A layer does not exist.
    """
    for config in (source, target):
        if outline(config).predicts not in (None, "next"):
            raise ModelError(
                f"{config.called} predicts no next token, and {asked} stitches models that do; "
                "choose one of them, or compare representations: python analyze.py measure=cka"
            )
    check_layer_pairs(source, target, layers)


def check_layer_pairs(source: ModelConfig, target: ModelConfig, layers: LayerChoice) -> None:
    """Raise a ConfigError for layers that do not exist, before any weights are loaded.

    Models whose configuration does not tell their depth are not checked.
    """
    source_layers = outline(source).layers
    target_layers = outline(target).layers
    if source_layers and target_layers:
        pairs_of_layers(layers, source_layers, target_layers)


def pairs_of_layers(
    layers: LayerChoice, source_layers: int, target_layers: int
) -> list[tuple[int, int]]:
    """Return the pairs (source layer, target layer) that `layers=` means, each once, in order.

    Args:
        layers: "same", "all", or a list of pairs, or of layers that are paired with themselves.
        source_layers, target_layers: How many layers the models have.

    Raises:
        ConfigError: A layer does not exist.
    """
    if layers == "same":
        return [(layer, layer) for layer in range(min(source_layers, target_layers))]
    if layers == "all":
        return list(itertools.product(range(source_layers), range(target_layers)))
    pairs = []
    for choice in cast(Sequence[int | list[int]], layers):
        if isinstance(choice, list):
            source, target = choice
        else:
            source = target = choice
        if not (0 <= source < source_layers and 0 <= target < target_layers):
            raise ConfigError(
                f"layers: [{source},{target}] is out of range; the source has layers 0 to "
                f"{source_layers - 1}, the target 0 to {target_layers - 1}"
            )
        pairs.append((source, target))
    return list(dict.fromkeys(pairs))


def layers_at_depths(count: int, source_layers: int, target_layers: int) -> list[tuple[int, int]]:
    """Return pairs of layers of equal relative depth, from the first to the last.

    There are `count` of them, or as many as the shallower model has layers. A single pair is of
    the first layers.
    """
    count = min(count, source_layers, target_layers)
    pairs = []
    for index in range(count):
        depth = index / max(count - 1, 1)  # from 0 to 1
        pairs.append((round(depth * (source_layers - 1)), round(depth * (target_layers - 1))))
    return pairs


def layers_of_sides(
    layers: LayerChoice, source_layers: int, target_layers: int, *, itself: bool
) -> list[list[int]]:
    """Return the sorted layers of the source and those of the target in the pairs of `layers=`.

    Args:
        layers: "same", "all", or a list of pairs, or of layers that are paired with themselves.
        source_layers, target_layers: How many layers the models have.
        itself: Whether a model is compared with itself. Then both sides have the layers of both.
    """
    pairs = pairs_of_layers(layers, source_layers, target_layers)
    sources = {source for source, _ in pairs}
    targets = {target for _, target in pairs}
    if itself:
        sources |= targets
        targets = sources
    return [sorted(sources), sorted(targets)]
