"""Numbers as a person wrote them, for settings that are texts.

YAML and Hydra read `revision: 1.10` as the number 1.1 before anybody knows that a revision is a text. So the text of
each such number is kept beside the values, by its place, until the schema of the setting is known.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import yaml

from thinkalike.files import YAML_LOADER

Place = tuple[str | int, ...]  # the keys and list positions that lead to a value, such as ("data", "files", 0)
NumberTexts = dict[Place, str]
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


def taken_texts(value: Any, key: str) -> tuple[Any, NumberTexts]:
    """Return the value of a dotted key with plain numbers, and the texts of those that remember theirs."""
    texts: NumberTexts = {}
    return _plain(value, tuple(key.split(".")), texts), texts


def _plain(value: Any, place: Place, texts: NumberTexts) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner, (*place, name), texts) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner, (*place, position), texts) for position, inner in enumerate(value)]
    if isinstance(value, WrittenInt | WrittenFloat):
        texts[place] = value.text
        return int(value) if isinstance(value, int) else float(value)
    return value


def texts_of_yaml(content: bytes, settings: Any) -> NumberTexts:
    """Return the texts of the numbers of a YAML file, given the settings that were read from it."""
    texts: NumberTexts = {}
    _add_texts(yaml.compose(content, Loader=YAML_LOADER), (), texts)
    return {place: text for place, text in texts.items() if _is_number_written_otherwise(settings, place, text)}


def _add_texts(node: Any, place: Place, texts: NumberTexts) -> None:
    if isinstance(node, yaml.ScalarNode):
        texts[place] = node.value
    elif isinstance(node, yaml.SequenceNode):
        for position, inner in enumerate(node.value):
            _add_texts(inner, (*place, position), texts)
    elif isinstance(node, yaml.MappingNode):
        # what <<: brings in is overridden by the keys beside it
        for key, inner in sorted(node.value, key=lambda pair: pair[0].tag != MERGE_TAG):
            if key.tag != MERGE_TAG:
                _add_texts(inner, (*place, key.value), texts)
                continue
            merged = reversed(inner.value) if isinstance(inner, yaml.SequenceNode) else [inner]
            for mapping in merged:
                _add_texts(mapping, place, texts)


def _is_number_written_otherwise(settings: Any, place: Place, text: str) -> bool:
    value = _value_at(settings, place)
    return _is_number(value) and str(value) != text


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _value_at(settings: Any, place: Place) -> Any:
    """Return the value at a place of nested settings, or None if there is no such place."""
    value = settings
    for step in place:
        if isinstance(step, int):
            value = value[step] if isinstance(value, list) and step < len(value) else None
        else:
            value = value.get(step) if isinstance(value, Mapping) else None
    return value


def drop_texts(texts: NumberTexts, keys: Iterable[str]) -> None:
    """Remove the texts of the settings that have these dotted keys, and of all that is inside them."""
    overridden = {tuple(key.split(".")) for key in keys}
    for place in list(texts):
        starts = (place[:length] for length in range(1, len(place) + 1))
        if any(start in overridden for start in starts):
            del texts[place]


def restore_texts(composed: Any, settings: Any, texts: NumberTexts, schema_of: Any) -> None:
    """Put the text of each number into a composed configuration where the setting is a text.

    Args:
        settings: the plain values of `composed`.
        schema_of: a function from the place of a setting to the schema that holds it and its place in there, or None.
    """
    for place, text in texts.items():
        if not _is_number(_value_at(settings, place)):  # a later file or override set another value
            continue
        found = schema_of(place)
        if found is None:
            continue
        types = types_at(*found)
        if str in types and not {int, float} & types:
            holder = composed
            for step in place[:-1]:
                holder = holder[step]
            holder[place[-1]] = text


def types_at(hint: Any, place: Place) -> set[Any]:
    """Return the types that a value at a place inside an annotation can have: those of `list[str]` at 0 are {str}."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return types_at(arguments[0], place)
    if origin in (Union, UnionType):
        return set().union(*(types_at(argument, place) for argument in arguments))
    if not place:
        return {hint}
    step, rest = place[0], place[1:]
    if dataclasses.is_dataclass(hint):
        hints = get_type_hints(hint, include_extras=True)
        return types_at(hints[step], rest) if step in hints else set()
    if origin is list and isinstance(step, int):
        return types_at(arguments[0], rest)
    if origin is dict and isinstance(step, str):
        return types_at(arguments[1], rest)
    return set()
