"""What models and recordings are called in tables, and how those of one name are told apart."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from thinkalike.config import ModelConfig
from thinkalike.config.in_memory import LoadedModelConfig
from thinkalike.config.recorded import RecordedArrays
from thinkalike.errors import plain_name

# Settings that are never part of a label: no two models differ in them alone, or their values mean
# nothing to a reader.
UNNAMED_SETTINGS = ("name", "family", "mini", "corpus", "loaded", "digest")


def label(config: ModelConfig) -> str:
    """Return the name of a model in tables: its everyday name, or its folder's or repository's.

    If the setting `model.revision` is given, it follows after an "@".
    """
    if config.revision:
        return f"{config.called}@{plain_name(config.revision)}"
    return config.called


def distinct_labels(configs: Sequence[ModelConfig]) -> list[str]:
    """Return a label for each model, so that different models have different labels.

    A label is the everyday name. If different models have the same one, each gets the settings or
    the path in which it differs in brackets, such as "gpt2[dtype=bfloat16]". Equal models share a
    label.
    """
    labels = []
    for config in configs:
        namesakes = [candidate for candidate in configs if label(candidate) == label(config)]
        labels.append(_label_with_settings(config, namesakes))
    return labels


def names_of(sides: Sequence[str | RecordedArrays | ModelConfig]) -> list[str]:
    """Return the names that tables give to compared models and recordings, in the same order.

    A recording is a file or an array of states, and is named after its file. If two names are then
    equal, each file is named by the end of its path, as long as is needed to tell all files apart.
    A recording in memory that still has the name of another side gets its place in the list, such
    as "arrays (2)".

    Args:
        sides: What is compared: models, the paths of recordings, or recordings in memory.
    """
    models = [side for side in sides if isinstance(side, ModelConfig)]
    labels_of_models = iter(distinct_labels(models))
    names = []
    for side in sides:
        if isinstance(side, ModelConfig):
            names.append(next(labels_of_models))
        else:
            names.append(recording_name(side))
    if len(set(names)) == len(names):
        return names
    paths = [_path_of_recording(side) for side in sides]  # None: a model, or arrays in memory
    end_of_path = _shortest_distinct_paths({path for path in paths if path is not None})
    for index, path in enumerate(paths):
        if path is not None:
            names[index] = end_of_path[path]
    for index, side in enumerate(sides):
        is_in_memory = isinstance(side, RecordedArrays) and side.path is None
        if is_in_memory and names.count(names[index]) > 1:
            names[index] = f"{names[index]} ({index + 1})"
    return names


def _path_of_recording(side: str | RecordedArrays | ModelConfig) -> Path | None:
    """Return the file or folder of recorded states; None for a model and for arrays in memory."""
    if isinstance(side, RecordedArrays):
        return None if side.path is None else Path(side.path)
    return Path(side) if isinstance(side, str) else None


def recording_name(recording: str | RecordedArrays) -> str:
    """Return the name of recorded states in tables.

    It is the name of their file without its suffix, or the name that arrays in memory were given.
    """
    if isinstance(recording, RecordedArrays):
        return recording.name
    return plain_name(Path(recording).stem)


def _label_with_settings(config: ModelConfig, namesakes: Sequence[ModelConfig]) -> str:
    """Return a model's label, with the settings in brackets in which it differs from namesakes.

    Without any difference it is the label alone. A model without an everyday name is called by the
    end of its path instead.

    Args:
        config: The configuration of the model.
        namesakes: All models with the same label, this one included.
    """
    distinguishing = {}
    for name, value in vars(config).items():
        # A namesake that lacks the setting does not differ in it.
        values = [_setting_or_default(namesake, name, default=value) for namesake in namesakes]
        differs = any(value_of_namesake != value for value_of_namesake in values)
        is_without_head = name == "head" and value is None  # the setting `site` says enough then
        if differs and name not in UNNAMED_SETTINGS and not is_without_head:
            distinguishing[name] = plain_name(str(value))
    # A model in memory has a digest in the place of a path, which says nothing to a reader.
    if isinstance(config, LoadedModelConfig):
        distinguishing.pop("path", None)

    title = label(config)
    all_have_paths = all(_path_or_digest(namesake) for namesake in namesakes)
    if "path" in distinguishing and all_have_paths:
        # A path is shortened to its last components, as many as tell the namesakes apart.
        paths = {Path(os.path.abspath(_path_or_digest(namesake))) for namesake in namesakes}
        end_of_path = _shortest_distinct_paths(paths)
        own_path = Path(os.path.abspath(str(config.path)))
        distinguishing["path"] = end_of_path[own_path].removesuffix(".gguf")
        have_no_everyday_name = all(namesake.name == "local" for namesake in namesakes)
        if have_no_everyday_name:
            title = distinguishing.pop("path")
    if not distinguishing:
        return title
    settings = ",".join(f"{name}={value}" for name, value in distinguishing.items())
    return f"{title}[{settings}]"


def _setting_or_default(config: ModelConfig, name: str, default: object) -> object:
    """Return a setting of a model, or `default` if its configuration has no such setting.

    A model in memory has no path: its digest, which tells it from others, is returned instead.
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
    """Return for each path its last n components, for the smallest n at which all ends differ.

    The paths must be different ones.
    """
    n_components = 1
    while len({path.parts[-n_components:] for path in paths}) < len(paths):
        n_components += 1
    return {path: plain_name("/".join(path.parts[-n_components:])) for path in paths}
