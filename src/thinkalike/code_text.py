"""Code as text that is the same in every process, and whether a library or its user wrote it."""

from __future__ import annotations

import dis
import functools
import itertools
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
)
from typing import cast

# What a wrapper calls is looked for in so many wrappers inside one another.
DEEPEST_WRAPPER = 8

# Folders into which packages are installed have these names, wherever they are: for the whole
# machine, for one user, or on the path that a cluster sets.
INSTALLED_FOLDERS = ("site-packages", "dist-packages")

# Of a container no more entries than this are looked at.
MOST_ENTRIES = 256

# Functions, and what Python wraps around them in classes and calls.
WRAPPERS = (
    FunctionType,
    MethodType,
    functools.partial,
    functools.partialmethod,
    staticmethod,
    classmethod,
    property,
    functools.cached_property,
)


@functools.cache
def _library_folders(search_path: tuple[str, ...]) -> tuple[str, ...]:
    """Return the folders of Python's own library and of installed packages.

    Args:
        search_path: `sys.path`.
    """
    paths = sysconfig.get_paths()
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = {paths[name] for name in names}
    for folder in search_path:
        if Path(folder).name in INSTALLED_FOLDERS:
            folders.add(folder)
    return tuple(sorted(_resolved(folder) for folder in folders))


@functools.cache
def _resolved(path: str) -> str:
    """Return a path without links; it asks the file system, so it is remembered."""
    return str(Path(path).resolve())


@functools.cache
def _lies_in(file: str, folders: tuple[str, ...]) -> bool:
    """Return whether a file is in one of some folders, at any depth."""
    path = Path(_resolved(file))
    return any(path.is_relative_to(folder) for folder in folders)


def is_installed(module: str | None) -> bool:
    """Return whether the code of a module is that of an installed package.

    The version of the package then tells what the code does.

    Args:
        module: The name of the module. Functions that were made from text, as compilers make them,
            have None.
    """
    if module is None:
        return False
    this_package = __name__.partition(".")[0]
    if module.partition(".")[0] == this_package:
        return True
    loaded = sys.modules.get(module)
    if loaded is None or module == "__main__":
        return False
    file = getattr(loaded, "__file__", None)
    return file is None or _lies_in(file, _library_folders(tuple(map(str, sys.path))))


def module_of(called: object) -> str:
    """Return the name of the module in which a function, or the class of another object, is.

    The globals of a function tell: `functools.wraps` gives a user's function the name and the
    `__module__` of the function that it replaces.
    """
    if isinstance(called, functools.partial):
        return module_of(called.func)
    function = getattr(called, "__func__", called)
    if isinstance(function, FunctionType):
        return str(function.__globals__.get("__name__"))
    return type(called).__module__


def is_of_user(value: object) -> bool:
    """Return whether an object is, wraps or calls code that is of no installed package.

    A decorator of a library, such as `torch.no_grad()`, makes a function whose own code is the
    library's. So whatever a wrapper calls is looked at as well: variables of a closure, defaults,
    the arguments of a partial, and the attributes of an object that can be called.
    """
    return _reaches_code_of_user(value, DEEPEST_WRAPPER, set())


def _reaches_code_of_user(value: object, depth: int, seen: set[int]) -> bool:
    """Return `is_of_user` for an object that was reached through others.

    Args:
        value: The object.
        depth: How many further objects inside one another are looked into.
        seen: The `id`s of objects that were looked at; it is filled.
    """
    kind = type(value)  # `isinstance` would make deprecated values of torch warn
    if id(value) in seen or issubclass(kind, ModuleType):
        return False
    seen.add(id(value))
    if issubclass(kind, type):
        return is_own_class(cast(type, value))
    if issubclass(kind, FunctionType):
        if not is_installed(module_of(value)):
            return True
    elif is_own_class(kind):
        return True
    if depth == 0:
        return False
    return any(_reaches_code_of_user(part, depth - 1, seen) for part in _wrapped(value))


def _wrapped(value: object) -> list[object]:
    """Return the objects that an object calls, or may hand to what it calls; [] if it is none."""
    kind = type(value)
    if issubclass(kind, WRAPPERS):
        return _wrapped_by_python(value)
    if kind in (list, tuple, set, frozenset):
        return list(itertools.islice(cast(Iterable[object], value), MOST_ENTRIES))
    if kind is dict:
        return list(itertools.islice(cast(dict[object, object], value).values(), MOST_ENTRIES))
    if not callable(value):
        return []
    # Another object that can be called, such as a cache around a function. A module of torch is
    # left out: it is looked at with the model that it belongs to.
    attributes = attributes_of(value)
    return [] if "_parameters" in attributes else list(attributes.values())


def _wrapped_by_python(value: object) -> list[object]:
    """Return what a function, or an object of another type of WRAPPERS, calls or may call."""
    match value:
        case FunctionType():
            variables = [content_of(cell) for cell in value.__closure__ or ()]
            defaults = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
            return [*variables, *defaults, *vars(value).values()]
        case MethodType():
            return [value.__func__, value.__self__]
        case staticmethod() | classmethod():
            return [value.__func__]
        case functools.partial() | functools.partialmethod():
            return [value.func, *value.args, *value.keywords.values()]
        case property():
            return [value.fget, value.fset, value.fdel]
        case functools.cached_property():
            return [value.func]
    return []


