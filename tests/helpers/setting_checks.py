"""Checks of settings: of their ranges, and that those that are taken are in the key of a result."""

from __future__ import annotations

import dataclasses
import typing

from conftest import composed
from thinkalike.config.compose import keys_of
from thinkalike.config.schema import declared_of
from thinkalike.errors import ConfigError
from thinkalike.instruments import instrument_of, refuse_unread_settings

# whose ranges are annotations
OWN_WAY = {"keep", "steps", "layers", "generalizing", "heuristic", "cluster", "published"}


def holds_numbers(kind) -> bool:
    return kind in (int, float) or any(holds_numbers(inner) for inner in typing.get_args(kind))


def numbers(schema) -> list[dataclasses.Field]:
    hints = typing.get_type_hints(schema)
    return [item for item in dataclasses.fields(schema) if holds_numbers(hints[item.name]) and item.name not in OWN_WAY]


def check_refused_before_loading(said, line, cli, tmp_path, monkeypatch):
    from thinkalike.models import load

    monkeypatch.setattr(load, "explaining_loading_errors", None)  # loading a model would call it
    script, *words = line.split(" ")
    (tmp_path / "file").touch()
    refused = cli(script, *(word.replace("{file}", str(tmp_path / "file")) for word in words))
    assert said in refused.error
    assert not list((tmp_path / "results").rglob("*"))


WHICH = {  # which job it is, and what decides other settings
    "kind", "task", "experiment", "name", "mini", "members", "source", "path", "base", "files", "scale", "recipe",
}  # fmt: skip


OTHER = {  # values of settings whose type does not say one
    "optimizer": ["adam", "sgd"], "init": ["identity", "least_squares"], "floor": ["true", "false"],
    "features": "[PoS]", "balance": "[PoS]", "lr_multiples": "[0.5]",
    "beside": "[random]", "keep": "log2", "layers": "all", "revision": "main", "corpus": "pydoc", "hub_id": "a/b",
    "stitch": "x", "memory": "1GB", "alphas": "[0.5]",
    "rank": "5", "skip_first": "2",
}  # fmt: skip


def another(item: dataclasses.Field, hint: typing.Any, now: typing.Any) -> str | None:
    """A value that a setting does not have; None: the test knows none."""
    if item.name in OTHER:
        values = [OTHER[item.name]] if isinstance(OTHER[item.name], str) else OTHER[item.name]
        return next(value for value in values if value != str(now).lower())
    kinds = [each for each in (hint, *typing.get_args(hint)) if each is not type(None)]
    choices = [value for kind in kinds if typing.get_origin(kind) is typing.Literal for value in typing.get_args(kind)]
    if choices:
        return next((str(choice) for choice in choices if choice != now), None)
    if bool in kinds:
        return str(not now).lower()
    if int in kinds:
        return str((now or 1) * 2)
    return str((now or 1.0) / 2) if float in kinds else None


def settings(config) -> list[tuple[str, str]]:
    """Each setting of a job that the test can change, and another value."""
    found = []
    parts = [item.name for item in dataclasses.fields(config) if declared_of(item).in_key]
    for part in [None, *parts]:
        owner = config if part is None else getattr(config, part)
        if dataclasses.is_dataclass(owner):
            hints = typing.get_type_hints(type(owner))
            for item in dataclasses.fields(owner):
                value = another(item, hints[item.name], getattr(owner, item.name))
                if value is not None and item.name not in WHICH and declared_of(item).in_key:
                    found.append((f"{part}.{item.name}" if part else item.name, value))
    return found


def in_key(config) -> dict:
    return instrument_of(config).key_settings(config)


def check_taken_settings_are_in_the_key(line):
    entry, *words = line.split(" ")
    plain, silent, taken = composed(*words, entry=entry), [], 0
    for key, value in settings(plain):
        more = [word for word in words if not word.startswith(f"{key}=")] + [f"{key}={value}"]
        try:
            config = composed(*more, entry=entry)
            # A configuration that is complete has what its recipe decided, so that no recipe is left to read.
            refuse_unread_settings(keys_of(word for word in more if not word.startswith("recipe=")), config)
        except ConfigError:
            continue
        taken += 1
        if in_key(config) == in_key(plain):
            silent.append(f"{key}={value}")
    assert silent == []
    assert taken > 2, "control"
