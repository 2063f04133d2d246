"""What models and recordings are called in tables, and how those of one name are told apart."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from thinkalike.config import ModelConfig
from thinkalike.config.in_memory import LoadedModelConfig
from thinkalike.config.recorded import RecordedArrays

# Settings that are never part of a label: no two models differ in them alone, or their values mean
# nothing to a reader.
UNNAMED_SETTINGS = ("name", "family", "mini", "corpus", "loaded", "digest")


def label(config: ModelConfig) -> str:
    """Return the everyday name of a model, or of its folder or repository.

    The revision is part of it if one is asked for.
    """
    if config.revision:
        return f"{config.called}@{config.revision}"
    return config.called


def told_apart(configs: Sequence[ModelConfig]) -> list[str]:
    """Return the labels of models, in their order.

    Where different models would share a label, the label of each is followed by the settings or
    the path in which it differs, such as "gpt2[dtype=bfloat16]". Equal models share a label.
    """
    labels = []
    for config in configs:
        namesakes = [candidate for candidate in configs if label(candidate) == label(config)]
        labels.append(_label_with_settings(config, namesakes))
    return labels


def names_of(sides: Sequence[str | RecordedArrays | ModelConfig]) -> list[str]:
    """Return the names of models and recordings in tables, in their order.

    A recording is named after its file. If two sides then share a name, each recording is named by
    as much of the end of its path as tells all recordings apart.

    Args:
        sides: Models, the paths of recordings, or recordings in memory.
    """
    labels = iter(told_apart([side for side in sides if isinstance(side, ModelConfig)]))
    names = []
    for side in sides:
        names.append(next(labels) if isinstance(side, ModelConfig) else recording_name(side))
    if len(set(names)) == len(names):
        return names
    shortest = _shortest_distinct_paths({Path(side) for side in sides if isinstance(side, str)})
    for index, side in enumerate(sides):
        if isinstance(side, str):
            names[index] = shortest[Path(side)]
    return names


def recording_name(recording: str | RecordedArrays) -> str:
    """Return what tables call recorded states.

    It is their file without its ending, or the name of arrays in memory.
    """
    if isinstance(recording, RecordedArrays):
        return recording.name
    return Path(recording).stem


def _label_with_settings(config: ModelConfig, namesakes: Sequence[ModelConfig]) -> str:
    """Return a label with the settings in brackets in which a model differs from its namesakes."""
    distinguishing = {}
    for name, value in vars(config).items():
        differs = any(_setting(namesake, name, value) != value for namesake in namesakes)
        is_without_head = name == "head" and value is None  # a site without heads says enough
        if differs and name not in UNNAMED_SETTINGS and not is_without_head:
            distinguishing[name] = str(value)
    # Of models in memory only the digests of their weights differ, which say nothing to a reader.
    if isinstance(config, LoadedModelConfig):
        distinguishing.pop("path", None)

    title = label(config)
    if "path" in distinguishing and all(_path_or_digest(namesake) for namesake in namesakes):
        paths = {Path(os.path.abspath(_path_or_digest(namesake))) for namesake in namesakes}
        shortest = _shortest_distinct_paths(paths)
        path = shortest[Path(os.path.abspath(str(config.path)))].removesuffix(".gguf")
        distinguishing["path"] = path
        # Models without an everyday name are called by their paths alone.
        if all(namesake.name == "local" for namesake in namesakes):
            title = distinguishing.pop("path")
    if not distinguishing:
        return title
    settings = ",".join(f"{name}={value}" for name, value in distinguishing.items())
    return f"{title}[{settings}]"


def _setting(config: ModelConfig, name: str, default: object) -> object:
    """Return a setting of a model, or the default if it has no such setting.

    The digest of its weights stands for the path of a model in memory.
    """
    if name == "path" and isinstance(config, LoadedModelConfig):
        return config.digest
    return getattr(config, name, default)


def _path_or_digest(config: ModelConfig) -> str:
    """Return the path of a model, or the digest of one in memory; "" for a model of the hub."""
    if isinstance(config, LoadedModelConfig):
        return config.digest
    return config.path or ""


def _shortest_distinct_paths(paths: Collection[Path]) -> dict[Path, str]:
    """Return the end of each path: as many of its last components as tell all of them apart.

    All ends have the same number of components, at least one.

    Args:
        paths: Different paths.
    """
    count = 1
    while len({path.parts[-count:] for path in paths}) < len(paths):
        count += 1
    return {path: "/".join(path.parts[-count:]) for path in paths}
