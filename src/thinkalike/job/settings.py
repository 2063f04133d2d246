"""The settings of a command line or a file beside those that its jobs read, and which jobs these are.

`Instrument.settings_read` says which settings a job reads. Here a command line that sets another one is refused, and a
file that does so is warned of.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from thinkalike.config import (
    AnalyzeConfig,
    ModelConfig,
    TrainConfig,
    key_settings,
    measure_schema,
    model_named,
    settings_of,
)
from thinkalike.config.groups import completed
from thinkalike.config.parts import HOW_IT_RUNS
from thinkalike.config.schema import default_of, value_at
from thinkalike.errors import ConfigError, flat, listed, short
from thinkalike.job.instrument import OF_EVERY_JOB, OF_SITES, REPORT_TEXT, Instrument
from thinkalike.plugins import instrument, instrument_of, measure_entry

log = logging.getLogger(__name__)

# settings that decide others, where those are left to the recipe
RECIPES = {"scale": ("mini", "paper"), "recipe": ("honest", "paper")}
CORPORA = ("model.corpus", "target.corpus")
AMOUNTS = ("batches", "tokens_per_batch", "tokens", "words")  # settings of a measure that say how much is compared
ONE_SITE = "{}=: {} reads the stream after each block, resid_post, alone; measure=cka or mlem read other sites"

JobSettings = TrainConfig | AnalyzeConfig


@dataclass(frozen=True)
class ReadingJob:
    """A job, and the settings that it reads."""

    kind: Instrument
    config: JobSettings
    read: frozenset[str]  # the keys of `Instrument.settings_read`

    @classmethod
    def of(cls, config: JobSettings, kind: Instrument | None = None) -> ReadingJob:
        """Return the job of a configuration; its kind is known if the configuration alone does not say it."""
        chosen = instrument_of(config) if kind is None else kind
        return cls(chosen, config, chosen.settings_read(config))

    def reads(self, key: str, given: JobSettings) -> bool:
        """Return whether the job reads the value that a configuration gives for a key.

        A job inside an experiment may have another value than is given, and then it does not read it. What holds
        anyway is no error: null, which leaves a setting to the recipe, and a default that the job has as well.
        """
        key = key_of_setting(key)
        part, _, name = key.partition(".")
        if key in self.read:
            value = value_at(given, key)
            in_job = value_at(self.config, key)
            is_decided_by_others = value is None or value == "auto"
            return is_decided_by_others or is_dataclass(in_job) or bool(in_job == value)
        if part not in self.kind.reads:
            return False
        is_left_to_recipe = bool(name) and value_at(given, key) is None
        return is_left_to_recipe or self._holds_anyway(key, given)

    def _holds_anyway(self, key: str, given: JobSettings) -> bool:
        """Return whether a configuration gives a setting that the job does not read the default that it has."""
        unread = self.kind.unread(self.config)
        return key in unread and unread[key] == value_at(given, key) and _is_default(key, given)

    def values(self) -> dict[str, Any]:
        """Return the settings that the job reads, unless they have their defaults, by their keys."""
        settings = flat(key_settings(self.kind.as_read(self.config)))
        return {key: value for key, value in settings.items() if key_of_setting(key) in self.read}

    def parts(self) -> list[str]:
        """Return the parts of the configuration that a job of this kind reads, those that it declares first."""
        read = {key.partition(".")[0] for key in self.read - OF_EVERY_JOB} - {"logger", "activations"}
        in_order = [item.name for item in fields(self.config) if item.name in read]
        return list(dict.fromkeys([*self.kind.reads, *in_order]))


def _is_default(key: str, config: JobSettings) -> bool:
    """Return whether a configuration has the default for a key."""
    part, _, name = key.partition(".")
    schema = getattr(config, part) if name else config
    (item,) = (item for item in fields(schema) if item.name == (name or part))
    return bool(getattr(schema, item.name) == default_of(item))


def key_of_setting(key: str) -> str:
    """Return the key of the setting that a key is inside of: that of the dictionary of model.architecture.n_layers."""
    return ".".join(key.split(".")[:2])


def asked_for(config: JobSettings) -> Sequence[JobSettings]:
    """Return the jobs that a configuration stands for: itself, or those of `models=[...]`, each with its own models.

    Raises:
        ConfigError: there are fewer than two different models, one is not known, a model is also named apart, or the
            measure takes no list.
    """
    if isinstance(config, TrainConfig) or config.models is None:
        return [completed(config)]
    stands_for = instrument(measure_entry(config.measure.kind)).of_models
    if stands_for == "all":
        return [completed(config)]
    runs = settings_of(config.model)
    apart = {"experiment": config.experiment, "activations": config.activations}
    apart |= {f"model.{key}": value for key, value in runs.items() if key not in HOW_IT_RUNS}
    apart |= {f"target.{key}": value for key, value in settings_of(config.target).items()}
    if given := [f"{key}={value}" for key, value in apart.items() if value]:
        raise ConfigError(f"{given[0]} does not go with models=, whose settings are in {{model: NAME, key: value}}")
    models = [_listed_model(entry, runs) for entry in config.models]
    if not stands_for or len(models) < 2 or any(models.count(each) > 1 for each in models):
        raise ConfigError(f"models={config.models} must be two different models or more, for a measure that takes them")
    pairs: Iterable[tuple[ModelConfig, ModelConfig]]
    pairs = itertools.combinations(models, 2) if stands_for == "pairs" else zip(models, models, strict=True)
    return [completed(replace(config, models=None, model=one, target=other)) for one, other in pairs]


def _listed_model(entry: str | dict[str, Any], runs: Mapping[str, Any]) -> ModelConfig:
    """Return the configuration of an entry of models=[...], a name or {model: NAME, SETTING: value}.

    Args:
        runs: how all of them run, where an entry says nothing else.
    """
    settings = dict(entry) if isinstance(entry, dict) else {"model": entry}
    name = settings.pop("model", None)
    if name is None:
        raise ConfigError(f"models: {short(entry)} names no model; write {{model: NAME, SETTING: value}}")
    return model_named(str(name), {**runs, **settings})


def check_read(keys: Sequence[str], config: JobSettings) -> None:
    """Raise a ConfigError unless each setting that is given is read by a job that a configuration stands for.

    Models that a command line names for an experiment are checked by it.
    """
    _check_listed_models(config)
    jobs, unread = _unread(keys, config)
    if unread:
        raise _refusal(unread[0], jobs)


def warn_of_unread(files: Mapping[str, Collection[str]], config: JobSettings) -> None:
    """Say which settings of configuration files change nothing of the jobs that a configuration stands for.

    They are no error, as several kinds of jobs may share a file.

    Args:
        files: the keys that each file sets.
    """
    differing = flat(key_settings(config))
    for file, keys in files.items():
        jobs, unread = _unread([key for key in sorted(keys) if key in differing], config)
        if unread:
            log.warning("warning: %s sets %s, which %s does not read", file, listed(unread), _names(jobs))


def _unread(keys: Iterable[str], config: JobSettings) -> tuple[list[ReadingJob], list[str]]:
    """Return the jobs that a configuration stands for, and those of the keys that none of them reads."""
    is_experiment = isinstance(config, AnalyzeConfig) and config.experiment is not None and config.models is None
    if is_experiment:
        experiment = instrument_of(config)
        inside = [ReadingJob.of(job) for _, job in experiment.jobs(config)[1]]
        jobs = inside or [ReadingJob.of(config, experiment)]
        keys = [key for key in keys if key.partition(".")[0] not in ("model", "target")]
    else:
        jobs = [ReadingJob.of(job) for job in asked_for(config)]
    return jobs, [key for key in keys if key not in OF_EVERY_JOB and not _is_read(key, jobs, config)]


def _is_read(key: str, jobs: Sequence[ReadingJob], config: JobSettings) -> bool:
    """Return whether one of the jobs that a configuration stands for reads what it has for a key."""
    if key in RECIPES:
        return _decides(key, config)
    if key in CORPORA and config.data.name is not None:
        return False
    if key.startswith("logger."):  # which the job itself reads, and none of those inside an experiment
        return key.removeprefix("logger.") in config.logger.settings_read()
    return any(job.reads(key, config) for job in jobs)


def _decides(key: str, config: JobSettings) -> bool:
    """Return whether the jobs that a configuration stands for differ between the values of `scale` or `recipe`.

    The value that holds anyway is no error: scale=mini says that the usual choice is meant.
    """
    if isinstance(config, AnalyzeConfig) and config.experiment is not None:
        return True
    is_usual = config.recipe == "honest" if key == "recipe" else replace(config, scale="auto").is_mini == config.is_mini
    if is_usual:
        return True
    variants = []
    for value in RECIPES[key]:
        changed: Any = {key: value}
        try:
            jobs = asked_for(replace(config, **changed))
        except ConfigError:  # the settings of one recipe alone go with the others that are given
            return True
        variants.append([ReadingJob.of(job).values() for job in jobs])
    return variants[0] != variants[1]


def _refusal(key: str, jobs: Sequence[ReadingJob]) -> ConfigError:
    """Return what to say of a setting of a command line that no job reads."""
    names = _names(jobs)
    part = key.partition(".")[0]
    parts = dict.fromkeys(part for job in jobs for part in job.parts())
    if key in OF_SITES and not any(job.kind.takes_sites for job in jobs):
        return ConfigError(ONE_SITE.format(key, names))
    if part not in parts:
        setting = "model@target" if key == "target" else key
        return ConfigError(f"{setting}= is not read by {names} with these settings; it reads {', '.join(parts)}")
    if key in REPORT_TEXT:
        amounts = list(_amounts(jobs))
        remedy = f"{' and '.join(amounts)} say how much is compared" if amounts else "leave it out"
        return ConfigError(f"{key}= has no effect on {names}; {remedy}")
    return ConfigError(f"{key}= has no effect on {names} beside the other settings; leave it out")


def _amounts(jobs: Sequence[ReadingJob]) -> Iterator[str]:
    """Yield the settings of the measures of jobs that say how much is compared."""
    measures = [job.config.measure for job in jobs if isinstance(job.config, AnalyzeConfig)]
    yield from (f"measure.{name}" for name in AMOUNTS if any(hasattr(measure, name) for measure in measures))


def _names(jobs: Sequence[ReadingJob]) -> str:
    return ", ".join(dict.fromkeys(job.kind.kind for job in jobs))


def _check_listed_models(config: JobSettings) -> None:
    """Raise a ConfigError for a setting of an entry of models=[...] that none of the jobs reads."""
    if isinstance(config, TrainConfig) or config.models is None:
        return
    kind = instrument(measure_entry(config.measure.kind))
    # the one job of all models is made of comparisons of pairs
    measure = measure_schema("cka")() if kind.of_models == "all" else config.measure
    jobs = [ReadingJob.of(job) for job in asked_for(replace(config, measure=measure))]
    for entry in config.models:
        if not isinstance(entry, dict):
            continue
        model = _listed_model(entry, settings_of(config.model))
        for name in entry:
            if name == "model":
                continue
            value = getattr(model, name)
            readers = [job.reads(f"{part}.{name}", job.config) for job, part in _sides_of(model, jobs, name, value)]
            if readers and not any(readers):
                raise ConfigError(f"models: {name} of {model.called} has no effect on {kind.kind}; leave it out")


def _sides_of(
    model: ModelConfig, jobs: Sequence[ReadingJob], name: str, value: Any
) -> Iterator[tuple[ReadingJob, str]]:
    """Yield the jobs that a model of a list is in, with its part of their configurations, with this setting."""
    for job, part in itertools.product(jobs, ("model", "target")):
        side = getattr(job.config, part)
        if side.called == model.called and getattr(side, name) == value:
            yield job, part
