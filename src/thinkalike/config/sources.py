"""What Hydra asks the project: where `conf/` is, schemas, and options that have no file."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from hydra import initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from thinkalike.config.inputs import REPOSITORY, DataConfig, ModelConfig, StimuliConfig
from thinkalike.config.registry import GONE, MEASURES, TASKS, instrument, measure_module, measure_schema
from thinkalike.config.roots import AnalyzeConfig, JobConfig, MeasureConfig, TrainConfig
from thinkalike.config.schema import default_of, is_open
from thinkalike.config.training import LoggerConfig, StitchConfig, TrainerConfig
from thinkalike.plugins import is_plugin

_CHECKOUT = Path(__file__).resolve().parents[3] / "conf"
CONF = _CHECKOUT if _CHECKOUT.is_dir() else Path(__file__).resolve().parents[1] / "conf"  # where a wheel has it
SCHEMAS: dict[str, type[JobConfig]] = {"train": TrainConfig, "analyze": AnalyzeConfig}
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
    """Lets Hydra ask `Options`."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.prepend("thinkalike", FOLDERS)
        search_path.append("thinkalike", REST)


def register() -> None:
    """Tell Hydra of the two plugins above."""
    Plugins.instance().register(Options)
    Plugins.instance().register(OptionsEverywhere)


def _folder(path: str) -> dict[str, Any] | None:
    """Return the settings of the model in a folder, or a GGUF file, if a path, model/DIR, names one.

    A name with one slash may be on the hub unless there is such a folder.
    """
    group, _, name = path.partition("/")
    written = name.startswith((".", "/", "~")) or name.count("/") > 1 or name.endswith(".gguf")
    if group != "model" or "://" in name or not (written or ("/" in name and Path(name).is_dir())):
        return None
    return {"defaults": ["/model/local@_here_", "_self_"], "path": name}


def _node(path: Any) -> dict[str, Any] | None:
    """Return what `Options` answers to any other path, group/name; None: nothing."""
    group, _, name = path.partition("/")
    if path.removesuffix("_schema") in SCHEMAS and path not in SCHEMAS:
        return _root_node(SCHEMAS[path.removesuffix("_schema")])
    if name == "schema" and group in GROUPS:
        return _unset(GROUPS[group])
    if group == "task" and name in TASKS:
        return {"task": name, **_added(instrument(TASKS[name]).config, TrainConfig)}
    if group == "measure" and (name in {*MEASURES, *GONE} or is_plugin(name)):
        schema: Any = measure_schema(name)
        return {"measure": _unset(schema), **_added(instrument(measure_module(name)).config, AnalyzeConfig)}
    if group in ("model", "data") and _is_repository(group, name):
        node = {"defaults": [f"/{group}/hub@_here_", "_self_"], "hub_id": name}
        return node | ({"name": name} if group == "data" else {})
    return None


def _added(schema: Any, root: Any) -> dict[str, Any]:
    """Return the settings that the configuration of a task or measure has beyond those of all."""
    return {name: part for name, part in _unset(schema).items() if name not in _unset(root)}


def _root_node(schema: Any) -> dict[str, Any]:
    """Return all settings of an entry point; of models and data, which may not be named, all are open."""
    node = _unset(schema)
    for name, part in node.items():
        if name in ("model", "target", "data"):
            node[name] = dict.fromkeys(part)
    return node


@cache
def _unset(schema: Any) -> dict[str, Any]:
    """Return the defaults of a schema, and None for what is left open."""
    parts, node = get_type_hints(schema), {}
    for item in dataclasses.fields(schema):
        is_part = dataclasses.is_dataclass(parts[item.name])
        node[item.name] = _unset(parts[item.name]) if is_part else None if is_open(item) else default_of(item)
    return node


def _is_repository(group: str, name: str) -> bool:
    """Return whether this can be on the hub: ORG/NAME, or the bare NAME of a data set that resembles no option."""
    if not re.match(REPOSITORY, name, re.ASCII) or "--" in name or ".." in name or name.endswith(".git"):
        return False
    taken = [*options("data"), "schema", "none", "null"]
    return "/" in name or (group == "data" and not get_close_matches(name.lower(), taken, cutoff=0.8))


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
