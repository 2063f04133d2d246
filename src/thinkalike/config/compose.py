"""From `conf/` and overrides to a configuration dataclass.

Hydra composes the files of `conf/`, those of the user's folders, and what `Options` answers. What a command line leaves
open is None there; `completed` decides it for the parts that a job reads, and the dataclasses check what comes out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import re
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, reduce
from pathlib import Path
from typing import Any, get_type_hints

from hydra import compose, initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import YAMLError

from thinkalike.config.parts import (
    HOW_IT_RUNS,
    REPOSITORY,
    DataConfig,
    LoggerConfig,
    ModelConfig,
    StimuliConfig,
    StitchConfig,
    TrainerConfig,
)
from thinkalike.config.roots import (
    MEASURES,
    TASKS,
    AnalyzeConfig,
    JobConfig,
    MeasureConfig,
    TrainConfig,
    instrument,
    instrument_of,
    measure_module,
    measure_schema,
)
from thinkalike.config.schema import RENAMED, Checked, default_of, is_open, made, short
from thinkalike.errors import ConfigError, nearest, one_of
from thinkalike.plugins import is_plugin

COMPOSING_ERRORS = (OmegaConfBaseException, HydraException, YAMLError)
PLACES = {"local": "path", "hub": "hub_id"}  # models without a name of their own, and the setting that says which
SOURCE, TARGET = "gelu-3l-mini", "solu-3l-mini"  # where none is named
PROGRAM = "THINKALIKE_PROGRAM"  # environment variable: how the user called the script, also for the workers of a sweep
_CHECKOUT = Path(__file__).resolve().parents[3] / "conf"
CONF = _CHECKOUT if _CHECKOUT.is_dir() else Path(__file__).resolve().parents[1] / "conf"  # where a wheel has it
ROOTS: dict[str, Any] = {"train_schema": TrainConfig, "analyze_schema": AnalyzeConfig}
PARTS = (ModelConfig, DataConfig, StitchConfig, MeasureConfig, StimuliConfig, TrainerConfig, LoggerConfig)
GROUPS: dict[str, type] = {schema.part: schema for schema in PARTS}
FOLDERS, REST = "thinkalike://folders", "thinkalike://"
LISTS = {"task": [*TASKS], "measure": [*MEASURES]}


class Options(ConfigSource):
    """Answers what no file of conf/ can: schemas, `model=DIR`, `model=ORG/NAME`, `data=ORG/NAME`, and measures.

    It stands twice in Hydra's search path: before all files for folders, as `./gpt2` is not conf/model/gpt2.yaml, and
    after them for the rest.
    """

    @staticmethod
    def scheme() -> str:
        return "thinkalike"

    def load_config(self, config_path: str) -> ConfigResult:
        node = _folder(config_path) or _node(config_path)
        package = "_global_" if config_path.startswith(("task/", "measure/")) else None  # with the parts that they add
        return ConfigResult(self.provider, f"{REST}{config_path}", OmegaConf.create(node), {"package": package})

    def is_config(self, config_path: str) -> bool:
        return (_folder if self.path else _node)(config_path) is not None

    def is_group(self, config_path: str) -> bool:
        return config_path in ("", *LISTS)

    def available(self) -> bool:
        return True

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        if results_filter == ObjectType.GROUP:
            return [] if config_path else [*LISTS]  # so that --help has measures and tasks
        return LISTS.get(config_path, [])


class OptionsEverywhere(SearchPathPlugin):
    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.prepend("thinkalike", FOLDERS)
        search_path.append("thinkalike", REST)


def register() -> None:
    Plugins.instance().register(Options)
    Plugins.instance().register(OptionsEverywhere)


def _folder(path: str) -> dict[str, Any] | None:
    """Return the settings of the model in a folder, or a GGUF file, if a path, model/DIR, names one."""
    group, _, name = path.partition("/")
    written = name.startswith((".", "/", "~")) or name.count("/") > 1 or name.endswith(".gguf")
    if group != "model" or "://" in name or not (written or ("/" in name and Path(name).is_dir())):
        return None
    return {"defaults": ["/model/local@_here_", "_self_"], "path": name}


def _node(path: Any) -> dict[str, Any] | None:
    """Return what `Options` answers to any other path, group/name; None: nothing."""
    group, _, name = path.partition("/")
    if path in ROOTS:  # of models and data, which may not be named, all settings are open
        unset = _unset(ROOTS[path])
        return unset | {part: dict.fromkeys(unset[part]) for part in ("model", "target", "data")}
    if name == "schema" and group in GROUPS:
        return _unset(GROUPS[group])
    if group == "task" and name in TASKS:
        return {"task": name, **_added(instrument(TASKS[name]).config, TrainConfig)}
    if group == "measure" and (name in MEASURES or is_plugin(name)):
        schema: Any = measure_schema(name)
        return {"measure": _unset(schema), **_added(instrument(measure_module(name)).config, AnalyzeConfig)}
    odd = "/" not in name or "--" in name or ".." in name or name.endswith(".git")
    if group in ("model", "data") and re.match(REPOSITORY, name, re.ASCII) and not odd:
        node = {"defaults": [f"/{group}/hub@_here_", "_self_"], "hub_id": name}
        return node | ({"name": name} if group == "data" else {})
    return None


def _added(schema: Any, root: Any) -> dict[str, Any]:
    """Return the parts that the configuration of a task or measure has beyond those of all."""
    return {name: part for name, part in _unset(schema).items() if name not in _unset(root)}


@cache
def _unset(schema: Any) -> dict[str, Any]:
    """Return the defaults of a schema, and None for what is left open."""
    parts, node = get_type_hints(schema), {}
    for item in dataclasses.fields(schema):
        is_part = dataclasses.is_dataclass(parts[item.name])
        node[item.name] = _unset(parts[item.name]) if is_part else None if is_open(item) else default_of(item)
    return node


def options(group: str) -> list[str]:
    """Return the names that a configuration group offers: `options("model")`."""
    with hydra_ready():
        folders = [Path(each.path) for each in GlobalHydra.instance().config_loader().get_sources()]
    roots = [folder / group for folder in folders if folder.is_absolute()]
    written = {str(path.relative_to(root).with_suffix("")) for root in roots for path in root.rglob("*.yaml")}
    return sorted(written | {*(MEASURES if group == "measure" else ())})


@contextlib.contextmanager
def hydra_ready() -> Iterator[None]:
    """Make Hydra's `compose` find conf/: in a job of ours as it is, and otherwise for a while, for this alone."""
    running = GlobalHydra.instance()
    before = running.hydra
    if before is not None and any(each.scheme() == "thinkalike" for each in before.config_loader.get_sources()):
        yield
        return
    register()
    running.clear()
    try:
        with initialize_config_dir(str(CONF), version_base=None):
            yield
    finally:
        GlobalHydra.instance().hydra = before


