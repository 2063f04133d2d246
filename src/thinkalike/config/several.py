"""`models=[a,b,c]`: the jobs, of all pairs of these models or of each of them, that one command line stands for."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from thinkalike.config.inputs import HOW_IT_RUNS, ModelConfig
from thinkalike.config.job import compose_job
from thinkalike.config.named import Words, words_of_model
from thinkalike.config.overrides import quoted
from thinkalike.config.roots import AnalyzeConfig
from thinkalike.errors import ConfigError


def jobs_of(config: AnalyzeConfig, stands_for: str) -> list[AnalyzeConfig]:
    """Return the configurations that `models=[...]` stands for, each as if the models of one job had been given alone.

    Args:
        stands_for: "pairs": a job for every two models, the one that is named first as the source; "each": one for
            each; nothing: the measure takes no such list.

    Raises:
        ConfigError: there are fewer than two, one is named twice or not known, other words name a model, too, or the
            measure takes no list.
    """
    models = _checked(config, stands_for)
    rest = [word for word in config.chosen if _key(word) != "models"]
    chosen = [_words_of(model) for model in models]
    if stands_for == "each":
        jobs = [compose_job("analyze", [*rest, *words]) for words in chosen]
        named = [job.model for job in jobs]
        _check_different([(a, b) for a, b in itertools.combinations(named, 2)])
        return jobs
    pairs = itertools.combinations(chosen, 2)
    jobs = [
        compose_job("analyze", [*rest, *source, *as_target(target), *_kept(source, target, rest)])
        for source, target in pairs
    ]
    _check_different([(job.model, job.target) for job in jobs])
    return jobs


def _kept(source: Words, target: Words, rest: Sequence[str]) -> list[str]:
    """Return the words by which a target runs as it does alone, where the source has settings that it would follow."""
    named, own = ({_key(word) for word in words} for words in (source, target))
    followed = [key for key in HOW_IT_RUNS if f"model.{key}" in named - own]
    if not followed:
        return []
    alone = compose_job("analyze", [*rest, *target]).model
    return [f"target.{key}={quoted(getattr(alone, key))}" for key in followed]


def as_target(words: Sequence[str]) -> Words:
    """Return the words that choose a model as the target, from those that choose it as the source."""
    return tuple(
        word.replace("model=", "model@target=", 1) if word.startswith("model=") else f"target{word[len('model') :]}"
        for word in words
    )


def _checked(config: AnalyzeConfig, stands_for: str) -> list[Any]:
    """Return the entries of the list, after a look at what stands beside it."""
    models = config.models
    if not isinstance(models, list) or len(models) < 2:
        raise ConfigError(f"models={models} must be a list of two models or more, such as models=[gpt2,mamba-130m]")
    for word in config.chosen:
        part, _, setting = _key(word).partition(".")
        if part in ("model", "model@target", "target") and (part, setting) not in {
            ("model", key) for key in HOW_IT_RUNS
        }:
            raise ConfigError(
                f"models= names all models of the jobs, so {word} does not go with it; leave it out, or give it to one "
                "of them as {model: NAME, key: value}"
            )
    if config.experiment:
        raise ConfigError(f"experiment={config.experiment} has models of its own; leave models= out")
    if config.activations:
        raise ConfigError("activations= are compared with one model; leave models= out and name it by model@target=")
    if not stands_for:
        raise ConfigError(f"measure={config.measure.kind} takes no models=[...]; name one by model=")
    return models


def _words_of(entry: Any) -> Words:
    """Return the words that choose a model: by its name, by its folder, or by {model: either, setting: value}."""
    settings = dict(entry) if isinstance(entry, dict) else {"model": entry}
    name = settings.pop("model", None)
    if not isinstance(name, str):
        raise ConfigError(f"models= names a model or a folder, or gives {{model: NAME, key: value}}, and not {entry}")
    return words_of_model("models", name, settings)


def _key(word: str) -> str:
    return word.lstrip("+~").partition("=")[0]


def _check_different(pairs: Sequence[tuple[ModelConfig, ModelConfig]]) -> None:
    for pair in pairs:
        one, other = (replace(each, path=each.path and str(Path(each.path).resolve())) for each in pair)
        if one == other:
            raise ConfigError(f"models= names {one.path or one.name} twice; name each model once")
