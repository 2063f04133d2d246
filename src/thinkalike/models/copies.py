"""Copies of modules that compute with nothing of the original."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from copy import deepcopy
from types import CellType, FunctionType, MethodType
from typing import TypeVar, cast

from torch import Tensor, nn

from thinkalike.code_text import content_of, globals_read, is_installed_function
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

    A module or tensor that was copied becomes its copy, and a view of such a tensor a view of the
    copy. A container, a function, a method or a partial is made anew if it refers to such an
    object: a function by its closure or its defaults. Anything else is returned as it is.

    Args:
        value: A function or any other object.
        copies: The copies by the `id` of the original, as `deepcopy` leaves them.

    Raises:
        ModelError: A function refers to such an object by a global name.
    """
    if isinstance(value, nn.Module):
        return copies.get(id(value), value)
    if isinstance(value, Tensor):
        return copies[id(value)] if id(value) in copies else _view_of_copy(value, copies)
    if isinstance(value, MethodType):
        function = cast(Callable[..., object], _with_copies(value.__func__, copies))
        owner = _with_copies(value.__self__, copies)
        if function is value.__func__ and owner is value.__self__:
            return value
        return MethodType(function, owner)
    if isinstance(value, functools.partial):
        function = cast(Callable[..., object], _with_copies(value.func, copies))
        arguments = [_with_copies(argument, copies) for argument in value.args]
        keywords = {}
        for name, argument in value.keywords.items():
            keywords[name] = _with_copies(argument, copies)
        return functools.partial(function, *arguments, **keywords)
    if isinstance(value, FunctionType):
        return _function_with_copies(value, copies)
    if type(value) in (list, tuple, dict):
        return _container_with_copies(cast("list | tuple | dict", value), copies)
    return value


def _view_of_copy(tensor: Tensor, copies: Mapping[int, object]) -> Tensor:
    """Return the view of a copy for a view of what was copied, as `weight.detach()` is one.

    A tensor that shares no memory with what was copied is returned as it is.
    """
    originals = cast(list[object], copies.get(id(copies), []))  # `deepcopy` keeps them alive there
    for original in originals:
        copy = copies.get(id(original))
        if not isinstance(original, Tensor) or not isinstance(copy, Tensor):
            continue
        if original.is_meta or not original.numel() or original.stride() != copy.stride():
            continue
        if original.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr():
            offset = copy.storage_offset() + tensor.storage_offset() - original.storage_offset()
            return copy.detach().as_strided(tensor.size(), tensor.stride(), offset)
    return tensor


def _container_with_copies(
    container: list[object] | tuple[object, ...] | dict[object, object],
    copies: Mapping[int, object],
) -> object:
    """Return a container whose entries refer to copies; itself if none of them has to.

    A list that a hook fills stays the list of the user. Containers inside are looked into.
    """
    if isinstance(container, dict):
        entries = {key: _with_copies(entry, copies) for key, entry in container.items()}
        is_same = all(entries[key] is container[key] for key in container)
        return container if is_same else entries
    new = [_with_copies(entry, copies) for entry in container]
    if all(entry is old for entry, old in zip(new, container, strict=True)):
        return container
    return type(container)(new)


def _function_with_copies(function: FunctionType, copies: Mapping[int, object]) -> FunctionType:
    """Return a function whose closure and defaults hold copies in the place of what was copied.

    It is the function itself if they hold nothing that was copied. So it is if the closure holds
    the function itself, as that of a recursive one does.
    """
    contents = [content_of(cell) for cell in function.__closure__ or ()]
    if any(content is function for content in contents):
        return function
    if not is_installed_function(function):
        _check_globals(function, copies)
    held = [contents, list(function.__defaults__ or ()), dict(function.__kwdefaults__ or {})]
    new_contents, new_defaults, new_keywords = (_with_copies(part, copies) for part in held)
    is_same = new_contents is held[0] and new_defaults is held[1] and new_keywords is held[2]
    if is_same:
        return function
    copy = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        tuple(cast(list[object], new_defaults)) or None,
        tuple(CellType(content) for content in cast(list[object], new_contents)) or None,
    )
    copy.__kwdefaults__ = cast(dict[str, object], new_keywords) or None
    copy.__qualname__ = function.__qualname__
    copy.__module__ = function.__module__
    return copy


def _check_globals(function: FunctionType, copies: Mapping[int, object]) -> None:
    """Raise a ModelError if a global that a function reads is part of what was copied."""
    for name in sorted(globals_read(function.__code__) & function.__globals__.keys()):
        value = function.__globals__[name]
        may_be_of_model = isinstance(value, nn.Module | Tensor | MethodType)
        if may_be_of_model and _with_copies(value, copies) is not value:
            raise ModelError(
                f"{function.__qualname__} of the model in memory reads the global {name}, which "
                "is part of the model, so that a copy of the model would compute with it: make it "
                f"a default argument, {name}={name}"
            )
