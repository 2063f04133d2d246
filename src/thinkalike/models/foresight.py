"""What is known of a model before its weights are read, so that a job that cannot be is refused at once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from thinkalike.config import ModelConfig
from thinkalike.errors import ModelError, one_of
from thinkalike.models.checkpoints.blocks import DEPTHS
from thinkalike.models.checkpoints.minis import ASSETS
from thinkalike.models.families import FAMILIES, Family, Predicts, family_in
from thinkalike.models.load import pick_device


class Outline(NamedTuple):
    """What a model predicts, and how many blocks it has; None where only its weights or the hub would say."""

    predicts: Predicts | None
    layers: int | None


def check_models(models: Mapping[str, ModelConfig | None]) -> None:
    """Check that this machine has the devices of models, and the table their families.

    Args:
        models: by the part of the configuration, model or target.

    Raises:
        ConfigError: it has not.
    """
    for part, config in models.items():
        if config is not None:
            pick_device(config.device, f"{part}.device")
            one_of(f"{part}.family", config.family, ("auto", *FAMILIES))


def outline(config: ModelConfig) -> Outline:
    """Return what the configuration says of a model, and its config.json if that is in a folder."""
    shape = _local_shape(config)
    family = FAMILIES.get(config.family) or _family(shape)
    sizes = shape.get("architecture", shape)
    layers = next((sizes[name] for name in DEPTHS if isinstance(sizes.get(name), int)), None)
    return Outline(family.predicts if family else None, layers)


def _local_shape(config: ModelConfig) -> dict:
    """Return the contents of config.json; nothing where there is none, or a damaged one, which loading says better."""
    if not (config.path or config.mini):
        return {}
    folder = Path(config.path) if config.path else ASSETS / config.name
    try:
        shape = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        return {}
    return shape if isinstance(shape, dict) else {}


def _family(shape: dict) -> Family | None:
    try:
        return family_in(shape, "config.json")
    except ModelError:
        return None
