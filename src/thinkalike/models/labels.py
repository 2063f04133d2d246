"""What tables and figures call a model, so that no two models of a result have one name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from thinkalike.config import ModelConfig


def label(config: ModelConfig) -> str:
    """Return the everyday name of a model, or that of its folder, with the revision if one is asked for."""
    name = config.name if config.name != "local" else Path(str(config.path)).name
    return f"{name}@{config.revision}" if config.revision else name


def told_apart(configs: Sequence[ModelConfig]) -> list[str]:
    """Return the labels of models; where different ones share a label, with the settings in which they differ."""
    labels = [label(config) for config in configs]
    return [
        f"{own}{_what_differs(config, _sharing(own, labels, configs))}"
        for own, config in zip(labels, configs, strict=True)
    ]


def _sharing(own: str, labels: Sequence[str], configs: Sequence[ModelConfig]) -> list[ModelConfig]:
    return [config for name, config in zip(labels, configs, strict=True) if name == own]


def _what_differs(config: ModelConfig, others: Sequence[ModelConfig]) -> str:
    """Return the settings by which a model differs from others of its label, in brackets, or nothing."""
    names = [item.name for item in fields(config)]
    differing = [name for name in names if any(getattr(each, name) != getattr(config, name) for each in others)]
    shown = [f"{name}={_short(getattr(config, name), others)}" for name in differing]
    return f"[{','.join(shown)}]" if shown else ""


def _short(value: Any, others: Sequence[ModelConfig]) -> str:
    """Return a value as text; of a path, as many of its last parts as tell it from those of the others."""
    if value not in {str(each.path) for each in others}:
        return str(value)
    paths = {Path(str(each.path)) for each in others}
    count = next(n for n in range(1, 99) if len({path.parts[-n:] for path in paths}) == len(paths))
    return "/".join(Path(str(value)).parts[-count:])
