"""Where a plugin is, what it is made of, and which of them a job knows."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from thinkalike.errors import PluginError, ThinkalikeError, first_line
from thinkalike.plugins.registry import Contents, filling


@dataclass(frozen=True)
class Plugin:
    """A plugin that was loaded.

    Attributes:
        name: what it was called: a module, or the path of a file.
        file: where it is, the file or that of the package.
        digest: the SHA-256 of that file, or of all Python files of the package.
        contents: what it adds.
    """

    name: str
    file: Path
    digest: str
    contents: Contents

    def describe(self) -> dict[str, Any]:
        """Return what the provenance of a result says of the plugin."""
        added = [f"{kind} {name}" for kind, own in vars(self.contents).items() for name in own]
        return {"name": self.name, "file": str(self.file), "sha256": self.digest, "adds": added}


_loaded: dict[str, Plugin] = {}  # by name, as they were when they were loaded
_active: list[Plugin] = []  # those that the job knows


def activate(names: Sequence[str], taken: Mapping[str, Collection[str]] | None = None) -> list[Plugin]:
    """Let the job know these plugins, and no others; one whose content has changed is loaded anew.

    Args:
        taken: names of the package's own things, by kind.

    Raises:
        PluginError: a plugin is not there, cannot be imported, adds nothing, or takes a name that is taken.
    """
    plugins = [_load(name) for name in dict.fromkeys(names)]
    owners = {(kind, name): "thinkalike" for kind, own in (taken or {}).items() for name in own}
    for plugin in plugins:
        for kind, own in vars(plugin.contents).items():
            for name in own:
                if (owner := owners.setdefault((kind, name), plugin.name)) != plugin.name:
                    raise PluginError(f"plugin {plugin.name}: {owner} has a {kind} {name}; choose another name")
    _active[:] = plugins
    return plugins


def active(kind: str) -> dict[str, Any]:
    """Return what the plugins of the job add of a kind, by name: stitch, measure, optimizer or callback."""
    return {name: each for plugin in _active for name, each in getattr(plugin.contents, kind).items()}


def fingerprint(plugins: Sequence[Plugin]) -> str:
    """Return what of plugins counts for the numbers of a job: their content, wherever they are."""
    return " ".join(sorted(plugin.digest for plugin in plugins))


def _load(name: str) -> Plugin:
    with _from_here():
        file = _found(name)
        digest = _digest_of(file)
        if name in _loaded and (_loaded[name].file, _loaded[name].digest) == (file, digest):
            return _loaded[name]
        with filling() as contents:
            _import(name, file)
    if not any(getattr(contents, each.name) for each in fields(contents)):
        raise PluginError(f"plugin {name} registers nothing; see docs/plugins.md for how")
    _loaded[name] = Plugin(name, file, digest, contents)
    return _loaded[name]


@contextlib.contextmanager
def _from_here() -> Iterator[None]:
    """Let modules be found in the working folder, too, which a command that is installed does not look at."""
    here = os.getcwd()
    sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(here)


def _found(name: str) -> Path:
    """Return the file of a plugin.

    Raises:
        PluginError: there is no such file or module.
    """
    path = Path(name).expanduser()
    if _is_path(name):
        if not path.is_file():
            raise PluginError(f"plugin {name} is not there; give the path of a .py file, from {Path.cwd()}")
        return path.resolve()
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # such as a part of a module that is no package
        spec = None
    if spec is None or not spec.origin or not Path(spec.origin).is_file():
        beside = f"{name}.py" if Path(f"{name}.py").is_file() else "mine.py"
        raise PluginError(f"plugin {name} is no module that Python finds; give the path of a file, such as {beside}")
    return Path(spec.origin).resolve()


def _is_path(name: str) -> bool:
    return name.endswith(".py") or os.sep in name


def _digest_of(file: Path) -> str:
    """Return the SHA-256 of a file, or of all Python files of the package that it makes."""
    digest = hashlib.sha256()
    files = sorted(file.parent.rglob("*.py")) if file.name == "__init__.py" else [file]
    for each in files:
        digest.update(each.relative_to(file.parent).as_posix().encode() if len(files) > 1 else b"")
        digest.update(each.read_bytes())
    return digest.hexdigest()


def _import(name: str, file: Path) -> None:
    """Run the code of a plugin, also if it was run before.

    Raises:
        PluginError: it raises an error.
    """
    try:
        if _is_path(name):
            _run(file, f"thinkalike_plugin_{file.stem}")
        elif file.name != "__init__.py":
            _run(file, name)
        else:
            _forget(name)
            importlib.import_module(name)
    except ThinkalikeError as error:
        raise PluginError(f"plugin {name}: {error}") from error
    except Exception as error:  # whatever the user's code raises
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
        where = f" at line {lines[-1]}" if lines else ""
        raise PluginError(
            f"plugin {name} cannot be imported: {type(error).__name__}: {first_line(error)}{where}; correct the file"
        ) from error


def _forget(package: str) -> None:
    for known in [known for known in sys.modules if known == package or known.startswith(f"{package}.")]:
        del sys.modules[known]


def _run(file: Path, name: str) -> None:
    """Run a file as the module of a name, from its text: Python's cache may be of another one of the same second."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    exec(compile(file.read_bytes(), str(file), "exec"), vars(module))
