"""From `conf/` and a command line to a configuration dataclass."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any, TypeVar

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from omegaconf import DictConfig, OmegaConf

from thinkalike.config.inputs import HOW_IT_RUNS, DataConfig, ModelConfig, PairsConfig, PopulationConfig, StimuliConfig
from thinkalike.config.overrides import parse_overrides, register_repositories, values_of
from thinkalike.config.registry import MEASURES, PLUGGED, measure_module
from thinkalike.config.roots import AnalyzeConfig, MeasureConfig, TrainConfig
from thinkalike.config.schema import made
from thinkalike.config.training import LoggerConfig, StitchConfig, TrainerConfig
from thinkalike.config.words.folders import CONF, OwnFolders, configurations
from thinkalike.errors import ConfigError, one_of
from thinkalike.plugins import is_plugin, named_in

Config = TypeVar("Config", TrainConfig, AnalyzeConfig)
SCHEMAS: dict[str, type] = {"train": TrainConfig, "analyze": AnalyzeConfig}
GROUPS: dict[str, type] = {
    "model": ModelConfig,
    "data": DataConfig,
    "stitch": StitchConfig,
    "measure": MeasureConfig,
    "stimuli": StimuliConfig,
    "pairs": PairsConfig,
    "population": PopulationConfig,
    "trainer": TrainerConfig,
    "logger": LoggerConfig,
}

PLACES = {"local": "path", "hub": "hub_id"}  # models without a name of their own, and the setting that says which

_STORED: dict[tuple[str | None, str], Any] = {}  # what Hydra has, by group and name
_ASKED_FOR: set[str] = set()  # measures whose settings this process knows: jobs of a sweep share it


def register(measures: Iterable[str] = (), models: Iterable[str] = ()) -> None:
    """Tell Hydra the schemas, the user's folders, and the resolvers.

    at_scale and by_recipe pick one of two, and at_most_a_tenth is of a warm-up.

    Args:
        measures: those whose settings may be given; of the others Hydra gets the name alone, as their files take
            seconds to import.
        models: what models are called; repositories of the hub among them become options.
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
    register_repositories(models)
    Plugins.instance().register(OwnFolders)
    OmegaConf.register_new_resolver("at_scale", _at_scale, replace=True)
    OmegaConf.register_new_resolver("by_recipe", _by_recipe, replace=True)
    OmegaConf.register_new_resolver("at_most_a_tenth", _at_most_a_tenth, replace=True)


@cache
def _defaults(schema: type) -> dict[str, Any]:
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


DEFAULT_TARGET = "model@target=solu-3l-mini"  # of the default model: two models show more than one into itself


def with_default_target(door: str, words: Sequence[str]) -> list[str]:
    """Return the words of a command line, with one for the target if they stitch and name neither model.

    Once a model is named, the target is the source unless it is named, too. How the source runs names no model.
    """
    keys = [each.get_key_element().lstrip("+~") for each in parse_overrides(words)]
    named = {"model", "model@target"} & {*keys} or any(
        part in ("model", "target") and (part, setting) not in {("model", name) for name in HOW_IT_RUNS}
        for part, _, setting in (key.partition(".") for key in keys if "." in key)
    )
    other_task = any(word.lstrip("+").startswith("task=") and word != "task=stitch" for word in words)
    return [*words] if door != "train" or named or other_task else [*words, DEFAULT_TARGET]


def models_of(parsed: Sequence[Override]) -> list[str]:
    """Return what the models of a command line are called, both sides."""
    return [str(name) for override in parsed if override.key_or_group == "model" for name in values_of(override)]


def measures_of(parsed: Sequence[Override]) -> list[str]:
    """Return the kinds of measure that a command line asks for, by itself or by its experiments."""
    named = {override.key_or_group: values_of(override) for override in parsed}
    if "measure" in named:
        return [str(kind) for kind in named["measure"]]
    kinds = [_measure_of(str(name)) for name in named.get("experiment", [None])]
    return [kind for kind in kinds if kind] or ["loss"]


