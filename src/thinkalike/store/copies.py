"""A property that is computed once, and of which each reader gets a copy."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Generic, NoReturn, TypeVar, overload

Value = TypeVar("Value")

# The types of values that nobody can change.
UNCHANGEABLE = frozenset({str, int, float, bool, type(None)})


def copy_of_value(value: Any) -> Any:
    """Return a copy of a value with nothing in it that is the original's and can be changed.

    Dictionaries and lists are copied here, as `deepcopy` looks up each object in them, which takes
    most of the time of a list of thousands of results.
    """
    kind = type(value)
    if kind in UNCHANGEABLE:
        return value
    if kind is dict:
        return {key: copy_of_value(entry) for key, entry in value.items()}
    if kind is list:
        return [copy_of_value(entry) for entry in value]
    return copy.deepcopy(value)


class copied_property(Generic[Value]):
    """Caches a value, such as a table, and returns a deep copy of it each time.

    So nobody who changes what they got changes what others read, or what is saved. Like
    `functools.cached_property`, it keeps the value in the dictionary of the object, by its name.

    >>> class Words:
    ...     @copied_property
    ...     def listed(self) -> list[str]:
    ...         return ["a"]
    >>> words = Words()
    >>> words.listed.append("b")
    >>> words.listed
    ['a']
    """

    def __init__(self, compute: Callable[[Any], Value]):
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> copied_property[Value]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> Value: ...

    def __get__(self, instance: object | None, owner: type) -> copied_property[Value] | Value:
        if instance is None:
            return self
        values = vars(instance)
        if self._name not in values:
            values[self._name] = self._compute(instance)
        value: Value = copy_of_value(values[self._name])
        return value

    def __set__(self, instance: object, value: object) -> NoReturn:
        """Raise an AttributeError; with this method, Python asks the property first."""
        raise AttributeError(f"{self._name} cannot be replaced")
