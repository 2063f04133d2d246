"""The options of a configuration group, such as `model=gpt2`, without Hydra.

    part_named("model", "gpt2", {"dtype": "bfloat16"})     # model=gpt2 model.dtype=bfloat16

An option is a file of `conf/` or of an installed package, `conf/GROUP/NAME.yaml`; or a schema; or,
for models and data, a folder or a repository of the hub. A command line may name further folders
of options: then the reader of `thinkalike.config.compose` answers, see `reading_options`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Literal, Protocol, get_type_hints, overload, runtime_checkable

import yaml

from thinkalike.advice import named_setting
from thinkalike.catalogue import (
    CONF_FOLDERS,
    MEASURES,
    TASKS,
    conf_folders,
    instrument,
    measure_entry,
)
from thinkalike.config import parts
from thinkalike.config.jobs import AnalyzeConfig, JobConfig, TrainConfig
from thinkalike.config.parts import (
    DataConfig,
    MeasureConfig,
    ModelConfig,
    StimuliConfig,
    model_settings,
)
from thinkalike.config.schema import (
    Checked,
    Schema,
    SettingValues,
    extended,
    fields_of,
    initial_of,
    made,
    once_for_each_schema,
)
from thinkalike.errors import ConfigError, nearest, short
from thinkalike.files import YAML_LOADER, is_folder
from thinkalike.plugins import is_plugin

Settings = dict[str, object]


def _schemas_of_parts() -> dict[str, type[Checked]]:
    """Return the schema of each group, which is the part of a configuration of that name."""
    schemas = {}
    for value in vars(parts).values():
        if isinstance(value, type) and issubclass(value, Checked) and value.part:
            schemas[value.part] = value
    return schemas


_IN_CHECKOUT = Path(__file__).resolve().parents[3] / "conf"
_IN_WHEEL = Path(__file__).resolve().parents[1] / "conf"
CONF = _IN_CHECKOUT if _IN_CHECKOUT.is_dir() else _IN_WHEEL
GROUPS = _schemas_of_parts()
# groups whose options are no files
LISTS = {"task": [*TASKS], "measure": [*MEASURES]}
# packages/train is what installed packages add to the command lines of train.py
PACKAGES = "packages"
# what else a group may be
HINTS = {"model": "; or a folder, or ORG/NAME of the hub", "data": "; or ORG/NAME of the hub"}
# in a text of an option: the value of another setting beside it
REFERENCE = re.compile(r"\$\{\.(\w+)\}")
# an item of a list of defaults
DEFAULT = re.compile(r"(?:/(?P<group>[\w-]+)/)?(?P<name>[\w.-]+)(?:@_here_)?")
# an item whose group may lack the option
OPTIONAL_DEFAULT = re.compile(r"optional /(?P<group>[\w-]+)@_here_")
# such as 3e-3, which YAML 1.1 takes for a text and Hydra for a number
POWER_OF_TEN = re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+")


class OptionLoader(YAML_LOADER):  # type: ignore[misc]
    """Reads files of options with the numbers that Hydra knows."""


OptionLoader.add_implicit_resolver("tag:yaml.org,2002:float", POWER_OF_TEN, [*"-+0123456789"])


# ---- who knows the options


@runtime_checkable
class OptionReader(Protocol):
    """Knows the options of groups."""

    def names(self, group: str) -> list[str]:
        """Return the names of the options that are files or measures, sorted."""
        ...

    def settings(self, group: str, name: str, overrides: SettingValues) -> Settings:
        """Return the settings of an option.

        Only texts of the option itself may refer to other settings.

        Args:
            overrides: Plain values that replace those of the option.

        Raises:
            ConfigError: There is no such option; the message names the nearest one.
        """
        ...


class PackagedOptions:
    """The options in the YAML files of this package and of installed packages that extend it."""

    def names(self, group: str) -> list[str]:
        return [*_packaged_names(group)]

    def settings(self, group: str, name: str, overrides: SettingValues) -> Settings:
        settings = {**_packaged_settings(group, name), **overrides}

        def value_of(reference: re.Match[str]) -> str:
            return str(settings[reference[1]])

        for key, value in settings.items():
            if key not in overrides and isinstance(value, str):
                settings[key] = REFERENCE.sub(value_of, value)
        return settings


_reader: ContextVar[OptionReader] = ContextVar("reader of options", default=PackagedOptions())  # noqa: B039


@contextlib.contextmanager
def reading_options(reader: OptionReader) -> Iterator[None]:
    """Let a reader answer for the options of all groups while this is open."""
    token = _reader.set(reader)
    try:
        yield
    finally:
        _reader.reset(token)


def options(group: str) -> list[str]:
    """Return the names that a configuration group offers: `options("model")`."""
    return _reader.get().names(group)


def option(group: str, name: str) -> Settings:
    """Return the settings of an option of a group; a model may be a folder or a repository."""
    return _reader.get().settings(group, name, {})


# ---- files of options


@cache
def option_folders() -> tuple[Path, ...]:
    """Return the folders of groups of this package, and then of installed packages.

    Raises:
        PluginError: An installed package has a file of another one's name, which nobody would
            read.
    """
    first_folder: dict[Path, Path] = {}
    for name, folder in {"": CONF, **conf_folders()}.items():
        for file in folder.rglob("*.yaml"):
            first = first_folder.setdefault(file.relative_to(folder), folder)
            if first != folder:
                raise CONF_FOLDERS[name].refused(
                    f"has {file}, which is never read, as {first} has a file of that name, too"
                )
    return (CONF, *conf_folders().values())


@cache
def _packaged_names(group: str) -> tuple[str, ...]:
    names = set(LISTS["measure"] if group == "measure" else ())
    return tuple(sorted(names | names_of_files(option_folders(), group)))


def names_of_files(folders: Iterable[Path], group: str) -> set[str]:
    """Return the names of the options of a group that are files in folders of groups."""
    names: set[str] = set()
    for folder in folders:
        root = folder / group
        names.update(str(file.relative_to(root).with_suffix("")) for file in root.rglob("*.yaml"))
    return names


def _packaged_settings(group: str, name: str) -> Settings:
    """Return the settings of an option, whatever stands for it: a folder, a file or a schema."""
    node = folder_node(f"{group}/{name}")
    if node is None and group != "measure" and name in _packaged_names(group):
        node = _read_option(group, name)
    if node is None:
        node = schema_node(f"{group}/{name}")
    if node is None:
        hint = HINTS.get(group, "")
        raise ConfigError(
            f"{named_setting(group, short(name))} is not known; "
            f"{nearest(name, options(group))}{hint}"
        )
    if group == "measure":
        settings = node["measure"]
        assert isinstance(settings, dict)
        return dict(settings)
    return _with_defaults(group, node)


@cache
def _read_option(group: str, name: str) -> Settings:
    """Return what the file of an option says; an empty file leaves everything open."""
    for folder in option_folders():
        file = folder / group / f"{name}.yaml"
        if file.is_file():
            settings: Settings | None = yaml.load(file.read_bytes(), Loader=OptionLoader)
            return settings or {}
    raise ConfigError(f"{group}={short(name)} has no file")


def _with_defaults(group: str, node: Settings) -> Settings:
    """Return the settings of an option, merged with those of its list of defaults, in order."""
    stated = {name: value for name, value in node.items() if name != "defaults"}
    defaults = node.get("defaults", ["_self_"])
    assert isinstance(defaults, list)
    settings: Settings = {}
    for item in defaults:
        if item == "_self_":
            settings = _merged(settings, stated)
        else:
            settings = _merged(settings, _settings_of_default(group, item))
    return settings


def _settings_of_default(group: str, item: object) -> Settings:
    """Return the settings of an item of a list of defaults of an option of a group.

    An item is a name, or {"optional /GROUP@_here_": NAME}, which has none if there is no such
    option.
    """
    if isinstance(item, Mapping):
        ((key, name),) = item.items()
        optional = OPTIONAL_DEFAULT.fullmatch(str(key))
        assert optional is not None, f"{group}: {key} is no optional default"
        if name not in _packaged_names(optional["group"]):
            return {}
        return _packaged_settings(optional["group"], str(name))
    default = DEFAULT.fullmatch(str(item))
    assert default is not None, f"{group}: {item} is no default"
    return _packaged_settings(default["group"] or group, default["name"])


def _merged(settings: SettingValues, later: SettingValues) -> Settings:
    """Return settings in which later ones replace the earlier, also inside dictionaries."""
    merged = {**settings}
    for name, value in later.items():
        earlier = merged.get(name)
        if isinstance(earlier, Mapping) and isinstance(value, Mapping):
            merged[name] = _merged(earlier, value)
        else:
            merged[name] = value
    return merged


# ---- options without a file


def folder_node(path: str) -> Settings | None:
    """Return what stands for the model in a folder, or in a GGUF file.

    Args:
        path: GROUP/NAME; None is returned unless it is model/PATH.
    """
    group, _, name = path.partition("/")
    if group != "model" or "://" in name:
        return None
    is_written_as_path = (
        name.startswith((".", "/", "~"))
        or name.count("/") > 1
        or name.endswith((".gguf", ".ckpt"))
    )
    is_existing_folder = "/" in name and is_folder(name)
    if not (is_written_as_path or is_existing_folder):
        return None
    return {"defaults": ["/model/local@_here_", "_self_"], "path": name}


def schema_node(path: str) -> Settings | None:
    """Return what stands for a path GROUP/NAME that is no file.

    That is a schema, a task, a measure, or ORG/NAME of the hub.
    """
    group, _, name = path.partition("/")
    if path in ("train_schema", "analyze_schema"):
        return _root_node(path)
    if group == PACKAGES:
        return _packages_node(name)
    if name == "schema" and group in GROUPS:
        return unset_settings(schema_of_group(group))
    if group == "task" and name in TASKS:
        config = config_schema_of(instrument(TASKS[name]))
        return {"task": name, **_added_parts(config, TrainConfig)}
    if group == "measure" and (name in MEASURES or is_plugin(name)):
        config = config_schema_of(instrument(measure_entry(name)))
        added = _added_parts(config, AnalyzeConfig)
        return {"measure": unset_settings(measure_schema(name)), **added}
    if group in ("model", "data") and is_repository_name(name):
        node: Settings = {"defaults": [f"/{group}/hub@_here_", "_self_"], "hub_id": name}
        if group == "data":
            node["name"] = name
        return node
    return None


def _root_node(path: str) -> Settings:
    """Return the settings of all jobs of a script, in which those of models and data are open."""
    schema: type[JobConfig] = AnalyzeConfig
    if path == "train_schema":
        schema = config_schema_of(instrument(TASKS["stitch"]))
    unset = dict(unset_settings(schema))
    for part in ("model", "target", "data"):  # they may not be named
        settings = unset[part]
        assert isinstance(settings, dict)
        unset[part] = dict.fromkeys(settings)
    return unset


def _packages_node(script: str) -> Settings:
    """Return the defaults that installed packages add to the command lines of a script."""
    defaults = []
    for package, folder in conf_folders().items():
        name = f"{package}_{script}"
        if (folder / f"{name}.yaml").is_file():
            defaults.append(f"/{name}")
    return {"defaults": defaults}


def is_repository_name(name: str) -> bool:
    """Return whether a name can be ORG/NAME of the hub."""
    is_odd = "/" not in name or "--" in name or ".." in name or name.endswith(".git")
    return not is_odd and re.match(parts.REPOSITORY, name, re.ASCII) is not None


def _added_parts(schema: type[Checked], root: type[Checked]) -> Settings:
    """Return the parts that the configuration of a task or measure has beyond those of all."""
    known = unset_settings(root)
    added = unset_settings(schema)
    return {name: part for name, part in added.items() if name not in known}


@once_for_each_schema
def unset_settings(schema: type[Checked]) -> Settings:
    """Return the defaults of a schema, and None for what is left to the recipe."""
    hints = get_type_hints(schema)
    settings: Settings = {}
    for item in fields_of(schema):
        hint = hints[item.name]
        if dataclasses.is_dataclass(hint):
            assert isinstance(hint, type)
            assert issubclass(hint, Checked)
            settings[item.name] = unset_settings(extended(hint))
        else:
            settings[item.name] = initial_of(item)
    return settings


# ---- schemas and their settings


def schema_of_group(group: str) -> type[Checked]:
    """Return the schema of a group, with the settings that installed packages add."""
    return extended(GROUPS[group])


def measure_schema(kind: str) -> type[MeasureConfig]:
    """Return the schema of a kind of measure, which is in the file of its instrument."""
    return settings_schema_of(instrument(measure_entry(kind)))


def settings_schema_of(instrument: object) -> type[MeasureConfig]:
    """Return the schema of the measure of an `Instrument`."""
    schema = getattr(instrument, "settings", None)
    assert isinstance(schema, type)
    assert issubclass(schema, MeasureConfig)
    return schema


def config_schema_of(instrument: object) -> type[JobConfig]:
    """Return the class of the configurations of an `Instrument`."""
    schema = getattr(instrument, "config", None)
    assert isinstance(schema, type)
    assert issubclass(schema, JobConfig)
    return schema


@overload
def part_named(group: Literal["model"], name: str, overrides: SettingValues) -> ModelConfig: ...
@overload
def part_named(group: Literal["data"], name: str, overrides: SettingValues) -> DataConfig: ...
@overload
def part_named(
    group: Literal["stimuli"], name: str, overrides: SettingValues
) -> StimuliConfig: ...
@overload
def part_named(
    group: Literal["measure"], name: str, overrides: SettingValues
) -> MeasureConfig: ...
@overload
def part_named(group: str, name: str, overrides: SettingValues) -> Checked: ...
def part_named(group: str, name: str, overrides: SettingValues) -> Checked:
    """Return the part that an option of a group stands for.

    Args:
        name: The option; "schema" leaves open what is left to the recipe.
        overrides: Settings that replace those of the option.
    """
    settings = _reader.get().settings(group, name, overrides)
    schema = measure_schema(name) if group == "measure" else schema_of_group(group)
    return made(schema, settings, f"{group}.")


def model_named(model: ModelConfig | str, settings: SettingValues) -> ModelConfig:
    """Return the configuration of a model, as `model=NAME model.SETTING=VALUE` does.

    Args:
        model: A name, or a configuration, which gets these settings.
    """
    if isinstance(model, str):
        return part_named("model", model, settings)
    if model.is_in_memory:
        return with_changes(model, settings)
    return model_settings(**{**vars(model), **settings})


def with_changes(part: Schema, changes: SettingValues) -> Schema:
    """Return a part of a configuration with other values, which are checked."""
    return dataclasses.replace(part, **changes)  # type: ignore[type-var]


def given_settings(part: SettingValues) -> Settings:
    """Return the settings of a part that have a value."""
    return {key: value for key, value in part.items() if value is not None}


def settings_of(part: Checked) -> Settings:
    """Return the settings of a part without a name that have another value than the default."""
    unset = unset_settings(type(part))
    settings = given_settings(vars(part))
    return {name: value for name, value in settings.items() if value != unset[name]}
