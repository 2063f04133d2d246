"""The jobs that a configuration stands for: itself, or those of `models=[...]`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from thinkalike.config import (
    AnalyzeConfig,
    JobConfig,
    ModelConfig,
    measure_schema,
    model_named,
    settings_of,
)
from thinkalike.config.completing import completed_for_instrument
from thinkalike.config.parts import HOW_IT_RUNS
from thinkalike.errors import ConfigError, short
from thinkalike.job.lookup import instrument_of_measure

ListedModel = str | dict[str, object]  # an entry of models=[...]


def asked_for(config: JobConfig) -> Sequence[JobConfig]:
    """Return the configurations of the jobs that a configuration stands for.

    A configuration without `models=[...]` stands for a single job: itself. For one with such a
    list, the measure declares which jobs it stands for: one job for each pair of the models, one
    for each model, or a single job of all models, which keeps the list. In each job, settings that
    were left open get their values.

    Raises:
        ConfigError: The list has fewer than two models, two that are equal, or one that is not
            known; settings are given that do not go with a list; or the measure takes no list.
    """
    if not isinstance(config, AnalyzeConfig) or config.models is None:
        return [completed_for_instrument(config)]
    # "all", "pairs" or "each"; "" if the measure takes no list
    models_of_a_job = instrument_of_measure(config.measure.kind).of_models
    if models_of_a_job == "all":
        return [completed_for_instrument(config)]

    shared_settings = settings_of(config.model)
    models: list[ModelConfig] = []
    # An empty list is an error below. `config.model` is then the default model, which the first
    # check would take for one that the user named beside the list.
    if config.models:
        _check_settings_beside_list(config)
        models = [listed_model(entry, shared_settings) for entry in config.models]
    has_repeated = any(models.count(model) > 1 for model in models)
    takes_no_list = models_of_a_job == ""
    if takes_no_list or len(models) < 2 or has_repeated:
        raise ConfigError(
            f"models={config.models} must be two different models or more, "
            "for a measure that takes them"
        )

    pairs: Iterable[tuple[ModelConfig, ModelConfig]]
    if models_of_a_job == "pairs":
        pairs = itertools.combinations(models, 2)
    else:
        # A job of one model has this model as its target, too, as if no target had been named.
        pairs = [(model, model) for model in models]
    return [
        completed_for_instrument(replace(config, models=None, model=source, target=target))
        for source, target in pairs
    ]


def jobs_of_model_pairs(config: AnalyzeConfig) -> list[AnalyzeConfig]:
    """Return a job of CKA for each pair of the models that `models=[...]` lists.

    It is for a measure that compares all listed models in a single job. The sources and targets of
    these jobs are the listed models, checked and with all settings filled in. They are the same
    for every measure of two models, of which CKA is one; the caller replaces the measure.

    Raises:
        ConfigError: The list is missing, or is one that `asked_for` refuses.
    """
    models = config.models or []  # an empty list is refused
    config_of_pairs = replace(config, models=models, measure=measure_schema("cka")())
    jobs = []
    for job in asked_for(config_of_pairs):
        assert isinstance(job, AnalyzeConfig)
        jobs.append(job)
    return jobs


def _check_settings_beside_list(config: AnalyzeConfig) -> None:
    """Raise a ConfigError for a setting that cannot be given beside models=[...].

    These are an experiment, recorded activations, all settings of `target`, and those of `model`,
    which belong into the entries of the list. The settings of `model` that say how a model runs,
    such as its device, are allowed: they apply to all listed models.
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
