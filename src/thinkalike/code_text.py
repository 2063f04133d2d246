"""Code as text that is the same in every process, and whether a library or its user wrote it."""

from __future__ import annotations

import dis
import functools
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
)


@functools.cache
def _library_folders() -> tuple[str, ...]:
    """Return the folders of Python's own library and of installed packages."""
    paths = sysconfig.get_paths()
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple(str(Path(paths[name]).resolve()) for name in names)


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
    return file is None or str(Path(file).resolve()).startswith(_library_folders())


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


def is_installed_function(function: FunctionType) -> bool:
    """Return whether a function was written in a module of an installed package."""
    return is_installed(module_of(function))


def is_of_user(value: object) -> bool:
    """Return whether an attribute is, or calls, code that is of no installed package.

    It may be a function, a method, a partial, or an object of a class of the user's own, such as
    one that stands in for a part of a library.
    """
    if isinstance(value, functools.partial):
        return any(map(is_of_user, (value.func, *value.args, *value.keywords.values())))
    if isinstance(value, staticmethod):
        return is_of_user(value.__func__)
    if isinstance(value, MethodType):
        return is_of_user(value.__func__) or is_own_class(type(value.__self__))
    if isinstance(value, FunctionType):
        return not is_installed_function(value)
    return is_own_class(type(value))


def runs_code_of_user(instance: object) -> bool:
    """Return whether the class of an object, or one of its attributes, has code of the user's."""
    kind = type(instance)
    if is_own_class(kind) or any(added_functions(kind)):
        return True
    return any(map(is_of_user, vars(instance).values()))


def is_own_class(kind: type) -> bool:
    """Return whether a class, or a class that it inherits from, is not of an installed package."""
    return not all(is_installed(base.__module__) for base in kind.__mro__)


def added_functions(kind: type) -> Iterator[tuple[type, FunctionType]]:
    """Yield the functions of a class and its bases that their installed library does not have.

    Each comes after the class that has it.
    """
    for owner in kind.__mro__:
        is_library = is_installed(owner.__module__)
        for value in list(vars(owner).values()):
            for function in functions_in(value):
                if not (is_library and is_installed_function(function)):
                    yield owner, function


def functions_in(value: object) -> list[FunctionType]:
    """Return the functions that an entry of a class, or an attribute, is or wraps.

    Entries are told apart by their type. An object of another type may answer any attribute with
    code of its own, or with an error.
    """
    if isinstance(value, FunctionType):
        return [value]
    if isinstance(value, staticmethod | classmethod | MethodType):
        return functions_in(value.__func__)
    if isinstance(value, property):
        accessors = (value.fget, value.fset, value.fdel)
        return [accessor for accessor in accessors if isinstance(accessor, FunctionType)]
    if isinstance(value, functools.cached_property):
        return functions_in(value.func)
    return []


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
    return frozenset([*_names_used(code), *exported])


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
