"""The results store: a folder per finished job, `<store>/<kind>/<key>/`, which appears only when it is complete.

While a job runs, `<key>.partial/` holds its states, from which it can be resumed, and a lock, which ends with its
process, so that no two work on the same job. A manifest with the digests of all files is written last, so that later
damage is noticed. Nothing in a result is ever executed: its files are tables, JSON, YAML, safetensors and pictures.
"""

from __future__ import annotations

import contextlib
import hashlib
import html
import json
import logging
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from thinkalike.digests import digest_of
from thinkalike.errors import StoreError, TrainingError, checked_path, one_line, plain
from thinkalike.global_state import isolated
from thinkalike.plugins import instrument_of_kind
from thinkalike.processes import locked

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
NUMBERS = {".csv", ".npz", ".safetensors"}  # the endings of files that hold what was computed
STATE = re.compile(r"(?P<name>.+)-(?P<number>\d+)-(?P<digest>[0-9a-f]{16})\.pt")

Record = dict[str, Any]


class Headline(NamedTuple):
    """A number that sums up a result, with its 95 % interval if it has one.

    Attributes:
        name: a term of the field, such as mean_penalty; one name has one unit in all results of a kind.
        value: in the unit of the result's table.
        low, high: the ends of the interval; None: there is no interval, or it has no ends.
        of: the total, where the value is a count.
        at: its layers in words, such as "layer 2 with 3".
    """

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    of: int | None = None
    at: str = ""

    @classmethod
    def with_ends(cls, name: str, value: float, low: float, high: float, *, at: str = "") -> Headline:
        """Return a headline number with an interval, or without one if an end is blank or infinite."""
        ends = (float(low), float(high))
        first, last = ends if all(map(math.isfinite, ends)) else (None, None)
        return cls(name, float(value), first, last, at=at)

    def __str__(self) -> str:
        """Return what screens write: "mean cka 0.2048 [0.1838, 0.2329] at layer 2", or "claims that hold 3 of 5"."""
        label = self.name.replace("_", " ")
        if self.of is not None:
            return f"{label} {self.value:.0f} of {self.of}"
        interval = "" if self.low is None or self.high is None else f" [{self.low:.4g}, {self.high:.4g}]"
        return f"{label} {self.value:.4g}{interval}{f' at {self.at}' if self.at else ''}"

    @property
    def numbers(self) -> dict[str, float]:
        """The value under its name, and the ends of the interval under that name with `_low` and `_high`."""
        ends = {"": self.value, "_low": self.low, "_high": self.high}
        return {f"{self.name}{end}": value for end, value in ends.items() if value is not None}


def first_scalar(scalars: Mapping[str, float]) -> list[Headline]:
    """Return the first of a result's scalars as its only headline number, with the interval that stands beside it."""
    first = list(scalars.items())[:1]
    return [Headline(name, value, scalars.get(f"{name}_low"), scalars.get(f"{name}_high")) for name, value in first]


