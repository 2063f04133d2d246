"""From `conf/` and a command line to a configuration dataclass, with misspellings named."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, TypeVar

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from thinkalike.config.inference import NLIConfig, PairsConfig, PopulationConfig
from thinkalike.config.measures import (
    CKAConfig,
    MeasureConfig,
    MLEMConfig,
    PopulationMeasureConfig,
    RSAConfig,
    StimuliConfig,
)
from thinkalike.config.schemas import (
    AnalyzeConfig,
    DataConfig,
    LoggerConfig,
    ModelConfig,
    PretrainConfig,
    StitchConfig,
    TrainConfig,
    TrainerConfig,
)
from thinkalike.errors import ConfigError, nearest, one_of

CONF = Path(__file__).resolve().parents[3] / "conf"

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
MEASURES: dict[str, type] = {  # of the group measure
    "cka": CKAConfig,
    "mlem": MLEMConfig,
    "rsa": RSAConfig,
    "population": PopulationMeasureConfig,
}


def register() -> None:
    """Tell Hydra the schemas, and two resolvers that pick one of two values: at_scale and by_recipe."""
    store = ConfigStore.instance()
    for name, schema in SCHEMAS.items():
        store.store(name=f"{name}_schema", node=schema)
    for group, schema in GROUPS.items():
        store.store(group=group, name="schema", node=schema)
    for name, schema in MEASURES.items():
        store.store(group="measure", name=f"{name}_schema", node=schema)
    OmegaConf.register_new_resolver("at_scale", _at_scale, replace=True)
    OmegaConf.register_new_resolver("by_recipe", _by_recipe, replace=True)


def _at_scale(mini: Any, paper: Any, *, _root_: DictConfig) -> Any:
    one_of("scale", _root_.scale, ("auto", "mini", "paper"))
    small = _root_.model.mini if _root_.scale == "auto" else _root_.scale == "mini"
    return mini if small else paper


def _by_recipe(honest: Any, paper: Any, *, _root_: DictConfig) -> Any:
    one_of("recipe", _root_.recipe, ("honest", "paper"))
    return honest if _root_.recipe == "honest" else paper


def resolve(composed: DictConfig, schema: type[Config]) -> Config:
    """A composed configuration as its dataclass, with `data=auto` replaced by what suits the model.

    An experiment has models of its own, so there `auto` stays until their jobs are composed.
    """
    OmegaConf.set_struct(composed, False)
    if "target" in composed and composed.target.name == "local" and not composed.target.path:
        for key in ("name", "path", "classes"):  # the same folder, unless another is named
            composed.target[key] = composed.model[key]
    if composed.data.name == "auto" and not composed.get("experiment"):
        plain: Any = OmegaConf.to_container(composed.data, resolve=False)
        chosen = {key: value for key, value in plain.items() if value is not None and key != "name"}
        corpus = OmegaConf.load(CONF / "data" / f"{composed.model.corpus}.yaml")
        assert isinstance(corpus, DictConfig)
        corpus.pop("defaults", None)
        composed.data = OmegaConf.merge(composed.data, corpus, chosen)
    return OmegaConf.to_object(OmegaConf.merge(schema, composed))  # type: ignore[return-value]


def compose_job(door: str, overrides: list[str]) -> Any:
    """The configuration dataclass of a command line, without a command line."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    register()
    around = dict(GlobalHydra.instance().__dict__)  # this may happen inside a job of Hydra's own
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return resolve(compose(door, overrides), SCHEMAS[door])
    finally:
        GlobalHydra.instance().__dict__.update(around)


def to_yaml(config: dict[str, Any]) -> str:
    """The text of a `config.yaml`."""
    return OmegaConf.to_yaml(OmegaConf.create(config))


def from_yaml(text: str) -> dict[str, Any]:
    """The configuration of a `config.yaml`."""
    return OmegaConf.to_container(OmegaConf.create(text))  # type: ignore[return-value]


def options(group: str) -> list[str]:
    """The names that a configuration group offers: `options("model")`."""
    root = CONF / group
    return sorted(str(path.relative_to(root).with_suffix("")) for path in root.rglob("*.yaml"))


def check_overrides(overrides: list[str], schema: type) -> None:
    """Refuse misspelt groups, options and keys of a command line with the nearest right one.

    Raises:
        ConfigError: an override names what does not exist, or is no override at all.
    """
    try:
        parsed = OverridesParser.create().parse_overrides(overrides)
    except HydraException as error:
        raise ConfigError(f"cannot read the command line: {str(error).splitlines()[0]}") from None
    for override in parsed:
        key = override.key_or_group
        if override.is_add() or override.is_delete() or key.split(".")[0].split("/")[0] == "hydra":
            continue
        value = override.value()
        foreign = key in GROUPS and key not in {item.name for item in dataclasses.fields(schema)}
        if (CONF / key).is_dir() and not foreign:
            _check_option(key, value.list if isinstance(value, ChoiceSweep) else [value])
        else:
            _check_key(key, schema)


def _check_option(group: str, values: list[Any]) -> None:
    for value in values:
        if isinstance(value, str) and value not in options(group):
            raise ConfigError(f"{group}={value} is not known; {nearest(value, options(group))}")


def _check_key(key: str, schema: Any) -> None:
    parts, walked = key.split("."), ""
    for part in parts:
        if not dataclasses.is_dataclass(schema):
            return  # inside a free dictionary
        fields = {item.name for kind in _kinds(schema) for item in dataclasses.fields(kind)}
        if part not in fields:
            raise ConfigError(f"'{key}' is not a setting; {nearest(walked + part, [walked + name for name in fields])}")
        schema, walked = GROUPS.get("model" if part == "target" else part), f"{walked}{part}."
        schema = {"pretrain": PretrainConfig, "nli": NLIConfig}.get(part, schema)


def _kinds(schema: Any) -> list[Any]:
    """The schema, and of a measure those of all kinds."""
    return [schema, *MEASURES.values()] if schema is MeasureConfig else [schema]
