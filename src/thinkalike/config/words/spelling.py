"""The settings and options that a command line names; one that does not exist is refused with the nearest that does."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, get_type_hints

from hydra.core.override_parser.types import Glob, Sweep

from thinkalike.config.compose import measure_schema, measures_of, options
from thinkalike.config.overrides import check_no_folder, is_repository, parse_overrides, values_of
from thinkalike.config.registry import MEASURES
from thinkalike.config.schema import short
from thinkalike.config.words.folders import configurations
from thinkalike.errors import ConfigError, listed, nearest
from thinkalike.plugins import is_plugin

INTERNAL = {"chosen"}  # what an entry point sets


def check_overrides(words: Sequence[str], schema: type, sweeps: bool = True) -> None:
    """Refuse groups, options and keys of a command line that do not exist, with the nearest ones that do.

    Args:
        sweeps: whether settings may have several values.

    Raises:
        ConfigError: an override names what does not exist, or belongs to another measure.
    """
    parsed = parse_overrides(words)
    own = {item.name for item in dataclasses.fields(schema)}
    known = dict(_settings(schema, measures_of(parsed)))
    for override in parsed:
        key = override.key_or_group
        if key.split(".")[0].split("/")[0] == "hydra":
            continue
        if override.is_sweep_override() and not sweeps:
            raise ConfigError(f"{override.input_line} has several values; sweep over them with -m, or give a list")
        if key in own and (key == "measure" or any(configurations(key))) and not override.is_delete():
            whole = f"{key}@{override.package}" if override.package else key
            check_option(key, whole, [each for each in values_of(override) if not isinstance(each, Glob | Sweep)])
        elif key in known:
            if override.is_delete() or (known[key] and not isinstance(override.value(), dict)):
                raise ConfigError(f"{override.input_line} must be given by its settings: {key}.KEY=VALUE")
        elif not any(not known[above] for above in _above(key) if above in known) or override.package:
            inside = [name for name in known if name.endswith(f".{key}")]
            near = f"did you mean {' or '.join(map(repr, inside))}?" if inside else nearest(key, known)
            raise ConfigError(f"'{override.input_line if override.package else key}' is not a setting; {near}")


def _settings(schema: Any, measures: Sequence[str], start: str = "") -> Iterator[tuple[str, bool]]:
    """Yield the key of every setting and part of a schema, and whether it is a part."""
    hints = get_type_hints(schema)
    for item in dataclasses.fields(schema):
        is_part, key = dataclasses.is_dataclass(hints[item.name]), f"{start}{item.name}"
        if item.name in INTERNAL:
            continue
        yield key, is_part
        if is_part:
            kinds = [kind for kind in measures if kind in MEASURES or is_plugin(kind)] if key == "measure" else []
            for inner in [measure_schema(kind) for kind in kinds] or [hints[item.name]]:
                yield from _settings(inner, (), f"{key}.")


def _above(key: str) -> list[str]:
    """Return the keys that a key is inside of: those of free dictionaries may be any."""
    parts = key.split(".")
    return [".".join(parts[:count]) for count in range(2, len(parts))]


def check_option(group: str, key: str, values: Sequence[Any]) -> None:
    """Refuse values of a key that are no options of a configuration group.

    Raises:
        ConfigError: one is none; the message names the nearest option.
    """
    there = options(group)
    for value in values:
        name = str(value)
        if group == "model":
            check_no_folder(key, name)
        more = (group == "model" and is_repository(name)) or (group == "measure" and is_plugin(name))
        if isinstance(value, list | dict) or not (name in there or more):
            parts = [each for each in there if name in each.split("/")]  # brown2023, or figure1
            near = f"there is: {', '.join(parts)}" if len(parts) > 1 else nearest((parts or [name])[0], there)
            if group == "model" and not near.startswith("did you"):
                near = f"there is: {listed(there)}, and ORG/NAME of the hub"
            raise ConfigError(f"{key}={short(name)} is not known; {near}")


def settings_of(part: str, measures: Sequence[str]) -> set[str]:
    """Return the settings of measures."""
    return {item.name for kind in measures if kind in MEASURES for item in dataclasses.fields(measure_schema(kind))}