@dataclass(frozen=True)
class Result:
    """A finished job, read from its folder; each file is read when it is first asked for.

    >>> result = diff("gelu-3l-mini", "gelu-3l-mini")
    >>> result.kind, result.scalars["flips"], sorted(result.tables)
    ('diff', 0.0, ['table'])
    """

    folder: Path

    def __repr__(self) -> str:
        try:
            names = " and ".join(dict.fromkeys(str(model["name"]) for model in self.provenance.get("models", [])))
            first = "".join(f": {each}" for each in self.headlines[:1])
            told = f"{self.kind}{' of ' if names else ''}{names}{first}"
        except Exception as error:  # it may come from anywhere
            told = f"cannot be read, {type(error).__name__}"
        return plain(f"Result({told}; {self.folder})").replace("\n", " ")

    @cached_property
    def _record(self) -> Record:
        return json.loads((self.folder / "result.json").read_text())  # type: ignore[no-any-return]

    def fingerprint(self) -> str:
        """Return 16 digits of the SHA-256 of tables, arrays and stitches, by the manifest; figures are left out."""
        entries = json.loads((self.folder / MANIFEST).read_text())["files"]
        numbers = {name: entry for name, entry in entries.items() if Path(name).suffix in NUMBERS and "/" not in name}
        return _digest_of_entries(numbers)[:16]

    @property
    def kind(self) -> str:
        """The kind of the job, such as stitching or cka."""
        return str(self._record["kind"])

    @property
    def key(self) -> str:
        """The hash of everything that can change the numbers; it names the folder."""
        return str(self._record["key"])

    @property
    def scalars(self) -> dict[str, float]:
        """Further numbers of the whole result, by name."""
        return dict(self._record["scalars"])

    @property
    def headlines(self) -> list[Headline]:
        """The headline numbers with their intervals, the most important one first; older results have none."""
        return [Headline(**each) for each in self._record.get("headlines", [])]

    @property
    def settings(self) -> Record:
        """The settings that entered the key: those that can change numbers and are not the defaults."""
        return dict(self._record["settings"])

    @property
    def provenance(self) -> Record:
        """Versions, seed, models and data with fingerprints, memory, date, command line, host, seconds of phases."""
        return dict(self._record["provenance"])

    @cached_property
    def config(self) -> Record:
        """The resolved configuration; a part that the job does not read is None, and a damaged file a StoreError."""
        file = self.folder / "config.yaml"
        try:
            return dict(yaml.safe_load(file.read_text()))
        except Exception as error:  # the file may come from anywhere
            raise StoreError(f"{file} cannot be read ({one_line(error)})") from error

    @cached_property
    def table(self) -> pd.DataFrame:
        """The tidy table of the result."""
        import pandas as pd

        return pd.read_csv(self.folder / "table.csv")

    @cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        """All tables by name; the one that every result has is `table`."""
        import pandas as pd

        return {Path(name).stem: pd.read_csv(self.folder / name) for name in self._files if Path(name).suffix == ".csv"}

    @cached_property
    def _files(self) -> list[str]:
        """The names of the files beside result.json: those that the manifest names, once it is written."""
        if is_sealed(self.folder):
            named = json.loads((self.folder / MANIFEST).read_text())["files"]
            return sorted(name for name in named if "/" not in name)
        return sorted(path.name for path in self.folder.glob("*.*"))

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays by name; empty if the job leaves none."""
        import numpy as np

        path = self.folder / "arrays.npz"
        if not path.exists():
            return {}
        with np.load(path) as file:
            return {name: file[name] for name in file.files}

    @property
    def figures(self) -> list[Path]:
        """The files of the figures, PNG and SVG."""
        return sorted((self.folder / "figures").glob("*"))

    @property
    def instrument(self) -> Any:
        """The instrument that did the job; None where the result is drawn from those of several jobs."""
        return instrument_of_kind(self.kind, "subjects" in self.provenance)

    @isolated()
    def plot(self, ax: Any = None, name: str | None = None) -> Any:
        """Draw the figure of the command once more, or another of its figures by name, and return its axes.

        It goes into a new figure, or into the place of some axes of matplotlib. See `thinkalike.plot`.
        """
        if self.instrument is None:
            raise StoreError(f"{self.kind} is drawn from several results; its figures are in {self.folder / 'figures'}")
        return self.instrument.plot(self, name, ax)[1]

    def save(self, folder: str | os.PathLike[str]) -> Result:
        """Copy the result into a folder, which must not be there yet, and open it there."""
        place = Path(checked_path("folder", folder)).expanduser()
        if os.path.lexists(place):
            raise StoreError(f"folder={place} exists: choose a folder that does not, or delete it")
        return open_result(shutil.copytree(self.folder, place))

    @isolated()
    def _repr_html_(self) -> str | None:
        """Return what a notebook shows, which is what the screen says of the result."""
        if self.instrument is None:
            return None
        said = html.escape(self.instrument.said(self))
        return f"<pre style='white-space:pre;overflow-x:auto;line-height:normal'>{said}</pre>"


def open_result(folder: str | os.PathLike[str]) -> Result:
    """Open the folder of a finished job, which stays open where the working folder changes.

    Raises:
        StoreError: the folder holds no finished result, or a file of it is missing or damaged.

    >>> open_result("nowhere")
    Traceback (most recent call last):
    thinkalike.errors.StoreError: ...
    """
    result = Result(Path(checked_path("folder", folder)).expanduser().absolute())
    if not is_sealed(result.folder):
        raise StoreError(f"{result.folder} holds no finished result; it would have a {MANIFEST}")
    return _undamaged(result)


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    """Name the cause of an error of the file system, such as a missing permission, which is no damage."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{error.filename} cannot be read: {error.strerror}") from error


