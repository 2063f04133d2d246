"""The command line, checked before anything is composed: what is misspelt or out of place is refused with a remedy."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.types import Glob, Sweep

from thinkalike.config.compose import CONF, GROUPS, measure_schema, measures_of, options, parse_overrides, values_of
from thinkalike.config.registry import MEASURES
from thinkalike.config.repositories import check_no_folder, is_repository
from thinkalike.config.saes import SAEConfig
from thinkalike.config.training import NLIConfig, PretrainConfig
from thinkalike.errors import ConfigError, listed, nearest

PARTS = GROUPS | {"target": GROUPS["model"], "pretrain": PretrainConfig, "nli": NLIConfig, "sae": SAEConfig}


def check_overrides(words: Sequence[str], schema: type) -> None:
    """Refuse groups, options and keys of a command line that do not exist, with the nearest ones that do.

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
        if override.is_delete() and "." not in key:
            raise ConfigError(f"~{key} leaves out what a job needs; choose another by {key}=...")
        foreign = key in GROUPS and key not in own
        if key and (key == "measure" or (CONF / key).is_dir()) and not foreign:
            whole = f"{key}@{override.package}" if override.package else key
            check_option(key, whole, [each for each in values_of(override) if not isinstance(each, Glob | Sweep)])
        else:
            _check_key(key, schema, measures)


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
            near = nearest(name, options(group))
            if group == "model" and not near.startswith("did you"):
                near = f"there is: {listed(options(group))}, and ORG/NAME of the hub"
            raise ConfigError(f"{key}={name} is not known; {near}")


def _check_key(key: str, schema: Any, measures: Sequence[str]) -> None:
    walked, kind = "", "dict"
    for part in key.split("."):
        if not dataclasses.is_dataclass(schema):
            if "dict" not in kind and kind != "Any":
                raise ConfigError(f"'{key}' is not a setting; {walked.removesuffix('.')} has no parts")
            return  # inside a free dictionary
        schemas = [schema] if walked != "measure." else [measure_schema(name) for name in measures if name in MEASURES]
        known = {item.name: str(item.type) for schema in schemas for item in dataclasses.fields(schema)}
        if part not in known:
            if walked == "measure.":
                _refuse_foreign(part, measures)
            raise ConfigError(f"'{key}' is not a setting; {nearest(walked + part, [walked + name for name in known])}")
        kind, walked = known[part], f"{walked}{part}."
        schema = PARTS.get(part)


def _refuse_foreign(setting: str, measures: Sequence[str]) -> None:
    """Raise a ConfigError if this is a setting of other measures only."""
    owners = [kind for kind in MEASURES if setting in {item.name for item in dataclasses.fields(measure_schema(kind))}]
    if owners:
        theirs, given = (f"measure={', '.join(kinds)}" for kinds in (owners, measures))
        raise ConfigError(f"measure.{setting} is a setting of {theirs}, and this is {given}")