def compose_job(entry_point: str, overrides: Iterable[str], **parts: Any) -> Any:
    """Return the configuration dataclass of a command line: `compose_job("train", ["model=gpt2", "stitch=affine"])`.

    Args:
        entry_point: "train" or "analyze", the script whose command line it is.
        overrides: one setting each; a sweep is no single job.
        parts: parts of the configuration that take the place of the composed ones: `model=ModelConfig(...)`.

    Raises:
        ConfigError: the script would refuse them; the message is the same.
        PluginError: a plugin that they name cannot be used.
    """
    words = list(overrides)
    with hydra_ready():
        try:
            composed = compose(entry_point, words, return_hydra_config=True)
            with open_dict(composed):
                choices = composed.pop("hydra").runtime.choices
            config = checked(composed, words, choices)
        except COMPOSING_ERRORS as error:
            raise ConfigError(explained(error)) from error
        config = dataclasses.replace(config, **parts)
        return config if config.stands_for_jobs else completed(config)


def keys_of(overrides: Iterable[str]) -> list[str]:
    """Return the keys of overrides; those of the second model begin with `target`."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    keys = [each.package or each.key_or_group for each in parsed]
    return [key for key in keys if not re.match(r"hydra\b", key)]


def checked(composed: DictConfig, overrides: Sequence[str], choices: Mapping[str, Any]) -> Any:
    """Return what Hydra composed as a dataclass, with its own settings; what is left open stays None.

    Args:
        overrides: those of the job, by which a model that is named as the target runs as the source does.
        choices: the option that was chosen of each group, or None.

    Raises:
        ConfigError: a setting does not exist, or its value is not possible.
    """
    settings: Any = OmegaConf.to_container(composed, resolve=False)
    measure = settings.get("measure")
    kind = measure["kind"] if isinstance(measure, dict) else None
    if "task" in settings:
        one_of("task", str(settings["task"]), TASKS)
        schema = instrument(TASKS[settings["task"]]).config
    else:
        schema = instrument(measure_module(kind)).config if kind else AnalyzeConfig
    if "target" in settings:
        settings |= _models(settings, keys_of(overrides), {part for part, option in choices.items() if option})
    settings = OmegaConf.to_container(OmegaConf.create(settings), resolve=True)
    if kind:
        settings["measure"] = made(measure_schema(kind), settings["measure"], "measure.")
    for part, own in (("model", ModelConfig), ("target", ModelConfig), ("data", DataConfig)):
        if part in settings and settings[part]["name"] is None:  # what is not given has its default, or stays open
            open_ones = dict.fromkeys(item.name for item in dataclasses.fields(own) if is_open(item))
            given = {key: value for key, value in settings[part].items() if value is not None}
            settings[part] = open_ones | given
    config = made(schema, settings)
    for word in overrides:
        key, _, written = word.partition("=")
        read = reduce(lambda part, name: getattr(part, name, None), key.lstrip("+").split("."), config)
        if isinstance(read, str) and re.fullmatch(r"\d[\d_.]*(e[+-]?\d+)?", written) and read != written:
            raise ConfigError(
                f"{key}={written} is the number {read} to Hydra; give it as a text: '{key}=\"{written}\"'"
            )
    return config


def _models(settings: Mapping[str, Any], keys: Collection[str], chosen: Collection[str]) -> dict[str, Any]:
    """Return the settings of both models.

    A target that is not chosen is the source in all that is not given of it; one that is chosen runs as the overrides
    say of the source.
    """
    model, target = settings["model"], settings["target"]
    own = {key: value for key, value in target.items() if value is not None}
    is_named = model["name"] is not None or ("model@target" not in chosen and target["name"] is not None)
    if "model" not in chosen and is_named:  # a name for the default model, or for the target that it is
        model = {**option("model", SOURCE), **{key: value for key, value in model.items() if value is not None}}
    if "model@target" not in chosen:
        place = PLACES.get(str(model["name"]))
        if model["name"] is None:
            return {"model": model, "target": target}
        source = option("model", model["name"]) | _how_it_runs(model, keys) if place in own else model
        return {"model": model, "target": {**source, **own}}
    runs = {key: value for key, value in _how_it_runs(model, keys).items() if f"target.{key}" not in keys}
    return {"model": model, "target": {**target, **runs}}


def _how_it_runs(model: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """Return the settings of how a model runs that overrides give, and not its file."""
    return {key: model[key] for key in HOW_IT_RUNS if f"model.{key}" in keys}


def option(group: str, name: str) -> dict[str, Any]:
    """Return the settings of an option of a group, or of a model by its folder or repository."""
    with hydra_ready():
        path = tuple(each.path for each in GlobalHydra.instance().config_loader().get_search_path().get_path())
        return dict(_option(group, name, path))


@cache
def _option(group: str, name: str, search_path: tuple[str, ...]) -> dict[str, Any]:
    escaped = re.sub(r"(\\*)('|$)", lambda end: 2 * end[1] + ("\\'" if end[2] else ""), name)
    try:
        composed = compose(None, [f"+{group}='{escaped}'"])
    except COMPOSING_ERRORS as error:
        raise ConfigError(explained(error)) from error
    return OmegaConf.to_container(composed[group], resolve=False)  # type: ignore[return-value]


def completed(config: Any, reads: Collection[str] | None = None) -> Any:
    """Return a configuration in which everything that a job reads and that was left open is decided.

    Without a name, models are those of the main job, the data is what the models were trained on, and other parts are
    what their schemas say; the settings of every part are those of its recipe.

    Args:
        reads: the parts that the job reads; those of its instrument if not given.
    """
    if not isinstance(config, JobConfig):  # an instrument may have a configuration of its own
        return config
    if reads is None:
        return instrument_of(config).completed(config)
    found: dict[str, Any] = {}
    if {"model", "target"} & {*reads} and config.model.name is None and not getattr(config, "activations", None):
        given, other = settings_of(config.model), settings_of(config.target)
        found["model"] = _named("model", SOURCE, given)
        is_pair = "stitch" in reads and not other and not given.keys() - {*HOW_IT_RUNS}
        if config.target.name is None:
            same = dataclasses.replace(found["model"], **other)
            found["target"] = _named("model", TARGET, given) if is_pair else same
    config = dataclasses.replace(config, **found)
    if "data" in reads and config.data.name is None:
        corpus = config.model.corpus or config.target.corpus or "pydoc"
        one_of("model.corpus", corpus, (each for each in options("data") if each != "auto"))
        config = dataclasses.replace(config, data=_named("data", corpus, settings_of(config.data)))
    recipe = config.recipe_of_job
    parts: dict[str, Any] = {name: part for name in reads if isinstance(part := getattr(config, name, None), Checked)}
    for name, part in parts.items():
        if part.usual_option and part.name is None:
            settings = {**option(name, part.usual_option), **settings_of(part)}
            part = made(type(part), settings, f"{name}.")
        parts[name] = part.completed(recipe)
    return dataclasses.replace(config, **parts).completed(recipe)


def settings_of(part: Any) -> dict[str, Any]:
    """Return the settings that are given of a part without a name."""
    values = {item.name: getattr(part, item.name) for item in dataclasses.fields(part)}
    unset = {item.name: None if is_open(item) else default_of(item) for item in dataclasses.fields(part)}
    return {name: value for name, value in values.items() if value is not None and value != unset[name]}


def _named(group: str, name: str, given: Mapping[str, Any]) -> Any:
    """Return the part of a configuration that an option of a group stands for, with what is given."""
    settings: Any = OmegaConf.to_container(OmegaConf.create({**option(group, name), **given}), resolve=True)
    return made(GROUPS[group], settings, f"{group}.")


def model_named(model: ModelConfig | str, settings: Mapping[str, Any]) -> ModelConfig:
    """Return the configuration of a model, as `model=NAME model.SETTING=VALUE` does, or a given one with settings."""
    if isinstance(model, ModelConfig):
        return dataclasses.replace(model, **settings)
    return _named("model", model, settings)  # type: ignore[no-any-return]


def jobs_of(config: AnalyzeConfig, stands_for: str) -> list[AnalyzeConfig]:
    """Return the jobs that `models=[...]` stands for, each as if the models of one job had been given alone.

    Args:
        stands_for: "pairs": a job for every two models, the one that is named first as the source; "each": one for
            each; nothing: the measure takes no such list.

    Raises:
        ConfigError: there are fewer than two different models, one is not known, a model is also named apart, or the
            measure takes no list.
    """
    runs = settings_of(config.model)
    apart = {"experiment": config.experiment, "activations": config.activations}
    apart |= {f"model.{key}": value for key, value in runs.items() if key not in HOW_IT_RUNS}
    apart |= {f"target.{key}": value for key, value in settings_of(config.target).items()}
    if given := [f"{key}={value}" for key, value in apart.items() if value]:
        raise ConfigError(f"{given[0]} does not go with models=, whose settings are in {{model: NAME, key: value}}")
    models = []
    for entry in config.models or []:
        own = dict(entry) if isinstance(entry, dict) else {"model": entry}
        models.append(_named("model", str(own.pop("model", None)), {**runs, **own}))
    if not stands_for or len(models) < 2 or any(models.count(each) > 1 for each in models):
        raise ConfigError(f"models={config.models} must be two different models or more, for a measure that takes them")
    pairs: Any = itertools.combinations(models, 2) if stands_for == "pairs" else zip(models, models, strict=True)
    jobs = (dataclasses.replace(config, models=None, model=source, target=target) for source, target in pairs)
    return [completed(job) for job in jobs]


def explained(error: BaseException) -> str:
    """Return the message of an error of Hydra's in one line, with the nearest thing that there is."""
    if isinstance(error, MissingConfigException) and "/" in (path := str(error.missing_cfg_file)):
        group, _, name = path.partition("/")
        hint = {"model": "; or a folder, or ORG/NAME of the hub", "data": "; or ORG/NAME of the hub"}.get(group, "")
        return f"{group}={short(name)} is not known; {nearest(name, error.options or options(group))}{hint}"
    if isinstance(error, OverrideParseException):
        setting, _, value = error.override.partition("=")
        if value and Path(value).exists():
            return f"Hydra cannot read {value}: put quotes around its special characters, '{setting}=\"{value}\"'"
    cause = error.__cause__
    if isinstance(cause, ConfigAttributeError | ConfigKeyError) and cause.full_key and cause.parent_node:
        part, _, name = cause.full_key.rpartition(".")
        if cause.full_key in RENAMED:
            return f"'{cause.full_key}' is not a setting; {RENAMED[cause.full_key]}"
        known = [f"{part}.{key}".lstrip(".") for key in _keys(cause.parent_node) if not key.startswith("hydra")]
        near = [key for key in known if key.endswith(f".{name}")]
        known = [key for key in known if key.count(".") == cause.full_key.count(".")]
        said = f"did you mean {' or '.join(near)}?" if near else nearest(cause.full_key, known)
        return f"'{cause.full_key}' is not a setting; {said}"
    said = str(error) if isinstance(error, YAMLError) else " ".join(str(error).split("\nfull_key")[0].split())
    key = getattr(error, "full_key", None)
    said = f"{key}: {said}" if key and key not in said else said or type(error).__name__
    return "".join(each if each.isprintable() else " " for each in said)