def attributes_of(value: object) -> dict[str, object]:
    """Return the attributes that an object itself has; {} if it has no dictionary of them."""
    try:
        return dict(object.__getattribute__(value, "__dict__"))
    except AttributeError:
        return {}


def functions_reached(value: object) -> list[FunctionType]:
    """Return the functions that an object is, wraps or calls, see `is_of_user`."""
    functions: list[FunctionType] = []
    seen: set[int] = set()
    waiting = [(value, DEEPEST_WRAPPER)]
    while waiting:
        reached, depth = waiting.pop(0)
        if id(reached) in seen or issubclass(type(reached), type | ModuleType):
            continue
        seen.add(id(reached))
        if isinstance(reached, FunctionType):
            functions.append(reached)
        if depth:
            waiting += [(part, depth - 1) for part in _wrapped(reached)]
    return functions


def runs_code_of_user(instance: object) -> bool:
    """Return whether the class of an object, or one of its attributes, has code of the user's."""
    kind = type(instance)
    if is_own_class(kind) or any(added_entries(kind)):
        return True
    return any(map(is_of_user, vars(instance).values()))


def is_own_class(kind: type) -> bool:
    """Return whether a class, or a class that it inherits from, is not of an installed package."""
    return not all(is_installed(base.__module__) or _is_compiled(base) for base in kind.__mro__)


def _is_compiled(kind: type) -> bool:
    """Return whether a class was made by compiled code, which may name a module that is none."""
    return kind.__module__ not in sys.modules and not any(
        isinstance(value, FunctionType) for value in vars(kind).values()
    )


def added_entries(kind: type) -> Iterator[tuple[type, str, object]]:
    """Yield the functions of a class and its bases that their installed library does not have.

    Each is given as its owner, its name in the owner, and the entry: a function or what wraps one.
    """
    for owner in kind.__mro__:
        for name, value in entries_added_to(owner):
            yield owner, name, value


def entries_added_to(owner: type) -> Iterator[tuple[str, object]]:
    """Yield what `added_entries` does for one class, without its bases."""
    is_library = is_installed(owner.__module__)
    for name, value in list(vars(owner).items()):
        if is_library:
            is_added = _is_code(value) and is_of_user(value)
        else:
            is_added = bool(functions_in(value))
        if is_added:
            yield name, value


def _is_code(value: object) -> bool:
    """Return whether an entry of a class is a function or wraps one, and is no plain value."""
    return issubclass(type(value), WRAPPERS) or callable(value)


def functions_in(value: object) -> list[FunctionType]:
    """Return the functions that an entry of a class is or wraps.

    Entries are told apart by their type. An object of another type may answer any attribute with
    code of its own, or with an error.
    """
    if isinstance(value, FunctionType):
        return [value]
    if not issubclass(type(value), WRAPPERS):
        return []
    functions = []
    for part in _wrapped_by_python(value):
        functions += functions_in(part)
    return functions


def is_of_library(value: object) -> bool:
    """Return whether a global is a library, or a function or class of one."""
    if isinstance(value, ModuleType):
        return is_installed(value.__name__)
    if isinstance(value, type | BuiltinFunctionType):
        return is_installed(value.__module__ or "builtins")
    return False


@functools.cache
def names_in_library(library: str) -> frozenset[str]:
    """Return the names that the code of a loaded library defines or reads.

    Of a library without such code, they are the names that it has.
    """
    loaded = sys.modules[library]
    loader = getattr(getattr(loaded, "__spec__", None), "loader", None)
    try:
        code = loader.get_code(library)  # type: ignore[union-attr]
    except (
        AttributeError,
        ImportError,
        OSError,
    ):  # of a library that was not imported from a file
        code = None
    if code is None:
        return frozenset(vars(loaded))
    # torch puts functions of its compiled library under its own names by a loop.
    exported = getattr(loaded, "__all__", [])
    return frozenset([*_names_used(code), *exported, *_names_by_star(library, code)])


def _names_by_star(library: str, code: CodeType) -> set[str]:
    """Return the names that a library imports by a star, such as torch.nn from torch.nn.modules.

    Args:
        library: The name of the library.
        code: Its code.
    """
    if ("*",) not in code.co_consts:
        return set()
    package = sys.modules[library].__package__ or ""
    names: set[str] = set()
    for name in code.co_names:
        # Names of modules are among the names of the code, without the dots of relative ones.
        for imported in (name, f"{package}.{name}"):
            names |= set(vars(sys.modules[imported])) if imported in sys.modules else set()
    return names


def _names_used(code: CodeType) -> set[str]:
    """Return the names of globals and attributes in a code object and in all code inside it."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names_used(constant)
    return names


def globals_read(code: CodeType) -> set[str]:
    """Return the names of the globals that a function reads, or that functions inside it read."""
    names = set()
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            names.add(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= globals_read(constant)
    return names


def code_text(code: CodeType) -> str:
    """Return what a code object does, without where it was written."""
    constants = [_constant_text(constant) for constant in code.co_consts]
    return f"{code.co_code.hex()} {constants} {code.co_names} {code.co_freevars} {code.co_argcount}"


def _constant_text(constant: object) -> str:
    if isinstance(constant, CodeType):
        return code_text(constant)
    if isinstance(constant, frozenset):  # whose order is another one in each process
        return repr(sorted(repr(entry) for entry in constant))
    return repr(constant)


def content_of(cell: CellType) -> object:
    """Return the value of a variable of a closure, or None if it is not set yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None
