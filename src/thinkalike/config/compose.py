"""From `conf/` and overrides to a configuration dataclass.

Hydra composes the files of `conf/`, those of the user's folders, and what `Options` answers. What a command line leaves
open is None there; `completed` decides it for the parts that a job reads, and the dataclasses check what comes out.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, get_type_hints

from hydra import compose
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import YAMLError

from thinkalike.config.inputs import HOW_IT_RUNS, ModelConfig
from thinkalike.config.registry import TASKS, instrument, instrument_of, measure_module, measure_schema
from thinkalike.config.roots import AnalyzeConfig, JobConfig, TrainConfig
from thinkalike.config.schema import RENAMED, Checked, default_of, is_open, made, short
from thinkalike.config.sources import GROUPS, hydra_ready, options
from thinkalike.errors import ConfigError, nearest, one_of
from thinkalike.plugins import named_in

COMPOSING_ERRORS = (OmegaConfBaseException, HydraException, YAMLError)
PLACES = {"local": "path", "hub": "hub_id"}  # models without a name of their own, and the setting that says which
SOURCE, TARGET = "gelu-3l-mini", "solu-3l-mini"  # where none is named


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
    schema = _schema_of(settings)
    if "target" in settings:
        settings |= _models(settings, keys_of(overrides), {part for part, option in choices.items() if option})
    settings = OmegaConf.to_container(OmegaConf.create(settings), resolve=True)
    if isinstance(settings.get("measure"), dict):
        settings["measure"] = made(measure_schema(settings["measure"].get("kind")), settings["measure"], "measure.")
    for part in ("model", "target", "data"):
        if part in settings and settings[part].get("name") is None:
            settings[part] = _given_of(schema, part, settings[part])
    return made(schema, settings)


def _schema_of(settings: Mapping[str, Any]) -> Any:
    """Return the schema of the whole configuration of a task or measure."""
    if "task" in settings:
        one_of("task", str(settings["task"]), TASKS)
        return instrument(TASKS[settings["task"]]).config
    kind = settings["measure"].get("kind") if isinstance(settings.get("measure"), dict) else None
    return instrument(measure_module(kind)).config if kind else AnalyzeConfig


def _given_of(schema: type, part: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is given of a part that is not named, and None for the rest of what may be left open."""
    fields = dataclasses.fields(get_type_hints(schema)[part])
    return {key: value for key, value in settings.items() if value is not None} | {
        item.name: settings.get(item.name) for item in fields if is_open(item)
    }


def _models(settings: Mapping[str, Any], keys: Collection[str], chosen: Collection[str]) -> dict[str, Any]:
    """Return the settings of both models. A target that is not chosen is the source in all that is not given of it.

    A folder or a repository that is not named is that of the source, too. A target that is chosen runs as the overrides
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
    if (place := PLACES.get(target["name"])) and target[place] is None and model["name"] == target["name"]:
        given = {key for key in target if f"target.{key}" in keys}
        return {"model": model, "target": {**model, **{key: target[key] for key in given}}}
    runs = {key: value for key, value in _how_it_runs(model, keys).items() if f"target.{key}" not in keys}
    return {"model": model, "target": {**target, **runs}}


def _how_it_runs(model: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """Return the settings of how a model runs that overrides give, and not its file."""
    return {key: model[key] for key in HOW_IT_RUNS if f"model.{key}" in keys}


def option(group: str, name: str) -> dict[str, Any]:
    """Return the settings of an option of a group, or of a model by its folder or repository.

    Raises:
        ConfigError: there is none.
    """
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
            found["target"] = _named("model", TARGET, given) if is_pair else _with(found["model"], other)
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


def _with(model: ModelConfig, given: Mapping[str, Any]) -> ModelConfig:
    return dataclasses.replace(model, **given) if given else model


def model_named(model: ModelConfig | str, settings: Mapping[str, Any]) -> ModelConfig:
    """Return the configuration of a model, as `model=NAME model.SETTING=VALUE` does, or a given one with settings.

    Raises:
        ConfigError: the name or a setting is not known, or a value is not possible.
    """
    return (
        dataclasses.replace(model, **settings) if isinstance(model, ModelConfig) else _named("model", model, settings)
    )


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
    apart = {"experiment": config.experiment, "activations": config.activations, "model": config.model.name}
    apart |= {f"model.{key}": value for key, value in runs.items() if key not in HOW_IT_RUNS}
    apart |= {f"target.{key}": value for key, value in settings_of(config.target).items()}
    for key, value in apart.items():
        if value:
            raise ConfigError(
                f"{key}={value} does not go with models=, whose settings are in {{model: NAME, key: value}}"
            )
    models = [_of_list(entry, runs) for entry in config.models or []]
    if not stands_for or len(models) < 2 or any(models.count(each) > 1 for each in models):
        raise ConfigError(
            f"models={config.models} must be two different models or more, for a measure that takes a list"
        )
    pairs: Any = itertools.combinations(models, 2) if stands_for == "pairs" else zip(models, models, strict=True)
    jobs = (dataclasses.replace(config, models=None, model=source, target=target) for source, target in pairs)
    return [completed(job) for job in jobs]


def _of_list(entry: Any, runs: Mapping[str, Any]) -> ModelConfig:
    """Return a model of a list, by its name, by its folder, or by {model: either, setting: value}."""
    settings = dict(entry) if isinstance(entry, dict) else {"model": entry}
    return _named("model", str(settings.pop("model", None)), {**runs, **settings})


def explained(error: BaseException) -> str:
    """Return the message of an error of Hydra's in one line, with the nearest thing that there is."""
    if isinstance(error, MissingConfigException) and "/" in (path := str(error.missing_cfg_file)):
        group, _, name = path.partition("/")
        hint = {"model": "; or a folder, or ORG/NAME of the hub", "data": "; or ORG/NAME of the hub"}
        return (
            f"{group}={short(name)} is not known; {nearest(name, error.options or options(group))}{hint.get(group, '')}"
        )
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
