"""A finished job, read from its folder."""

from __future__ import annotations

import contextlib
import html
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import yaml

from thinkalike.catalogue import instrument_of_kind
from thinkalike.columns import Columns
from thinkalike.digests import digest_of
from thinkalike.errors import StoreError, checked_path, one_line, plain_line
from thinkalike.files import ForeignFileError, open_regular, read_yaml
from thinkalike.former_names import with_present_names
from thinkalike.global_state import isolated
from thinkalike.store.array_file import read_arrays
from thinkalike.store.headline import Headline
from thinkalike.store.manifest import (
    MANIFEST,
    MOST_TABLE_BYTES,
    RECORD,
    damage,
    digest_of_entries,
    is_sealed,
    manifest_entries,
)
from thinkalike.store.record import (
    MOST_JSON_BYTES,
    HeadlineRecord,
    Provenance,
    ResultRecord,
    by_dotted_name,
    check_values,
    checked_record,
    errors_naming,
    read_json_of_result,
)
from thinkalike.store.tensor_file import TensorReader, opened_safetensors

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CONFIG = "config.yaml"
ARRAYS = "arrays.npz"
NUMBER_ENDINGS = {".csv", ".npz", ".safetensors"}  # of the files that hold what was computed
REDO = "or do the job again with force=true"


@runtime_checkable
class ResultInstrument(Protocol):
    """What a result needs of the instrument that made it; see `thinkalike.job.Instrument`."""

    def draw(self, result: Result, folder: Path) -> None:
        """Draw the figures of a result into a folder."""

    def plot(
        self, result: Result, name: str | None = None, ax: Axes | None = None
    ) -> tuple[Figure, Axes | list[Axes]]:
        """Draw a figure of a result again; return it and its axes."""

    def said(self, result: Result) -> str:
        """Return what the screen says of a result."""


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
        """Whether it is in a folder; without a store, a result is in memory until it is saved."""
        return True

    @property
    def place(self) -> str:
        """The folder, by which error messages name the result."""
        return str(self.folder)

    def __repr__(self) -> str:
        try:
            description = self._description()
        except Exception as error:  # a damaged or hostile folder can cause any error
            description = f"cannot be read, {type(error).__name__}"
        location = "not kept"
        if self.is_kept:
            location = str(self.folder)
        return plain_line(f"Result({description}; {location})")

    def _description(self) -> str:
        """Return kind, models and first headline number, such as "cka of a and b: ..."."""
        description = self.kind
        names = dict.fromkeys(str(model["name"]) for model in self.provenance.get("models", []))
        if names:
            description += f" of {' and '.join(names)}"
        if self.headlines:
            description += f": {self.headlines[0]}"
        return description

    @cached_property
    def _record(self) -> ResultRecord:
        file = self.folder / RECORD
        with errors_naming(file):
            return checked_record(read_json_of_result(file))

    def fingerprint(self) -> str:
        """Return 16 digits of the SHA-256 of tables, arrays and stitches; figures do not count."""
        number_files = {}
        for name, entry in manifest_entries(self.folder).items():
            if Path(name).suffix in NUMBER_ENDINGS and "/" not in name:
                number_files[name] = entry
        return digest_of_entries(number_files)[:16]

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
        """The headline numbers, the most important first; older results have none."""
        return [_headline_of(entry) for entry in self._record.get("headlines", [])]

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that entered the key: they can change numbers and are not the defaults."""
        return with_present_names(self._record["settings"])

    @property
    def provenance(self) -> Provenance:
        """How it was made: versions, seed, models, fingerprints, memory, date, command line."""
        return self._record["provenance"].copy()

    @cached_property
    def config(self) -> dict[str, Any]:
        """The resolved configuration; a part that the job does not read is None.

        Raises:
            StoreError: its file is damaged.
        """
        file = self._checked_path(CONFIG)
        with errors_naming(file):
            config = read_yaml(file, MOST_JSON_BYTES, follow=False)
            # Lists read the configuration of results whose files were compared by size alone.
            if is_sealed(self.folder):
                entry = manifest_entries(self.folder)[CONFIG]
                if digest_of(file) != entry.digest:
                    raise ForeignFileError("its checksum is not that of what was written")
            check_values(config)
            by_dotted_name(config)
            return with_present_names(config)

    @cached_property
    def table(self) -> pd.DataFrame:
        """The tidy table of the result."""
        return self._read_table("table.csv")

    @cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        """All tables by name; the one that every result has is `table`."""
        tables = {}
        for file_name in self.files:
            if file_name.endswith(".csv"):
                tables[file_name.removesuffix(".csv")] = self._read_table(file_name)
        return tables

    def _read_table(self, name: str) -> pd.DataFrame:
        """Return the table of a file, such as table.csv."""
        file = self._checked_path(name)
        with errors_naming(file):
            return Columns.read(file, MOST_TABLE_BYTES).frame()

    @cached_property
    def files(self) -> list[str]:
        """The names of the files beside result.json; those that the manifest names, if any."""
        if is_sealed(self.folder):
            return sorted(name for name in manifest_entries(self.folder) if "/" not in name)
        return sorted(path.name for path in self.folder.glob("*.*"))

    def _checked_path(self, name: str) -> Path:
        """Return the path of a file beside result.json.

        Raises:
            StoreError: the manifest does not name the file. No digest protects it, so anybody may
                have put it there.
        """
        if is_sealed(self.folder) and name not in self.files:
            raise StoreError(f"{self.folder} has no {name}: its {MANIFEST} does not name it")
        return self.folder / name

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays by name; empty if the job wrote none."""
        if ARRAYS not in self.files:
            return {}
        path = self.folder / ARRAYS
        with errors_naming(path):
            return read_arrays(path)

    @contextlib.contextmanager
    def opened_tensors(self, name: str) -> Iterator[TensorReader]:
        """Open a file of tensors beside result.json, such as that of stitches."""
        with opened_safetensors(self.folder / name) as file:
            yield file

    @property
    def figures(self) -> list[Path]:
        """The files of the figures, PNG and SVG; once there is a manifest, those that it names."""
        figure_folder = self.folder / "figures"
        if not is_sealed(self.folder):
            return sorted(figure_folder.glob("*"))
        paths = [self.folder / name for name in manifest_entries(self.folder)]
        return sorted(path for path in paths if path.parent == figure_folder)

    @property
    def instrument(self) -> ResultInstrument | None:
        """The instrument that did the job; None where the result is drawn from several jobs."""
        is_of_subjects = "subjects" in self.provenance
        instrument = instrument_of_kind(self.kind, is_of_subjects)
        assert instrument is None or isinstance(instrument, ResultInstrument)
        return instrument

    @isolated()
    def plot(self, ax: Axes | None = None, name: str | None = None) -> Axes | list[Axes]:
        """Draw the figure of the command again, or another one by name; return its axes.

        It is drawn into a new figure, or in the place of `ax`. See `thinkalike.plot`.
        """
        if self.instrument is None:
            raise StoreError(
                f"{self.kind} is drawn from several results; "
                f"its figures are in {self.folder / 'figures'}"
            )
        _, axes = self.instrument.plot(self, name, ax)
        return axes

    def save(self, folder: str | os.PathLike[str]) -> Result:
        """Copy the files of the result into a new folder, and open the result there."""
        destination = Path(checked_path("folder", folder)).expanduser()
        names = [*manifest_entries(undamaged(self).folder), MANIFEST]
        make_new_folder(destination)
        try:
            for name in names:
                target = destination / name
                target.parent.mkdir(parents=True, exist_ok=True)
                with (
                    open_regular(self.folder / name, follow=False) as source,
                    target.open("xb") as file,
                ):
                    shutil.copyfileobj(source, file)
        except BaseException as error:
            # Half a copy is not a result, and the same call would be refused as it exists.
            shutil.rmtree(destination, ignore_errors=True)
            if isinstance(error, OSError | ForeignFileError):
                reason = one_line(error)
                raise StoreError(
                    f"the result cannot be saved in {destination}: {reason}"
                ) from error
            raise
        return open_result(destination)

    @isolated()
    def _repr_html_(self) -> str | None:
        """Return what a notebook shows: what the screen says of the result."""
        if self.instrument is None:
            return None
        text = html.escape(self.instrument.said(self))
        return f"<pre style='white-space:pre;overflow-x:auto;line-height:normal'>{text}</pre>"


