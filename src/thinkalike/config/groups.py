"""The options of a group, such as `model=gpt2`, and the configuration of a job made of them, without Hydra.

    part_named("model", "gpt2", {"dtype": "bfloat16"})     # what model=gpt2 model.dtype=bfloat16 stands for
    completed(open_job(schema, model=..., data=...))       # with everything decided that was left open

An option is a file of `conf/` or of an installed package, `conf/GROUP/NAME.yaml`; or a schema; or, of models and data,
a folder or a repository of the hub. A command line may name further folders of options: then the reader of
`thinkalike.config.compose` answers, see `reading_options`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any, Protocol, get_type_hints, runtime_checkable

import yaml

from thinkalike.config import parts
from thinkalike.config.parts import AnalyzeConfig, JobConfig, ModelConfig, TrainConfig, model_settings
from thinkalike.config.schema import Checked, extended, initial_of, made
from thinkalike.errors import ConfigError, nearest, one_of, short
from thinkalike.files import YAML_LOADER, is_folder
from thinkalike.plugins import (
    MEASURES,
    TASKS,
    conf_folders,
    instrument,
    instrument_of,
    is_plugin,
    measure_entry,
)

Settings = dict[str, Any]

_CHECKOUT = Path(__file__).resolve().parents[3] / "conf"
CONF = _CHECKOUT if _CHECKOUT.is_dir() else Path(__file__).resolve().parents[1] / "conf"  # where a wheel has it
GROUPS: dict[str, Any] = {schema.part: schema for schema in vars(parts).values() if getattr(schema, "part", "")}
LISTS = {"task": [*TASKS], "measure": [*MEASURES]}  # groups whose options are no files
PACKAGES = "packages"  # packages/train is what installed packages add to the command lines of train.py
HINTS = {"model": "; or a folder, or ORG/NAME of the hub", "data": "; or ORG/NAME of the hub"}
REFERENCE = re.compile(r"\$\{\.(\w+)\}")  # in a text of an option: the value of another setting beside it
DEFAULT = re.compile(r"(?:/(?P<group>[\w-]+)/)?(?P<name>[\w.-]+)(?:@_here_)?")  # an item of a list of defaults
POWER_OF_TEN = re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+")  # 3e-3, which YAML 1.1 takes for a text and Hydra for a number
OPTIONAL = re.compile(r"optional /(?P<group>[\w-]+)@_here_")  # its group where it may lack the option


class _Loader(YAML_LOADER):  # type: ignore[misc]
    """Reads files of options with the numbers that Hydra knows."""


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", POWER_OF_TEN, [*"-+0123456789"])


@runtime_checkable
class OptionReader(Protocol):
    """Knows the options of groups."""

    def names(self, group: str) -> list[str]:
        """Return the names of the options that are files or measures, sorted."""
        ...

    def settings(self, group: str, name: str, given: Mapping[str, Any]) -> Settings:
        """Return the settings of an option, in which those that are given take the place of its own.

        Only texts of the option itself may refer to other settings; what is given are plain values.

        Raises:
            ConfigError: There is no such option; the message names the nearest one.
        """
        ...


class PackagedOptions:
    """The options of this package and of installed packages that extend it, as their YAML files say."""

    def names(self, group: str) -> list[str]:
        return [*_packaged_names(group)]

    def settings(self, group: str, name: str, given: Mapping[str, Any]) -> Settings:
        settings = {**_packaged_settings(group, name), **given}
        for setting, value in settings.items():
            if setting not in given and isinstance(value, str):
                settings[setting] = REFERENCE.sub(lambda reference: str(settings[reference[1]]), value)
        return settings


_reader: ContextVar[OptionReader] = ContextVar("reader of options", default=PackagedOptions())  # noqa: B039


@contextlib.contextmanager
def reading_options(reader: OptionReader) -> Iterator[None]:
    """Let a reader answer for the options of all groups while this is open."""
    before = _reader.set(reader)
    try:
        yield
    finally:
        _reader.reset(before)


def options(group: str) -> list[str]:
    """Return the names that a configuration group offers: `options("model")`."""
    return _reader.get().names(group)


def option(group: str, name: str) -> Settings:
    """Return the settings of an option of a group, or of a model by its folder or repository."""
    return _reader.get().settings(group, name, {})


@cache
def _packaged_names(group: str) -> tuple[str, ...]:
    names = set(LISTS["measure"] if group == "measure" else ())
    for folder in option_folders():
        root = folder / group
        names.update(str(file.relative_to(root).with_suffix("")) for file in root.rglob("*.yaml"))
    return tuple(sorted(names))


def option_folders() -> list[Path]:
    """Return the folders of groups of this package and of installed packages; the first that has an option counts."""
    return [CONF, *conf_folders().values()]


def _packaged_settings(group: str, name: str) -> Settings:
    node = folder_node(f"{group}/{name}")
    if node is None and name in _packaged_names(group):
        node = None if group == "measure" else _read_option(group, name)
    if node is None:
        node = schema_node(f"{group}/{name}")
    if node is None:
        raise ConfigError(f"{group}={short(name)} is not known; {nearest(name, options(group))}{HINTS.get(group, '')}")
    if group == "measure":
        return dict(node["measure"])
    return _with_defaults(group, node)


@cache
def _read_option(group: str, name: str) -> Settings:
    """Return what the file of an option says; an empty file leaves everything open."""
    for folder in option_folders():
        file = folder / group / f"{name}.yaml"
        if file.is_file():
            return yaml.load(file.read_bytes(), Loader=_Loader) or {}
    raise ConfigError(f"{group}={short(name)} has no file")


def _with_defaults(group: str, node: Mapping[str, Any]) -> Settings:
    """Return the settings of an option, merged with those of the options in its list of defaults, in their order."""
    stated = {name: value for name, value in node.items() if name != "defaults"}
    settings: Settings = {}
    for item in node.get("defaults", ["_self_"]):
        if item == "_self_":
            settings = _merged(settings, stated)
        elif isinstance(item, Mapping):
            ((key, name),) = item.items()
            matched = OPTIONAL.fullmatch(key)
            assert matched is not None, f"{group}: {key} is no optional default"
            if name in _packaged_names(matched["group"]):
                settings = _merged(settings, _packaged_settings(matched["group"], name))
        else:
            matched = DEFAULT.fullmatch(item)
            assert matched is not None, f"{group}: {item} is no default"
            settings = _merged(settings, _packaged_settings(matched["group"] or group, matched["name"]))
    return settings


def _merged(settings: Mapping[str, Any], later: Mapping[str, Any]) -> Settings:
    """Return settings in which later ones replace those before, one by one also inside dictionaries."""
    result = {**settings}
    for name, value in later.items():
        before = result.get(name)
        both_have_settings = isinstance(before, Mapping) and isinstance(value, Mapping)
        result[name] = _merged(before, value) if both_have_settings else value  # type: ignore[arg-type]
    return result


def folder_node(path: str) -> Settings | None:
    """Return what stands for the model in a folder, or in a GGUF file, if a path model/DIR names one."""
    group, _, name = path.partition("/")
    is_written_as_path = name.startswith((".", "/", "~")) or name.count("/") > 1 or name.endswith((".gguf", ".ckpt"))
    is_place = is_written_as_path or ("/" in name and is_folder(name))
    if group != "model" or "://" in name or not is_place:
        return None
    return {"defaults": ["/model/local@_here_", "_self_"], "path": name}


def schema_node(path: str) -> Settings | None:
    """Return what stands for any other path GROUP/NAME that is no file: a schema, a task, a measure, ORG/NAME."""
    group, _, name = path.partition("/")
    if path in ("train_schema", "analyze_schema"):  # of models and data, which may not be named, all settings are open
        unset = unset_settings(AnalyzeConfig if path == "analyze_schema" else instrument(TASKS["stitch"]).config)
        return unset | {part: dict.fromkeys(unset[part]) for part in ("model", "target", "data")}
    if group == PACKAGES:
        files = {f"{package}_{name}": folder for package, folder in conf_folders().items()}
        return {"defaults": [f"/{file}" for file, folder in files.items() if (folder / f"{file}.yaml").is_file()]}
    if name == "schema" and group in GROUPS:
        return unset_settings(schema_of_group(group))
    if group == "task" and name in TASKS:
        return {"task": name, **_added(instrument(TASKS[name]).config, TrainConfig)}
    if group == "measure" and (name in MEASURES or is_plugin(name)):
        added = _added(instrument(measure_entry(name)).config, AnalyzeConfig)
        return {"measure": unset_settings(measure_schema(name)), **added}
    is_odd = "/" not in name or "--" in name or ".." in name or name.endswith(".git")
    if group in ("model", "data") and re.match(parts.REPOSITORY, name, re.ASCII) and not is_odd:
        node = {"defaults": [f"/{group}/hub@_here_", "_self_"], "hub_id": name}
        return node | ({"name": name} if group == "data" else {})
    return None


def _added(schema: Any, root: Any) -> Settings:
    """Return the parts that the configuration of a task or measure has beyond those of all."""
    known = unset_settings(root)
    return {name: part for name, part in unset_settings(schema).items() if name not in known}


@cache
def unset_settings(schema: Any) -> Settings:
    """Return the defaults of a schema, and None for what is left to the recipe."""
    hints = get_type_hints(schema)
    settings: Settings = {}
    for item in dataclasses.fields(schema):
        if dataclasses.is_dataclass(hints[item.name]):
            part: Any = extended(hints[item.name])
            settings[item.name] = unset_settings(part)
        else:
            settings[item.name] = initial_of(item)
    return settings


def schema_of_group(group: str) -> Any:
    """Return the schema of the options of a group, with the settings that installed packages add."""
    return extended(GROUPS[group])


def measure_schema(kind: str) -> Any:
    """Return the schema of a kind of measure, which is defined in the file of its instrument."""
    return instrument(measure_entry(kind)).settings


def part_named(group: str, name: str, given: Mapping[str, Any]) -> Any:
    """Return the part that an option of a group stands for, with what is given; "schema" leaves the recipe's open."""
    settings = _reader.get().settings(group, name, given)
    schema = measure_schema(name) if group == "measure" else schema_of_group(group)
    return made(schema, settings, f"{group}.")