def _keys(node: Any, start: str = "") -> Iterator[str]:
    """Yield the keys of all settings and parts of a node."""
    for key in node or ():
        yield f"{start}{key}"
        if OmegaConf.is_dict(inner := OmegaConf.select(node, str(key), throw_on_resolution_failure=False)):
            yield from _keys(inner, f"{start}{key}.")


def command_line() -> str:
    """Return the command line of the job that a script does, or that of this process."""
    if not HydraConfig.initialized() or PROGRAM not in os.environ:
        return shlex.join(sys.argv)
    hydra = HydraConfig.get()
    folders = [f"--config-dir={each.path}" for each in hydra.runtime.config_sources if each.provider == "command-line"]
    name = hydra.job.config_name
    own = [] if name in ("train", "analyze") else [f"--config-name={name}"]
    return f"{os.environ[PROGRAM]} {shlex.join([*folders, *own, *hydra.overrides.task])}".rstrip()


def to_yaml(config: dict[str, Any]) -> str:
    """Return the text of a `config.yaml`."""
    return OmegaConf.to_yaml(OmegaConf.create(config))


def from_yaml(text: str) -> dict[str, Any]:
    """Return the configuration of a `config.yaml`."""
    return OmegaConf.to_container(OmegaConf.create(text))  # type: ignore[return-value]
