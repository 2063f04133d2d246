"""From `conf/` and overrides to a configuration dataclass.

Hydra composes the files of `conf/`, those of the user's folders, and what `Options` answers. What a command line leaves
open is None there; `completed` decides it for the parts that a job reads, and the dataclasses check what comes out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shlex
import sys
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cache, reduce
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

from hydra import compose, initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import JobRuntime
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.version import VersionBase
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import YAMLError

from thinkalike.config import parts
from thinkalike.config.parts import HOW_IT_RUNS, AnalyzeConfig, JobConfig, MeasureConfig, ModelConfig, TrainConfig
from thinkalike.config.schema import Checked, default_of, is_open, made, short, unknown
from thinkalike.errors import ConfigError, nearest, one_of
from thinkalike.plugins import MEASURES, POINTS, TASKS, instrument, instrument_of, is_plugin, load, measure_module

COMPOSING_ERRORS = (OmegaConfBaseException, HydraException, YAMLError)
SOURCE, TARGET = "gelu-3l-mini", "solu-3l-mini"  # where none is named
PROGRAM = "THINKALIKE_PROGRAM"  # environment variable: how the user called the script, also for the workers of a sweep
_CHECKOUT = Path(__file__).resolve().parents[3] / "conf"
CONF = _CHECKOUT if _CHECKOUT.is_dir() else Path(__file__).resolve().parents[1] / "conf"  # where a wheel has it
GROUPS: dict[str, Any] = {schema.part: schema for schema in vars(parts).values() if getattr(schema, "part", "")}
FOLDERS, REST = "thinkalike://folders", "thinkalike://"
_COMPOSING = threading.RLock()
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
    """Adds `Options` to the search path of this project; a notebook may hold another application of Hydra's."""

    is_ours: ClassVar[bool] = False  # whether the application that Hydra initialises is this project

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if self.is_ours:
            search_path.prepend("thinkalike", FOLDERS)
            search_path.append("thinkalike", REST)


def register() -> None:
    """Let Hydra find `Options` from now on, in a process whose only application is this project."""
    Plugins.instance().register(Options)
    Plugins.instance().register(OptionsEverywhere)
    OptionsEverywhere.is_ours = True


def _folder(path: str) -> dict[str, Any] | None:
    """Return the settings of the model in a folder, or a GGUF file, if a path, model/DIR, names one."""
    group, _, name = path.partition("/")
    written = name.startswith((".", "/", "~")) or name.count("/") > 1 or name.endswith((".gguf", ".ckpt"))
    if group != "model" or "://" in name or not (written or ("/" in name and Path(name).is_dir())):
        return None
    return {"defaults": ["/model/local@_here_", "_self_"], "path": name}


def _node(path: Any) -> dict[str, Any] | None:
    """Return what `Options` answers to any other path, group/name; None: nothing."""
    group, _, name = path.partition("/")
    if path in ("train_schema", "analyze_schema"):  # of models and data, which may not be named, all settings are open
        unset = _unset(AnalyzeConfig if path == "analyze_schema" else instrument(TASKS["stitch"]).config)
        return unset | {part: dict.fromkeys(unset[part]) for part in ("model", "target", "data")}
    if name == "schema" and group in GROUPS:
        return _unset(GROUPS[group])
    if group == "task" and name in TASKS:
        return {"task": name, **_added(instrument(TASKS[name]).config, TrainConfig)}
    if group == "measure" and (name in MEASURES or is_plugin(name)):
        added = _added(instrument(measure_module(name)).config, AnalyzeConfig)
        return {"measure": _unset(measure_schema(name)), **added}
    odd = "/" not in name or "--" in name or ".." in name or name.endswith(".git")
    if group in ("model", "data") and re.match(parts.REPOSITORY, name, re.ASCII) and not odd:
        node = {"defaults": [f"/{group}/hub@_here_", "_self_"], "hub_id": name}
        return node | ({"name": name} if group == "data" else {})
    return None


def _added(schema: Any, root: Any) -> dict[str, Any]:
    """Return the parts that the configuration of a task or measure has beyond those of all."""
    return {name: part for name, part in _unset(schema).items() if name not in _unset(root)}


