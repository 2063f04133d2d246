"""Code of a user: what FILE.py:NAME on a command line stands for, such as a stitch or a measure.

    python train.py stitch.kind=mine.py:two_layer
    python analyze.py measure=mine.py:centroids

See docs/how-to/plugins.md. A file is run only if a person named it, see `trust`.
"""

from __future__ import annotations

import contextlib
import hashlib
import keyword
import math
import numbers
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Protocol, TypeGuard, runtime_checkable

from thinkalike.errors import PluginError, ThinkalikeError, in_home, one_line, reason_in_words, short

PLUGIN = re.compile(r".*\.py:[A-Za-z_]\w*")
# the FILE.py:NAME that a person typed, or gave as an argument in Python; no other file is run
TRUSTED: set[str] = set()


@dataclass(frozen=True)
class MeasurePlugin:
    """A measure of layer pairs with a title or settings; a bare function needs none.

    Attributes:
        measure: A function of (n, d) and (n, e) tensors to a number; or a subclass of
            `LayerMeasure`, or an instance; or, with settings, a function of `measure.` settings to
            either.
        title: What tables and figures call it; by default its name.
        scale: The ends of the colours.
        is_distance: Whether less is closer.
        settings: By name the default of each further setting, or a field such as
            `setting(10, least=1)`.

    Raises:
        PluginError: The title is no text, the scale is not two numbers, of which the first is
            less, or the settings have no names as keyword arguments have.
    """

    measure: object
    title: str | None = None
    scale: tuple[int | float, int | float] = (0.0, 1.0)
    is_distance: bool = False
    settings: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.title is not None and not isinstance(self.title, str):
            raise PluginError(f"MeasurePlugin: title={short(self.title)} must be a text")
        if not _are_ends(self.scale):
            raise PluginError(
                f"MeasurePlugin: scale={short(self.scale)} must be two finite numbers, the first "
                "of which is less, such as (0, 1)"
            )
        if not isinstance(self.settings, Mapping):
            raise PluginError(
                f"MeasurePlugin: settings={short(self.settings)} must give a default by name, such as {{'k': 10}}"
            )
        for name in self.settings:
            if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
                raise PluginError(
                    f"MeasurePlugin: settings has {short(name)}, which is no name of a setting: "
                    "use letters, digits and underscores"
                )


def _are_ends(scale: object) -> bool:
    """Return whether a value is two finite numbers, of which the first is less."""
    if not isinstance(scale, list | tuple) or len(scale) != 2:
        return False
    if not all(isinstance(end, numbers.Real) and math.isfinite(end) for end in scale):
        return False
    return bool(scale[0] < scale[1])


@runtime_checkable
class PreparesAndCompares(Protocol):
    """An instance of `LayerMeasure`, known by its methods: importing that class takes seconds."""

    def prepare(self, layer: object, name: str) -> object: ...

    def compare(self, first: object, second: object) -> object: ...


def is_plugin(name: object) -> TypeGuard[str]:
    """Return whether a value names an object of a user's file."""
    return isinstance(name, str) and bool(PLUGIN.fullmatch(name))


def trust(names: Iterable[str]) -> None:
    """Let files of code be run from now on, each by its FILE.py:NAME, as a person named them."""
    TRUSTED.update(names)


def check_trusted(name: str) -> None:
    """Check that a person named a plugin FILE.py:NAME; a configuration file alone runs no code.

    Names are compared whole, as plugins/mine.py:f and mine.py:f are different files.

    Raises:
        PluginError: Nobody did.
    """
    if name not in TRUSTED:
        raise PluginError(
            f"a configuration file names {short(name)}, and code of yours is run only where the "
            "command line names it, too; give that setting on the command line, or in Python call "
            "thinkalike.plugins.trust"
        )


def load(name: str) -> object:
    """Return the object that FILE.py:NAME names; a file whose content has changed is run anew.

    This is the one place where a name becomes code, and a name may come from a stranger's
    configuration. So the file is one of `TRUSTED`.

    Raises:
        PluginError: The name is not trusted, the file or the object does not exist, or the file
            raises an error.
    """
    if not is_plugin(name):
        raise PluginError(f"{short(name)} is not a plugin; name the object of a file as FILE.py:NAME")
    path, _, attribute = name.rpartition(":")
    check_trusted(name)
    module = _module(in_home(path).resolve(), _content(path))
    names: Mapping[str, object] = vars(module)
    if attribute not in names:
        raise PluginError(f"{path} has no {attribute}")
    return names[attribute]


def digest(name: str) -> str:
    """Return the SHA-256 of the file that FILE.py:NAME names."""
    path, _, _ = name.rpartition(":")
    return hashlib.sha256(_content(path)).hexdigest()


def named_in(settings: object) -> list[str]:
    """Return all plugins that nested settings name, each once."""
    if isinstance(settings, Mapping):
        return named_in(list(settings.values()))
    if isinstance(settings, list | tuple):
        names: dict[str, None] = {}
        for value in settings:
            names |= dict.fromkeys(named_in(value))
        return list(names)
    return [settings] if is_plugin(settings) else []


@contextlib.contextmanager
def blaming(what: str) -> Iterator[None]:
    """Say in one line that code of the user, such as "measure mine", raised an error.

    An error that says in one line what is wrong passes, and so does a lack of memory, which is no
    fault of the code.
    """
    try:
        yield
    except (ThinkalikeError, MemoryError):
        raise
    except SystemExit as error:  # else the program would end as if the job were done
        raise PluginError(f"{what} called sys.exit({error.code})") from error
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":  # of torch, which takes seconds to import
            raise
        message = one_line(error)
        reason = type(error).__name__
        if message:
            reason = f"{reason}: {message}"
        raise PluginError(f"{what} raised {reason}") from error


def _content(path: str) -> bytes:
    try:
        return in_home(path).read_bytes()
    except OSError as error:
        raise PluginError(f"the plugin {path} cannot be read from {Path.cwd()}: {error.strerror}") from error


@cache
def _module(path: Path, content: bytes) -> ModuleType:
    """Run a file as a module of its own."""
    module = ModuleType(f"thinkalike_plugin_{path.stem}_{hashlib.sha256(content).hexdigest()[:8]}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # where dataclasses look for the types of their fields
    try:
        exec(compile(content, str(path), "exec", dont_inherit=True), vars(module))
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        del sys.modules[module.__name__]
        raise PluginError(f"{path} cannot be run: {_where_it_failed(error, path)}") from error
    return module


def _where_it_failed(error: BaseException, path: Path) -> str:
    """Return the error of a user's file in one line, with the last line of the file that ran."""
    reason = reason_in_words(error)
    lines = []
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == str(path):
            lines.append(frame.lineno)
    return f"{reason} at line {lines[-1]}" if lines else reason


def name_in_memory(measure: object) -> str:
    """Return what results call a measure in memory: the name of its function or class."""
    if isinstance(measure, MeasurePlugin):
        measure = measure.measure
    name = str(getattr(measure, "__name__", type(measure).__name__))
    return name if name.isidentifier() else "own"  # such as <lambda>
