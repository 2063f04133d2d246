"""A property that is computed once, and of which each reader gets a copy."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
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
        return self.copied(values[self._name])

    def copied(self, value: Value) -> Value:
        """Return what a reader gets of the cached value."""
        copy_of_it: Value = copy_of_value(value)
        return copy_of_it

    def __set__(self, instance: object, value: object) -> NoReturn:
        """Raise an AttributeError; with this method, Python asks the property first."""
        raise AttributeError(f"{self._name} cannot be replaced")


class CopiedEntries(Mapping[str, Value]):
    """A dictionary that cannot be changed, and of whose values each reader gets a copy.

    A value is copied when it is read, and the others are not.
    """

    def __init__(self, values: Mapping[str, Value]):
        self._values = values

    def __getitem__(self, key: str) -> Value:
        value: Value = copy_of_value(self._values[key])
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)

    def _ipython_key_completions_(self) -> list[str]:
        """Return the keys, which notebooks complete."""
        return list(self)


class copied_entries(copied_property[Mapping[str, Value]]):
    """Caches a dictionary of values, such as tables, and copies each of them when it is read."""

    def copied(self, value: Mapping[str, Value]) -> Mapping[str, Value]:
        return CopiedEntries(value)