@cache
def _unset(schema: Any) -> dict[str, Any]:
    """Return the defaults of a schema, and None for what is left open."""
    hints, node = get_type_hints(schema), {}
    for item in dataclasses.fields(schema):
        is_part = dataclasses.is_dataclass(hints[item.name])
        node[item.name] = _unset(hints[item.name]) if is_part else None if is_open(item) else default_of(item)
    return node


def measure_schema(kind: str) -> Any:
    """Return the schema of a kind of measure, which is defined in the file of its instrument."""
    if is_plugin(kind):
        return load(POINTS["plugin"])(kind)[1]
    load(measure_module(kind))
    return MeasureConfig.schemas[kind]


@contextlib.contextmanager
def hydra_ready() -> Iterator[None]:
    """Make Hydra's `compose` find conf/: in a job of ours as it is, and otherwise for a while, for this alone.

    Hydra composes with global state. So threads compose one after another, and what Hydra had initialised for another
    application is restored.
    """
    with _COMPOSING, contextlib.ExitStack() as restored:
        running = GlobalHydra.instance()
        before = running.hydra
        if before is None or not any(each.scheme() == "thinkalike" for each in before.config_loader.get_sources()):
            version, runtime = VersionBase.instance(), JobRuntime.instance()
            restored.callback(setattr, version, "version_base", version.getbase())
            restored.callback(setattr, runtime, "conf", deepcopy(runtime.conf))
            restored.callback(setattr, running, "hydra", before)
            restored.callback(GlobalHydra.set_instance, running)
            restored.callback(setattr, OptionsEverywhere, "is_ours", OptionsEverywhere.is_ours)
            register()
            running.clear()
            restored.enter_context(initialize_config_dir(str(CONF), version_base=None))
        yield


def options(group: str) -> list[str]:
    """Return the names that a configuration group offers: `options("model")`."""
    with hydra_ready():
        folders = [Path(each.path) for each in GlobalHydra.instance().config_loader().get_sources()]
    roots = [folder / group for folder in folders if folder.is_absolute()]
    written = {str(path.relative_to(root).with_suffix("")) for root in roots for path in root.rglob("*.yaml")}
    return sorted(written | {*(MEASURES if group == "measure" else ())})


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
        stands_for_jobs = isinstance(config, AnalyzeConfig) and (config.models is not None or config.experiment)
        return config if stands_for_jobs else completed(config)


