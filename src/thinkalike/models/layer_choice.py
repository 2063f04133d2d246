"""Which layers of two models are compared or stitched, as `layers=` says."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import cast

from thinkalike.advice import named_setting
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
        source, target: The configurations of the two models.
        layers: The setting `layers=`: "same" (each layer with that of the same number), "all"
            (all pairs), or a list whose entries are pairs, or single layers n for the pair (n, n).
        asked: The command or measure that was asked for, for the error.

    Raises:
        ModelError: A model predicts no next token.
        ConfigError: A layer does not exist.
    """
    for config in (source, target):
        # None: what the model predicts is not known without loading it.
        if outline(config).predicts not in (None, "next"):
            raise ModelError(
                f"{config.called} predicts no next token, and {asked} stitches models that do; "
                "choose one of them, or compare representations by "
                f"{named_setting('measure', 'cka')}"
            )
    check_layer_pairs(source, target, layers)


def check_layer_pairs(source: ModelConfig, target: ModelConfig, layers: LayerChoice) -> None:
    """Raise a ConfigError if `layers` names a layer that does not exist; no weights are loaded.

    Nothing is checked if the configuration of either model does not tell its depth.
    """
    source_layers = outline(source).layers  # their number; None: it is not known
    target_layers = outline(target).layers
    if source_layers and target_layers:
        pairs_of_layers(layers, source_layers, target_layers)  # raises the error


def pairs_of_layers(
    layers: LayerChoice, source_layers: int, target_layers: int
) -> list[tuple[int, int]]:
    """Return the pairs (source layer, target layer) that the setting `layers=` means, each once.

    Args:
        layers: "same" (each layer with that of the same number), "all" (all pairs), or a list
            whose entries are pairs, or single layers n for the pair (n, n).
        source_layers, target_layers: How many layers the two models have.

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
    """Return `count` pairs (source layer, target layer) of equal relative depth, up to rounding.

    They are evenly spaced from the first layers to the last ones. There are no more pairs than
    the shallower model has layers. A single pair is that of the first layers, (0, 0).

    Args:
        count: The number of pairs.
        source_layers, target_layers: How many layers the two models have.
    """
    count = min(count, source_layers, target_layers)
    pairs = []
    for index in range(count):
        relative_depth = index / max(count - 1, 1)  # from 0 to 1; 0 for a single pair
        source = round(relative_depth * (source_layers - 1))
        target = round(relative_depth * (target_layers - 1))
        pairs.append((source, target))
    return pairs


def layers_of_sides(
    layers: LayerChoice, source_layers: int, target_layers: int, *, itself: bool
) -> list[list[int]]:
    """Return [layers of the source, layers of the target] that occur in the pairs of `layers=`.

    Each list is sorted and has no layer twice.

    Args:
        layers: "same" (each layer with that of the same number), "all" (all pairs), or a list
            whose entries are pairs, or single layers n for the pair (n, n).
        source_layers, target_layers: How many layers the two models have.
        itself: Whether a model is compared with itself. Then one pass gives the states of both
            sides, so both lists have the layers of both sides.
    """
    pairs = pairs_of_layers(layers, source_layers, target_layers)
    sources = {source for source, _ in pairs}
    targets = {target for _, target in pairs}
    if itself:
        sources |= targets
        targets = sources
    return [sorted(sources), sorted(targets)]
