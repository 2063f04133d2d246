"""The settings of a command line or a file that no job reads.

`Instrument.settings_read` says which settings a job reads. If a command line sets one that no job
reads, it is refused here; if a file does so, a warning is logged.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from thinkalike.advice import named_setting
from thinkalike.config import (
    AnalyzeConfig,
    JobConfig,
    ModelConfig,
    key_settings,
    settings_of,
)
from thinkalike.errors import ConfigError, flat, listed
from thinkalike.job.instrument import AnyInstrument
from thinkalike.job.listed_jobs import asked_for, jobs_of_model_pairs, listed_model
from thinkalike.job.lookup import instrument_of, instrument_of_measure
from thinkalike.job.reading_job import ReadingJob
from thinkalike.job.setting_groups import OF_EVERY_JOB, OF_SITES, REPORT_TEXT

log = logging.getLogger(__name__)

# Two settings that decide the values of other settings that the user left open, with the two
# values that each can have.
RECIPES = {"scale": ("mini", "paper"), "recipe": ("default", "paper")}

# Settings that choose the text if `data` names none.
CORPORA = ("model.corpus", "target.corpus")

# Settings of a measure that say how much is compared.
AMOUNTS = ("batches", "tokens_per_batch", "tokens", "words")


def reads_one_site(key: str, kinds: str) -> ConfigError:
    """Return the error for a setting that chooses where in a model its states are read.

    It is for jobs that can read only one place (site): the residual stream after each block.

    Args:
        key: The key of the setting, such as "model.site".
        kinds: The kinds of the jobs, such as "loss".
    """
    return ConfigError(
        f"{named_setting(key, like='')}: {kinds} reads the stream after each block, resid_post, "
        f"alone; {named_setting('measure', 'cka')} or mlem read other sites"
    )


def refuse_unread_settings(keys: Sequence[str], config: JobConfig) -> None:
    """Refuse a command line with a setting that none of the requested jobs reads.

    This covers the settings of each entry in the list models=[...], if there is one. Settings of
    the models of an experiment are not checked here, because the experiment checks them.

    Args:
        keys: The keys of the settings on the command line, such as "data.context".
        config: The configuration with these settings.

    Raises:
        ConfigError: No job reads a setting.
    """
    _check_listed_models(config)
    request = _Request.of(config)
    unread = request.unread(keys)
    if unread:
        raise _refusal(unread[0], request.jobs)


def warn_of_unread(keys_of_files: Mapping[str, Collection[str]], config: JobConfig) -> None:
    """Log a warning for settings of configuration files that no requested job reads.

    There is no error, because several kinds of jobs may share a file. Settings with their default
    value are not reported.

    Args:
        keys_of_files: The keys that each file sets, by the name of the file.
        config: The configuration with the settings of all files.
    """
    settings_in_key = flat(key_settings(config))  # without settings that have their default value
    for file, keys in keys_of_files.items():
        request = _Request.of(config)
        unread = request.unread([key for key in sorted(keys) if key in settings_in_key])
        if unread:
            log.warning(
                "warning: %s sets %s, which %s does not read",
                file,
                listed(unread),
                _kinds_in_words(request.jobs),
            )


@dataclass(frozen=True)
class _Request:
    """A configuration, and the jobs that it stands for.

    Attributes:
        config: The configuration that the user asked for.
        jobs: The jobs, with the settings that each reads.
        is_experiment: Whether it names an experiment, which checks the settings of its models
            itself.
    """

    config: JobConfig
    jobs: Sequence[ReadingJob]
    is_experiment: bool

    @classmethod
    def of(cls, config: JobConfig) -> _Request:
        """Return the request that a configuration makes, with the jobs that it stands for.

        If the configuration names an experiment, these are the jobs inside the experiment, or the
        experiment itself if it does not list them.
        """
        # Beside a list models=[...], an experiment is ignored here: `asked_for` raises an error if
        # the two do not go together.
        is_experiment = (
            isinstance(config, AnalyzeConfig)
            and config.experiment is not None
            and config.models is None
        )
        if not is_experiment:
            jobs = [ReadingJob.of(job) for job in asked_for(config)]
            return cls(config, jobs, is_experiment=False)

        experiment = instrument_of(config)
        jobs = [ReadingJob.of(job) for _, job in experiment.labelled_jobs(config)]
        if not jobs:
            jobs = [ReadingJob.of(config, experiment)]
        return cls(config, jobs, is_experiment=True)

    def unread(self, keys: Iterable[str]) -> list[str]:
        """Return those of the keys that none of the jobs reads, in their order.

        Keys that every job has, such as "store", count as read, and so do the settings of the
        models of an experiment, which checks them itself.
        """
        unread = []
        for key in keys:
            is_of_model = key.partition(".")[0] in ("model", "target")
            if key in OF_EVERY_JOB or (self.is_experiment and is_of_model):
                continue
            if not self._is_read(key):
                unread.append(key)
        return unread

    def _is_read(self, key: str) -> bool:
        """Return whether the configuration's value for a key has an effect on one of the jobs."""
        if key in RECIPES:  # `scale` and `recipe` act through the other settings that they decide
            return _recipe_has_effect(key, self.config)
        # The corpus of a model is only the text that is read if data.name is not set.
        if key in CORPORA and self.config.data.name is not None:
            return False
        # Settings of the logger apply to the job that was requested. The jobs inside an experiment
        # are not asked, since they run without a logger.
        if key.startswith("logger."):
            return key.removeprefix("logger.") in self.config.logger.settings_read()
        return any(job.reads(key, self.config) for job in self.jobs)


