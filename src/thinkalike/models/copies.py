"""Copies of modules that compute with nothing of the original."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from copy import deepcopy
from types import CellType, FunctionType, MethodType
from typing import TypeVar, cast

from torch import Tensor, nn

from thinkalike.code_text import content_of
from thinkalike.errors import ModelError, one_line
from thinkalike.models.description import HOOKS

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def copied(module: ModuleT) -> ModuleT:
    """Return a copy of a module in which replaced `forward`s and hooks run the copy's modules.

    `deepcopy` hands on a function as it is, and with it the modules in its closure, so that a copy
    would still compute with the weights of the original.

    Raises:
        ModelError: An attribute cannot be copied.
    """
    copies: dict[int, object] = {}
    try:
        copy = deepcopy(module, copies)
    except Exception as error:  # whatever an object raises that is copied
        _name_what_cannot_be_copied(module)
        reason = f"{type(error).__name__}: {one_line(error)}"
        raise ModelError(f"the model cannot be copied ({reason})") from error
    for submodule in copy.modules():
        holders = [vars(submodule), *(getattr(submodule, name) for name in HOOKS)]
        for holder in holders:
            for name, value in list(holder.items()):
                if isinstance(value, FunctionType | MethodType | functools.partial):
                    holder[name] = _with_copies(value, copies)
    return copy


def _name_what_cannot_be_copied(module: nn.Module) -> None:
    """Raise a ModelError for the first attribute, also of a module inside, that has no copy."""
    for path, submodule in module.named_modules():
        for name, value in vars(submodule).items():
            if name in ("_modules", "_parameters", "_buffers"):
                continue
            try:
                deepcopy(value)
            except Exception as error:  # whatever an object raises that is copied
                attribute = f"{path}.{name}".lstrip(".")
                if name in HOOKS:
                    attribute = f"a hook in {attribute}"
                reason = f"{type(error).__name__}: {one_line(error)}"
                raise ModelError(
                    f"{attribute} of the model in memory cannot be copied ({reason}); remove it "
                    "from the model, or save the model and give its folder"
                ) from error


def _with_copies(value: object, copies: Mapping[int, object]) -> object:
    """Return a value that refers to copies where it referred to what was copied.

    A module or tensor that was copied becomes its copy. A function, a method or a partial is made
    anew if it, or its closure, refers to such an object. Anything else is returned as it is.

    Args:
        value: A function or any other object.
        copies: The copies by the `id` of the original, as `deepcopy` leaves them.
    """
    if isinstance(value, nn.Module | Tensor):
        return copies.get(id(value), value)
    if isinstance(value, MethodType):
        function = cast(Callable[..., object], _with_copies(value.__func__, copies))
        return MethodType(function, _with_copies(value.__self__, copies))
    if isinstance(value, functools.partial):
        function = cast(Callable[..., object], _with_copies(value.func, copies))
        arguments = [_with_copies(argument, copies) for argument in value.args]
        keywords = {}
        for name, argument in value.keywords.items():
            keywords[name] = _with_copies(argument, copies)
        return functools.partial(function, *arguments, **keywords)
    if isinstance(value, FunctionType) and value.__closure__:
        return _function_with_copies(value, copies)
    return value


def _function_with_copies(function: FunctionType, copies: Mapping[int, object]) -> FunctionType:
    """Return a function whose closure holds copies in the place of what was copied.

    It is the function itself if its closure holds nothing that was copied. So it is if the closure
    holds the function itself, as that of a recursive one does.
    """
    contents = [content_of(cell) for cell in function.__closure__ or ()]
    if any(content is function for content in contents):
        return function
    replaced = [_with_copies(content, copies) for content in contents]
    if all(new is old for new, old in zip(replaced, contents, strict=True)):
        return function
    copy = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        tuple(CellType(content) for content in replaced),
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__qualname__ = function.__qualname__
    copy.__module__ = function.__module__
    return copy