def _headline_of(entry: HeadlineRecord) -> Headline:
    """Return a headline number of result.json.

    Fields that this version does not know are left out, and numbers get their type: another
        program
    may write 1 for 1.0.
    """
    low = entry.get("low")
    high = entry.get("high")
    total = entry.get("of")
    if low is not None:
        low = float(low)
    if high is not None:
        high = float(high)
    if total is not None:
        total = int(total)
    return Headline(entry["name"], float(entry["value"]), low, high, total, entry.get("at", ""))


def make_new_folder(folder: Path) -> None:
    """Make the folder that a result is saved in; a StoreError if it exists or cannot be made."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError as error:
        raise StoreError(f"{folder} exists already; save the result in a new folder") from error
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        raise StoreError(f"the result cannot be saved in {folder}: {one_line(error)}") from error


def write_content(
    folder: Path,
    config: Mapping[str, object],
    record: Mapping[str, object],
    tables: Mapping[str, pd.DataFrame],
    arrays: Mapping[str, np.ndarray],
) -> None:
    """Write configuration, record, tables and arrays of a result into its folder."""
    import numpy as np

    config_text = yaml.safe_dump(dict(config), allow_unicode=True, sort_keys=False)
    (folder / CONFIG).write_text(config_text)
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv", index=False)
    if arrays:
        np.savez_compressed(folder / ARRAYS, **arrays)  # type: ignore[arg-type]
    (folder / RECORD).write_text(json.dumps(record, indent=1) + "\n")


def open_result(folder: str | os.PathLike[str]) -> Result:
    """Open the folder of a finished job.

    The result can still be read after the working folder of the process has changed.

    Raises:
        StoreError: the folder holds no finished result, or a file of it is missing or damaged.

    >>> open_result("nowhere")
    Traceback (most recent call last):
    thinkalike.errors.StoreError: ...
    """
    result = Result(Path(checked_path("folder", folder)).expanduser().absolute())
    if not is_sealed(result.folder):
        raise StoreError(
            f"{result.folder} holds no finished result, which would have a {MANIFEST}"
        )
    return undamaged(result)


def undamaged(result: Result) -> Result:
    """Return a result whose files are those that were written.

    Raises:
        StoreError: a file is missing or damaged.
    """
    inode_before = _inode(result.folder)
    problem = damage(result.folder)
    if problem is None:
        return result
    if _inode(result.folder) != inode_before:  # another process replaced the result meanwhile
        return undamaged(Result(result.folder))
    raise StoreError(f"{problem}; delete {result.folder} {REDO}")


def _inode(folder: Path) -> int | None:
    """Return the inode of a folder, which differs in a newer result; None if it does not exist."""
    try:
        return folder.stat().st_ino
    except OSError:
        return None
