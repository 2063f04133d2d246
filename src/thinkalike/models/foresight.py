"""What is known of a model before its weights are read, so that a job that cannot be is refused at once."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from thinkalike.config import ModelConfig, pairs_of_layers
from thinkalike.errors import ModelError, one_of
from thinkalike.models.adapters import base_of
from thinkalike.models.families import DEPTHS, FAMILIES, Predicts, family_in
from thinkalike.models.places import known_shape, named_folder, pick_device, stated_in


class Outline(NamedTuple):
    """What a model predicts, and how many blocks it has; None where only its weights or the hub would say."""

    predicts: Predicts | None
    layers: int | None


def check_models(models: Mapping[str, ModelConfig | None]) -> None:
    """Check the devices and the families of models, by the part of the configuration, model or target.

    Raises:
        ConfigError: this machine has no such device, or the table no such family.
    """
    for part, config in models.items():
        if config is not None:
            pick_device(config.device, f"{part}.device")
            one_of(f"{part}.family", config.family, ("auto", *FAMILIES))


def check_stitchable(source: ModelConfig, target: ModelConfig, layers: Any, asked: str) -> None:
    """Refuse what is seen without any weights: a model that predicts no next token, or layers that do not exist.

    Args:
        asked: what stitches them, for the message.

    Raises:
        ConfigError: layers do not exist.
        ModelError: a model predicts no next token.
    """
    for each in (source, target):
        if outline(each).predicts not in (None, "next"):
            raise ModelError(
                f"{each.called} predicts no next token, and {asked} stitches models that do; choose one of them, or "
                "compare representations: python analyze.py measure=cka"
            )
    check_layer_pairs(source, target, layers)


def check_layer_pairs(source: ModelConfig, target: ModelConfig, layers: Any) -> None:
    """Refuse layers that do not exist before any weights are loaded, where configurations tell.

    Raises:
        ConfigError: there is no such layer.
    """
    mine, theirs = outline(source).layers, outline(target).layers
    if mine and theirs:
        pairs_of_layers(layers, mine, theirs)


def outline(config: ModelConfig) -> Outline:
    """Return what the configuration says of a model, and its config.json if that is in a folder."""
    config = base_of(config) or config
    folder = named_folder(config)
    shape = known_shape(stated_in(folder)) if folder else {}
    family = FAMILIES.get(config.family)
    with contextlib.suppress(ModelError):
        family = family or family_in(shape, "config.json")
    sizes = shape.get("architecture", shape)
    layers = next((sizes[name] for name in DEPTHS if isinstance(sizes.get(name), int)), None)
    return Outline(family.predicts if family else None, layers)
