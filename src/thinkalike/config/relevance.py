"""Which settings can change the numbers of a job, and so belong to its key.

A setting that cannot is declared so in its schema, with `neutral`; one that has its default does not enter the key, so
that a schema can grow without any finished result being lost.
"""

from __future__ import annotations

import dataclasses
from typing import Any

NEUTRAL = {"neutral": True}  # metadata of a field that cannot change the numbers of any job


def neutral(default: Any) -> Any:
    """Return a dataclass field with this default that cannot change the numbers of any job."""
    return dataclasses.field(default=default, metadata=NEUTRAL)


def relevant(config: Any) -> dict[str, Any]:
    """Return the settings of a configuration dataclass that can change numbers and differ from their defaults."""
    kept = {}
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if item.metadata.get("neutral") or value == default_of(item):
            continue
        inner = relevant(value) if dataclasses.is_dataclass(value) else value
        if inner != {}:
            kept[item.name] = inner
    return kept


def default_of(item: dataclasses.Field) -> Any:
    """Return the default of a dataclass field, made anew where a factory makes it."""
    if item.default_factory is not dataclasses.MISSING:
        return item.default_factory()
    return item.default
