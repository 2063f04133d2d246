"""A finished job, read from its folder."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import yaml

from thinkalike.advice import named_setting
from thinkalike.catalogue import FORMER_COLUMNS, instrument_of_kind
from thinkalike.columns import MOST_COLUMNS, Columns, text_columns_of
from thinkalike.digests import digest_of
from thinkalike.errors import StoreError, checked_path, in_home, one_line, plain_line
from thinkalike.files import ForeignFileError, absolute, open_regular, read_yaml
from thinkalike.former_columns import (
    FormerColumns,
    by_present_names,
    present_column,
    present_table,
)
from thinkalike.former_names import with_present_names
from thinkalike.global_state import isolated
from thinkalike.ranking import shortened
from thinkalike.store.array_file import read_arrays
from thinkalike.store.copies import copied_entries, copied_property, copy_of_value
from thinkalike.store.damaged_results import reporting_damage
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
from thinkalike.store.notebook import notebook_html
from thinkalike.store.record import (
    MOST_JSON_BYTES,
    HeadlineRecord,
    Provenance,
    ResultRecord,
    by_dotted_name,
    check_writable,
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

# The files of a result beside its record.
CONFIG = "config.yaml"
ARRAYS = "arrays.npz"
TABLE = "table.csv"
# The table with all columns, of a job whose table.csv has only some of them.
DETAILS = "details.csv"

# The endings of the files that hold what was computed.
NUMBER_ENDINGS = {".csv", ".npz", ".safetensors"}


def how_to_redo() -> str:
    """Return the second half of the remedy for a damaged result."""
    return f"or do the job again with {named_setting('force', True)}"


@runtime_checkable
class ResultInstrument(Protocol):
    """What a result needs of the instrument that made it; see `thinkalike.job.Instrument`."""

    def draw(self, result: Result, folder: Path) -> None:
        """Draw the figures of a result into a folder."""

    def plot(
        self, result: Result, name: str | None = None, ax: Axes | None = None
    ) -> tuple[Figure, Axes | list[Axes]]:
        """Draw a figure of a result again; return it and its axes."""

    def picture(self, result: Result) -> bytes | None:
        """Return the figure of a result as a PNG file; None: the kind draws none."""

    def said(self, result: Result) -> str:
        """Return what the screen says of a result."""

    def sentences(self, result: Result) -> Sequence[str]:
        """Return the sentences of the screen, without its tables and maps."""

    def ranked(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of a table, first those that a reader asks for first."""


