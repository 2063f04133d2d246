"""The configuration of a job: what is left open in it, and how that is decided."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

from thinkalike.advice import named_setting
from thinkalike.catalogue import (
    SUBJECTS,
    TASKS,
    experiment_named,
    instrument,
    measure_entry,
)
from thinkalike.config.groups import (
    Settings,
    option,
    options,
    part_named,
    settings_of,
    unset_settings,
    with_changes,
)
from thinkalike.config.jobs import AnalyzeConfig, JobConfig, TrainConfig
from thinkalike.config.schema import Checked, made
from thinkalike.errors import ConfigError, one_of

Config = TypeVar("Config", bound=JobConfig)

LAST_RESORT = "pydoc"  # the text of models that name none


def untyped_instrument_of(config: JobConfig) -> object:
    """Return the `Instrument` of a configuration: that of its task, experiment or measure.

    `thinkalike.job.lookup` gives it with its type, which this module does not know.
    """
    if isinstance(config, TrainConfig):
        return instrument(TASKS[config.task])
    assert isinstance(config, AnalyzeConfig)
    if config.experiment and config.models is None:
        return experiment_named(config.experiment)
    if config.measure.instrument_in_memory is not None:
        return config.measure.instrument_in_memory
    kind = config.measure.kind
    if not config.subjects:
        return instrument(measure_entry(kind))
    if kind not in SUBJECTS:
        remedy = "give one file or two"
        if SUBJECTS:
            remedy = f"choose measure={' or '.join(SUBJECTS)}"
        raise ConfigError(
            f"measure={kind} compares two sides, and activations= are {len(config.subjects)} "
            f"subjects; {remedy}"
        )
    return instrument(SUBJECTS[kind])


def open_job(schema: type[Config], **given: object) -> Config:
    """Return the configuration of a job in which everything is left open but what is given."""
    return with_changes(made(schema, unset_settings(schema)), given)


def completed_for_instrument(config: Config) -> Config:
    """Return a configuration in which its instrument decided what was left open."""
    complete = getattr(untyped_instrument_of(config), "completed", None)
    assert callable(complete)
    decided = complete(config)
    assert isinstance(decided, type(config))
    return decided


def completed(config: Config, reads: Collection[str]) -> Config:
    """Return a configuration in which what was left open is decided, in the parts of `reads`.

    The data is what the models were trained on, and other parts without a name are what their
    schemas say; the settings of every part are those of its recipe.
    """
    if "data" in reads:
        config = _with_rows_of_states(config)
    if "data" in reads and config.data.name is None:
        config = _with_data_of_models(config)

    decided: dict[str, object] = {}
    for name in reads:
        part = getattr(config, name, None)
        if not isinstance(part, Checked):
            continue
        if part.usual_option and getattr(part, "name", None) is None:
            settings = option(name, part.usual_option) | settings_of(part)
            part = made(type(part), settings, f"{name}.")
        decided[name] = part.completed(config)
    config = with_changes(config, decided)
    return config.completed(config)


def _with_data_of_models(config: Config) -> Config:
    """Return the configuration with the text on which its models were trained."""
    corpus = config.data.source or config.model.corpus or config.target.corpus or LAST_RESORT
    one_of("model.corpus", corpus, [name for name in options("data") if name != "auto"])
    data = part_named("data", corpus, settings_of(config.data))
    return with_changes(config, {"data": data})


def _with_rows_of_states(config: Config) -> Config:
    """Return the configuration with the text of its folder of states, if a model is such.

    Raises:
        ConfigError: Another text is asked for, of which the folder has no states.
    """
    folders = []
    for model in (config.model, config.target):
        if model is not None and model.holds_states:
            folders.append(model.path)
    if not folders:
        return config

    if config.data.name is None:
        settings: Settings = {**settings_of(config.data), "files": folders[:1]}
        data = part_named("data", "states", settings)
        return with_changes(config, {"data": data})
    if config.data.source != "states":
        raise ConfigError(
            f"{named_setting('data', config.data.name)}: the text that is compared is that of "
            f"{folders[0]}, a folder of states; leave {named_setting('data')} out"
        )
    return config
