"""The ${...} of a configuration: which settings they stand for, and how large it becomes by them.

OmegaConf replaces them without any bound, so that a file of a few lines can fill the memory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import reduce

from thinkalike.errors import ConfigError, short

ABSENT = object()  # no value, not even null
MOST_RESOLVED = 10**6  # letters and values of a configuration once its ${...} are replaced
REFERENCE_COST = 200  # letters that OmegaConf reads to look up one ${...}, each time anew
INNERMOST = re.compile(r"\$\{([^${}]*)\}")  # ${...} with no other inside
RESOLVERS = ("oc.env", "oc.decode", "now", "hydra")  # they return no more than they are given
REPLACED = "\0"  # stands for a ${...} that was read already


def check_size(settings: Mapping[str, object]) -> None:
    """Check that a configuration is not too large once its ${...} are replaced.

    Raises:
        ConfigError: It is, or a ${...} is of a form that is not read.
    """
    _resolved_size(settings, "", settings, {})


def _resolved_size(
    value: object, key: str, root: Mapping[str, object], sizes: dict[str, int]
) -> int:
    """Return how many values and letters a setting has once it is resolved.

    Args:
        root: The whole configuration.
        sizes: Those known so far, by keys.
    """
    if key in sizes:
        return sizes[key]
    sizes[key] = 0  # a setting that stands for itself is an error of OmegaConf's
    size = 1
    if isinstance(value, Mapping):
        for name, inner in value.items():
            size += _resolved_size(inner, f"{key}.{name}".lstrip("."), root, sizes)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            size += _resolved_size(inner, f"{key}.{index}".lstrip("."), root, sizes)
    elif isinstance(value, str):
        size = len(value)
        for referred in _referred_keys(value, key):
            target = value_inside(root, referred)
            size += REFERENCE_COST + _resolved_size(target, referred, root, sizes)
    if size > MOST_RESOLVED:
        raise ConfigError(
            f"{short(key)} stands for more than {MOST_RESOLVED:,} values; "
            "name fewer settings by ${...}"
        )
    sizes[key] = size
    return size


def _referred_keys(text: str, key: str) -> list[str]:
    """Return the keys of the settings that the ${...} of a text stand for.

    Raises:
        ConfigError: One is of another form than ${a.b}, ${oc.env:NAME} and the like, such as a key
            that is computed.
    """
    keys = []
    match = INNERMOST.search(text)
    while match is not None:
        content = match[1].strip()
        resolver, colon, _ = content.partition(":")
        is_computed = REPLACED in content and resolver != "oc.decode"
        if is_computed or (colon and resolver not in RESOLVERS):
            raise ConfigError(
                f"{short(key)}: ${{{short(content)}}} is not read; "
                "name a setting, as ${seed} does"
            )
        if not colon:
            keys.append(_absolute(content, key))
        text = text[: match.start()] + REPLACED + text[match.end() :]
        match = INNERMOST.search(text)
    return keys


def _absolute(name: str, key: str) -> str:
    """Return the key that ${name} stands for in a setting.

    With dots before it, it is relative to the key of the setting.
    """
    plain_name = name.lstrip(".")
    levels_up = len(name) - len(plain_name)
    if not levels_up:
        return plain_name
    return ".".join([*key.split(".")[:-levels_up], plain_name])


def value_inside(settings: object, key: str) -> object:
    """Return the value of a dotted key inside nested settings, or ABSENT."""
    return reduce(_step_inside, key.split("."), settings)


def _step_inside(value: object, name: str) -> object:
    if isinstance(value, list) and name.isdecimal() and int(name) < len(value):
        return value[int(name)]
    if isinstance(value, Mapping):
        return value.get(name, ABSENT)
    return ABSENT


def literal(value: object) -> object:
    """Return plain settings in which OmegaConf takes every ${ for these two letters.

    They may be part of the name of a file.
    """
    if isinstance(value, Mapping):
        return {name: literal(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [literal(inner) for inner in value]
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", lambda match: 2 * match[1] + r"\${", value)
    return value