@dataclass(frozen=True)
class Result:
    """A finished job, read from its folder; each file is read when it is first asked for.

    Tables, arrays and settings are copies: changing them changes nothing of the result.

    `print(result)` is the screen of the job, and `result.summary` has its sentences.
    `result.table` begins with the rows that answer the question, `result.details` has all columns,
    and `result.plot()` draws the figure.

    >>> result = diff("gelu-3l-mini", "gelu-3l-mini")
    >>> result.kind, result.scalars["flips"], sorted(result.tables)
    ('diff', 0.0, ['table'])
    """

    folder: Path
    """The folder of its files; a relative one is made absolute when the result is opened, so that
    it can be read after the working folder of the process has changed."""

    def __post_init__(self) -> None:
        given = self.folder
        object.__setattr__(self, "_given_folder", given)
        object.__setattr__(self, "folder", absolute(given))

    @property
    def _shown_folder(self) -> Path:
        """The folder as it was given, which may be relative to the present working folder."""
        given: Path = self._given_folder  # type: ignore[attr-defined]
        try:
            is_same = given.absolute() == self.folder
        except OSError:  # the working folder was removed
            is_same = False
        return given if is_same else self.folder

    @property
    def is_kept(self) -> bool:
        """Whether it is in a folder; without a store, a result is in memory until it is saved."""
        return True

    @property
    def place(self) -> str:
        """The folder, by which error messages name the result."""
        return str(self._shown_folder)

    def __repr__(self) -> str:
        try:
            description = self._description()
        except Exception as error:  # a damaged or hostile folder can cause any error
            description = f"cannot be read, {type(error).__name__}"
        return shown_text([f"Result({description}; {self._place_in_words})"])

    @property
    def _place_in_words(self) -> str:
        """The folder of the result, or that it is not kept."""
        if self.is_kept:
            return str(self._shown_folder)
        return "not kept"

    @isolated()
    def __str__(self) -> str:
        """Return the screen of the job, whose last line says where the result is kept."""
        if self.instrument is None:
            return repr(self)
        return self.instrument.said(self) + self.location  # the screen has cleaned its text

    @property
    def location(self) -> str:
        """Where the result is kept, as the last line of the screen says it."""
        return shown_text([f"results: {self._shown_folder}"])

    @property
    def summary(self) -> str:
        """The sentences of the screen, one in each line, without its tables and maps."""
        if self.instrument is None:
            return shown_text([self._description()])
        with isolated():
            return shown_text(self.instrument.sentences(self))

    def _description(self) -> str:
        """Return kind, models and first headline number, such as "cka of a and b: ..."."""
        description = self.subject
        if self.headlines:
            description += f": {self.headlines[0]}"
        return description

    @property
    def subject(self) -> str:
        """Kind and models of the job, such as "cka of a and b"."""
        names = dict.fromkeys(str(model["name"]) for model in self.provenance.get("models", []))
        if not names:
            return self.kind
        return f"{self.kind} of {' and '.join(names)}"

    @cached_property
    def _record(self) -> ResultRecord:
        """The content of result.json, checked.

        Raises:
            StoreError: It is missing or damaged.
        """
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
        return by_present_names(self._record["scalars"], self._former_columns)

    @property
    def headlines(self) -> list[Headline]:
        """The headline numbers, the most important first; older results have none."""
        headlines = []
        for entry in self._record.get("headlines", []):
            stored = _headline_of(entry)
            name = present_column(stored.name, self._former_columns)
            headlines.append(stored._replace(name=name))
        return headlines

    @property
    def _former_columns(self) -> FormerColumns:
        """How earlier versions named what a result of this kind has."""
        return FORMER_COLUMNS.get(self.kind, {})

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that entered the key: they can change numbers and are not the defaults."""
        return copy_of_value(with_present_names(self._record["settings"]))

    @property
    def provenance(self) -> Provenance:
        """How it was made: versions, seed, models, fingerprints, memory, date, command line."""
        return copy_of_value(self._record["provenance"])

    @copied_property
    def config(self) -> dict[str, Any]:
        """The resolved configuration; a part that the job does not read is None.

        Raises:
            StoreError: its file is damaged.
        """
        file = self._checked_path(CONFIG)
        with errors_naming(file):
            config = read_yaml(file, MOST_JSON_BYTES, follow=False)
            # The digest is compared here, since lists open results whose files were compared by
            # size alone.
            if is_sealed(self.folder):
                entry = manifest_entries(self.folder)[CONFIG]
                if digest_of(file) != entry.digest:
                    raise ForeignFileError("its checksum is not that of what was written")
            check_writable(config)
            by_dotted_name(config)
            return with_present_names(config)

    @copied_property
    def table(self) -> pd.DataFrame:
        """The table for a reader: at most fifteen columns, the most telling rows first.

        What comes first depends on the job: the most similar layers, the features that matter
        most, the modules that changed most. The index has the numbers of the rows in `details`.
        """
        table = self._read_table(TABLE)
        if self.instrument is not None:
            with reporting_damage(self.place, self.kind):
                table = self.instrument.ranked(table)
        return shortened(table)

    @copied_property
    def details(self) -> pd.DataFrame:
        """The tidy table with all columns, its rows in the order in which they were computed."""
        if DETAILS in self.files:
            return self._read_table(DETAILS)
        return self._read_table(TABLE)

    @copied_entries
    def tables(self) -> Mapping[str, pd.DataFrame]:
        """All tables as they are stored, by name; the one that every result has is `table`."""
        tables = {}
        for file_name, table_name in self.table_files.items():
            tables[table_name] = self._read_table(file_name)
        return tables

    @property
    def table_files(self) -> dict[str, str]:
        """The names of the tables by those of their files."""
        table_names = {}
        for file_name in self.files:
            if file_name.endswith(".csv"):
                stored_name = file_name.removesuffix(".csv")
                table_names[file_name] = present_table(stored_name, self._former_columns)
        return table_names

    def columns_of(
        self, file_name: str, most_bytes: int = MOST_TABLE_BYTES, most_columns: int = MOST_COLUMNS
    ) -> Columns:
        """Return the table of a file, such as table.csv, without pandas, under present names.

        Args:
            file_name: The name of the file.
            most_bytes, most_columns: A larger table is refused.

        Raises:
            StoreError: The file is missing, damaged or too large.
        """
        file = self._checked_path(file_name)
        stored_name = file_name.removesuffix(".csv")
        table_name = present_table(stored_name, self._former_columns)
        # Results of earlier versions do not say which columns hold texts.
        text_columns = self._record.get("text_columns", {}).get(stored_name, [])
        with errors_naming(file):
            stored = Columns.read(file, most_bytes, most_columns, text_columns)
            return stored.renamed(self._former_columns, table_name)

    def _read_table(self, file_name: str) -> pd.DataFrame:
        """Return the table of a file, such as table.csv."""
        return self.columns_of(file_name).frame()

    @copied_property
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

    @copied_entries
    def arrays(self) -> Mapping[str, np.ndarray]:
        """The arrays by name; empty if the job wrote none."""
        if ARRAYS not in self.files:
            return {}
        path = self.folder / ARRAYS
        with errors_naming(path):
            return by_present_names(read_arrays(path), self._former_columns)

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
        """Copy the files of the result into a new folder, and open the result there.

        Raises:
            StoreError: The folder exists or cannot be written, or the result is damaged.
        """
        destination = in_home(checked_path("folder", folder))
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
        """Return what a notebook shows, as HTML: the sentences, the figure and the table.

        None, for a result without an instrument, lets the notebook show its `repr`.
        """
        if self.instrument is None:
            return None
        sentences = self.instrument.sentences(self)
        return notebook_html(sentences, self.instrument.picture(self), self.table, self.location)


class TemporaryResult(Result):
    """A finished job in a folder that is removed with this object; `save` keeps it."""

    @property
    def _place_in_words(self) -> str:
        """That it is not kept."""
        return "not kept"

    @property
    def location(self) -> str:
        """That the result is not kept, as the last line of the screen says it."""
        return "not kept: its folder is removed with this object; result.save(FOLDER) keeps it"


def shown_text(lines: Iterable[str]) -> str:
    """Return lines as one text; each text that a result gives for a screen is made here.

    Names of models, kinds and folders may be a stranger's, with control characters that write on a
    terminal, or with line breaks that forge a line.
    """
    return "\n".join(plain_line(line) for line in lines)


def _headline_of(entry: HeadlineRecord) -> Headline:
    """Return a headline number of result.json.

    Fields that this version does not know are left out, and numbers get their type: another
    program may write 1 for 1.0.
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
    """Write configuration, record, tables and arrays of a result into its folder.

    Args:
        folder: The folder, which exists.
        config: The configuration as nested dictionaries.
        record: The content of result.json, without the names of the columns that hold texts, which
            are added here.
        tables: The tables by name; each becomes NAME.csv.
        arrays: The arrays by name; without any, no file is written for them.
    """
    import numpy as np

    config_text = yaml.safe_dump(dict(config), allow_unicode=True, sort_keys=False)
    (folder / CONFIG).write_text(config_text)
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv", index=False)
    if arrays:
        np.savez_compressed(folder / ARRAYS, **arrays)  # type: ignore[arg-type]
    text_columns = {name: text_columns_of(table) for name, table in tables.items()}
    whole_record = {**record, "text_columns": text_columns}
    (folder / RECORD).write_text(json.dumps(whole_record, indent=1) + "\n")


def open_result(folder: str | os.PathLike[str]) -> Result:
    """Open the folder of a finished job.

    The result can still be read after the working folder of the process has changed.

    Raises:
        ConfigError: the folder is relative, and the working folder was deleted.
        StoreError: the folder holds no finished result, or a file of it is missing or damaged.

    >>> open_result("nowhere")
    Traceback (most recent call last):
    thinkalike.errors.StoreError: ...
    """
    result = Result(absolute(in_home(checked_path("folder", folder))))
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
    # Two results at the same path have different inodes.
    inode_before = _inode(result.folder)
    problem = damage(result.folder)
    if problem is None:
        return result
    if _inode(result.folder) != inode_before:  # another process replaced the result meanwhile
        return undamaged(Result(result.folder))
    raise StoreError(f"{problem}; delete {result.folder} {how_to_redo()}")


def _inode(folder: Path) -> int | None:
    """Return the inode of a folder, which differs in a newer result; None if it does not exist."""
    try:
        return folder.stat().st_ino
    except OSError:
        return None
