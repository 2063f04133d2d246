"""The jobs that a configuration stands for: itself, or those of `models=[...]`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from thinkalike.config import AnalyzeConfig, JobConfig, ModelConfig, model_named, settings_of
from thinkalike.config.completing import completed_for_instrument
from thinkalike.config.parts import HOW_IT_RUNS
from thinkalike.errors import ConfigError, short
from thinkalike.job.lookup import instrument_of_measure

ListedModel = str | dict[str, object]  # an entry of models=[...]


def asked_for(config: JobConfig) -> Sequence[JobConfig]:
    """Return the jobs that a configuration stands for, each with its own models.

    Raises:
        ConfigError: There are fewer than two different models, one is not known, a model is also
            named apart, or the measure takes no list.
    """
    if not isinstance(config, AnalyzeConfig) or config.models is None:
        return [completed_for_instrument(config)]
    stands_for = instrument_of_measure(config.measure.kind).of_models
    if stands_for == "all":
        return [completed_for_instrument(config)]

    _check_nothing_named_apart(config)
    how_they_run = settings_of(config.model)
    models = [listed_model(entry, how_they_run) for entry in config.models]
    has_repeated = any(models.count(model) > 1 for model in models)
    if not stands_for or len(models) < 2 or has_repeated:
        raise ConfigError(
            f"models={config.models} must be two different models or more, "
            "for a measure that takes them"
        )

    pairs: Iterable[tuple[ModelConfig, ModelConfig]]
    if stands_for == "pairs":
        pairs = itertools.combinations(models, 2)
    else:
        pairs = [(model, model) for model in models]
    return [
        completed_for_instrument(replace(config, models=None, model=source, target=target))
        for source, target in pairs
    ]


def _check_nothing_named_apart(config: AnalyzeConfig) -> None:
    """Raise a ConfigError for what is given beside models=[...] and belongs into its entries."""
    apart: dict[str, object] = {
        "experiment": config.experiment,
        "activations": config.activations,
    }
    for name, value in settings_of(config.model).items():
        if name not in HOW_IT_RUNS:
            apart[f"model.{name}"] = value
    for name, value in settings_of(config.target).items():
        apart[f"target.{name}"] = value

    for key, value in apart.items():
        if value:
            raise ConfigError(
                f"{key}={value} does not go with models=, "
                "whose settings are in {model: NAME, key: value}"
            )


def listed_model(entry: ListedModel, how_they_run: Mapping[str, object]) -> ModelConfig:
    """Return the configuration of an entry, a name or {model: NAME, SETTING: value}.

    Args:
        entry: The entry.
        how_they_run: The settings of all of them, where an entry says nothing else.

    Raises:
        ConfigError: The entry names no model, or one that is not known.
    """
    settings: dict[str, object] = dict(entry) if isinstance(entry, dict) else {"model": entry}
    name = settings.pop("model", None)
    if name is None:
        raise ConfigError(
            f"models: {short(entry)} names no model; write {{model: NAME, SETTING: value}}"
        )
    return model_named(str(name), {**how_they_run, **settings})
