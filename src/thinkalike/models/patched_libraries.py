"""Which functions of libraries that run models somebody has replaced in this process.

A model that is given by name is described by its files, and they do not tell what a replaced
function of its library does.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import cast

from thinkalike.code_text import entries_added_to, is_of_user, is_own_class, names_in_library

# The modules of libraries that compute in a pass, by the beginning of their names.
OF_PASSES = (
    "torch.functional",
    "torch.nn.",
    "transformers.activations",
    "transformers.cache_utils",
    "transformers.integrations.",
    "transformers.masking_utils",
    "transformers.modeling_",
    "transformers.models.",
    "transformers.pytorch_utils",
    "transformer_lens.",
    "mamba_ssm.",
    "causal_conv1d",
)

# For each class and module: its entries when it was last searched, and the names of those that
# were replaced.
_searched: dict[str, tuple[list[object], list[str]]] = {}

# Hooks that torch runs around the pass of every module.
GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks")


def patched_names() -> list[str]:
    """Return the names of functions, classes and methods of model libraries that were replaced.

    An example is "torch.nn.modules.normalization.LayerNorm.forward". Only replacements by code
    that belongs to no installed package count. Hooks around all modules, and modes that see each
    operation of torch, are named as well. The list is empty if this process has not loaded torch.
    """
    if "torch" not in sys.modules:
        return []
    return sorted({*_patched_modules(), *_global_code()})


def _patched_modules() -> Iterator[str]:
    """Yield the names of replaced functions, classes and methods in the libraries of models."""
    import torch

    yield from _names_of_replaced_entries(torch.Tensor, "torch.Tensor")
    for library, module in list(sys.modules.items()):
        if library != "torch" and not library.startswith(OF_PASSES):
            continue
        yield from _names_of_replaced_entries(module, library)
        for value in list(vars(module).values()):
            # `isinstance` would make deprecated values of torch warn.
            if not issubclass(type(value), type) or value.__module__ != library:
                continue
            if issubclass(value, torch.nn.Module):
                # Only its own entries: base classes are checked in the libraries that define them.
                yield from _names_of_replaced_entries(value, f"{library}.{value.__qualname__}")


def _names_of_replaced_entries(owner: type | ModuleType, owner_name: str) -> list[str]:
    """Return the names of entries of a class or module of a library that were replaced.

    The result is cached, and computed again only if the entries are not the same objects as in the
    call before. Names begin with `owner_name`, such as "torch.Tensor".
    """
    entries = vars(owner)
    values = list(entries.values())
    if owner_name in _searched:
        earlier_values, earlier_names = _searched[owner_name]
        is_same_count = len(earlier_values) == len(values)
        if is_same_count and all(map(operator.is_, earlier_values, values)):
            return earlier_names
    if isinstance(owner, ModuleType):
        names = _replaced_in_module(owner_name, entries)
    else:
        names = [f"{owner_name}.{name}" for name, _ in entries_added_to(owner)]
    _searched[owner_name] = (values, names)
    return names


def _replaced_in_module(library: str, entries: Mapping[str, object]) -> list[str]:
    """Return the names of functions and classes in a module that its library does not have.

    A name that the code of the library does not use replaces nothing.
    """
    names = []
    for name, value in list(entries.items()):
        if not callable(value) or name not in names_in_library(library):
            continue
        is_class = issubclass(type(value), type)
        if is_class:
            is_replacement = is_own_class(cast(type, value))
        else:
            is_replacement = is_of_user(value)
        if is_replacement:
            names.append(f"{library}.{name}")
    return names


def _global_code() -> Iterator[str]:
    """Yield the names of hooks around all modules, and of modes that see operations of torch."""
    from torch.nn.modules import module as torch_module
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    for name in GLOBAL_HOOKS:
        if any(map(is_of_user, getattr(torch_module, name).values())):
            yield f"torch.nn.modules.module.{name}"
    modes = [*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()]
    for mode in modes:
        if is_own_class(type(mode)):
            yield f"the mode {type(mode).__qualname__}"
