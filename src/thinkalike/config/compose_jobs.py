"""The configurations of jobs: what Hydra composes of overrides, checked, and decided where open.

What a command line leaves open is None in what is composed; `thinkalike.config.completing` decides
it for the parts that a job reads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from thinkalike.advice import at_command_line
from thinkalike.config.completing import completed_for_instrument
from thinkalike.config.compose import (
    COMPOSING_ERRORS,
    DictConfig,
    compose_words,
    environment_named_in,
    environment_of,
    explained,
    file_notes,
    hydra_ready,
    keys_of,
    plain_settings,
    read_overrides,
    references_in,
    resolved_settings,
    trust_plugins_of,
    values_of,
)
from thinkalike.config.composed import check_names, check_parts, job_of_settings, settle_models
from thinkalike.config.environment import check_environment, environment_in
from thinkalike.config.groups import with_changes
from thinkalike.config.jobs import AnalyzeConfig, JobConfig
from thinkalike.config.named_code import check_plugins, plugins_in
from thinkalike.config.overrides import check_has_value
from thinkalike.config.schema import Checked
from thinkalike.errors import ConfigError, short
from thinkalike.plugins import trust


@at_command_line()
def compose_trusted_job(entry_point: str, overrides: Iterable[str], **parts: Checked) -> JobConfig:
    """Return the configuration of a job, see `thinkalike.config.compose_job`.

    A person wrote the overrides, so the files of code that they name are run.
    """
    words = list(overrides)
    trust_plugins_of(words)
    settings = [vars(part) for part in parts.values() if dataclasses.is_dataclass(part)]
    trust(plugins_in(settings, values_of))
    return _decided(compose_open_job(entry_point, words, **parts))


@at_command_line()
def compose_inner_job(entry_point: str, overrides: Iterable[str], **parts: object) -> JobConfig:
    """Return the configuration of a job inside another one.

    The configuration of the outer job has some of these overrides, as measure.train, and it may be
    a stranger's file. So they run no code that a person did not name, and set nothing of Hydra's
    own, which would import modules.
    """
    words = list(overrides)
    for override in read_overrides(words):
        if not override.keys():
            raise ConfigError(
                f"{short(override.text)} is a setting of Hydra's, which a job inside another one "
                "does not take"
            )
    for name in environment_of(words):  # the outer job has replaced those that a person wrote
        raise ConfigError(
            f"a job inside another one reads no environment variable, such as {name}; "
            "give its value"
        )
    return _decided(compose_open_job(entry_point, words, **parts))


@at_command_line()
def compose_open_job(entry_point: str, overrides: Iterable[str], **parts: object) -> JobConfig:
    """Return the configuration of a job in which what is left open is not decided yet.

    See `thinkalike.config.compose_job` for the arguments.
    """
    words = list(overrides)
    with hydra_ready():
        composed, choices = compose_words(entry_point, words)
        return with_changes(checked(composed, words, choices), parts)


def _decided(config: JobConfig) -> JobConfig:
    """Return a configuration with everything decided, unless it stands for further jobs."""
    if isinstance(config, AnalyzeConfig) and (config.models is not None or config.experiment):
        return config
    return completed_for_instrument(config)


def checked(
    composed: DictConfig, overrides: Sequence[str], choices: Mapping[str, str | None]
) -> JobConfig:
    """Return what Hydra composed as a dataclass; what is left open stays None.

    Args:
        choices: By group the option that is chosen, or None.

    Raises:
        ConfigError: A value is not possible; the message names the file that has it, if one of the
            user does.
    """
    try:
        return _checked(composed, overrides, choices)
    except (ConfigError, *COMPOSING_ERRORS) as error:
        message = str(error)
        if not isinstance(error, ConfigError):
            message = explained(error)
        raise ConfigError(file_notes().with_file(message, keys_of(overrides), choices)) from error


def _checked(
    composed: DictConfig, overrides: Sequence[str], choices: Mapping[str, str | None]
) -> JobConfig:
    settings = plain_settings(composed)
    keys = keys_of(overrides)
    check_parts(settings, keys)
    settle_models(settings, keys, choices)
    # Texts that are put together from others may read what no file is seen to read.
    read = environment_in(settings, references_in)
    check_environment(read, environment_named_in(overrides), "the configuration")
    settings = resolved_settings(settings)
    check_plugins(settings, values_of)  # also of names that ${...} has put together
    check_names(settings, choices, keys, file_notes().of_jobs)
    config = job_of_settings(settings)
    for word in overrides:
        check_has_value(word)
    return config