@_reading()
def is_sealed(folder: Path) -> bool:
    """Return whether a folder has a manifest, as that of a finished result does."""
    return (folder / MANIFEST).is_file()


@_reading()
def damage(folder: Path, content: bool = True) -> str | None:
    """Return what is wrong with a sealed folder, or None, by sizes and by all digests or that of result.json alone."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        entries = [(name, int(size), digest) for name, (size, digest) in manifest["files"].items()]
        if manifest["digest"] != _digest_of_entries(manifest["files"]):
            return f"{folder / MANIFEST} is damaged"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{folder / MANIFEST} is damaged ({type(error).__name__})"
    for name, size, digest in entries:
        path = folder / name
        if not path.is_file():
            return f"{path} is no regular file" if path.exists() else f"{path} is missing"
        if path.stat().st_size != size:
            return f"{path} is damaged: it has {path.stat().st_size:,} bytes and should have {size:,}"
        if (content or name == "result.json") and digest_of(path) != digest:
            return f"{path} is damaged: its checksum is not that of what was written"
    return None


def _undamaged(result: Result) -> Result:
    if wrong := damage(result.folder):
        raise StoreError(f"{wrong}; delete {result.folder} or do the job again with force=true")
    return result


def seal(folder: Path) -> None:
    """Write the manifest of a folder, and make sure that all of it is on the disk."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    entries = {str(path.relative_to(folder)): [path.stat().st_size, digest_of(path)] for path in files}
    manifest = {"files": entries, "digest": _digest_of_entries(entries)}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    for path in (*files, folder / MANIFEST, *(path for path in folder.rglob("*") if path.is_dir()), folder):
        _sync(path)