def model_named(model: ModelConfig | str, settings: Mapping[str, Any]) -> ModelConfig:
    """Return the configuration of a model, as `model=NAME model.SETTING=VALUE` does, or a given one with settings."""
    if isinstance(model, ModelConfig) and model.is_in_memory:
        return dataclasses.replace(model, **settings)
    if isinstance(model, ModelConfig):
        return model_settings(**{**vars(model), **settings})
    return part_named("model", model, settings)  # type: ignore[no-any-return]


def given_settings(part: Mapping[str, Any]) -> Settings:
    """Return the settings of a part that have a value."""
    return {key: value for key, value in part.items() if value is not None}


def settings_of(part: Any) -> Settings:
    """Return the settings that are given of a part without a name."""
    unset = unset_settings(part.__class__)
    return {name: value for name, value in given_settings(vars(part)).items() if value != unset[name]}


def open_job(schema: Any, **given: Any) -> Any:
    """Return the configuration of a job with these parts and settings, in which everything else is left open."""
    return dataclasses.replace(made(schema, unset_settings(schema)), **given)


def completed(config: Any, reads: Collection[str] | None = None) -> Any:
    """Return a configuration in which what was left open is decided, in the parts that the job `reads`.

    The data is what the models were trained on, and other parts without a name are what their schemas say; the settings
    of every part are those of its recipe.
    """
    if not isinstance(config, JobConfig):  # an instrument may have a configuration of its own
        return config
    if reads is None:
        return instrument_of(config).completed(config)
    if "data" in reads:
        config = _with_rows_of_states(config)
    if "data" in reads and config.data.name is None:
        corpus = config.data.source or config.model.corpus or config.target.corpus or "pydoc"
        one_of("model.corpus", corpus, (each for each in options("data") if each != "auto"))
        config = dataclasses.replace(config, data=part_named("data", corpus, settings_of(config.data)))
    parts: Settings = {name: part for name in reads if isinstance(part := getattr(config, name, None), Checked)}
    for name, part in parts.items():
        if part.usual_option and part.name is None:
            part = made(type(part), option(name, part.usual_option) | settings_of(part), f"{name}.")
        parts[name] = part.completed(config)
    return dataclasses.replace(config, **parts).completed(config)


def _with_rows_of_states(config: JobConfig) -> JobConfig:
    """Return the configuration of a job that reads the text of its folder of states, if one of its models is such.

    Raises:
        ConfigError: Other text is asked for, of which the folder has no states.
    """
    folders = [model.path for model in (config.model, config.target) if model is not None and model.holds_states]
    if not folders:
        return config
    if config.data.name is not None and config.data.source != "states":
        raise ConfigError(
            f"data={config.data.name}: the text that is compared is that of {folders[0]}, a folder of states; "
            "leave data out"
        )
    if config.data.name is not None:
        return config
    settings = {**settings_of(config.data), "files": folders[:1]}
    return dataclasses.replace(config, data=part_named("data", "states", settings))
