"""A model by what it is called, a name, a folder or ORG/NAME, outside of a command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from thinkalike.config.inputs import ModelConfig
from thinkalike.config.job import compose_job
from thinkalike.config.overrides import is_folder, path_of, quoted
from thinkalike.config.words.spelling import check_option
from thinkalike.errors import ConfigError, nearest

Words = tuple[str, ...]  # of a command line


def model_named(model: ModelConfig | str, settings: Mapping[str, Any]) -> ModelConfig:
    """Return the configuration of a model, as `model=NAME model.SETTING=VALUE` does, or a given one with settings.

    Raises:
        ConfigError: the name or a setting is not known, or a value is not possible.
    """
    known = [item.name for item in fields(ModelConfig)]
    for key in settings.keys() - {*known}:
        raise ConfigError(f"'{key}' is not a setting of a model; {nearest(key, known)}")
    if isinstance(model, ModelConfig):
        return replace(model, **settings)
    plain = {key: value for key, value in settings.items() if not isinstance(value, dict | list)}
    composed: ModelConfig = compose_job("train", words_of_model("model", model, plain)).model
    parts: dict[str, Any] = {key: settings[key] for key in settings.keys() - plain.keys()}  # which no word can say
    return replace(composed, **parts)


def words_of_model(key: str, name: str, settings: Mapping[str, Any]) -> Words:
    """Return the words of a command line that choose a model and its settings.

    Args:
        key: what the message of an error calls the name.

    Raises:
        ConfigError: the name is that of no model, and no folder.
    """
    more = tuple(f"model.{setting}={quoted(value)}" for setting, value in settings.items())
    if is_folder(name):
        return ("model=local", path_of("model", name), *more)
    check_option("model", key, [name])
    return (f"model={name}", *more)