def _digest_of_entries(entries: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


def _sync(path: Path) -> None:
    """Make sure that a file, or the list of a folder's files, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Job:
    """One computation and the folder of its result."""

    def __init__(self, store: str, kind: str, key: str):
        self.kind, self.key, self.store = kind, key, Path(store).expanduser()
        self.folder = self.store / kind / key
        self.partial = self.folder.with_name(f"{key}.partial")
        self.states = self.partial / "checkpoints"

    @property
    def done(self) -> bool:
        return is_sealed(self.folder)

    def result(self) -> Result | None:
        """Return the result if it is there and whole; clear away what a process that died left beside it."""
        if not self.done:
            return None
        result = _undamaged(Result(self.folder))
        if self.partial.exists():
            with contextlib.suppress(StoreError, OSError), self.running(wait=False):
                pass  # the process that gets the lock tidies up
        return result

    @property
    def aside(self) -> Path:
        """The folder that becomes the result, for files of a job's own."""
        folder = self.partial / "result"
        folder.mkdir(exist_ok=True)
        return folder

    @contextlib.contextmanager
    def running(self, wait: bool = True) -> Iterator[Path]:
        """Hold the job's lock, see `locked`; yields the folder of its states.

        After an error nothing is left behind but a state from which the same command can resume. A store that cannot be
        written is a StoreError.
        """
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(locked(self.partial / "lock", f"computing {self.folder}", wait))
            except OSError as error:
                place = self.folder.parent
                raise StoreError(f"the store {place} cannot be written: {error.strerror}; choose store=DIR") from error
            shutil.rmtree(self.partial / "result", ignore_errors=True)  # of a process that died while it wrote
            try:
                yield self.partial
            except BaseException as error:
                diverged = isinstance(error, TrainingError)  # it would do so again
                if diverged or not any(self.states.glob("*.pt")):
                    shutil.rmtree(self.partial, ignore_errors=True)
                    with contextlib.suppress(OSError):
                        self.folder.parent.rmdir()
                        self.store.rmdir()
                raise
            if self.done:
                shutil.rmtree(self.partial, ignore_errors=True)

    def write(
        self, config: Record, record: Record, tables: dict[str, pd.DataFrame], arrays: dict[str, np.ndarray]
    ) -> Result:
        """Write a result aside, with the `record` of scalars, settings and provenance, and open it there."""
        import numpy as np

        out = self.aside
        (out / "config.yaml").write_text(yaml.safe_dump(config, allow_unicode=True, sort_keys=False))
        for name, table in tables.items():
            table.to_csv(out / f"{name}.csv", index=False)
        if arrays:
            np.savez_compressed(out / "arrays.npz", **arrays)  # type: ignore[arg-type]
        self.add({"kind": self.kind, "key": self.key, **record})
        return Result(out)

    def add(self, record: Record) -> None:
        """Add entries to the record of a result that is written aside; an entry of the same name is replaced."""
        file = self.aside / "result.json"
        before = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps({**before, **record}, indent=1) + "\n")

    def appear(self) -> Result:
        """Let the result that was written aside appear whole, in place of an older one if there is one."""
        out, old = self.aside, self.partial / "old"
        if (self.partial / "curves").exists():  # copied, as a run that dies here needs its curves again
            shutil.copytree(self.partial / "curves", out / "curves", dirs_exist_ok=True)
        seal(out)
        if self.folder.exists():
            shutil.rmtree(old, ignore_errors=True)
            os.rename(self.folder, old)
        os.rename(out, self.folder)
        _sync(self.folder.parent)
        shutil.rmtree(self.partial, ignore_errors=True)
        return Result(self.folder)


def newest_state(folder: Path, name: str) -> Path | None:
    """Return the file of the newest whole state of this name, or None; a damaged one is renamed, with a warning."""
    for _, path in sorted(_states(folder, name).items(), reverse=True):
        if path.stem.endswith(f"-{digest_of(path)[:16]}"):
            return path
        with contextlib.suppress(FileNotFoundError):  # another process of the same job was faster
            os.replace(path, path.with_suffix(".damaged"))
        log.warning("the state %s is damaged (its checksum differs) and is not used", path)
    return None


def write_state(folder: Path, name: str, state: dict[str, Any]) -> Path:
    """Write a state of tensors and plain values in place of the one before; returns its file.

    It is written beside its destination and renamed, and the one before it is kept until then, so there is a whole
    state at any moment. The file is named by its number and its digest.
    """
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    before, aside = _states(folder, name), folder / f"{name}.aside"
    with aside.open("wb") as file:  # else a full disk would not be an OSError
        torch.save(state, file)
    _sync(aside)
    path = folder / f"{name}-{max(before, default=0) + 1}-{digest_of(aside)[:16]}.pt"
    os.replace(aside, path)
    _sync(folder)
    for old in before.values():
        old.unlink()
    return path


def read_state(path: Path) -> dict[str, Any]:
    """Read a state onto the CPU; nothing in it can run code."""
    import torch

    return torch.load(path, map_location="cpu", weights_only=True)  # type: ignore[no-any-return]


def _states(folder: Path, name: str) -> dict[int, Path]:
    """Return the files of all states of this name, by number."""
    found = ((path, STATE.fullmatch(path.name)) for path in folder.glob(f"{name}-*.pt"))
    return {int(named["number"]): path for path, named in found if named and named["name"] == name}
