"""From composed plain settings to the configuration dataclass of a job, with all that is checked.

What a command line leaves open is None here; `thinkalike.config.completing` decides it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import get_type_hints

from thinkalike.catalogue import MEASURES, TASKS, instrument, measure_entry
from thinkalike.config.groups import (
    GROUPS,
    Settings,
    config_schema_of,
    given_settings,
    measure_schema,
    options,
    schema_of_group,
    unset_settings,
)
from thinkalike.config.jobs import AnalyzeConfig, JobConfig
from thinkalike.config.parts import MeasureConfig, ModelConfig
from thinkalike.config.schema import Checked, extended, made, unknown
from thinkalike.config.two_models import settings_of_models
from thinkalike.config.written import KeyPath
from thinkalike.errors import ConfigError, nearest, one_of, short

# settings that stand for other jobs, or for recordings in the place of models
STAND_INS = ("experiment", "models", "activations")


def check_parts(settings: Settings, keys: Collection[str]) -> None:
    """Check that all parts are settings, by names that are texts.

    Args:
        settings: Composed of files and overrides.
        keys: Of the overrides.
    """
    for part in {*GROUPS, "target"} & {*settings}:
        value = settings[part]
        if not isinstance(value, dict):
            reason = f"{part}={short(value)} must be settings, by their names"
            if value is None and part not in keys:
                # A result leaves out what its job did not read, so its config.yaml is no
                # configuration to run.
                reason += (
                    "; to repeat a result, run the command in its result.json and not its "
                    "config.yaml"
                )
            raise ConfigError(reason)
        for name in value:
            if not isinstance(name, str):  # a number in a file
                raise ConfigError(unknown(f"{part}.{name}", [f"{part}.{key}" for key in value]))


def settle_models(
    settings: Settings, keys: Collection[str], choices: Mapping[str, str | None]
) -> None:
    """Put the models that a command line means in the place of `model` and `target`.

    Args:
        settings: Composed of files and overrides; a stitch that the job does not read is removed.
        keys: Of the overrides.
        choices: By group the option that is chosen, or None.
    """
    reads = parts_of_instrument(instrument_of_settings(settings))
    if "task" in settings and "stitch" not in reads:  # the part of the default task
        settings.pop("stitch", None)
    if any(settings.get(name) for name in STAND_INS):
        reads = ()
    model = settings["model"]
    target = settings["target"]
    assert isinstance(model, dict)
    assert isinstance(target, dict)
    chosen = {group for group, name in choices.items() if name}
    settings["model"], settings["target"] = settings_of_models(model, target, keys, chosen, reads)


def instrument_of_settings(settings: Mapping[str, object]) -> object | None:
    """Return the `Instrument` of composed settings; None: they name no task and no measure."""
    if "task" in settings:
        task = str(settings["task"])
        one_of("task", task, TASKS)
        return instrument(TASKS[task])
    kind = kind_of_measure(settings)
    if kind is None:
        return None
    return instrument(measure_entry(kind))


def kind_of_measure(settings: Mapping[str, object]) -> str | None:
    """Return the kind of the measure of composed settings, if they have one."""
    measure = settings.get("measure")
    kind = measure.get("kind") if isinstance(measure, Mapping) else None
    if kind is not None and not isinstance(kind, str):
        raise ConfigError(
            f"measure.kind={short(kind)} must be the name of a measure; {nearest('', MEASURES)}"
        )
    return kind or None


def parts_of_instrument(chosen: object | None) -> tuple[str, ...]:
    """Return the parts of the configuration that an `Instrument` reads; () without one."""
    reads: tuple[str, ...] = getattr(chosen, "reads", ())
    return reads


def job_of_settings(settings: Settings) -> JobConfig:
    """Return the configuration of a job of settings whose ${...} are replaced."""
    chosen = instrument_of_settings(settings)
    schema = AnalyzeConfig if chosen is None else config_schema_of(chosen)
    kind = kind_of_measure(settings)
    if kind is not None:
        measure = settings["measure"]
        assert isinstance(measure, dict)
        settings["measure"] = made(measure_schema(kind), measure, "measure.")
    for part in ("model", "target", "data"):
        given = settings[part]
        assert isinstance(given, dict)
        if given["name"] is None:  # what is not given has its default, or stays open
            of_part = schema_of_group("data" if part == "data" else "model")
            settings[part] = unset_settings(of_part) | given_settings(given)
    return made(schema, settings)


def check_names(
    settings: Mapping[str, object],
    choices: Mapping[str, str | None],
    keys: Collection[str],
    keys_of_files: Collection[str],
) -> None:
    """Check that no part gets a name that belongs to the settings of another option.

    Nor may a default get one that nobody chose.

    Args:
        choices: By group the option that is chosen, or None.
        keys: Of the overrides.
        keys_of_files: Of the settings of jobs in files of the user.
    """
    chosen = instrument_of_settings(settings)
    schema: type[JobConfig] = AnalyzeConfig if chosen is None else config_schema_of(chosen)
    for part, hint in get_type_hints(schema).items():
        is_named = f"{part}.name" in keys or f"{part}.name" in keys_of_files
        of_part = settings.get(part)
        if is_named and isinstance(of_part, Mapping):
            _check_name(part, hint, of_part, choices, is_in_file=f"{part}.name" not in keys)


def _check_name(
    part: str,
    schema: type[Checked],
    settings: Mapping[str, object],
    choices: Mapping[str, str | None],
    is_in_file: bool,
) -> None:
    """Check the name of a part whose schema says in `elsewhere` where the named thing is."""
    places = getattr(schema, "elsewhere", ())
    group = "model@target" if part == "target" else part
    name = settings["name"]
    choice = choices.get(group)
    has_place = any(settings.get(place) for place in places)
    if not places or name in (None, "???", choice) or has_place:
        return

    offered = options(group.partition("@")[0])
    is_choice_of_user = choice is not None and choice not in offered  # such as a folder
    if name in offered and not is_choice_of_user:
        in_file = ""
        if is_in_file:
            in_file = f", or in a file override {group}: {name} in its defaults"
        raise ConfigError(
            f"{part}.name={name} names an option of {group} without choosing it; "
            f"give {group}={name}{in_file}"
        )
    if choice is None and part != "target":  # the target is the model itself, by another name
        raise ConfigError(
            f"{part}.name={short(name)} names what nobody chose; give {group}=NAME, too"
        )


def schema_of_key_path(
    key_path: KeyPath, settings: Mapping[str, object]
) -> tuple[type[Checked], KeyPath] | None:
    """Return the schema of the part that has a setting, and the place of the setting in it."""
    part = key_path[0]
    rest = key_path[1:]
    if part == "models" and len(rest) == 2:  # models=[{model: NAME, SETTING: value}]
        name = "name" if rest[1] == "model" else rest[1]
        return extended(ModelConfig), (name,)
    if part == "measure":
        kind = kind_of_measure(settings)
        return (MeasureConfig if kind is None else measure_schema(kind)), rest
    if part == "target":
        return extended(ModelConfig), rest
    if part in GROUPS:
        return schema_of_group(part), rest
    chosen = instrument_of_settings(settings)
    return (AnalyzeConfig if chosen is None else config_schema_of(chosen)), key_path
