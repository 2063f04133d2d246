"""What models are called in tables, and how models of one name are told apart."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from thinkalike.config import ModelConfig

# The beginning of the path of a model in memory, which says nothing to a reader.
IN_MEMORY = "memory:"

# Settings that are never part of a label.
UNNAMED_SETTINGS = ("name", "family", "mini", "corpus")


def label(config: ModelConfig) -> str:
    """Return the everyday name of a model, or of its folder or repository.

    The revision is part of it if one is asked for.
    """
    if config.revision:
        return f"{config.called}@{config.revision}"
    return config.called


def told_apart(configs: Sequence[ModelConfig]) -> list[str]:
    """Return the labels of models.

    Different models that share a label have the settings or paths in which they differ.
    """
    labels = []
    for config in configs:
        namesakes = [other for other in configs if label(other) == label(config)]
        labels.append(_label_with_settings(config, namesakes))
    return labels


def names_of(sides: Sequence[str | ModelConfig]) -> list[str]:
    """Return the names of models and recordings in tables.

    A recording is named after its file, with as much of its path as tells all of them apart.
    """
    recordings = {Path(side) for side in sides if isinstance(side, str)}
    labels = iter(told_apart([side for side in sides if not isinstance(side, str)]))
    names = [Path(side).stem if isinstance(side, str) else next(labels) for side in sides]
    if len(set(names)) == len(names):
        return names
    shortest = _shortest_distinct_paths(recordings)
    for index, side in enumerate(sides):
        if isinstance(side, str):
            names[index] = shortest[Path(side)]
    return names


def _label_with_settings(config: ModelConfig, namesakes: Sequence[ModelConfig]) -> str:
    """Return a label with the settings in which a model differs from its namesakes, in brackets."""
    distinguishing = {}
    for name, value in vars(config).items():
        differs = any(getattr(other, name, value) != value for other in namesakes)
        is_without_head = name == "head" and value is None  # a site without heads says enough
        is_in_memory = str(value).startswith(IN_MEMORY)
        if differs and name not in UNNAMED_SETTINGS and not is_without_head and not is_in_memory:
            distinguishing[name] = str(value)

    title = label(config)
    if "path" in distinguishing and all(other.path for other in namesakes):
        paths = {Path(os.path.abspath(str(other.path))) for other in namesakes}
        shortest = _shortest_distinct_paths(paths)
        path = shortest[Path(os.path.abspath(str(config.path)))].removesuffix(".gguf")
        distinguishing["path"] = path
        if all(other.name == "local" for other in namesakes):
            title = distinguishing.pop("path")
    if not distinguishing:
        return title
    settings = ",".join(f"{name}={value}" for name, value in distinguishing.items())
    return f"{title}[{settings}]"


def _shortest_distinct_paths(paths: Collection[Path]) -> dict[Path, str]:
    """Return the end of each path: as many of its last components as tell all of them apart."""
    count = 1
    while len({path.parts[-count:] for path in paths}) < len(paths):
        count += 1
    return {path: "/".join(path.parts[-count:]) for path in paths}