def _measure_of(experiment: str) -> str | None:
    path = next(configurations(f"experiment/{experiment}.yaml"), None)
    defaults = from_yaml(path.read_text()).get("defaults", []) if path else []
    return next((item["override /measure"] for item in defaults if "override /measure" in item), None)


def options(group: str) -> list[str]:
    """Return the names that a configuration group offers: `options("model")`."""
    roots = [CONF / group] if group == "experiment" else configurations(group)  # which have code of their own
    written = {str(path.relative_to(root).with_suffix("")) for root in roots for path in root.rglob("*.yaml")}
    return sorted(written | {*(MEASURES if group == "measure" else ())})


def _at_scale(mini: Any, paper: Any, *, _root_: DictConfig) -> Any:
    one_of("scale", _root_.scale, ("auto", "mini", "paper"))
    models = [_root_[part] for part in ("model", "target") if part in _root_]
    small = all(model.mini for model in models) if _root_.scale == "auto" else _root_.scale == "mini"
    return mini if small else paper


def _by_recipe(honest: Any, paper: Any, *, _root_: DictConfig) -> Any:
    one_of("recipe", _root_.recipe, ("honest", "paper"))
    return honest if _root_.recipe == "honest" else paper


def _at_most_a_tenth(usual: int, steps: Any) -> int:
    """Return how long a warm-up is: as usual, but for short trainings a tenth of their steps."""
    return min(usual, max(steps, 0) // 10) if isinstance(steps, int) else usual


def resolve(composed: DictConfig, schema: type[Config], overrides: Sequence[str] = ()) -> Config:
    """Return a composed configuration as its dataclass, with `data=auto` replaced by what suits the model.

    An experiment has models of its own, so there `auto` stays until their jobs are composed; `chosen` keeps the words
    of the command line, so that it knows what was asked for.
    """
    OmegaConf.set_struct(composed, False)
    if composed.get("target"):
        _fill_in_target(composed, overrides)
    if composed.data.name == "auto" and not composed.get("experiment"):
        plain: Any = OmegaConf.to_container(composed.data, resolve=False)
        kept = {key: value for key, value in plain.items() if value is not None and key != "name"}
        one_of("model.corpus", composed.model.corpus, (name for name in options("data") if name != "auto"))
        corpus: Any = OmegaConf.load(next(configurations(f"data/{composed.model.corpus}.yaml")))
        corpus.pop("defaults", None)
        composed.data = OmegaConf.merge(composed.data, corpus, kept)
    _check_index(composed)
    settings: Any = OmegaConf.to_container(composed, resolve=True)
    settings["chosen"] = list(overrides)
    if isinstance(settings.get("measure"), dict):
        settings["measure"] = made(measure_schema(settings["measure"].get("kind")), settings["measure"], "measure.")
    return made(schema, settings)


def _check_index(composed: DictConfig) -> None:
    """Refuse the number of a model that has none: no other setting of it follows `index`."""
    for part in ("model", "target"):
        plain: Any = OmegaConf.to_container(composed[part], resolve=False) if part in composed else {}
        if plain.get("index") and not any("index}" in str(value) for value in plain.values()):
            raise ConfigError(
                f"{part}.index={plain['index']} is for models of a numbered population, such as feather-bert; "
                f"{plain['name']} is none, so leave it out"
            )


def _fill_in_target(composed: DictConfig, overrides: Sequence[str]) -> None:
    """Give the target what the command line leaves open: all of the source, or how it runs if it is a model named.

    A folder or a repository that is not named is that of the source, too.
    """
    named = {override.get_key_element().lstrip("+~") for override in parse_overrides(overrides)}
    own = {key.split(".")[1] for key in named if key.startswith("target.")}
    source: Any = OmegaConf.to_container(composed.model, resolve=False)  # so that a name follows its own index
    name, chosen = composed.target.name, "model@target" in named
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
