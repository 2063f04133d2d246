"""Results in memory: a job without a store leaves nothing on the disk, and its result can be saved afterwards.

`UnkeptJob` takes the place of `store.Job` while a job runs, and makes an `UnkeptResult`, which has what a result in a
folder has: a table has the very columns and types that its file would give back.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thinkalike.columns import Columns
from thinkalike.errors import StoreError, checked_path, one_line
from thinkalike.store import Record, Result, TensorFile, new_folder, open_result, seal, write_content

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

NOT_KEPT = "this result is in memory, and in no folder; keep it by result.save(FOLDER), or run its job with store=DIR"


class UnkeptJob:
    """A computation whose result stays in memory: nothing is looked up, locked or written."""

    keeps_states = False  # so that it cannot be resumed
    done = False

    def __init__(self, kind: str, key: str, instrument: Any):
        self.kind = kind
        self.key = key
        self._instrument = instrument
        self._tensors: dict[str, TensorFile] = {}
        self._written: UnkeptResult | None = None

    def __getattr__(self, name: str) -> Any:
        if name in ("store", "folder", "partial", "states", "aside"):
            raise StoreError(f"{self.kind} needs a folder for its {name}: give store=DIR")
        raise AttributeError(name)

    def result(self) -> Result | None:
        """Return None, as no result of an earlier run is known."""
        return None

    @contextlib.contextmanager
    def running(self, wait: bool = True) -> Iterator[None]:
        """Hold no lock: no other process can be at the same job."""
        yield

    def has_states(self) -> bool:
        """Return False, as no state is kept to resume from."""
        return False

    def add_tensors(self, name: str, tensors: Mapping[str, Any], about: Mapping[str, str]) -> None:
        """Add a file of tensors to the result, such as its stitches."""
        self._tensors[name] = TensorFile({key: tensor.detach().cpu() for key, tensor in tensors.items()}, dict(about))

    def write(
        self, config: Record, record: Record, tables: Mapping[str, pd.DataFrame], arrays: Mapping[str, np.ndarray]
    ) -> Result:
        """Make the result, to which `add` adds what is known later."""
        whole = {"kind": self.kind, "key": self.key, **record}
        self._written = UnkeptResult(self._instrument, config, whole, tables, arrays, self._tensors)
        return self._written

    def add(self, record: Record) -> Result:
        """Add entries to the record of the result, in place of those of the same names; return the result."""
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
        instrument: Any,
        config: Record,
        record: Record,
        tables: Mapping[str, pd.DataFrame],
        arrays: Mapping[str, np.ndarray],
        tensors: Mapping[str, TensorFile],
    ):
        # Result is frozen, and its properties of these names are cached in the same dictionary.
        vars(self).update(
            _instrument=instrument,
            _record=_as_json(record),
            config=_as_json(config),
            tables={name: _as_read(table) for name, table in tables.items()},
            arrays={**arrays},
            _tensors={**tensors},
            _further_figures=[],
        )
        vars(self)["table"] = self.tables["table"]

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    if TYPE_CHECKING:
        _instrument: Any
        _tensors: dict[str, TensorFile]
        _further_figures: list[Any]

    @property
    def folder(self) -> Path:  # type: ignore[override]
        """A StoreError: it is in no folder."""
        raise StoreError(NOT_KEPT)

    @property
    def is_kept(self) -> bool:
        return False

    @property
    def place(self) -> str:
        return "this result"

    @property
    def instrument(self) -> Any:
        return self._instrument

    @property
    def figures(self) -> list[Path]:
        """No files: `plot` draws figures, and `save` writes them."""
        return []

    @property
    def files(self) -> list[str]:  # type: ignore[override]
        """The names of the files that `save` would write, but for figures."""
        tables = [f"{name}.csv" for name in self.tables]
        arrays = ["arrays.npz"] if self.arrays else []
        return sorted(["config.yaml", "result.json", *tables, *arrays, *self._tensors])

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

    def add(self, record: Record) -> None:
        """Add entries to the record, in place of those of the same names."""
        self._record.update(_as_json(record))

    def add_figures(self, draw: Any) -> None:
        """Add a function that draws further figures into a folder, when the result is saved."""
        self._further_figures.append(draw)

    @contextlib.contextmanager
    def opened_tensors(self, name: str) -> Iterator[TensorFile]:
        yield self._tensors[name]

    def save(self, folder: str | os.PathLike[str]) -> Result:
        """Write the result and its figures into a folder, which must not be there yet, and open it there."""
        goal = Path(checked_path("folder", folder)).expanduser()
        new_folder(goal)
        try:
            write_content(goal, self.config, self._record, self.tables, self.arrays)
            for name, file in self._tensors.items():
                file.write(goal / name)
            self.instrument.draw(self, goal / "figures")
            for draw in self._further_figures:
                draw(goal / "figures")
            seal(goal)
        except BaseException as error:
            shutil.rmtree(goal, ignore_errors=True)  # half a result is none, and the same call would find it there
            if isinstance(error, OSError):
                raise StoreError(f"the result cannot be saved in {goal}: {one_line(error)}") from error
            raise
        return open_result(goal)


def _as_json(record: Record) -> Record:
    """Return a record with the plain values that its file would give back: lists for tuples."""
    plain: Record = json.loads(json.dumps(record))
    return plain


def _as_read(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with the types of columns that its file would give back."""
    return Columns.parsed(table.to_csv(index=False)).frame()
