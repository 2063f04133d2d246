"""Which code of no installed package the libraries that run models hold in this process.

Somebody may have replaced a function of a library, or put one into a table of functions, such as
that of transformers for masks of attention. A model that is given by name is described by its
files, and they do not tell what such code does. Nor do the modules of a model in memory.

A library's own function or class in the place of another is not seen, apart from a partial:
libraries themselves keep many under other names.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Collection, Iterator, Mapping
from types import ModuleType
from typing import NamedTuple

from thinkalike.code_text import (
    attributes_of,
    entries_added_to,
    is_of_user,
    is_own_class,
    names_in_library,
)

# The packages and modules that make a model and its tokens from files, and compute in its pass.
OF_PASSES = (
    "torch.functional",
    "torch.nn",
    "transformers",
    "tokenizers",
    "safetensors",
    "transformer_lens",
    "mamba_ssm",
    "causal_conv1d",
)

# The dots keep the package "transformers" apart from one named "transformers2".
BEGINNINGS = tuple(f"{package}." for package in OF_PASSES)

# For each class and module: its entries when it was last searched, its tables and their entries,
# and the code of users in both.
_searched: dict[str, _Searched] = {}

# Hooks that torch runs around the pass of every module.
GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks")


class _Searched(NamedTuple):
    """What was found in a class or module of a library.

    Attributes:
        entries: Its entries.
        tables: The containers among them, and the objects with attributes, by name.
        contents: What the tables held; None: the tables were not searched yet.
        added: The code of users by the name under which it is.
    """

    entries: list[object]
    tables: dict[str, object]
    contents: list[object] | None
    added: dict[str, object]


def patched_names() -> list[str]:
    """Return the sorted names in model libraries that stand for code of no installed package.

    They are names of functions, classes and methods that were replaced, such as
    "torch.nn.modules.normalization.LayerNorm.forward", and of entries in tables of functions.
    """
    return sorted({f"{owner}.{name}" for owner, name in added_to_libraries()})


def added_to_libraries(further: Collection[str] = ()) -> dict[tuple[str, str], object]:
    """Return code that belongs to no installed package, and that libraries of models may run.

    It has replaced a function, a class or a method, or it is in a table of functions of a library.
    Hooks around all modules, and modes that see each operation of torch, are such code as well.
    Keys are (module or class of a library, name in it). The result is empty if this process has
    not loaded torch.

    Args:
        further: Names of modules that are searched beside the libraries that compute in a forward
            pass, such as torch and transformers.
    """
    if "torch" not in sys.modules:
        return {}
    import torch

    read: dict[int, dict[object, object]] = {}  # many modules hold the same large tables
    added = _added_to(torch.Tensor, "torch.Tensor", read)
    for library, module in list(sys.modules.items()):
        is_library = library == "torch" or _is_of_passes(library) or library in further
        if not is_library or not isinstance(module, ModuleType):
            continue
        added |= _added_to(module, library, read)
        for value in list(vars(module).values()):
            # `isinstance` would make deprecated values of torch warn.
            is_own = issubclass(type(value), type) and value.__module__ == library
            # Python makes a function of a named tuple from text, which is of no module.
            if is_own and not issubclass(value, tuple):
                # Only its own entries: base classes are searched where they are defined.
                added |= _added_to(value, f"{library}.{value.__qualname__}", read)
    return added | _global_code_of_users()


def _added_to(
    owner: type | ModuleType, owner_name: str, read: dict[int, dict[object, object]]
) -> dict[tuple[str, str], object]:
    """Return the code in one class or module of a library that belongs to no installed package.

    It has replaced a function, class or method, or it is in a table of functions. The class or
    module is searched again only if an entry, or an entry of one of its tables, is not the same
    object as in the call before.

    Args:
        owner: The class or module.
        owner_name: Its name.
        read: What tables hold, by the `id` of the table. Those that are read here are added.

    Returns:
        The code by (`owner_name`, name of the entry); "table[key]" is an entry in a table.
    """
    entries = list(vars(owner).values())
    searched = _searched.get(owner_name)
    # If an entry has changed, the tables are looked up anew, and all is searched below.
    if searched is None or not _are_same(searched.entries, entries):
        searched = _Searched(entries, _tables_in(owner), contents=None, added={})

    contents_of_tables = {}
    for name, table in searched.tables.items():
        if id(table) not in read:
            read[id(table)] = _contents(table)
        contents_of_tables[name] = read[id(table)]
    contents: list[object] = []
    for values_by_key in contents_of_tables.values():
        contents += values_by_key.values()

    if searched.contents is None or not _are_same(searched.contents, contents):
        added: dict[str, object] = {}
        if isinstance(owner, ModuleType):
            added.update(_replaced_in_module(owner_name, vars(owner)))
        else:
            added.update(entries_added_to(owner))
        for name, values_by_key in contents_of_tables.items():
            for key, value in values_by_key.items():
                if is_of_user(value):
                    added[f"{name}[{key}]"] = value
        searched = _Searched(entries, searched.tables, contents, added)
        _searched[owner_name] = searched
    return {(owner_name, name): value for name, value in searched.added.items()}


def _is_of_passes(library: str) -> bool:
    """Return whether a module is, or belongs to, one of OF_PASSES."""
    return f"{library}.".startswith(BEGINNINGS)


def _are_same(first: list[object], second: list[object]) -> bool:
    """Return whether two lists hold the same objects."""
    return len(first) == len(second) and all(map(operator.is_, first, second))


def _tables_in(owner: type | ModuleType) -> dict[str, object]:
    """Return the entries of a class or module of a library that may hold functions, by name.

    These are dictionaries and lists, and objects of a class of libraries that run models, if they
    have attributes. Classes, modules and entries such as "__all__" are left out.
    """
    tables = {}
    for name, value in list(vars(owner).items()):
        kind = type(value)
        has_attributes = kind.__dictoffset__ != 0  # an object of this class has a `__dict__`
        is_object_of_library = _is_of_passes(kind.__module__) and has_attributes
        is_table = issubclass(kind, dict | list) or is_object_of_library
        if is_table and not issubclass(kind, type | ModuleType) and not name.startswith("__"):
            tables[name] = value
    return tables


def _contents(table: object) -> dict[object, object]:
    """Return what a dictionary, a list or an object holds, by its key, number or attribute.

    In the place of a dictionary that is an attribute, each of its entries is returned, by
    (attribute, key).
    """
    contents: dict[object, object] = {}
    # The methods of `dict` and `list` themselves are called: those of a subclass in a library may
    # import or make an entry when it is asked for.
    if isinstance(table, dict):
        contents |= dict.items(table)
    elif isinstance(table, list):
        contents |= enumerate(list.__iter__(table))
    for name, value in list(attributes_of(table).items()):
        if isinstance(value, dict):
            contents |= {(name, key): entry for key, entry in dict.items(value)}
        else:
            contents[name] = value
    return contents


def _replaced_in_module(
    library: str, entries: Mapping[str, object]
) -> Iterator[tuple[str, object]]:
    """Yield the names of functions and classes that replace those of a module, and what they are.

    These are functions and classes of the user. A name that the code of the library does not use
    replaces nothing. A partial of the very function whose place it has, which presets an argument,
    was put there by a user, too.

    Args:
        library: The name of the module.
        entries: The entries of the module by name.
    """
    for name, value in list(entries.items()):
        if not callable(value) or name not in names_in_library(library):
            continue
        presets_arguments = (
            type(value) is functools.partial and getattr(value.func, "__name__", "") == name
        )
        if presets_arguments or is_of_user(value):
            yield name, value


def _global_code_of_users() -> dict[tuple[str, str], object]:
    """Return code of users that torch runs around all modules or all operations.

    It is hooks around the pass of every module, and modes, which see each operation of torch. Keys
    are (module of torch, name with a number).
    """
    from torch.nn.modules import module as torch_module
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    added: dict[tuple[str, str], object] = {}
    for name in GLOBAL_HOOKS:
        for number, hook in getattr(torch_module, name).items():
            if is_of_user(hook):
                added["torch.nn.modules.module", f"{name}[{number}]"] = hook
    modes = [*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()]
    for number, mode in enumerate(modes):
        if is_own_class(type(mode)):
            added["torch", f"the mode {type(mode).__qualname__} ({number})"] = mode
    return added
