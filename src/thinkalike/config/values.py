"""The settings of a configuration as plain values, by their keys, and as they enter a job's key.

The key of a job contains only settings that differ from their defaults, see `key_settings`, so a
schema can grow without losing any finished result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from copy import copy
from typing import TYPE_CHECKING, TypeVar

from thinkalike.config.schema import SettingValues, declared_of, left_out_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Job = TypeVar("Job")


def as_settings(config: DataclassInstance) -> dict[str, object]:
    """Return settings as nested dictionaries and lists, without the objects in memory."""
    settings = {}
    for item in dataclasses.fields(config):
        if not declared_of(item).is_object:
            settings[item.name] = _as_plain(getattr(config, item.name))
    return settings


def _as_plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return as_settings(value)
    if isinstance(value, Mapping):
        return {name: _as_plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_as_plain(inner) for inner in value]
    return value


def key_settings(config: DataclassInstance) -> dict[str, object]:
    """Return the settings that enter a key: they can change numbers, and are not the default.

    A setting that is left to the recipe, and is not decided yet, is in no key.
    """
    entering = {}
    for item in dataclasses.fields(config):
        declared = declared_of(item)
        value: object = getattr(config, item.name)
        default = left_out_of(item)
        is_undecided = declared.by_recipe and value is None
        is_unread_part = dataclasses.is_dataclass(default) and value is None
        if not declared.in_key or is_undecided or is_unread_part or value == default:
            continue
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = key_settings(value)
        if value != {}:
            entering[item.name] = value
    return entering


def with_settings(config: Job, values: SettingValues) -> Job:
    """Return the configuration of a job with other values, by their keys.

    The values, such as {"model": None, "trainer.compile": False}, are not checked, as those of a
    whole part may be None where a job reads none of it.
    """
    changed = copy(config)
    for key, value in values.items():
        part, _, name = key.partition(".")
        if name:
            changed_part = copy(getattr(changed, part))
            setattr(changed_part, name, value)
            setattr(changed, part, changed_part)
        else:
            setattr(changed, part, value)
    return changed


def value_at(config: object, key: str) -> object:
    """Return the value of a setting by its key, such as "model.dtype"; None in a part of None."""
    part, _, name = key.partition(".")
    value: object = getattr(config, part)
    if name and value is not None:
        return getattr(value, name)
    return value
