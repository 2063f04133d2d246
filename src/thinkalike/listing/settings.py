"""The settings that tell listed results apart: those in which jobs of one kind differ."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from thinkalike.listing.found import Entry

NAMED = ("model", "target", "data")  # parts whose other settings mostly follow from the name
SHOWN_AS_MODELS = ("model.name", "target.name")


def differing(entries: Sequence[Entry]) -> list[str]:
    """Return the dotted names of the settings in which results of one kind differ.

    A setting of a model or of data is among them only if it differs between results in which that has one name.
    """
    names = sorted({name for entry in entries for name in entry.settings} - set(SHOWN_AS_MODELS))
    return [name for name in names if _differs(name, entries)]


def values_of(entry: Entry, names: Sequence[str]) -> dict[str, Any]:
    """Return these settings of a result; one that has its default is read from its configuration."""
    return {name: entry.settings[name] if name in entry.settings else _default(entry, name) for name in names}


def _differs(name: str, entries: Sequence[Entry]) -> bool:
    part = name.partition(".")[0]
    by_name: dict[Any, set[str]] = {}
    for entry in entries:
        whose = entry.settings.get(f"{part}.name") if part in NAMED and name != f"{part}.name" else None
        by_name.setdefault(whose, set()).add(json.dumps(entry.settings.get(name), sort_keys=True))
    return any(len(values) > 1 for values in by_name.values())


def _default(entry: Entry, name: str) -> Any:
    value: Any = entry.result.config
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
