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
    """Return the configurations of the jobs that a configuration stands for.

    Without `models=[...]`, or for a measure that compares all models in one job, this is the one
    configuration. With it, there is one job for each pair of the models, or one for each model, as
    the measure declares. Settings that were left open are decided in each.

    Raises:
        ConfigError: There are fewer than two models, two are equal, one is not known, a model is
            also named outside of the list, or the measure takes no list.
    """
    if not isinstance(config, AnalyzeConfig) or config.models is None:
        return [completed_for_instrument(config)]
    stands_for = instrument_of_measure(config.measure.kind).of_models
    if stands_for == "all":
        return [completed_for_instrument(config)]

    shared_settings = settings_of(config.model)
    models: list[ModelConfig] = []
    if config.models:  # beside an empty list, the model is the usual one, which nobody named
        _check_nothing_named_apart(config)
        models = [listed_model(entry, shared_settings) for entry in config.models]
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
    """Raise a ConfigError for a setting that cannot be given beside models=[...].

    These are an experiment, recorded activations, and all settings of a model, which belong into
    the entries of the list. Settings that say how a model runs, such as its device, are allowed.
    """
    excluded: dict[str, object] = {
        "experiment": config.experiment,
        "activations": config.activations,
    }
    for name, value in settings_of(config.model).items():
        if name not in HOW_IT_RUNS:
            excluded[f"model.{name}"] = value
    for name, value in settings_of(config.target).items():
        excluded[f"target.{name}"] = value

    for key, value in excluded.items():
        if value:
            raise ConfigError(
                f"{key}={value} does not go with models=, "
                "whose settings are in {model: NAME, key: value}"
            )


def listed_model(entry: ListedModel, shared_settings: Mapping[str, object]) -> ModelConfig:
    """Return the configuration of a model from an entry of models=[...].

    Args:
        entry: The name of a model, or {model: NAME, SETTING: value}.
        shared_settings: Settings of all models of the list; those of the entry replace them.

    Raises:
        ConfigError: The entry names no model, or one that is not known.
    """
    settings: dict[str, object] = dict(entry) if isinstance(entry, dict) else {"model": entry}
    name = settings.pop("model", None)
    if name is None:
        raise ConfigError(
            f"models: {short(entry)} names no model; write {{model: NAME, SETTING: value}}"
        )
    return model_named(str(name), {**shared_settings, **settings})
