"""From a job object to the configuration of the frame of jobs, as a command line gives it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from thinkalike import plugins
from thinkalike.advice import named_setting
from thinkalike.budget import within
from thinkalike.config import AnalyzeConfig, DataConfig, JobConfig, StimuliConfig
from thinkalike.config.completing import open_job
from thinkalike.config.groups import Settings, unset_settings
from thinkalike.config.recorded import RecordedArrays
from thinkalike.config.schema import Checked, fields_of, made
from thinkalike.errors import ConfigError
from thinkalike.inputs import (
    Model,
    StimulusTable,
    is_model,
    model_configs,
    stimuli_config,
    text_config,
)
from thinkalike.instruments import refuse_unread_settings
from thinkalike.job.instrument import AnyInstrument
from thinkalike.job.lookup import measures_of_arrays
from thinkalike.jobs.base import Job
from thinkalike.jobs.kinds import Compare, Stitch
from thinkalike.state_arguments import GivenStates, numbered_rows, states_given
from thinkalike.training.recipe import StitchConfig, StitchJob

# The fields of a job that are settings of its models.
OF_MODELS = ("site", "head")

# The settings of measures that choose among the words of stimuli.
OF_WORDS = ("measure.skip_first",)

# The parts of a configuration that have settings of a job.
PARTS = ("stitch", "measure", "data", "stimuli", "model")

# The settings of each part; "" has those of the job itself.
SettingsByPart = dict[str, Settings]

Recording = str | RecordedArrays


def configuration(job: Job, instrument: AnyInstrument) -> JobConfig:
    """Return the configuration of a job, in which everything is left open that it does not say.

    Args:
        job: The job.
        instrument: Its instrument.

    Raises:
        ConfigError: The job does not take what it was given, or a setting has no effect.
    """
    _check_takes_states(job, instrument)
    sides = _Sides.of(job)
    settings = _by_part(job, instrument)
    _check_sides(job, sides, settings)
    stimuli = job.stimuli_given
    if sides.recordings and stimuli is None:
        stimuli = _stimuli_of_rows(job, sides, settings)

    values: dict[str, object] = {
        "data": text_config(job.texts_given, settings["data"]),
        "store": None if job.store is None else os.fspath(job.store),
        "force": job.force,
        **settings[""],
    }
    schema: type[JobConfig]
    if isinstance(job, Stitch):
        schema = StitchJob
        stitch_settings = unset_settings(StitchConfig) | settings["stitch"]
        values["stitch"] = made(StitchConfig, stitch_settings, "stitch.")
    else:
        schema = instrument.config
        measure_settings = unset_settings(instrument.settings) | settings["measure"]
        values["measure"] = made(instrument.settings, measure_settings, "measure.")
        values["stimuli"] = stimuli_config(stimuli, settings["stimuli"])
    if sides.recordings:
        values["activations"] = sides.recordings
    models = model_configs(sides.models, settings["model"])
    is_target = sides.is_target(len(models))
    if models and not is_target:
        values["model"] = models[0]
    if models:
        values["target"] = models[-1]
    config = open_job(schema, **values)

    keys = _keys_given(job, stimuli, sides, settings, is_target)
    refuse_unread_settings(keys, config)
    return within(config, keys)


@dataclass(frozen=True)
class _Sides:
    """What a job compares.

    Attributes:
        models: The models by the names of their arguments.
        states: Those that are states, each once.
        begins_with_model: Whether the first of the arguments is a model.
    """

    models: Mapping[str, Model]
    states: Sequence[GivenStates]
    begins_with_model: bool

    @classmethod
    def of(cls, job: Job) -> _Sides:
        """Return the models and the recordings that a job compares.

        A side that is given twice is recorded once.
        """
        models: dict[str, Model] = {}
        # By their identity or their path, with the first of their names.
        states: dict[int | str, tuple[str, object]] = {}
        sides = job.sides()
        for name, side in sides.items():
            if is_model(side):
                models[name] = side
            else:
                identity: int | str = id(side)
                if isinstance(side, str | os.PathLike):
                    identity = os.path.realpath(os.fspath(side))
                states.setdefault(identity, (name, side))
        has_stimuli = job.stimuli_given is not None
        in_order = []
        for number, (name, side) in enumerate(states.values(), 1):
            in_order.append(states_given(side, name, number, has_stimuli))
        return cls(models, in_order, next(iter(sides)) in models)

    @property
    def recordings(self) -> list[Recording]:
        """The states as configurations have them."""
        return [states.recording for states in self.states]

    def is_target(self, different_models: int) -> bool:
        """Return whether the model beside recordings is the target.

        It is, unless it comes before the only recording. Two different models beside recordings
        are model and target.

        Args:
            different_models: How many different models there are.
        """
        if not self.recordings or different_models > 1:
            return False
        return not (len(self.recordings) == 1 and self.begins_with_model)


def _check_takes_states(job: Job, instrument: AnyInstrument) -> None:
    """Raise a ConfigError for states where models are needed, before any file is read."""
    has_states = not all(map(is_model, job.sides().values()))
    if has_states and not instrument.takes_activations:
        raise ConfigError(
            f"{job.does} runs models, which arrays of states cannot replace; arrays go with "
            f"{', '.join(measures_of_arrays())}"
        )


def _check_sides(job: Job, sides: _Sides, settings: SettingsByPart) -> None:
    """Raise a ConfigError for sides that the job does not take, or settings that they lack."""
    count = len(sides.models)
    if count > 2:
        raise ConfigError(
            f"{job.does} compares two models at most, and not {count}: call it for each pair"
        )
    if sides.models:
        return
    without_effect = [*settings["model"]]
    # `refuse_unread_settings` accepts a scale that is the default anyway.
    if "scale" in settings[""]:
        without_effect.append("scale")
    if without_effect:
        raise ConfigError(
            f"{without_effect[0]}= has no effect on arrays, which no model computes; leave it out"
        )


def _keys_given(
    job: Job,
    stimuli: object,
    sides: _Sides,
    settings: SettingsByPart,
    is_target: bool,
) -> list[str]:
    """Return the keys of the settings that a job sets, as a command line would name them."""
    keys = []
    if job.texts_given is not None:
        keys.append("data")
    if stimuli is not None:
        keys.append("stimuli")
    different = {id(model) for model in sides.models.values()}
    if len(different) > 1:
        keys.append("target")
    for part_name, values in settings.items():
        prefix = part_name
        if part_name == "model" and is_target:
            prefix = "target"
        keys += [f"{prefix}.{name}".lstrip(".") for name in values]
    return keys


def check_measure(job: Job, instrument: AnyInstrument) -> None:
    """Raise a ConfigError unless a comparison has a measure of two sides, that may be stored."""
    if not isinstance(job, Compare):
        return
    if not isinstance(job.measure, str) and job.store is not None:
        raise ConfigError(
            "measure is a function in memory, which has no key: with store= give FILE.py:NAME"
        )
    if "model" not in instrument.reads:
        raise ConfigError(
            f"measure={job.does} is of more than two models: "
            f"use python analyze.py measure={job.does}"
        )


def trust_plugins_of_job(job: Job) -> None:
    """Let the files of code be run that a job names, because a person wrote the job."""
    values = list(job.settings().values())
    if isinstance(job, Compare):
        values.append(job.measure)
    plugins.trust(plugins.named_in(values))


def _by_part(job: Job, instrument: AnyInstrument) -> SettingsByPart:
    """Return the settings of a job that differ from their defaults, by part."""
    by_part: SettingsByPart = {part_name: {} for part_name in ("", *PARTS)}
    for field, value in job.settings().items():
        part_name, _, name = setting_of(field, job.does, instrument).rpartition(".")
        by_part[part_name][name] = value
    return by_part


def setting_of(field: str, does: str, instrument: AnyInstrument) -> str:
    """Return the setting that a field of a job is, such as stitch.steps.

    Args:
        field: The field.
        does: The task or the measure that does the job.
        instrument: Its instrument.

    Raises:
        ConfigError: The job has no such setting.
    """
    if field in OF_MODELS:
        return f"model.{field}"
    schemas: dict[str, type[Checked]] = {}
    if does == "stitch":
        schemas["stitch"] = StitchConfig
    else:
        schemas["measure"] = instrument.settings
    schemas |= {"data": DataConfig, "stimuli": StimuliConfig}
    for part_name, schema in schemas.items():
        if field in _names_of(schema) - {"seed"}:  # the seed is that of the job
            return f"{part_name}.{field}"
    if field not in _names_of(StitchJob if does == "stitch" else AnalyzeConfig):
        raise ConfigError(f"{field} is no setting of {does}; leave it out")
    return field


def _names_of(schema: type[Checked]) -> set[str]:
    """Return the names of the settings of a schema."""
    return {item.name for item in fields_of(schema)}


def _stimuli_of_rows(job: Job, sides: _Sides, settings: SettingsByPart) -> StimulusTable:
    """Return stimuli that stand for the rows of arrays that were given without any.

    Raises:
        ConfigError: A setting would choose among stimuli, or the job needs the stimuli themselves.
    """
    for part_name, values in settings.items():
        for name in values:
            setting = f"{part_name}.{name}"
            if part_name == "stimuli" or setting in OF_WORDS:
                raise ConfigError(
                    f"{named_setting(setting)} has no effect on arrays without stimuli; leave it "
                    "out"
                )
    if job.does == "mlem" or sides.models:
        raise ConfigError("stimuli is missing: a table that has a row for each row of the states")
    return numbered_rows(sides.states)
