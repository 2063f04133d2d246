"""Settings as configurations have them: plain values in the place of tuples, arrays and paths."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from thinkalike.errors import ConfigError

# The most values of a setting that is a list.
MOST_ITEMS = 10**6


def checked_plain(name: str, value: object) -> object:
    """Return the value of a setting as configurations have it.

    Args:
        name: The name of the setting, for errors.
        value: Its value.

    Raises:
        ConfigError: No configuration can have it; the message has the name of the setting.
    """
    count = _count(value)
    if count > MOST_ITEMS:
        raise ConfigError(f"{name} holds {count:,} values: give at most {MOST_ITEMS:,}")
    try:
        return plain_setting(value)
    except TypeError as error:
        raise ConfigError(
            f"{name} holds {error}: give text, numbers, True or False, or a list of them"
        ) from None


def plain_setting(value: object) -> object:
    """Return a value with lists for tuples and arrays, dictionaries, and text for paths.

    Raises:
        TypeError: No configuration can have it; the message is its type.
    """
    # Arrays of NumPy, torch and pandas are no values: comparing them gives further arrays.
    to_list = getattr(value, "tolist", None)
    if to_list is not None:
        return plain_setting(to_list())
    if isinstance(value, Mapping):
        return {plain_setting(name): plain_setting(inner) for name, inner in value.items()}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return [plain_setting(inner) for inner in value]
    raise TypeError(type(value).__name__)


def _count(value: object) -> int:
    """Return how many values a list or an array has, without going through them; 1 otherwise."""
    if isinstance(value, Tensor | np.ndarray):
        return math.prod(value.shape)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return len(value)
    return 1
