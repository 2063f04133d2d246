"""The command line, checked before anything is composed: what is misspelt or out of place is refused with a remedy."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.types import Glob, Override, Sweep

from thinkalike.config.compose import GROUPS, SCHEMAS, measure_schema, measures_of, options
from thinkalike.config.registry import MEASURES
from thinkalike.config.repositories import check_no_folder, is_repository
from thinkalike.config.roots import TrainConfig
from thinkalike.config.saes import SAEConfig
from thinkalike.config.training import NLIConfig, PretrainConfig
from thinkalike.config.words.elsewhere import ALIKE, called_here
from thinkalike.config.words.folders import configurations
from thinkalike.config.words.reading import parse_overrides, values_of
from thinkalike.errors import ConfigError, listed, nearest

INTERNAL = {"chosen"}  # what a door sets
TYPO = 0.8  # how near a name that does not exist is to one that it misspells, from 0 to 1
PARTS = GROUPS | {"target": GROUPS["model"], "pretrain": PretrainConfig, "nli": NLIConfig, "sae": SAEConfig}


def check_overrides(words: Sequence[str], schema: type, sweeps: bool = True) -> None:
    """Refuse groups, options and keys of a command line that do not exist, with the nearest ones that do.

    Args:
        sweeps: whether settings may have several values.

    Raises:
        ConfigError: an override names what does not exist, belongs to another measure, or is no override at all.
    """
    parsed = parse_overrides(words)
    own = {item.name for item in dataclasses.fields(schema)}
    measures = measures_of(parsed)
    for override in parsed:
        key = override.key_or_group
        if key.split(".")[0].split("/")[0] == "hydra":
            continue
        if not key:
            raise ConfigError(f"{override.input_line} names no setting; write KEY=VALUE, or model@target=NAME")
        if "." in str(override.package):
            raise ConfigError(f"{override.input_line} names no model; a setting is given as {override.package}=VALUE")
        is_group = key in own and (key == "measure" or any(configurations(key)))
        kind = "group" if is_group else _check_key(key, schema, measures)
        if override.is_sweep_override() and not sweeps:
            raise ConfigError(_several(key, str(override.input_line).partition("=")[2], kind))
        if override.is_delete() and "." not in key:
            raise ConfigError(f"~{key} leaves out what a job needs; choose another by {key}=...")
        if is_group:
            whole = f"{key}@{override.package}" if override.package else key
            check_option(key, whole, [each for each in values_of(override) if not isinstance(each, Glob | Sweep)])
        else:
            _check_no_part(key, override)
            _check_truth(kind, override)


def check_option(group: str, key: str, values: Sequence[Any]) -> None:
    """Refuse values of a key that are no options of a configuration group.

    Raises:
        ConfigError: one is none; the message names the nearest option.
    """
    for value in values:
        name = str(value)
        if group == "model":
            check_no_folder(key, name)
        if isinstance(value, list | dict) or not (name in options(group) or (group == "model" and is_repository(name))):
            there = options(group)
            parts = [each for each in there if name in each.split("/")]  # brown2023, or figure1
            near = f"there is: {', '.join(parts)}" if len(parts) > 1 else nearest((parts or [name])[0], there)
            if group == "model" and not near.startswith("did you"):
                near = f"there is: {listed(there)}, and ORG/NAME of the hub"
            if group == "model" and (base := re.fullmatch(r"([\w./-]+)[@:]([\w.-]+)", name)):
                near = f"a revision of {base[1]} is {key}={base[1]} {key.rpartition('@')[2]}.revision={base[2]}"
            raise ConfigError(f"{key}={name} is not known; {near}")


def _check_no_part(key: str, override: Override) -> None:
    """Refuse a value for what has settings of its own.

    Raises:
        ConfigError: it has.
    """
    if key not in PARTS or isinstance(value := override.value(), dict):
        return
    if key == "target":
        raise ConfigError(f"target={value} cannot be; the second model is named by model@target={value}")
    first = next(iter(dataclasses.fields(PARTS[key]))).name
    raise ConfigError(f"{key}={value} cannot be; {key} has settings of its own, such as {key}.{first}=")


def _check_truth(kind: str, override: Override) -> None:
    """Refuse a number where a truth value is wanted: OmegaConf reads all but 0 as true.

    Raises:
        ConfigError: it is one, other than 0 and 1.
    """
    for value in values_of(override) if kind == "bool" else ():
        if isinstance(value, int | float) and value not in (0, 1):
            raise ConfigError(f"{override.key_or_group}={value} must be true or false")


def _several(key: str, values: str, kind: str) -> str:
    """Return that a setting has several values where there is no sweep, and what it may have meant."""
    said = f"{key}={values} has several values; sweep over them with -m"
    if "list" in kind or kind == "Any":
        return f"{said}, or give a list: '{key}=[{values}]'"
    return f"{said}, or quote what is one: {key}='\"{values}\"'" if "str" in kind else said


def _check_key(key: str, schema: Any, measures: Sequence[str]) -> str:
    """Return the type of a setting, or of the dictionary or group that it is in.

    Raises:
        ConfigError: there is none of this name; the message says what may be meant.
    """
    door, walked, kind = schema, "", "dict"
    for part in key.split("."):
        if not dataclasses.is_dataclass(schema):
            if "dict" not in kind and kind != "Any":
                raise ConfigError(f"'{key}' is not a setting; {walked.removesuffix('.')} has no parts")
            return kind  # inside a free dictionary
        schemas = [schema] if walked != "measure." else [measure_schema(name) for name in measures if name in MEASURES]
        known = {item.name: str(item.type) for schema in schemas for item in dataclasses.fields(schema)}
        if part not in known or part in INTERNAL:
            if walked == "measure.":
                _refuse_foreign(part, measures)
            there = [walked + name for name in known if name not in INTERNAL]
            is_typo = bool(difflib.get_close_matches(part, known, n=1, cutoff=TYPO))
            meant = _called(key, door, exactly=is_typo) or (None if is_typo else _inside(walked, part, door, measures))
            raise ConfigError(f"'{key}' is not a setting; {meant or nearest(walked + part, there)}")
        kind, walked = known[part], f"{walked}{part}."
        schema = PARTS.get(part)
    return kind


def _called(key: str, door: type, exactly: bool) -> str | None:
    """Return where the other door or another framework has a key that does not exist, if one of them does.

    Args:
        exactly: whether another framework must have this very name, and not one like it.
    """
    own, other = ("train", "analyze") if door is TrainConfig else ("analyze", "train")
    if key.split(".")[0] in {item.name for item in dataclasses.fields(SCHEMAS[other])} - _own_names(door):
        return f"{other}.py has it, and this is {own}.py"
    return called_here(key, own, 1.0 if exactly else ALIKE)


def _own_names(door: Any) -> set[str]:
    return {item.name for item in dataclasses.fields(door)} | INTERNAL


def _inside(walked: str, part: str, door: Any, measures: Sequence[str]) -> str | None:
    """Return in which parts of the configuration there is a setting of this name.

    Args:
        walked: what stands before `part` in the key.
        measures: those that are asked for.
    """
    places = [] if walked else [item.name for item in dataclasses.fields(door)]
    inside = [f"{place}.{part}" for place in places if part in settings_of(place, measures)]
    return f"did you mean {' or '.join(map(repr, inside))}?" if inside else None


def settings_of(part: str, measures: Sequence[str]) -> set[str]:
    """Return the settings of a part of a configuration; of measure those of these measures."""
    if part == "measure":
        return {item.name for kind in measures if kind in MEASURES for item in dataclasses.fields(measure_schema(kind))}
    return {item.name for item in dataclasses.fields(PARTS[part])} if part in PARTS else set()


def _refuse_foreign(setting: str, measures: Sequence[str]) -> None:
    """Raise a ConfigError if this is a setting of other measures only."""
    owners = [kind for kind in MEASURES if setting in {item.name for item in dataclasses.fields(measure_schema(kind))}]
    if owners:
        theirs, given = (f"measure={', '.join(kinds)}" for kinds in (owners, measures))
        raise ConfigError(f"measure.{setting} is a setting of {theirs}, and this is {given}")
