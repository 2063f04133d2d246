"""Arguments that are numbers or switches: what their annotations say, and the check of it."""

from __future__ import annotations

import functools
import math
import numbers
import operator
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, NamedTuple

import numpy as np
import torch
from torch import Tensor

from thinkalike.arguments.messages import shown
from thinkalike.ranges import Within

PLAIN_TYPES = (int, float, bool, str, type(None))
WORDS = {
    float: "a finite number",
    int: "a whole number",
    bool: "True or False",
    str: "text",
}


def checked_numbers(
    function: Callable[..., object], arguments: Mapping[str, object]
) -> dict[str, object]:
    """Return those arguments of a function that are numbers or switches, once checked.

    Raises:
        ValueError: A number is text, True or not in its range, a switch is not True or False; the
            message names it.
    """
    declared = _number_arguments(function)
    checked = {}
    for name, value in arguments.items():
        if name in declared:
            checked[name] = declared[name].checked(name, value)
    return checked


@functools.cache
def _number_arguments(function: Callable[..., object]) -> dict[str, NumberArgument]:
    hints = typing.get_type_hints(function, include_extras=True)
    arguments = {}
    for name, hint in hints.items():
        argument = NumberArgument.of(hint)
        if argument is not None and name != "return":
            arguments[name] = argument
    return arguments


class NumberArgument(NamedTuple):
    """What an annotation says of numbers, truth values and text.

    Attributes:
        types: Of int, float, bool, str and None.
        range: Of the numbers.
        is_alone: Whether the annotation has no further types.
    """

    types: frozenset[type]
    range: Within
    is_alone: bool

    @classmethod
    def of(cls, annotation: object) -> NumberArgument | None:
        """Return what an annotation says; None: it is not of numbers or switches."""
        options, within = _options_of(annotation)
        plain: set[type] = set()
        for option in options:
            if isinstance(option, type) and option in PLAIN_TYPES:
                plain.add(option)
        if not plain & {int, float, bool}:
            return None
        is_alone = len(plain) == len({str(option) for option in options})
        return cls(frozenset(plain), within, is_alone)

    def checked(self, name: str, value: object) -> object:
        """Return an argument as a number of Python, if it is one.

        Raises:
            ValueError: It is nothing that the annotation names.
        """
        if isinstance(value, bool | np.bool_):
            if bool in self.types:
                return bool(value)
        elif bool not in self.types or self.types & {int, float}:
            if (value is None or isinstance(value, str)) and type(value) in self.types:
                return value
            number = self.number(value)
            if number is not None and number in self.range:
                return number
            # One of its other types is read by the function itself.
            if not self.is_alone and not isinstance(value, numbers.Number | str | bytes):
                return value
        elif (value is None or isinstance(value, str)) and type(value) in self.types:
            return value
        raise ValueError(f"{name}={shown(value)} must be {self}")

    def number(self, value: object) -> int | float | None:
        """Return a value as a number of Python, in any range; None if it is not a number."""
        if isinstance(value, Tensor) and not _is_single_number(value):
            return None
        try:
            whole = operator.index(value)  # type: ignore[arg-type]
        except (TypeError, RuntimeError):
            return self._real_number(value)
        is_beyond_floats = float in self.types and abs(whole) > sys.float_info.max
        return None if is_beyond_floats else whole

    def _real_number(self, value: object) -> float | None:
        """Return a value that is not whole as a float; None if it is not wanted, or not one."""
        if float not in self.types or not isinstance(value, numbers.Real):
            return None
        try:
            number = float(value)
        except OverflowError:  # of a Fraction
            return None
        return None if math.isnan(number) else number

    def __str__(self) -> str:
        kind = next(kind for kind in WORDS if kind in self.types)
        described = f"{WORDS[kind]}, {self.range}".rstrip(", ")
        if str in self.types and kind is not str:
            return f"{described} or text"
        return described


def _is_single_number(tensor: Tensor) -> bool:
    return tensor.ndim == 0 and tensor.dtype != torch.bool and not tensor.is_meta


def _options_of(annotation: object) -> tuple[list[object], Within]:
    """Return the types that an annotation allows, unnested, and the range of its numbers."""
    if typing.get_origin(annotation) is Annotated:
        inner, *metadata = typing.get_args(annotation)
        options, within = _options_of(inner)
        for declared in metadata:
            if isinstance(declared, Within):
                return options, declared
        return options, within
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        options = []
        within = Within()
        for option in typing.get_args(annotation):
            inner_options, inner_range = _options_of(option)
            options += inner_options
            if inner_range != Within():
                within = inner_range
        return options, within
    return [annotation], Within()


def real_numbers(values: object, within: Within) -> list[float]:
    """Return one number, or those of a list or an array; [] if one is no real number in range."""
    to_list = getattr(values, "tolist", None)
    try:
        listed = values if to_list is None else to_list()
    except (RuntimeError, NotImplementedError):  # of a tensor that is sparse or on the device meta
        return []
    wanted = NumberArgument(frozenset({float}), within, is_alone=True)
    numbers_in_range = []
    for value in listed if isinstance(listed, list | tuple) else [listed]:
        number = None if isinstance(value, bool | np.bool_) else wanted.number(value)
        if number is None or number not in within:
            return []
        numbers_in_range.append(float(number))
    return numbers_in_range
