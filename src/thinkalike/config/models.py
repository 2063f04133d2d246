"""Models by name, folder or ORG/NAME: one for the Python API, and `models=[a,b,c]`, which stands for several jobs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from thinkalike.config.compose import compose_job
from thinkalike.config.inputs import HOW_IT_RUNS, ModelConfig
from thinkalike.config.overrides import is_folder, key_of, path_of, quoted
from thinkalike.config.roots import AnalyzeConfig
from thinkalike.errors import ConfigError

Words = tuple[str, ...]  # overrides


def model_named(model: ModelConfig | str, settings: Mapping[str, Any]) -> ModelConfig:
    """Return the configuration of a model, as `model=NAME model.SETTING=VALUE` does, or a given one with settings.

    Raises:
        ConfigError: the name or a setting is not known, or a value is not possible.
    """
    if isinstance(model, ModelConfig):
        return replace(model, **settings)
    parts = {key: value for key, value in settings.items() if isinstance(value, dict | list)}  # which no word can say
    plain = {key: value for key, value in settings.items() if key not in parts}
    return replace(compose_job("train", words_of_model(model, plain)).model, **parts)


def words_of_model(name: str, settings: Mapping[str, Any]) -> Words:
    """Return the overrides that choose a model, by its name or its folder, and its settings."""
    chosen = ("model=local", path_of("model", name)) if is_folder(name) else (f"model={name}",)
    return (*chosen, *(f"model.{key}={quoted(value)}" for key, value in settings.items()))


def as_target(words: Sequence[str]) -> Words:
    """Return the overrides that choose a model as the target, from those that choose it as the source."""
    return tuple(
        word.replace("model=", "model@target=", 1) if word.startswith("model=") else f"target{word[len('model') :]}"
        for word in words
    )


def jobs_of(config: AnalyzeConfig, stands_for: str) -> list[AnalyzeConfig]:
    """Return the configurations that `models=[...]` stands for, each as if the models of one job had been given alone.

    Args:
        stands_for: "pairs": a job for every two models, the one that is named first as the source; "each": one for
            each; nothing: the measure takes no such list.

    Raises:
        ConfigError: there are fewer than two different models, one is not known, other overrides name a model, too, or
            the measure takes no list.
    """
    models, rest = config.models or [], [word for word in config.chosen if key_of(word) != "models"]
    for word in rest:
        part, _, setting = key_of(word).partition(".")
        if part in ("experiment", "activations", "target") or (part == "model" and setting not in HOW_IT_RUNS):
            raise ConfigError(f"{word} does not go with models=, whose settings are in {{model: NAME, key: value}}")
    chosen = [_words_of(model) for model in models]
    if not stands_for or len(chosen) < 2 or len(set(chosen)) < len(chosen):
        raise ConfigError(f"models={models} must be two different models or more, for a measure that takes a list")
    if stands_for == "each":
        return [compose_job("analyze", [*rest, *words]) for words in chosen]
    return [
        compose_job("analyze", [*rest, *source, *as_target(target), *_kept(source, target, rest)])
        for source, target in itertools.combinations(chosen, 2)
    ]


def _words_of(entry: Any) -> Words:
    """Return the overrides that choose a model: by its name, by its folder, or by {model: either, setting: value}."""
    settings = dict(entry) if isinstance(entry, dict) else {"model": entry}
    return words_of_model(str(settings.pop("model", None)), settings)


def _kept(source: Words, target: Words, rest: Sequence[str]) -> list[str]:
    """Return the overrides by which a target runs as it does alone, where it would follow settings of the source."""
    named, own = ({key_of(word) for word in words} for words in (source, target))
    followed = [key for key in HOW_IT_RUNS if f"model.{key}" in named - own]
    if not followed:
        return []
    alone = compose_job("analyze", [*rest, *target]).model
    return [f"target.{key}={quoted(getattr(alone, key))}" for key in followed]
