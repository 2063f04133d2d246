"""Results in memory: a job without a store writes nothing to disk; its result can be saved later.

`UnkeptJob` takes the place of `store.StoredJob` while a job runs, and makes an `UnkeptResult`, which has
everything that a result in a folder has: a table has the very columns and types that its file
would give back.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

from thinkalike.advice import named_setting
from thinkalike.columns import Columns, text_columns_of
from thinkalike.errors import StoreError, checked_path, in_home, one_line
from thinkalike.store import (
    Result,
    TensorFile,
    make_new_folder,
    open_result,
    seal,
    write_content,
)

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from torch import Tensor

    from thinkalike.store import ResultInstrument, ResultRecord

NOT_KEPT = "this result is in memory and has no folder; save it by result.save(FOLDER), or run its job with store=DIR"
JsonObject = TypeVar("JsonObject", bound=Mapping[str, object])


class UnkeptJob:
    """A computation whose result stays in memory: nothing is looked up, locked or written."""

    keeps_states = False  # an interrupted job cannot resume
    done = False

    def __init__(self, kind: str, key: str, instrument: ResultInstrument):
        self.kind = kind
        self.key = key
        self._instrument = instrument
        self._tensors: dict[str, TensorFile] = {}
        self._written: UnkeptResult | None = None

    @property
    def store(self) -> NoReturn:
        raise self._needs_folder("store")

    @property
    def folder(self) -> NoReturn:
        raise self._needs_folder("folder")

    @property
    def partial(self) -> NoReturn:
        raise self._needs_folder("partial")

    @property
    def states(self) -> NoReturn:
        raise self._needs_folder("states")

    @property
    def aside(self) -> NoReturn:
        raise self._needs_folder("aside")

    def _needs_folder(self, name: str) -> StoreError:
        return StoreError(f"{self.kind} needs a folder for its {name}: give {named_setting('store', like='DIR')}")

    def result(self) -> Result | None:
        """Return None: no result of an earlier run is known."""
        return None

    @contextlib.contextmanager
    def running(self, wait: bool = True) -> Iterator[None]:
        """Do nothing while this is open: no other process can work on the same job."""
        yield

    def has_states(self) -> bool:
        """Return False: there is no state to resume from."""
        return False

    def add_tensors(self, name: str, tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
        """Add a file of tensors, such as the stitches, to the result."""
        on_cpu = {tensor_name: tensor.detach().cpu() for tensor_name, tensor in tensors.items()}
        self._tensors[name] = TensorFile(on_cpu, dict(about))

    def write(
        self,
        config: Mapping[str, object],
        record: Mapping[str, object],
        tables: Mapping[str, pd.DataFrame],
        arrays: Mapping[str, np.ndarray],
    ) -> Result:
        """Make the result, to which `add` adds what is known later."""
        whole_record = {"kind": self.kind, "key": self.key, **record}
        self._written = UnkeptResult(self._instrument, config, whole_record, tables, arrays, self._tensors)
        return self._written

    def add(self, record: Mapping[str, object]) -> Result:
        """Add entries to the record of the result, replacing those of the same names."""
        assert self._written is not None, "a result is written before anything is added to it"
        self._written.add(record)
        return self._written

    def appear(self) -> Result:
        """Return the finished result."""
        assert self._written is not None, "a result is written before it appears"
        return self._written


class UnkeptResult(Result):
    """A finished job in memory; `save` writes it into a folder."""

    def __init__(
        self,
        instrument: ResultInstrument,
        config: Mapping[str, object],
        record: Mapping[str, object],
        tables: Mapping[str, pd.DataFrame],
        arrays: Mapping[str, np.ndarray],
        tensors: Mapping[str, TensorFile],
    ):
        tables_as_read = {name: _as_from_file(table) for name, table in tables.items()}
        # `Result` is frozen, and caches its properties of these names in the same dictionary.
        vars(self).update(
            _instrument=instrument,
            _record=_as_json(record),
            config=_as_json(config),
            tables=tables_as_read,
            arrays=dict(arrays),
            _tensors=dict(tensors),
            _further_figures=[],
        )

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    if TYPE_CHECKING:
        _record: ResultRecord
        _instrument: ResultInstrument
        _tensors: dict[str, TensorFile]
        _further_figures: list[Callable[[Path], object]]

    @property
    def folder(self) -> Path:  # type: ignore[override]
        """Raises a StoreError: the result has no folder."""
        raise StoreError(NOT_KEPT)

    @property
    def is_kept(self) -> bool:
        return False

    @property
    def place(self) -> str:
        return "this result"

    @property
    def location(self) -> str:
        return "not kept: this result is in memory; result.save(FOLDER) keeps it"

    def _read_table(self, name: str) -> pd.DataFrame:
        """Return the table that a file, such as table.csv, would have."""
        tables: dict[str, pd.DataFrame] = vars(self)["tables"]
        return tables[name.removesuffix(".csv")]

    @property
    def instrument(self) -> ResultInstrument:
        return self._instrument

    @property
    def figures(self) -> list[Path]:
        """Empty: `plot` draws figures, and `save` writes them."""
        return []

    @property
    def files(self) -> list[str]:  # type: ignore[override]
        """The names of the files that `save` would write, without the figures."""
        names = ["config.yaml", "result.json", *self._tensors]
        names += [f"{table_name}.csv" for table_name in self.tables]
        if self.arrays:
            names.append("arrays.npz")
        return sorted(names)

    def fingerprint(self) -> str:
        """Return 16 digits of the SHA-256 of tables, arrays and stitches."""
        digest = hashlib.sha256()
        for name, table in sorted(self.tables.items()):
            digest.update(f"{name} {table.to_csv(index=False)}".encode())
        for name, array in sorted(self.arrays.items()):
            digest.update(name.encode() + array.tobytes())
        for file in self._tensors.values():
            for name, tensor in sorted(file.tensors.items()):
                digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    def add(self, record: Mapping[str, object]) -> None:
        """Add entries to the record, replacing those of the same names."""
        vars(self)["_record"] = {**self._record, **_as_json(record)}

    def add_figures(self, draw: Callable[[Path], object]) -> None:
        """Add a function that draws further figures into a folder when the result is saved."""
        self._further_figures.append(draw)

    @contextlib.contextmanager
    def opened_tensors(self, name: str) -> Iterator[TensorFile]:
        yield self._tensors[name]

    def save(self, folder: str | os.PathLike[str]) -> Result:
        """Write the result and its figures into a new folder, and open it there."""
        destination = in_home(checked_path("folder", folder))
        make_new_folder(destination)
        try:
            write_content(destination, self.config, self._record, self.tables, self.arrays)
            for name, file in self._tensors.items():
                file.write(destination / name)
            self.instrument.draw(self, destination / "figures")
            for draw in self._further_figures:
                draw(destination / "figures")
            seal(destination)
        except BaseException as error:
            # Half a result is not a result, and the same call would be refused as it exists.
            shutil.rmtree(destination, ignore_errors=True)
            if isinstance(error, OSError):
                reason = one_line(error)
                raise StoreError(f"the result cannot be saved in {destination}: {reason}") from error
            raise
        return open_result(destination)


def _as_json(content: JsonObject) -> JsonObject:
    """Return the values that a JSON file of the content would give back: lists for tuples."""
    plain: JsonObject = json.loads(json.dumps(content))
    return plain


def _as_from_file(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with the column types that its file would give back."""
    return Columns.parsed(table.to_csv(index=False), text_columns_of(table)).frame()
