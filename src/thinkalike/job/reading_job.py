"""A job beside the settings that were given: which of them it reads."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass

from thinkalike.config import JobConfig, key_settings
from thinkalike.config.schema import default_of
from thinkalike.config.values import value_at
from thinkalike.errors import flat
from thinkalike.job.instrument import AnyInstrument
from thinkalike.job.lookup import instrument_of
from thinkalike.job.setting_groups import OF_EVERY_JOB


@dataclass(frozen=True)
class ReadingJob:
    """A job, and the settings that it reads.

    Attributes:
        instrument: The instrument that does the job.
        config: The configuration of the job.
        keys_read: The keys of the settings that the job reads, by `Instrument.settings_read`.
    """

    instrument: AnyInstrument
    config: JobConfig
    keys_read: frozenset[str]

    @classmethod
    def of(cls, config: JobConfig, instrument: AnyInstrument | None = None) -> ReadingJob:
        """Return the job that a configuration describes, with the settings that it reads.

        Args:
            config: The configuration.
            instrument: What does the job; None: the instrument that the configuration names.
        """
        if instrument is None:
            instrument = instrument_of(config)
        return cls(instrument, config, instrument.settings_read(config))

    def reads(self, key: str, requested: JobConfig) -> bool:
        """Return whether a setting of a requested configuration has an effect on the job.

        It has none if the job ignores the setting, or if the job, as part of an experiment, has
        another value of its own. In the parts of the configuration that the job reads, two values
        of an ignored setting are accepted as well, since they ask for nothing: null, which leaves
        the setting to the recipe, and the default, if the job has it in its key.

        Args:
            key: The key of a setting, such as "data.context", or of a part, such as "data".
            requested: The configuration that the user asked for.
        """
        key = key_of_setting(key)
        part_name, _, name = key.partition(".")
        if key in self.keys_read:
            return self._has_requested_value(key, requested)
        if part_name not in self.instrument.reads:
            return False
        is_left_to_recipe = bool(name) and value_at(requested, key) is None
        return is_left_to_recipe or self._has_requested_default(key, requested)

    def _has_requested_value(self, key: str, requested: JobConfig) -> bool:
        """Return whether a setting of the job has the value that the request asks for.

        A request for None or "auto" leaves the value open, so that any value is the requested one.
        A part of the configuration, such as "data", is not compared as a whole, because each of
        its settings is: True is returned.

        Args:
            key: The key of a setting, such as "data.context", or of a part, such as "data".
            requested: The configuration that the user asked for.
        """
        value = value_at(requested, key)
        if value is None or value == "auto":
            return True
        value_in_job = value_at(self.config, key)
        is_part = is_dataclass(value_in_job)
        return is_part or bool(value_in_job == value)

    def _has_requested_default(self, key: str, requested: JobConfig) -> bool:
        """Return whether the request asks for the default of a setting that the job ignores.

        The default must also be the value that enters the job's key, the hash of its settings, in
        place of the ignored setting.
        """
        unread = self.instrument.unread(self.config)
        if key not in unread or unread[key] != value_at(requested, key):
            return False
        return _is_default(key, requested)

    def values(self) -> dict[str, object]:
        """Return the settings that the job reads and that are not the default, by key."""
        settings = flat(key_settings(self.instrument.as_read(self.config)))
        return {
            key: value for key, value in settings.items() if key_of_setting(key) in self.keys_read
        }

    def parts(self) -> list[str]:
        """Return the parts of the configuration that the job reads, such as "model" and "data".

        First come those that its instrument declares, and then those that only jobs inside it
        read. What every job has, such as "store", is left out.
        """
        names = {key.partition(".")[0] for key in self.keys_read - OF_EVERY_JOB}
        # Every job has a logger, and `activations` is a single setting and no part.
        names -= {"logger", "activations"}
        in_order = [item.name for item in fields(self.config) if item.name in names]
        return list(dict.fromkeys([*self.instrument.reads, *in_order]))


def _is_default(key: str, config: JobConfig) -> bool:
    """Return whether a configuration has the default value of a setting or of a whole part.

    Args:
        key: The key of a setting, such as "data.context", or of a part, such as "data".
        config: The configuration.
    """
    part_name, _, name = key.partition(".")
    if name:
        schema = getattr(config, part_name)
    else:
        schema = config
        name = part_name
    (item,) = (item for item in fields(schema) if item.name == name)
    return bool(getattr(schema, item.name) == default_of(item))


def key_of_setting(key: str) -> str:
    """Return the first two names of a key, which are the key of the setting that it belongs to.

    For example, model.architecture.n_layers belongs to model.architecture, whose value is a
    dictionary.
    """
    return ".".join(key.split(".")[:2])
