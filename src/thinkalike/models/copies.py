"""Copies of modules that compute with nothing of the original, and what they may lose."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from thinkalike.code_text import (
    content_of,
    globals_read,
    is_of_user,
    module_of,
    runs_code_of_user,
)
from thinkalike.errors import ModelError, reason_in_words
from thinkalike.models.description import HOOKS
from thinkalike.models.proof import may_change_states

# What `deepcopy` returns with the very functions that it is or holds.
MAY_HOLD_FUNCTIONS = (FunctionType, MethodType, functools.partial, list, tuple, dict)

# What `deepcopy` returns itself, and what it does not look into. A cache around a function may
# also hold what passes of the copy gave to it.
CacheType = type(functools.cache(lambda: None))
NOT_COPIED = (type, ModuleType, FunctionType, CodeType, CacheType, str, bytes, int, float)

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def has_added_code(module: nn.Module, own_package: str = "") -> bool:
    """Return whether a module, without its submodules, runs code that was added to it.

    Such code is a hook or a replaced `forward`, or code of the user's own in the class or in an
    attribute. What transformers or accelerate put there to move or record states does not count.

    Args:
        module: The module.
        own_package: A package whose hooks do not count, such as that of the module's class; "" if
            there is none.
    """
    functions = list(_hooks_of(module))
    replaced_forward = vars(module).get("forward")  # None: the module runs that of its class
    if replaced_forward is not None:
        functions.append(replaced_forward)
    for function in functions:
        # The dots keep the package "peft" apart from one named "peft2".
        is_of_own_package = f"{module_of(function)}.".startswith(f"{own_package}.")
        is_own = own_package != "" and is_of_own_package
        if is_of_user(function) or (may_change_states(function) and not is_own):
            return True
    return runs_code_of_user(module)


def _hooks_of(module: nn.Module) -> Iterator[Callable[..., object]]:
    """Yield the forward hooks of a module, as they were given to it."""
    # `HookPoint.add_hook` of TransformerLens registers a function of its own, which calls the one
    # that it was given. The class is recognised by its name, since importing it takes seconds.
    given_hooks = {}  # by the number of the registered function
    if type(module).__name__ == "HookPoint":
        for handle in vars(module)["fwd_hooks"]:
            given_hooks[handle.hook.id] = handle.user_hook
    for attribute in HOOKS:
        for number, registered_hook in vars(module)[attribute].items():
            yield given_hooks.get(number) or registered_hook


def copied(module: ModuleT, copies: dict[int, object] | None = None) -> ModuleT:
    """Return a copy of a module that shares no module or tensor with the original.

    `deepcopy` does not copy functions. So a hook or a replaced `forward` of its result would still
    use modules of the original through its closure. Here such functions are made anew.

    Args:
        module: The module.
        copies: The memo of `deepcopy`: the copies of parts that were copied already, by the `id`
            of the original. New copies are added. None: nothing was copied yet.

    Raises:
        ModelError: An attribute cannot be copied.
    """
    if copies is None:
        copies = {}
    try:
        copy = deepcopy(module, copies)
    except Exception as error:  # an object may raise any when it is copied
        _name_what_cannot_be_copied(module)  # raises an error if it is a single attribute
        reason = reason_in_words(error)
        raise ModelError(f"the model cannot be copied ({reason})") from error
    for submodule in copy.modules():
        # The attributes of the submodule, and torch's dictionaries of hooks.
        dictionaries = [vars(submodule), *(getattr(submodule, name) for name in HOOKS)]
        for dictionary in dictionaries:
            for name, value in list(dictionary.items()):
                if isinstance(value, MAY_HOLD_FUNCTIONS):
                    dictionary[name] = _with_copies(value, copies)
    return copy


def tensors_held(module: nn.Module) -> list[Tensor]:
    """Return the tensors that a copy of a module has copies of.

    These are its weights and buffers, and the tensors that its attributes are or hold at any
    depth. An array of NumPy is returned as a tensor in the same memory. Like `deepcopy`, this does
    not look into functions, classes and caches around functions.
    """
    tensors: list[Tensor] = []
    seen: set[int] = set()
    waiting: list[object] = [module]
    while waiting:
        value = waiting.pop()
        kind = type(value)  # `isinstance` would make deprecated values of torch warn
        if id(value) in seen or issubclass(kind, NOT_COPIED):
            continue
        seen.add(id(value))
        if issubclass(kind, Tensor):
            tensors.append(cast(Tensor, value))
        elif isinstance(value, np.ndarray):
            # One that cannot be written cannot change; torch has no strings, for example.
            with contextlib.suppress(TypeError, ValueError):
                if value.flags.writeable:
                    tensors.append(torch.from_numpy(value))
        else:
            waiting += gc.get_referents(value)
    return tensors


def _name_what_cannot_be_copied(module: nn.Module) -> None:
    """Raise a ModelError that names the first attribute of a module that cannot be copied.

    Attributes of its submodules are tried as well. Nothing is raised if each can be copied alone.
    Submodules, parameters and buffers are not tried as a whole.
    """
    for path, submodule in module.named_modules():
        for name, value in vars(submodule).items():
            if name in ("_modules", "_parameters", "_buffers"):
                continue
            try:
                deepcopy(value)
            except Exception as error:  # a class may refuse copies with any exception
                attribute = f"{path}.{name}".lstrip(".")
                if name in HOOKS:
                    attribute = f"a hook in {attribute}"
                reason = reason_in_words(error)
                raise ModelError(
                    f"{attribute} of the model in memory cannot be copied ({reason}); remove it "
                    "from the model, or save the model and give its folder"
                ) from error


def _with_copies(value: object, copies: Mapping[int, object]) -> object:
    """Return a value in which each module or tensor that was copied is replaced by its copy.

    A view of a copied tensor becomes a view of the copy. A list, tuple, dictionary, function or
    method is made anew if it holds something that was copied; a function holds its closure and its
    defaults. A partial is made anew in any case. Anything else is returned as it is.

    Args:
        value: A function or any other object.
        copies: The copies by the `id` of the original, as `deepcopy` leaves them.

    Raises:
        ModelError: A function reads a global variable that holds something that was copied.
    """
    if isinstance(value, nn.Module):
        return copies.get(id(value), value)
    if isinstance(value, Tensor):
        if id(value) in copies:
            return copies[id(value)]
        return _view_of_copy(value, copies)
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
    """Return, for a view of a tensor that was copied, the same view of the copy.

    For example, `weight.detach()` is a view of `weight`. A tensor whose numbers do not all lie
    within those of one copied tensor is returned as it is, even if it shares memory with one, as
    where all weights of a model are in one buffer.

    Args:
        tensor: Any tensor that was not copied itself.
        copies: The copies by the `id` of the original, as `deepcopy` leaves them.
    """
    start, end = bytes_spanned(tensor)  # addresses; equal if the tensor has no memory
    # `deepcopy` keeps the originals alive in a list, under the `id` of the dictionary itself.
    originals = cast(list[object], copies.get(id(copies), []))
    for original in originals:
        copy = copies.get(id(original))
        if not isinstance(original, Tensor) or not isinstance(copy, Tensor):
            continue
        original_start, original_end = bytes_spanned(original)
        is_within = start < end and original_start <= start and end <= original_end
        if not is_within or original.stride() != copy.stride():
            continue
        # In bytes, since a view may have another dtype.
        start_in_copy = bytes_spanned(copy)[0] - copy.untyped_storage().data_ptr()
        offset_in_bytes = start_in_copy + start - original_start
        if offset_in_bytes % tensor.element_size() == 0:
            offset = offset_in_bytes // tensor.element_size()
            view = torch.empty(0, dtype=tensor.dtype, device=copy.device)
            return view.set_(copy.untyped_storage(), offset, tensor.size(), tensor.stride())
    return tensor


def bytes_spanned(tensor: Tensor) -> tuple[int, int]:
    """Return the addresses of the first byte of a tensor, and of the byte after its last one.

    Bytes between its entries, as in every second column of a matrix, count as well. Both are 0 for
    a tensor without entries, or without memory of its own as on the device meta.
    """
    if tensor.layout != torch.strided or tensor.is_meta or not tensor.numel():
        return 0, 0
    try:
        start = tensor.data_ptr()
    except RuntimeError:  # a subclass may be made of other tensors
        return 0, 0
    if not start:
        return 0, 0
    sizes_and_strides = zip(tensor.shape, tensor.stride(), strict=True)
    offset_of_last_entry = sum((size - 1) * stride for size, stride in sizes_and_strides)
    return start, start + (offset_of_last_entry + 1) * tensor.element_size()


def _container_with_copies(
    container: list[object] | tuple[object, ...] | dict[object, object],
    copies: Mapping[int, object],
) -> object:
    """Return a container in which each module or tensor that was copied is replaced by its copy.

    A container that holds nothing that was copied, at any depth, is returned itself. So a list of
    the user's to which a hook appends stays the same list.

    Args:
        container: The list, tuple or dictionary.
        copies: The copies by the `id` of the original, as `deepcopy` leaves them.
    """
    if isinstance(container, dict):
        new_dict = {key: _with_copies(entry, copies) for key, entry in container.items()}
        holds_no_copy = all(new_dict[key] is container[key] for key in container)
        return container if holds_no_copy else new_dict
    new_entries = [_with_copies(entry, copies) for entry in container]
    pairs = zip(new_entries, container, strict=True)
    holds_no_copy = all(new_entry is entry for new_entry, entry in pairs)
    return container if holds_no_copy else type(container)(new_entries)


def _function_with_copies(function: FunctionType, copies: Mapping[int, object]) -> FunctionType:
    """Return a function like a given one, whose closure and defaults hold copies.

    Modules and tensors there that were copied are replaced by their copies. The function itself is
    returned if its closure and defaults hold nothing that was copied, or if its closure holds the
    function itself, as that of a recursive function does.

    Args:
        function: The function; it is not changed.
        copies: The copies by the `id` of the original, as `deepcopy` leaves them.

    Raises:
        ModelError: A function of no installed library reads a global variable that was copied.
    """
    variables = [content_of(cell) for cell in function.__closure__ or ()]
    if any(variable is function for variable in variables):
        return function
    if is_of_user(function):
        _check_globals(function, copies)
    defaults = list(function.__defaults__ or ())
    keyword_defaults = dict(function.__kwdefaults__ or {})
    # Each of the three is the same object again if it holds nothing that was copied.
    new_variables = cast(list[object], _with_copies(variables, copies))
    new_defaults = cast(list[object], _with_copies(defaults, copies))
    new_keyword_defaults = cast(dict[str, object], _with_copies(keyword_defaults, copies))
    if (
        new_variables is variables
        and new_defaults is defaults
        and new_keyword_defaults is keyword_defaults
    ):
        return function
    copy = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        tuple(new_defaults) or None,
        tuple(CellType(variable) for variable in new_variables) or None,
    )
    copy.__kwdefaults__ = new_keyword_defaults or None
    copy.__qualname__ = function.__qualname__
    copy.__module__ = function.__module__
    return copy


def _check_globals(function: FunctionType, copies: Mapping[int, object]) -> None:
    """Raise a ModelError if a function reads a global variable that holds a part of the model.

    Globals cannot be replaced for a copy of the function, which would use the original's part.
    """
    for name in sorted(globals_read(function.__code__) & function.__globals__.keys()):
        value = function.__globals__[name]
        may_be_of_model = isinstance(value, nn.Module | Tensor | MethodType)
        # `_with_copies` returns a value itself if it holds nothing of the model.
        if may_be_of_model and _with_copies(value, copies) is not value:
            raise ModelError(
                f"{function.__qualname__} of the model in memory reads the global {name}, which "
                "is part of the model, so that a copy of the model would compute with it: make it "
                f"a default argument, {name}={name}"
            )