def keys_of(overrides: Iterable[str]) -> list[str]:
    """Return the keys of overrides; those of the second model begin with `target`."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    return [key for each in parsed if not re.match(r"hydra\b", key := each.package or each.key_or_group)]


def checked(composed: DictConfig, overrides: Sequence[str], choices: Mapping[str, Any]) -> Any:
    """Return what Hydra composed, by these `choices` of groups, as a dataclass; what is left open stays None."""
    settings: Any = OmegaConf.to_container(composed, resolve=False)
    kind, job = (settings.get("measure") or {}).get("kind"), None
    if "task" in settings:
        one_of("task", str(settings["task"]), TASKS)
        job = instrument(TASKS[settings["task"]])
        if "stitch" not in job.reads:  # the part of the default task, see `_node`
            settings.pop("stitch", None)
    elif kind:
        job = instrument(measure_module(kind))
    chosen = {group for group, name in choices.items() if name}
    stands_for_others = any(settings.get(name) for name in ("experiment", "models", "activations"))
    settings |= _models(settings, keys_of(overrides), chosen, () if stands_for_others or not job else job.reads)
    settings = OmegaConf.to_container(OmegaConf.create(settings), resolve=True)
    if kind:
        settings["measure"] = made(measure_schema(kind), settings["measure"], "measure.")
    for part in ("model", "target", "data"):
        if settings[part]["name"] is None:  # what is not given has its default, or stays open
            settings[part] = _unset(GROUPS["data" if part == "data" else "model"]) | _given(settings[part])
    config = made(job.config if job else AnalyzeConfig, settings)
    for word in overrides:
        key, _, written = word.partition("=")
        read = reduce(lambda part, name: getattr(part, name, None), key.lstrip("+").split("."), config)
        if isinstance(read, str) and re.fullmatch(r"\d[\d_.]*(e[+-]?\d+)?", written) and read != written:
            raise ConfigError(f"{key}={written} is the number {read} to Hydra; give a text: '{key}=\"{written}\"'")
    return config


def _models(
    settings: Mapping[str, Any], keys: Collection[str], chosen: Collection[str], reads: Collection[str]
) -> dict[str, dict[str, Any]]:
    """Return the settings of both models, or what is given of them where the job reads none that has a name.

    A target that is not chosen is the source in all that is not given of it; one that is chosen runs as the overrides
    say of the source. Where no model is named, a stitch leads into another mini.
    """
    model, target = settings["model"], settings["target"]
    given, own = _given(model), _given(target)
    if "z" not in own.get("site", "z"):  # which alone has heads
        own, keys = {"head": None} | own, {*keys, "target.head"}
    runs = {key: model[key] for key in HOW_IT_RUNS if f"model.{key}" in keys}
    is_default = "model" not in chosen
    if is_default and ("name" in given or ("model@target" not in chosen and "name" in own) or "model" in reads):
        model = option("model", SOURCE) | given
    if "model@target" in chosen:
        return {"model": model, "target": target | {key: runs[key] for key in runs if f"target.{key}" not in keys}}
    if model["name"] is None:
        return {"model": model, "target": target}
    if is_default and not own and not given.keys() - {*HOW_IT_RUNS} and "stitch" in reads:
        return {"model": model, "target": option("model", TARGET) | given}
    is_elsewhere = {"local": "path", "hub": "hub_id"}.get(model["name"]) in own  # of models without a name of their own
    return {"model": model, "target": (option("model", model["name"]) | runs if is_elsewhere else model) | own}


def _given(part: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in part.items() if value is not None}


def completed(config: Any, reads: Collection[str] | None = None) -> Any:
    """Return a configuration in which what was left open is decided, in the parts that the job `reads`.

    The data is what the models were trained on, and other parts without a name are what their schemas say; the settings
    of every part are those of its recipe.
    """
    if not isinstance(config, JobConfig):  # an instrument may have a configuration of its own
        return config
    if reads is None:
        return instrument_of(config).completed(config)
    if "data" in reads and config.data.name is None:
        corpus = config.model.corpus or config.target.corpus or "pydoc"
        one_of("model.corpus", corpus, (each for each in options("data") if each != "auto"))
        config = dataclasses.replace(config, data=part_named("data", corpus, settings_of(config.data)))
    parts: dict[str, Any] = {name: part for name in reads if isinstance(part := getattr(config, name, None), Checked)}
    for name, part in parts.items():
        if part.usual_option and part.name is None:
            part = made(type(part), option(name, part.usual_option) | settings_of(part), f"{name}.")
        parts[name] = part.completed(config)
    return dataclasses.replace(config, **parts).completed(config)


def settings_of(part: Any) -> dict[str, Any]:
    """Return the settings that are given of a part without a name."""
    return {name: value for name, value in _given(vars(part)).items() if value != _unset(part.__class__)[name]}


def part_named(group: str, name: str, given: Mapping[str, Any]) -> Any:
    """Return the part that an option of a group stands for, with what is given; "schema" leaves the recipe's open."""
    settings: Any = OmegaConf.to_container(OmegaConf.create({**option(group, name), **given}), resolve=True)
    return made(measure_schema(name) if group == "measure" else GROUPS[group], settings, f"{group}.")


def model_named(model: ModelConfig | str, settings: Mapping[str, Any]) -> ModelConfig:
    """Return the configuration of a model, as `model=NAME model.SETTING=VALUE` does, or a given one with settings."""
    if isinstance(model, ModelConfig):
        return dataclasses.replace(model, **settings)
    return part_named("model", model, settings)  # type: ignore[no-any-return]


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
        part = cause.full_key.rpartition(".")[0]
        known = [f"{part}.{key}".lstrip(".") for key in _keys(cause.parent_node) if not key.startswith("hydra")]
        return unknown(cause.full_key, known)
    said = str(error) if isinstance(error, YAMLError) else " ".join(str(error).split("\nfull_key")[0].split())
    key = getattr(error, "full_key", None)
    said = f"{key}: {said}" if key and key not in said else said or type(error).__name__
    return "".join(each if each.isprintable() else " " for each in said)


def _keys(node: Any, start: str = "") -> Iterator[str]:
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
