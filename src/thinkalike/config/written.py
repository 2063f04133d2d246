"""Numbers and truth values as a person wrote them, for settings that are texts.

YAML and Hydra read `revision: 1.10` as the number 1.1, and YAML reads `revision: no` as false,
before anybody knows that a revision is a text. So the text of each such value is kept beside the
values, by its place, until the schema of the setting is known.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import UnionType
from typing import (
    Annotated,
    Protocol,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

import yaml

from thinkalike.files import YAML_LOADER

# The keys and list positions that lead to a value, such as ("data", "files", "0"). A position is a
# text, as in the key of an override: data.files.0=x.
KeyPath = tuple[str, ...]
NumberTexts = dict[KeyPath, str]
MERGE_TAG = "tag:yaml.org,2002:merge"


class WrittenInt(int):
    """An integer that prints as it was written, such as 1_000."""

    text: str

    def __str__(self) -> str:
        return self.text


class WrittenFloat(float):
    """A float that prints as it was written, such as 1e5."""

    text: str

    def __str__(self) -> str:
        return self.text


def number_as_written(value: int | float, text: str) -> WrittenInt | WrittenFloat:
    """Return a number that prints as it was written."""
    if isinstance(value, int):
        written_int = WrittenInt(value)
        written_int.text = text
        return written_int
    written_float = WrittenFloat(value)
    written_float.text = text
    return written_float


@runtime_checkable
class SettingsTree(Protocol):
    """Nested settings that can be changed, such as a configuration of OmegaConf."""

    def __getitem__(self, key: str, /) -> object: ...
    def __setitem__(self, key: str, value: object, /) -> None: ...


def taken_texts(value: object, key: str) -> tuple[object, NumberTexts]:
    """Return a value with plain numbers, and the texts of those that remember theirs.

    Args:
        key: The dotted key of the value.
    """
    texts: NumberTexts = {}
    plain = _plain(value, tuple(key.split(".")), texts)
    return plain, texts


def _plain(value: object, key_path: KeyPath, texts: NumberTexts) -> object:
    if isinstance(value, dict):
        return {
            name: _plain(inner, (*key_path, str(name)), texts) for name, inner in value.items()
        }
    if isinstance(value, list):
        return [_plain(inner, (*key_path, str(index)), texts) for index, inner in enumerate(value)]
    if isinstance(value, WrittenInt):
        texts[key_path] = value.text
        return int(value)
    if isinstance(value, WrittenFloat):
        texts[key_path] = value.text
        return float(value)
    return value


def texts_of_yaml(content: bytes, settings: object) -> NumberTexts:
    """Return the texts of truth values, and of those numbers that print as another text.

    Args:
        settings: What was read from the file.
    """
    texts: NumberTexts = {}
    _add_texts(yaml.compose(content, Loader=YAML_LOADER), (), texts)
    written_otherwise = {}
    for key_path, text in texts.items():
        value = _value_at(settings, key_path)
        if isinstance(value, bool) or (_is_number(value) and str(value) != text):
            written_otherwise[key_path] = text
    return written_otherwise


def _add_texts(node: yaml.Node | None, key_path: KeyPath, texts: NumberTexts) -> None:
    """Add the texts of the values inside a node of a YAML file."""
    if isinstance(node, yaml.ScalarNode):
        texts[key_path] = node.value
    elif isinstance(node, yaml.SequenceNode):
        for index, inner in enumerate(node.value):
            _add_texts(inner, (*key_path, str(index)), texts)
    elif isinstance(node, yaml.MappingNode):
        # The keys of a mapping override what <<: brings in, so that comes first.
        merged_first = sorted(node.value, key=lambda pair: pair[0].tag != MERGE_TAG)
        for key, inner in merged_first:
            if key.tag == MERGE_TAG:
                _add_merged_texts(inner, key_path, texts)
            else:
                _add_texts(inner, (*key_path, key.value), texts)


def _add_merged_texts(node: yaml.Node, key_path: KeyPath, texts: NumberTexts) -> None:
    """Add the texts of what <<: brings in: a mapping, or several, of which the first counts."""
    if not isinstance(node, yaml.SequenceNode):
        _add_texts(node, key_path, texts)
        return
    for mapping in reversed(node.value):
        _add_texts(mapping, key_path, texts)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _value_at(settings: object, key_path: KeyPath) -> object:
    """Return the value at a place of nested settings, or None if there is no such place."""
    value = settings
    for step in key_path:
        if isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        elif isinstance(value, Mapping):
            value = value.get(step)
        else:
            return None
    return value


def drop_texts(texts: NumberTexts, keys: Iterable[str]) -> None:
    """Remove the texts of the settings that have these dotted keys, and of all inside them."""
    overridden = {tuple(key.split(".")) for key in keys}
    for key_path in list(texts):
        beginnings = [key_path[:length] for length in range(1, len(key_path) + 1)]
        if any(beginning in overridden for beginning in beginnings):
            del texts[key_path]


def restore_texts(
    composed: SettingsTree,
    settings: object,
    texts: NumberTexts,
    schema_of: Callable[[KeyPath], tuple[object, KeyPath] | None],
) -> None:
    """Put the texts of values into a composed configuration, for the settings that are texts.

    A setting that can be a text or what was read, a number or a truth value, stays as it was read.

    Args:
        settings: The plain values of `composed`.
        schema_of: Returns for the place of a setting the schema that holds it and its place in
            there, or None.
    """
    for key_path, text in texts.items():
        value = _value_at(settings, key_path)
        if isinstance(value, bool):
            types_as_read: set[object] = {bool}
        elif _is_number(value):
            types_as_read = {int, float}
        else:  # a later file or override set another value
            continue
        schema_and_path = schema_of(key_path)
        if schema_and_path is None:
            continue
        types = types_at(*schema_and_path)
        if str in types and not types_as_read & types:
            _set_at(composed, key_path, text)


def _set_at(settings: SettingsTree, key_path: KeyPath, value: object) -> None:
    """Set the value at a place of nested settings."""
    holder: object = settings
    for step in key_path[:-1]:
        holder = holder[_index_in(holder, step)]  # type: ignore[index]
    holder[_index_in(holder, key_path[-1])] = value  # type: ignore[index]


def _index_in(holder: object, step: str) -> str | int:
    """Return a step of a key path as settings or a list take it."""
    return int(step) if isinstance(holder, Sequence) else step


def types_at(hint: object, key_path: KeyPath) -> set[object]:
    """Return the types that a value at a place inside an annotation can have.

    Those of `list[str]` at "0" are {str}.
    """
    origin = get_origin(hint)
    arguments = get_args(hint)
    if origin is Annotated:
        return types_at(arguments[0], key_path)
    if origin in (Union, UnionType):
        types: set[object] = set()
        for argument in arguments:
            types |= types_at(argument, key_path)
        return types
    if not key_path:
        return {hint}

    step = key_path[0]
    rest = key_path[1:]
    if dataclasses.is_dataclass(hint):
        hints = get_type_hints(hint, include_extras=True)
        return types_at(hints[step], rest) if step in hints else set()
    if origin is list and step.isdecimal():
        return types_at(arguments[0], rest)
    if origin is dict:
        return types_at(arguments[1], rest)
    return set()