def _recipe_has_effect(key: str, config: JobConfig) -> bool:
    """Return whether the requested jobs differ between the two values of `scale` or `recipe`.

    These two settings decide other settings that were left open. The answer is True as well in
    three cases: for every experiment; for the value that would be chosen without the setting,
    since stating it is no error; and if only one of the two values goes with the other settings.
    """
    if isinstance(config, AnalyzeConfig) and config.experiment is not None:
        return True
    if key == "recipe":
        is_chosen_anyway = config.recipe == "default"
    else:
        # Without the setting, the models decide whether the scale is "mini".
        is_chosen_anyway = replace(config, scale="auto").is_mini == config.is_mini
    if is_chosen_anyway:
        return True

    settings_by_value = []
    for value in RECIPES[key]:
        try:
            jobs = asked_for(_with_recipe(config, key, value))
        except ConfigError:  # this value does not go with the other settings
            return True
        settings_by_value.append([ReadingJob.of(job).values() for job in jobs])
    first, second = settings_by_value
    return first != second


def _with_recipe(config: JobConfig, key: str, value: str) -> JobConfig:
    """Return a copy of a configuration with this value of `key`, which is "scale" or "recipe"."""
    changes = {key: value}
    return replace(config, **changes)  # type: ignore[arg-type]


def _refusal(key: str, jobs: Sequence[ReadingJob]) -> ConfigError:
    """Return the error for a setting of a command line that no job reads, with its remedy."""
    kinds = _kinds_in_words(jobs)
    part_name = key.partition(".")[0]
    parts_read: dict[str, None] = {}
    for job in jobs:
        parts_read |= dict.fromkeys(job.parts())

    if key in OF_SITES and not any(job.instrument.takes_sites for job in jobs):
        return reads_one_site(key, kinds)
    if part_name not in parts_read:
        setting = "model@target" if key == "target" else key  # as one writes it to choose a target
        return ConfigError(
            f"{named_setting(setting, like='')} is not read by {kinds} with these settings; "
            f"it reads {', '.join(parts_read)}"
        )
    if key in REPORT_TEXT:  # the amount of text, which some measures decide by other settings
        amounts = _settings_of_amount(jobs)
        remedy = "leave it out"
        if amounts:
            remedy = f"{' and '.join(amounts)} say how much is compared"
        return ConfigError(f"{named_setting(key, like='')} has no effect on {kinds}; {remedy}")
    return ConfigError(
        f"{named_setting(key, like='')} has no effect on {kinds} beside the other settings; "
        "leave it out"
    )


def _settings_of_amount(jobs: Sequence[ReadingJob]) -> list[str]:
    """Return those settings of the jobs' measures that say how much is compared.

    They are returned as a user writes them, such as "measure.tokens". A setting is returned if at
    least one of the measures has it.
    """
    measures = [job.config.measure for job in jobs if isinstance(job.config, AnalyzeConfig)]
    amounts = []
    for name in AMOUNTS:
        if any(hasattr(measure, name) for measure in measures):
            amounts.append(named_setting(f"measure.{name}"))
    return amounts


def _kinds_in_words(jobs: Sequence[ReadingJob]) -> str:
    """Return the distinct kinds of jobs as a text, such as "cka, rsa"."""
    return ", ".join(dict.fromkeys(job.instrument.kind for job in jobs))


def _check_listed_models(config: JobConfig) -> None:
    """Raise a ConfigError for a setting of a listed model that no job reads.

    The list models=[...] has entries such as {model: NAME, dtype: float32}. Each job compares some
    of the models, and must read the further settings of their entries.
    """
    if not isinstance(config, AnalyzeConfig) or config.models is None:
        return
    instrument = instrument_of_measure(config.measure.kind)
    jobs = _jobs_of_listed_models(config, instrument)
    for entry in config.models:
        if not isinstance(entry, dict):  # the name of a model, without settings
            continue
        model = listed_model(entry, settings_of(config.model))
        for name in [key for key in entry if key != "model"]:
            is_read_by_job = []
            for job, side in _jobs_that_compare(model, name, jobs):
                is_read_by_job.append(job.reads(f"{side}.{name}", job.config))
            if is_read_by_job and not any(is_read_by_job):
                raise ConfigError(
                    f"models: {name} of {model.called} has no effect on {instrument.kind}; "
                    "leave it out"
                )


def _jobs_of_listed_models(config: AnalyzeConfig, instrument: AnyInstrument) -> list[ReadingJob]:
    """Return the jobs that the list models=[...] stands for, such as one for each pair of models.

    Some measures compare all models in a single job, whose configuration has no source and target
    that settings could be looked up in. It is treated as one job for each pair of the models.
    """
    if instrument.of_models != "all":
        return [ReadingJob.of(job) for job in asked_for(config)]
    jobs = []
    for pair in jobs_of_model_pairs(config):
        jobs.append(ReadingJob.of(replace(pair, measure=config.measure), instrument))
    return jobs


def _jobs_that_compare(
    model: ModelConfig, setting_name: str, jobs: Sequence[ReadingJob]
) -> Iterator[tuple[ReadingJob, str]]:
    """Yield each job that compares an entry of `models=[...]`, with the side of the entry.

    The side is "model" (the source) or "target". A job in which the model stands on both sides is
    yielded twice.

    Args:
        model: The entry. The same model may have several entries with different values of a
            setting, each of which is compared by jobs of its own.
        setting_name: The setting of models by which these jobs are told apart.
        jobs: The jobs.
    """
    value = getattr(model, setting_name)
    for job, side in itertools.product(jobs, ("model", "target")):
        compared = getattr(job.config, side)
        is_same_model = compared.called == model.called
        if is_same_model and getattr(compared, setting_name) == value:
            yield job, side
