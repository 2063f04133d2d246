"""Checks every function of the package against its annotations while tests run: importing this file lets it begin.

Functions of arrays are jaxtyping's, which knows what sizes have in common; others beartype checks alone, several times
faster, as jaxtyping would bind and check each call twice.
"""

import typing
from types import FunctionType

import jaxtyping
from beartype import BeartypeConf, beartype
from jaxtyping import _decorator, _import_hook

_jaxtyped = jaxtyping.jaxtyped
_check = beartype(conf=BeartypeConf(violation_type=jaxtyping.TypeCheckError))  # a TypeError


def _run_module(self, module):
    """Run a module of ours as checked code.

    The hook's own loader keeps such code in caches of another name, and looks for those of all libraries that the
    module imports, too: it would compile PyTorch anew in every process.
    """
    exec(self.source_to_code(self.get_data(self.path), self.path), vars(module))


def _keep_no_bytecode(self, source_path, bytecode_path, data):
    """Write no bytecode, when the package asks the loader for the code of one of its own modules.

    Other processes would take the checked code for the plain one.
    """


def _checked(*context, **options):
    """Return what the hook puts above each function and class, or a context of jaxtyping's."""
    if context:
        return _jaxtyped(*context)

    def decorate(checked):
        if isinstance(checked, type) and any(base.__name__ == "Checked" for base in checked.__mro__):
            return checked  # a schema checks its values itself, and converts some
        if not isinstance(checked, FunctionType):
            return _jaxtyped(**options)(checked)
        written = checked.__annotations__
        meant = {name: _decorator._destring_annotation(hint, checked.__globals__) for name, hint in written.items()}
        if any(map(_has_shape, meant.values())):
            return _jaxtyped(**options)(checked)
        checked.__annotations__ = meant  # as far as they are known now; beartype keeps nothing but its own code
        made = _check(checked)
        checked.__annotations__ = made.__annotations__ = written
        return made

    return decorate


def _has_shape(hint):
    """Return whether an annotation has one of jaxtyping's arrays in it."""
    return (isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray)) or any(
        map(_has_shape, typing.get_args(hint))
    )


_import_hook._JaxtypingLoader.exec_module = _run_module
_import_hook._JaxtypingLoader._cache_bytecode = _keep_no_bytecode
jaxtyping.jaxtyped = _checked
HOOK = jaxtyping.install_import_hook("thinkalike", "beartype.beartype")
