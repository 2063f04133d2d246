"""A public function takes arrays of any sort where its annotations want tensors."""

from __future__ import annotations

import contextlib
import functools
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import ParamSpec, TypeVar

import jaxtyping
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from thinkalike.arguments.messages import REAL_NUMBERS, in_plain_lines, shown
from thinkalike.arguments.numeric import checked_numbers
from thinkalike.arguments.row_labels import check_rows
from thinkalike.arguments.tensor_arguments import TensorArgument
from thinkalike.errors import listed
from thinkalike.global_state import without_default_device
from thinkalike.memory import out_of_memory_error

P = ParamSpec("P")
R = TypeVar("R")


def takes_arrays(function: Callable[P, R]) -> Callable[..., R]:
    """Let a function or a method take arrays of any sort where its annotations want tensors.

    The function computes on the device of its arrays, and not on a default device of the caller.
    Modules that are made without arrays are on the default device, as those of torch are.

    Raises of that function:
        ValueError: An argument cannot be made into its tensor, see `tensor_of`, or has another
            shape than its annotation; the message names the argument. Tables have their rows in
            another order, see `check_rows`. States have no units, as an array of shape (n, 0), or
            a list is nested without end. There is too little memory for an array, or for what the
            function makes of it.
    """
    signature = inspect.signature(function)

    @functools.cache  # annotations are text until the module is complete
    def wanted() -> dict[str, TensorArgument]:
        hints = typing.get_type_hints(function, include_extras=True)
        hints.pop("return", None)
        return {name: TensorArgument.of(hint) for name, hint in hints.items()}

    @functools.wraps(function)
    def taking(*args: object, **kwargs: object) -> R:
        bound = signature.bind(*args, **kwargs)
        try:
            with in_plain_lines(), _devices_of(function, wanted()):
                return call(bound)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory_error(error):
                raise
            name = function.__qualname__.removesuffix(".__init__")
            sizes = _sizes(bound.arguments)
            raise ValueError(f"{name} needs more memory than there is for {sizes}") from error

    def call(bound: inspect.BoundArguments) -> R:
        arguments = bound.arguments
        arguments.update(checked_numbers(function, arguments))
        check_rows(arguments.items(), wanted())
        device = _device_of(arguments)
        with jaxtyping.jaxtyped("context"):  # in which each letter of a shape stands for one size
            for name, argument in wanted().items():
                if name in arguments:
                    arguments[name] = argument.read(arguments[name], name, device)
        return function(*bound.args, **bound.kwargs)

    return taking


def checks_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function without arrays refuse arguments of other types than its annotations name.

    Raises of that function:
        ValueError: An argument has another type, or a number is outside of its range.
    """
    return takes_arrays(function)


def _devices_of(
    function: Callable[P, R], wanted: Mapping[str, TensorArgument]
) -> AbstractContextManager[None]:
    """Return the context of devices in which a function runs, whose arguments are `wanted`."""
    takes_tensors = any(argument.array or argument.items for argument in wanted.values())
    if function.__name__ == "__init__" and not takes_tensors:
        return contextlib.nullcontext()
    return without_default_device()


def _device_of(arguments: Mapping[str, object]) -> torch.device | None:
    """Return the device of the first tensor that has values, where the other arrays go."""
    for leaf in _leaves(arguments):
        if isinstance(leaf, Tensor) and leaf.device.type != "meta":
            return leaf.device
    return None


def _leaves(arguments: Mapping[str, object]) -> Iterator[object]:
    """Yield all values in lists and mappings.

    Raises:
        ValueError: A list contains itself; the message names the argument.
    """
    for name, value in arguments.items():
        try:
            leaves = tree_leaves(value)
        except RecursionError as error:
            raise ValueError(f"{name} contains itself: {REAL_NUMBERS}") from error
        yield from leaves


def _sizes(arguments: Mapping[str, object]) -> str:
    """Return the shapes of all arrays among arguments, and the whole numbers, for a message."""
    sizes = []
    for name, value in arguments.items():
        if type(value) is int:
            sizes.append(f"{name}={shown(value)}")
        if isinstance(value, list | tuple):
            for position, layer in enumerate(value):
                if hasattr(layer, "shape") and hasattr(layer, "ndim"):
                    sizes.append(f"{name}[{position}] of shape {tuple(layer.shape)}")
        elif hasattr(value, "shape") and hasattr(value, "ndim"):
            sizes.append(f"{name} of shape {tuple(value.shape)}")
    return listed(sizes)
