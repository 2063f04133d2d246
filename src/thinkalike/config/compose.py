"""From `conf/` and a command line to a configuration dataclass."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from typing import Any, TypeVar, get_type_hints

from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Glob, Override, Sweep
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, flag_override
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from thinkalike.config.inputs import HOW_IT_RUNS, DataConfig, ModelConfig, PairsConfig, PopulationConfig, StimuliConfig
from thinkalike.config.overrides import (
    at_home,
    folders_named,
    is_repository,
    key_of,
    parse_overrides,
    register_repositories,
    values_of,
)
from thinkalike.config.own_files import CONF, OwnFolders, configurations
from thinkalike.config.registry import MEASURES, PLUGGED, measure_module, refuse_gone
from thinkalike.config.roots import AnalyzeConfig, JobConfig, MeasureConfig, TrainConfig, chosen_scale
from thinkalike.config.schema import RENAMED, made, short
from thinkalike.config.training import LoggerConfig, StitchConfig, TrainerConfig
from thinkalike.errors import ConfigError, first_line, nearest, one_of
from thinkalike.plugins import is_plugin, named_in

COMPOSING_ERRORS = (OmegaConfBaseException, HydraException, YAMLError)
Root = TypeVar("Root", bound=JobConfig)
SCHEMAS: dict[str, type] = {"train": TrainConfig, "analyze": AnalyzeConfig}
PARTS = (ModelConfig, DataConfig, StitchConfig, MeasureConfig, StimuliConfig, PairsConfig, PopulationConfig)
GROUPS: dict[str, type] = {schema.part: schema for schema in (*PARTS, TrainerConfig, LoggerConfig)}
PLACES = {"local": "path", "hub": "hub_id"}  # models without a name of their own, and the setting that says which
DEFAULT_TARGET = "model@target=solu-3l-mini"  # of the default model: two models show more than one into itself

_STORED: dict[tuple[str | None, str], Any] = {}  # what Hydra has, by group and name
_ASKED_FOR: set[str] = set()  # measures whose settings this process knows: jobs of a sweep share it


def compose_job(entry_point: str, overrides: Iterable[str]) -> Any:
    """Return the configuration dataclass of a command line: `compose_job("train", ["model=gpt2", "stitch=affine"])`.

    Args:
        entry_point: "train" or "analyze", the script whose command line it is.
        overrides: one setting each; a sweep is no single job.

    Raises:
        ConfigError: the script would refuse them; the message is the same.
        PluginError: a plugin that they name cannot be used.
    """
    words = folders_named(at_home(list(overrides)))
    parsed = parse_overrides(words)
    check_overrides(words, SCHEMAS[entry_point], sweeps=False)
    words = with_default_target(entry_point, words)
    register(measures_of(parsed) if entry_point == "analyze" else (), parsed)
    try:
        return resolve(_composed(entry_point, words), SCHEMAS[entry_point], words)
    except COMPOSING_ERRORS as error:
        raise ConfigError(one_line(error)) from error


def _composed(entry_point: str, overrides: Sequence[str]) -> DictConfig:
    """Compose what Hydra's own `compose` would: that works on a global state, which a job of Hydra's may be using."""
    version.setbase("1.3")
    loader = ConfigLoaderImpl(create_config_search_path(str(CONF)))
    composed = loader.load_configuration(entry_point, [*overrides], run_mode=RunMode.RUN, from_shell=False)
    with flag_override(composed, ["struct", "readonly"], [False, False]):
        del composed["hydra"]
    return composed


def one_line(error: BaseException) -> str:
    """Return the message of an error in one line of printable characters, with its cause or its key."""
    said = (first_line(error) or type(error).__name__) if not isinstance(error, YAMLError) else str(error)
    if isinstance(error, HydraException) and error.__cause__:
        said = f"{said} {first_line(error.__cause__)}"
    key = getattr(error, "full_key", None)
    said = f"{key}: {said}" if key and key not in said else said
    return "".join(each if each.isprintable() else " " for each in said)


def register(measures: Iterable[str] = (), parsed: Sequence[Override] = ()) -> None:
    """Tell Hydra the schemas, the user's folders, and the resolvers.

    Args:
        measures: those whose settings may be given; of the others Hydra gets the name alone, as their files take
            seconds to import.
        parsed: a command line; models and data sets of the hub that it names become options.
    """
    for name, schema in SCHEMAS.items():
        _store(f"{name}_schema", _defaults(schema))
    for group, schema in GROUPS.items():
        _store("schema", _defaults(schema), group)
    written = {file.stem for root in configurations("measure") for file in root.glob("*.yaml")}  # recipes, on top
    _ASKED_FOR.update(measures)
    for kind in MEASURES:
        node = _defaults(measure_schema(kind)) if kind in _ASKED_FOR else {"kind": kind}  # type: ignore[arg-type]
        _store(f"{kind}_schema" if kind in written else kind, node, "measure")
    for kind in filter(is_plugin, measures):
        *folders, name = f"measure/{kind}".split("/")
        _store(name, _defaults(measure_schema(kind)), "/".join(filter(None, folders)))  # type: ignore[arg-type]
    for group in ("model", "data"):
        named = [str(name) for each in parsed if each.key_or_group == group for name in values_of(each)]
        register_repositories(group, [name for name in named if is_of_hub(group, name)])
    Plugins.instance().register(OwnFolders)
    for resolver in (at_scale, of_minis, by_recipe, at_most_a_tenth):
        OmegaConf.register_new_resolver(resolver.__name__, resolver, replace=True)


@cache
def _defaults(schema: Any) -> dict[str, Any]:
    """Return the defaults of a schema as Hydra composes them; the schema checks what comes out."""
    return dataclasses.asdict(schema())


def _store(name: str, node: Any, group: str | None = None) -> None:
    """Give Hydra a node of its store, which takes milliseconds, unless it has it."""
    if _STORED.get((group, name)) != node:
        ConfigStore.instance().store(name=name, node=node, group=group)
        _STORED[group, name] = node


def measure_schema(kind: str) -> type[MeasureConfig]:
    """Return the schema of a kind of measure, which is defined in the file of its instrument."""
    name, _, declared = measure_module(kind).partition(":")
    module = import_module(name)
    if name == PLUGGED:
        return module.schema_of(declared)  # type: ignore[no-any-return]
    return MeasureConfig.schemas[kind]


def options(group: str) -> list[str]:
    """Return the names that a configuration group offers: `options("model")`."""
    roots = [CONF / group] if group == "experiment" else configurations(group)  # which have code of their own
    written = {str(path.relative_to(root).with_suffix("")) for root in roots for path in root.rglob("*.yaml")}
    return sorted(written | {*(MEASURES if group == "measure" else ())})


def at_scale(mini: Any, paper: Any, *, _root_: DictConfig) -> Any:
    """Return the value for the scale of the recipe, see `chosen_scale`."""
    models = [_root_[part] for part in ("model", "target") if part in _root_]
    return mini if chosen_scale(_root_.scale, models)[0] == "mini" else paper


def of_minis(mini: Any, other: Any, *, _root_: DictConfig) -> Any:
    """Return the value for the model, whatever the machine: a rate that suits a mini ruins a pretrained BERT."""
    small = _root_.model.mini if _root_.scale == "auto" else _root_.scale == "mini"
    return mini if small else other


def by_recipe(honest: Any, paper: Any, *, _root_: DictConfig) -> Any:
    """Return the value for the recipe."""
    return paper if _root_.recipe == "paper" else honest


def at_most_a_tenth(usual: int, steps: Any) -> int:
    """Return the steps of a warm-up, which is shorter where training is short."""
    return min(usual, max(steps, 0) // 10) if isinstance(steps, int) else usual


def with_default_target(entry_point: str, words: Sequence[str]) -> list[str]:
    """Return the overrides of a command line, with one for the target if they stitch and name neither model.

    Once a model is named, the target is the source unless it is named, too. How the source runs names no model.
    """
    parts = [key_of(word).partition(".") for word in words]
    named = any(part == "target" or (part == "model" and key not in HOW_IT_RUNS) for part, _, key in parts)
    other_task = any(word.lstrip("+").startswith("task=") and word != "task=stitch" for word in words)
    return [*words] if entry_point != "train" or named or other_task else [*words, DEFAULT_TARGET]


def is_of_hub(group: str, name: str) -> bool:
    """Return whether this can be on the hub: ORG/NAME, or the bare NAME of a data set that resembles no option."""
    is_bare = group == "data" and "/" not in name and is_repository(f"datasets/{name}")
    taken = [*options("data"), "schema", "none"]
    return is_repository(name) or (is_bare and not get_close_matches(name.lower(), taken, cutoff=0.8))


def measures_of(parsed: Sequence[Override]) -> list[str]:
    """Return the kinds of measure that a command line asks for, by itself or by its experiments."""
    named = {override.key_or_group: values_of(override) for override in parsed}
    if "measure" in named:
        return [str(kind) for kind in named["measure"]]
    files = [path for name in named.get("experiment", []) for path in configurations(f"experiment/{name}.yaml")]
    defaults = [item for path in files for item in from_yaml(path.read_text()).get("defaults", [])]
    return [item["override /measure"] for item in defaults if "override /measure" in item] or ["loss"]


def check_overrides(words: Sequence[str], schema: type, sweeps: bool = True) -> None:
    """Refuse groups, options and keys of a command line that do not exist, with the nearest ones that do.

    Args:
        sweeps: whether settings may have several values.

    Raises:
        ConfigError: an override names what does not exist, or has several values.
    """
    parsed = parse_overrides(words)
    groups = {item.name for item in dataclasses.fields(schema) if any(configurations(item.name))}
    known = dict(_settings(schema, measures_of(parsed)))
    for override in parsed:
        key, package = override.key_or_group, override.package
        if key.split(".")[0].split("/")[0] == "hydra":
            continue
        if override.is_sweep_override() and not sweeps:
            raise ConfigError(f"{override.input_line} has several values; sweep over them with -m, or give a list")
        if key in groups and not override.is_delete():
            whole = f"{key}@{package}" if package else key
            check_option(key, whole, [each for each in values_of(override) if not isinstance(each, Glob | Sweep)])
        elif package or not _is_setting(key, known):
            near = [name for name in known if name.endswith(f".{key}")]
            said = f"did you mean {' or '.join(near)}?" if near else nearest(key, known.keys() - {key})
            said = RENAMED.get(key, said)
            raise ConfigError(f"'{override.input_line if package else key}' is not a setting; {said}")


def _is_setting(key: str, known: Mapping[str, bool]) -> bool:
    """Return whether this is a setting and not a part, or stands inside a setting, which may be a free dictionary."""
    return any(known.get(part) is False for part in itertools.accumulate(key.split("."), "{}.{}".format))


def _settings(schema: Any, measures: Sequence[str], start: str = "") -> Iterator[tuple[str, bool]]:
    """Yield the key of every setting and part of a schema, and whether it is a part."""
    hints = get_type_hints(schema)
    for item in dataclasses.fields(schema):
        key, hint = f"{start}{item.name}", hints[item.name]
        yield key, dataclasses.is_dataclass(hint)
        kinds = [kind for kind in measures if kind in MEASURES or is_plugin(kind)] if key == "measure" else []
        for inner in [measure_schema(kind) for kind in kinds] or [hint]:
            if dataclasses.is_dataclass(inner):
                yield from _settings(inner, (), f"{key}.")


def check_option(group: str, key: str, values: Sequence[Any]) -> None:
    """Refuse values of a key that are no options of a configuration group.

    Raises:
        ConfigError: a value is no option; the message names the nearest one.
    """
    there = options(group)
    for name in map(str, values):
        if group == "measure":
            refuse_gone(name)
        more = (group in ("model", "data") and is_of_hub(group, name)) or (group == "measure" and is_plugin(name))
        if name not in there and not more:
            hint = {"model": f", ORG/NAME of the hub, and local with {key[-6:]}.path=DIR", "data": ", or ORG/NAME"}
            raise ConfigError(f"{key}={short(name)} is not known; {nearest(name, there)}{hint.get(group, '')}")


def resolve(composed: DictConfig, schema: type[Root], overrides: Sequence[str] = ()) -> Root:
    """Return a composed configuration as its dataclass, with `data=auto` replaced by the corpus of the models.

    An experiment has models of its own, so there `auto` stays until their jobs are composed.

    Args:
        overrides: of the command line, which the dataclass keeps as `chosen`.
    """
    OmegaConf.set_struct(composed, False)
    if composed.get("target"):
        _fill_in_target(composed, overrides)
    if composed.data.name == "auto" and not composed.get("experiment"):
        plain: Any = OmegaConf.to_container(composed.data, resolve=False)
        kept = {key: value for key, value in plain.items() if value is not None and key != "name"}
        name = composed.model.corpus or (composed.get("target") or composed.model).corpus or "pydoc"
        one_of("model.corpus", name, (each for each in options("data") if each != "auto"))
        corpus: Any = OmegaConf.load(next(configurations(f"data/{name}.yaml")))
        corpus.pop("defaults", None)
        composed.data = OmegaConf.merge(composed.data, corpus, kept)
    settings: Any = OmegaConf.to_container(composed, resolve=True)
    settings["chosen"] = list(overrides)
    if isinstance(settings.get("measure"), dict):
        settings["measure"] = made(measure_schema(settings["measure"].get("kind")), settings["measure"], "measure.")
    return made(schema, settings)


def _fill_in_target(composed: DictConfig, overrides: Sequence[str]) -> None:
    """Give the target what the command line leaves open: all of the source, or how it runs if it is a model named.

    A folder or a repository that is not named is that of the source, too.
    """
    named = {key_of(word) for word in overrides}
    own = {key.split(".")[1] for key in named if key.startswith("target.")}
    source: Any = OmegaConf.to_container(composed.model, resolve=False)  # so that a name follows its own index
    name, chosen = composed.target.name, "target" in named
    place = PLACES.get(name)
    left_open = place and (composed.target[place] is None or not (chosen or place in own))
    same_place = left_open and (not chosen or composed.model.name == name)
    if not same_place and (chosen or place):
        source = {key: source[key] for key in HOW_IT_RUNS if f"model.{key}" in named}
    for key in source.keys() - own:
        composed.target[key] = source[key]


def train_config(settings: Mapping[str, Any]) -> TrainConfig:
    """Return the configuration of a finished job of train.py, whose file lacks the parts that it did not read."""
    given = {name: value for name, value in settings.items() if value is not None}
    if own := named_in(given):
        raise ConfigError(f"this job is of plugins ({', '.join(own)}), which run by python train.py alone")
    return made(TrainConfig, given)


def to_yaml(config: dict[str, Any]) -> str:
    """Return the text of a `config.yaml`."""
    return OmegaConf.to_yaml(OmegaConf.create(config))


def from_yaml(text: str) -> dict[str, Any]:
    """Return the configuration of a `config.yaml`."""
    return OmegaConf.to_container(OmegaConf.create(text))  # type: ignore[return-value]
