"""The results store: a folder per finished job, `<store>/<kind>/<key>/`, which appears only when it is complete.

While a job runs, `<key>.partial/` holds its states, from which it can be resumed, and a lock, which ends with its
process, so that no two work on the same job. A manifest with the digests of all files is written last, so that later
damage is noticed. Nothing in a result is ever executed: its files are tables, JSON, YAML, safetensors and pictures.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import html
import json
import logging
import math
import os
import re
import shutil
import stat
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from thinkalike.catalogue import instrument_of_kind
from thinkalike.columns import Columns
from thinkalike.digests import digest_of, read_json
from thinkalike.errors import StoreError, TrainingError, checked_path, flat, one_line, plain_line, short
from thinkalike.files import ForeignFileError, open_regular, read_yaml
from thinkalike.global_state import isolated
from thinkalike.processes import locked

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
FOLDERS = ("checkpoints", "curves", "old", "result")  # that a running job has beside its lock
NUMBERS = {".csv", ".npz", ".safetensors"}  # the endings of files that hold what was computed
MOST_BYTES = 2**22  # of a manifest, a record or a configuration; those of large jobs have 2**17
MOST_LISTED = 2**24  # bytes of a table that a page holds; lists do not read the bytes of a larger file
MOST_OF_TABLE = 2**33  # bytes; a table in memory needs several times as much
LONGEST_NAME = 1000  # characters of the name of a file in a manifest
DEEPEST_NAME = 8  # folders in it; those of results have one
MOST_HEADLINES = 1000  # of a result; large jobs have twenty
MOST_SETTINGS = 2000  # of a result, by dotted names; all parts of a configuration together have some 200
MOST_SCALARS = 5000  # of a result
STATE = re.compile(r"(?P<name>.+)-(?P<number>\d+)-(?P<digest>[0-9a-f]{16})\.pt")
OWNER = "thinkalike_owner"  # the entry of a state that says which state of which job it is

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
            return f"{label} {self.value:.10g} of {self.of}"  # .0f would round what is no count to one
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

    @property
    def is_kept(self) -> bool:
        """Whether it is in a folder; a result of a job without a store is in memory, until it is saved."""
        return True

    @property
    def place(self) -> str:
        """The folder, by which errors name the result."""
        return str(self.folder)

    def __repr__(self) -> str:
        try:
            names = " and ".join(dict.fromkeys(str(model["name"]) for model in self.provenance.get("models", [])))
            first = "".join(f": {each}" for each in self.headlines[:1])
            told = f"{self.kind}{' of ' if names else ''}{names}{first}"
        except Exception as error:  # it may come from anywhere
            told = f"cannot be read, {type(error).__name__}"
        return plain_line(f"Result({told}; {self.folder if self.is_kept else 'not kept'})")

    @cached_property
    def _record(self) -> Record:
        file = self.folder / "result.json"
        with _explained(file):
            return _checked_record(_read_json(file))

    def fingerprint(self) -> str:
        """Return 16 digits of the SHA-256 of tables, arrays and stitches, by the manifest; figures are left out."""
        entries = _entries(self.folder)
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
        told = self._record.get("headlines", [])
        known = [{name: value for name, value in one.items() if name in Headline._fields} for one in told]
        for fields in known:  # a newer version may tell more, and another program write 1 for 1.0
            fields |= {name: float(fields[name]) for name in ("value", "low", "high") if fields.get(name) is not None}
            if fields.get("of") is not None:
                fields["of"] = int(fields["of"])
        return [Headline(**fields) for fields in known]

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
        name = "config.yaml"
        file = self._file(name)
        with _explained(file):
            config = read_yaml(file, MOST_BYTES, follow=False)
            # lists read the configurations of results whose files were compared by their sizes alone
            if is_sealed(self.folder) and digest_of(file) != _entries(self.folder)[name][1]:
                raise ForeignFileError("its checksum is not that of what was written")
            _check_values(config)
            by_dotted_name(config)
            return config

    @cached_property
    def table(self) -> pd.DataFrame:
        """The tidy table of the result."""
        return self._read_table("table.csv")

    @cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        """All tables by name; the one that every result has is `table`."""
        return {name.removesuffix(".csv"): self._read_table(name) for name in self.files if name.endswith(".csv")}

    def _read_table(self, name: str) -> pd.DataFrame:
        """Return the table of a file, such as table.csv."""
        file = self._file(name)
        with _explained(file):
            return Columns.read(file, MOST_OF_TABLE).frame()

    @cached_property
    def files(self) -> list[str]:
        """The names of the files beside result.json: those that the manifest names, once it is written."""
        if is_sealed(self.folder):
            return sorted(name for name in _entries(self.folder) if "/" not in name)
        return sorted(path.name for path in self.folder.glob("*.*"))

    def _file(self, name: str) -> Path:
        """Return the path of a file beside result.json; one that the manifest does not name is a StoreError.

        The digests say nothing about such a file, so anybody may have put it there.
        """
        if is_sealed(self.folder) and name not in self.files:
            raise StoreError(f"{self.folder} has no {name}: its {MANIFEST} names none")
        return self.folder / name

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays by name; empty if the job leaves none."""
        import numpy as np

        path = self.folder / "arrays.npz"
        if path.name not in self.files:
            return {}
        with _explained(path), open_regular(path, follow=False) as opened:
            _check_arrays(opened)
            with np.load(opened, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            for name, array in arrays.items():
                if not isinstance(array, np.ndarray):  # NumPy returns the bytes of a member without its header
                    raise ForeignFileError(f"{short(name)} in it is no array")
            return arrays

    @contextlib.contextmanager
    def opened_tensors(self, name: str) -> Iterator[Any]:
        """Open a file of tensors beside result.json, such as that of stitches; see `TensorFile` for what it can do."""
        from safetensors import safe_open

        with safe_open(self.folder / name, framework="pt") as file:
            yield file

    @property
    def figures(self) -> list[Path]:
        """The files of the figures, PNG and SVG: those that the manifest names, once it is written."""
        folder = self.folder / "figures"
        if is_sealed(self.folder):
            paths = (self.folder / name for name in _entries(self.folder))
            return sorted(path for path in paths if path.parent == folder)
        return sorted(folder.glob("*"))

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
        """Copy the files of its manifest into a folder, which must not be there yet, and open the result there."""
        goal = Path(checked_path("folder", folder)).expanduser()
        names = [*_entries(_undamaged(self).folder), MANIFEST]
        new_folder(goal)
        try:
            for name in names:
                target = goal / name
                target.parent.mkdir(parents=True, exist_ok=True)
                with open_regular(self.folder / name, follow=False) as source, target.open("xb") as file:
                    shutil.copyfileobj(source, file)
        except BaseException as error:
            shutil.rmtree(goal, ignore_errors=True)  # half a copy is no result, and the same call would find it there
            if isinstance(error, OSError | ForeignFileError):
                raise StoreError(f"the result cannot be saved in {goal}: {one_line(error)}") from error
            raise
        return open_result(goal)

    @isolated()
    def _repr_html_(self) -> str | None:
        """Return what a notebook shows, which is what the screen says of the result."""
        if self.instrument is None:
            return None
        said = html.escape(self.instrument.said(self))
        return f"<pre style='white-space:pre;overflow-x:auto;line-height:normal'>{said}</pre>"


@dataclass(frozen=True)
class TensorFile:
    """Tensors by name, with what is said of them: a file of safetensors that is in memory, read as one that is open."""

    tensors: Mapping[str, Any]
    about: Mapping[str, str]

    def keys(self) -> list[str]:
        return list(self.tensors)

    def get_tensor(self, name: str) -> Any:
        return self.tensors[name]

    def metadata(self) -> dict[str, str]:
        return dict(self.about)

    def write(self, path: Path) -> None:
        from safetensors.torch import save_file

        save_file(dict(self.tensors), path, metadata=dict(self.about))


def new_folder(folder: Path) -> None:
    """Make the folder that a result is saved in; one that is there already is a StoreError."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError as error:
        raise StoreError(f"{folder} is there already; save the result in a new folder") from error
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        raise StoreError(f"the result cannot be saved in {folder}: {one_line(error)}") from error


def write_content(
    folder: Path,
    config: Record,
    record: Record,
    tables: Mapping[str, pd.DataFrame],
    arrays: Mapping[str, np.ndarray],
) -> None:
    """Write the configuration, the record, the tables and the arrays of a result into its folder."""
    import numpy as np

    (folder / "config.yaml").write_text(yaml.safe_dump(config, allow_unicode=True, sort_keys=False))
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv", index=False)
    if arrays:
        np.savez_compressed(folder / "arrays.npz", **arrays)  # type: ignore[arg-type]
    (folder / "result.json").write_text(json.dumps(record, indent=1) + "\n")


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


@contextlib.contextmanager
def _explained(file: Path) -> Iterator[None]:
    """Turn whatever a file of a stranger can cause into one line that names it."""
    try:
        yield
    except StoreError:
        raise
    except Exception as error:
        reason = one_line(error).removeprefix(f"{file} ") or type(error).__name__
        raise StoreError(f"{file} cannot be read ({reason})") from error


def _read_json(file: Path) -> Record:
    if file.is_symlink():
        raise ForeignFileError(f"{file} is a link, and links are not followed here")
    found = read_json(file, MOST_BYTES, unique=True)
    if b"\\ud" in file.read_bytes().lower():  # JSON can hold half a surrogate pair, and neither files nor tables can
        return json.loads(json.dumps(found, ensure_ascii=False).encode(errors="replace"))  # type: ignore[no-any-return]
    return found


def by_dotted_name(settings: Mapping[str, Any]) -> Record:
    """Return nested settings by dotted names; a ForeignFileError says that two of them have one name."""
    named = flat(settings)
    if len(named) < _count_of_values(settings):
        raise ForeignFileError("two of its settings have one dotted name, as {a: {b: 1}, a.b: 2} has")
    return named


def _count_of_values(settings: Mapping[str, Any]) -> int:
    """Return how many values nested settings have, apart from the mappings that hold them."""
    return sum(_count_of_values(value) if isinstance(value, Mapping) else 1 for value in settings.values())


def _check_values(value: Any) -> None:
    """Check that the values of a configuration are of the types that all who list results can write.

    YAML also has dates, sets, bytes, keys that are lists, and integers of any length.
    """
    if isinstance(value, dict):
        for name, member in value.items():
            if not isinstance(name, str):
                raise ForeignFileError(f"one of its names is of the type {type(name).__name__}, not a text")
            _check_values(member)
    elif isinstance(value, list):
        for member in value:
            _check_values(member)
    elif not (value is None or isinstance(value, bool | str) or _is_number(value)):
        kind = type(value).__name__
        raise ForeignFileError(f"a value in it is no text, truth or number, but of the type {kind}")


def _checked_record(record: Record) -> Record:
    """Return what result.json holds, of the types that all who read it rely on; a ValueError says which it has not."""
    for name in ("kind", "key"):
        if not isinstance(record.get(name), str):
            raise ForeignFileError(f"its {name} is no text")
    parts = {name: record.get(name, {}) for name in ("scalars", "settings", "provenance")}
    for name, part in parts.items():
        if not isinstance(part, dict):
            raise ForeignFileError(f"its {name} are no JSON object")
    if not all(value is None or _is_number(value) for value in parts["scalars"].values()):
        raise ForeignFileError("one of its scalars is no number")
    for name, count, most in (
        ("settings", len(by_dotted_name(parts["settings"])), MOST_SETTINGS),
        ("scalars", len(parts["scalars"]), MOST_SCALARS),
    ):
        if count > most:  # lists have a column for each
            raise ForeignFileError(f"it has {count:,} {name}, and the most are {most:,}")
    headlines = record.get("headlines", [])
    if not isinstance(headlines, list) or not all(map(_is_headline, headlines)):
        raise ForeignFileError("its headlines are no list of names with numbers")
    if len(headlines) > MOST_HEADLINES:
        raise ForeignFileError(f"it has {len(headlines):,} headlines, and the most are {MOST_HEADLINES:,}")
    provenance = parts["provenance"]
    models = provenance.get("models", [])
    if not isinstance(models, list) or not all(isinstance(one, dict) and "name" in one for one in models):
        raise ForeignFileError("its models are no list of JSON objects with names")
    phases = provenance.get("phases", {})
    if not isinstance(phases, dict) or not all(map(_is_number, phases.values())):
        raise ForeignFileError("its phases are no numbers")
    if not isinstance(provenance.get("versions", {}), dict):
        raise ForeignFileError("its versions are no JSON object")
    warnings = provenance.get("warnings", [])
    if not isinstance(warnings, list) or not all(isinstance(text, str) for text in warnings):
        raise ForeignFileError("its warnings are no list of texts")
    if "date" in provenance and not _is_date(provenance["date"]):
        raise ForeignFileError("its date is none")
    return {**record, **parts}


def _is_headline(told: Any) -> bool:
    return (
        isinstance(told, dict)
        and isinstance(told.get("name"), str)
        and _is_number(told.get("value"))
        and all(told.get(end) is None or _is_number(told[end]) for end in ("low", "high"))
        and (told.get("of") is None or (_is_number(told["of"]) and float(told["of"]).is_integer()))
        and isinstance(told.get("at", ""), str)
    )


def _is_date(value: Any) -> bool:
    """Return whether a value is a date as provenance has it, which lists can put in order."""
    with contextlib.suppress(TypeError, ValueError):
        datetime.fromisoformat(value)
        return True
    return False


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 1e300 or not isinstance(value, int)  # a longer integer is no float


def _check_arrays(file: Any) -> None:
    """Check that an .npz file has arrays alone, one of each name, which fit into memory, before any is made."""
    import torch

    from thinkalike.memory import at_hand

    members = zipfile.ZipFile(file).infolist()
    file.seek(0)
    names = [member.filename for member in members]
    for name in names:
        if not name.endswith(".npy"):
            raise ForeignFileError(f"{short(name)} in it is no array")
        if name.endswith(".npy.npy"):  # NumPy takes a.npy for a, and would return that array twice
            raise ForeignFileError(f"{short(name)} in it ends in .npy twice")
    if len({name.removesuffix(".npy") for name in names}) < len(names):
        raise ForeignFileError("two of its arrays have one name")
    size = sum(member.file_size for member in members)
    if size > (free := at_hand(torch.device("cpu"))):
        raise ForeignFileError(f"its arrays have {size:,} bytes, and {free:,} are free")


@_reading()
def is_sealed(folder: Path) -> bool:
    """Return whether a folder has a manifest, as that of a finished result does."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return stat.S_ISREG(os.lstat(folder / MANIFEST).st_mode)
    return False


def _entries(folder: Path) -> dict[str, tuple[int, str]]:
    """Return size and SHA-256 of the files that the manifest of a folder names; a StoreError says that it is damaged.

    All of them are inside the folder, whatever the manifest says.
    """
    file = folder / MANIFEST
    try:
        manifest = _read_json(file)
        entries = {str(name): (int(size), str(digest)) for name, (size, digest) in manifest["files"].items()}
        stated, digest = manifest["digest"], _digest_of_entries(manifest["files"])
    except OSError as error:
        if error.errno is None:  # a pipe, a socket or a folder is there
            raise StoreError(f"{file} is damaged (it is not a regular file)") from error
        raise
    except Exception as error:
        told = one_line(error).removeprefix(f"{file} ") if isinstance(error, ValueError) else type(error).__name__
        raise StoreError(f"{file} is damaged ({told})") from error
    if stated != digest:
        raise StoreError(f"{file} is damaged")
    for name in entries:
        # before anything is made of its folders: a name of a megabyte has a million of them
        if len(name) > LONGEST_NAME or name.count("/") > DEEPEST_NAME:
            told = f"{name[:20]!r}..., of {len(name):,} characters and {name.count('/'):,} folders"
            raise StoreError(f"{file} is damaged: no file of a result has the name {told}")
        if name.startswith("/") or ".." in name.split("/") or "\0" in name:
            raise StoreError(f"{file} is damaged: it names a file outside of its folder")
        if name == MANIFEST or not {"", "."}.isdisjoint(name.split("/")):  # one file could have two such names
            raise StoreError(f"{file} is damaged: no file of a result has the name {name!r}")
    return entries


def _above(names: Iterable[str]) -> set[str]:
    """Return the folders that names of files have, and those above them."""
    found: set[str] = set()
    for name in names:
        parts = name.split("/")[:-1]
        found.update("/".join(parts[: length + 1]) for length in range(len(parts)))
    return found


@_reading()
def damage(folder: Path, endings: Collection[str] | None = None) -> str | None:
    """Return what is wrong with a sealed folder, or None, by the sizes of all files, and by digests.

    Args:
        endings: of the files whose digests are compared, as that of result.json is in any case; None: all. Of files
            that are too large for a list, these digests are left out: whoever reads them refuses their size.
    """
    try:
        entries = _entries(folder)
    except StoreError as error:
        return str(error)
    if "result.json" not in entries:
        return f"{folder / MANIFEST} is damaged: it names no result.json"
    start = f"{folder}/"  # a store may have 100,000 files, and to make a Path takes as long as the look
    linked = tuple(f"{start}{above}/" for above in _above(entries) if os.path.islink(f"{start}{above}"))
    for name, (size, digest) in entries.items():
        path = f"{start}{name}"
        try:
            found = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return f"{path} is missing"
        if not stat.S_ISREG(found.st_mode) or (linked and path.startswith(linked)):
            return f"{path} is no regular file"
        if found.st_size != size:
            return f"{path} is damaged: it has {found.st_size:,} bytes and should have {size:,}"
        ending = os.path.splitext(name)[1]
        # before its bytes are read: a sparse file of 200 GB takes no room on the disk, and minutes to read
        if (most := _most_bytes_of(name, ending)) is not None and size > most:
            return f"{path} is damaged: it has {size:,} bytes, and such a file has {most:,} at most"
        is_listed = name == "result.json" or (ending in (endings or ()) and size <= MOST_LISTED)
        is_compared = endings is None or is_listed
        if is_compared and digest_of(Path(path)) != digest:
            return f"{path} is damaged: its checksum is not that of what was written"
    return None


def _most_bytes_of(name: str, ending: str) -> int | None:
    """Return how many bytes a file of a result has at most; None: as many as the weights or arrays in it need."""
    if ending in (".json", ".yaml"):
        return MOST_BYTES
    return MOST_OF_TABLE if ending == ".csv" else None


def _undamaged(result: Result) -> Result:
    before = _identity(result.folder)
    if wrong := damage(result.folder):
        if before != _identity(result.folder):  # meanwhile another process has put its own result there
            return _undamaged(Result(result.folder))
        raise StoreError(f"{wrong}; delete {result.folder} or do the job again with force=true")
    return result


def _identity(folder: Path) -> int | None:
    """Return the number of a folder on its disk, which that of a newer result does not have; None: it is not there."""
    with contextlib.suppress(OSError):
        return folder.stat().st_ino
    return None


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


def _all_inside(folder: Path) -> list[Path]:
    """Return all that is in a folder and in those inside it; nothing if it is not there, or vanishes meanwhile."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return list(folder.rglob("*"))
    return []


class Job:
    """One computation and the folder of its result."""

    keeps_states = True  # from which it can be resumed

    def __init__(self, store: str, kind: str, key: str):
        self.kind, self.key, self.store = kind, key, Path(store).expanduser()
        self.folder = self.store / kind / key
        self.partial = self.folder.with_name(f"{key}.partial")
        self.states = self.partial / "checkpoints"

    @property
    def done(self) -> bool:
        return is_sealed(self.folder)

    def result(self) -> Result | None:
        """Return the result if it is there and whole; clear away what a process that died left beside it.

        Raises:
            StoreError: it is damaged, is the result of another job, or a link leads out of the store.
        """
        self._check_links()
        if not self.done:
            return None
        result = _undamaged(Result(self.folder))
        if (result.kind, result.key) != (self.kind, self.key):  # copied here from another place
            told = f"{self.folder} holds the result {result.key} of {result.kind}"
            raise StoreError(f"{told}; delete {self.folder} or do the job again with force=true")
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

    def has_states(self) -> bool:
        """Return whether there is a state to resume from."""
        return any(self.states.glob("*.pt"))

    def add_tensors(self, name: str, tensors: Mapping[str, Any], about: Mapping[str, str]) -> None:
        """Add a file of tensors to the result that is written aside, such as its stitches."""
        TensorFile(tensors, about).write(self.aside / name)

    @contextlib.contextmanager
    def running(self, wait: bool = True) -> Iterator[None]:
        """Hold the job's lock, see `locked`.

        After an error nothing is left behind but a state from which the same command can resume. A store that cannot be
        written is a StoreError.
        """
        with contextlib.ExitStack() as held:
            try:
                self._check_left()
                held.enter_context(locked(self.partial / "lock", f"computing {self.folder}", wait))
            except OSError as error:
                place = self.folder.parent
                raise StoreError(f"the store {place} cannot be written: {error.strerror}; choose store=DIR") from error
            shutil.rmtree(self.partial / "result", ignore_errors=True)  # of a process that died while it wrote
            try:
                yield
            except BaseException as error:
                diverged = isinstance(error, TrainingError)  # it would do so again
                if diverged or not self.has_states():
                    self._remove_partial()
                    with contextlib.suppress(OSError):
                        self.folder.parent.rmdir()
                        self.store.rmdir()
                raise
            if self.done:
                self._remove_partial()

    def _check_left(self) -> None:
        """Check what an earlier run left, which may come from anywhere, before any of it is opened or written.

        A link, also one that is a second name of a file, would lead what is written to another place. Opening a pipe
        waits for ever, and a device never ends. A plain file where a folder belongs fails much later.
        """
        self._check_links()
        for folder in (self.partial, *(self.partial / name for name in FOLDERS)):
            if folder.exists() and not folder.is_symlink() and not folder.is_dir():
                raise StoreError(f"{folder} is no folder, and a running job needs one there; remove it")
        for path in _all_inside(self.partial):
            try:
                found = os.lstat(path)
            except FileNotFoundError:  # another process is done with it
                continue
            if stat.S_ISLNK(found.st_mode):
                raise StoreError(f"{path} is a link, and links inside a store are not followed; remove it")
            if stat.S_ISDIR(found.st_mode):
                if path.parent in (self.states, self.partial / "curves"):
                    raise StoreError(f"{path} is a folder, and states and curves are files; remove it")
            elif not stat.S_ISREG(found.st_mode):
                raise StoreError(f"{path} is no regular file, and reading it may have no end; remove it")
            elif found.st_nlink > 1:
                raise StoreError(f"{path} has a second name, which would be written as well; remove it, or copy it")

    def _check_links(self) -> None:
        """Check that the folders of the job are in the store itself, before anything in them is read or written."""
        for folder in (self.folder.parent, self.folder, self.partial):
            try:
                is_link = folder.is_symlink()
            except OSError as error:  # of a name that is too long, or a folder that may not be entered
                place = short(str(self.folder.parent.parent))
                raise StoreError(f"the store {place} cannot be read: {error.strerror}; choose store=DIR") from error
            if is_link:
                raise StoreError(f"{folder} is a link, and links inside a store are not followed; remove it")

    def _remove_partial(self) -> None:
        """Remove the folder of the running job, with the lock in it, which must be held until then.

        It is renamed first: the next process makes a folder and a lock of its own at the same place as soon as this
        lock is gone, and these must not be removed.
        """
        with contextlib.suppress(OSError):
            os.rename(self.partial, self.partial.with_name(f".{self.key}.removed-{os.getpid()}"))
        for removed in self.folder.parent.glob(f".{self.key}.removed-*"):  # also of a process that died meanwhile
            shutil.rmtree(removed, ignore_errors=True)

    def write(
        self, config: Record, record: Record, tables: dict[str, pd.DataFrame], arrays: dict[str, np.ndarray]
    ) -> Result:
        """Write a result aside, with the `record` of scalars, settings and provenance, and open it there."""
        write_content(self.aside, config, {"kind": self.kind, "key": self.key, **record}, tables, arrays)
        return Result(self.aside)

    def add(self, record: Record) -> Result:
        """Add entries to the record of a result that is written aside, in place of those of the same names.

        Return the result, which reads its record anew.
        """
        file = self.aside / "result.json"
        before = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps({**before, **record}, indent=1) + "\n")
        return Result(self.aside)

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
        result = Result(self.folder)
        _ = result._record  # while no other process can replace it
        return result


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
    state at any moment. The file is named by its number and its digest, and says which state of which job it is.
    """
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    before, aside = _states(folder, name), folder / f"{name}.aside"
    with aside.open("wb") as file:  # else a full disk would not be an OSError
        try:
            torch.save({**state, OWNER: _owner_of(folder, name)}, file)
        except RuntimeError as error:  # it ends its archive once more, which hides the OSError of a limit
            raise OSError(errno.EFBIG, f"the state cannot be written ({one_line(error)})", str(aside)) from error
    _sync(aside)
    path = folder / f"{name}-{max(before, default=0) + 1}-{digest_of(aside)[:16]}.pt"
    os.replace(aside, path)
    _sync(folder)
    for old in before.values():
        old.unlink()
    return path


def read_state(path: Path) -> dict[str, Any]:
    """Read a state onto the CPU; nothing in it can run code.

    Raises:
        StoreError: the file holds no state, or one that another job wrote: the tensors of two jobs may have the same
            shapes. Neither this nor its digest shows who wrote it.
    """
    import torch

    try:
        with open_regular(path, follow=False) as file:
            state = torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # torch, zipfile and pickle raise many kinds
        raise StoreError(f"{path} holds no state of a job ({one_line(error)}); remove it") from error
    if not isinstance(state, dict):
        raise StoreError(f"{path} holds no state of a job (it is a {type(state).__name__}); remove it")
    named = STATE.fullmatch(path.name)
    owner = _owner_of(path.parent, named["name"] if named else path.name)
    stated = state.pop(OWNER, None)
    if stated != owner:
        whose = f"of {stated}" if isinstance(stated, str) else "of an older version"
        raise StoreError(f"{path} is the state of another job, or {whose}; remove it")
    return state


def _owner_of(folder: Path, name: str) -> str:
    """Return what a state says of itself: the kind and the key of the job in whose folder it is, and its name.

    A job keeps some of its states in folders of their own, further below its `<kind>/<key>.partial`.
    """
    parts = folder.absolute().parts
    first = len(parts) - 3
    for place, part in enumerate(parts):
        if part.endswith(".partial"):
            first = place - 1
    return "/".join([*parts[max(first, 0) : -1], name])


def _states(folder: Path, name: str) -> dict[int, Path]:
    """Return the files of all states of this name, by number."""
    found = ((path, STATE.fullmatch(path.name)) for path in folder.glob(f"{name}-*.pt"))
    return {int(named["number"]): path for path, named in found if named and named["name"] == name}
