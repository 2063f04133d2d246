"""The results store: a folder per finished job, named by what could change its numbers, and the one way to read it.

`<store>/<kind>/<key>/` appears only when it is complete. While a job runs, `<key>.partial/` holds what it needs to go
on, and a lock, so that two processes never work on the same job; the lock ends with its process, however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from thinkalike.config import from_yaml, to_yaml
from thinkalike.errors import StoreError, TrainingError


@dataclass(frozen=True)
class Result:
    """A finished job, read from its folder; each file is read when it is first asked for."""

    folder: Path

    @cached_property
    def _record(self) -> dict[str, Any]:
        return json.loads((self.folder / "result.json").read_text())  # type: ignore[no-any-return]

    @property
    def kind(self) -> str:
        """The kind of the job, such as stitching or cka."""
        return str(self._record["kind"])

    @property
    def key(self) -> str:
        """The hash of all that could change the numbers, which names the folder."""
        return str(self._record["key"])

    @property
    def scalars(self) -> dict[str, float]:
        """The headline numbers."""
        return dict(self._record["scalars"])

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that entered the key: those that can change numbers and are not the defaults."""
        return dict(self._record["settings"])

    @property
    def provenance(self) -> dict[str, Any]:
        """Versions, commit, seed, models and data with their fingerprints, wall time and peak memory."""
        return dict(self._record["provenance"])

    @cached_property
    def config(self) -> dict[str, Any]:
        """The resolved configuration; a part that the job does not read is None."""
        return from_yaml((self.folder / "config.yaml").read_text())

    @cached_property
    def table(self) -> pd.DataFrame:
        """The tidy table of the result."""
        return self._read("table")

    @cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        """All tables by name; the one that every result has is `table`."""
        return {path.stem: self._read(path.stem) for path in sorted(self.folder.glob("*.csv"))}

    def _read(self, name: str) -> pd.DataFrame:
        return pd.read_csv(self.folder / f"{name}.csv")

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays by name; none if the job leaves none."""
        path = self.folder / "arrays.npz"
        if not path.exists():
            return {}
        with np.load(path) as file:
            return {name: file[name] for name in file.files}

    @property
    def figures(self) -> list[Path]:
        """The files of the figures, PNG and SVG."""
        return sorted((self.folder / "figures").glob("*"))


def open_result(folder: str | os.PathLike[str]) -> Result:
    """Open the folder of a finished job.

    Raises:
        StoreError: the folder holds no finished result.
    """
    result = Result(Path(folder).expanduser())
    if not (result.folder / "result.json").exists():
        raise StoreError(f"{result.folder} holds no finished result; it would have a result.json")
    return result


def finished(store: str | os.PathLike[str], kind: str = "*") -> Iterator[Result]:
    """Yield all finished results of a store, or those of one kind."""
    for record in sorted(Path(store).expanduser().glob(f"{kind}/*/result.json")):
        if record.parent.suffix != ".partial":
            yield Result(record.parent)


def results(store: str | os.PathLike[str]) -> pd.DataFrame:
    """Return one row for each finished result of a store: kind, key, folder, models and headline numbers."""
    rows = []
    for result in finished(store):
        models = ", ".join(model["name"] for model in result.provenance.get("models", []))
        rows.append({"kind": result.kind, "key": result.key, "models": models, **result.scalars})
        rows[-1]["folder"] = str(result.folder)
    return pd.DataFrame(rows)


class Job:
    """One computation and the folder of its result."""

    def __init__(self, store: str, kind: str, key: str):
        self.kind, self.key, self.store = kind, key, Path(store).expanduser()
        self.folder = self.store / kind / key
        self.partial = self.folder.with_name(f"{key}.partial")

    @property
    def done(self) -> bool:
        """Whether the result is there."""
        return (self.folder / "result.json").exists()

    @property
    def aside(self) -> Path:
        """The folder that becomes the result, for files of a job's own."""
        folder = self.partial / "result"
        folder.mkdir(exist_ok=True)
        return folder

    @contextlib.contextmanager
    def running(self) -> Iterator[Path]:
        """Hold the job's lock; yields the folder for states to go on from.

        Raises:
            StoreError: the store cannot be written, or another process is at the same job.
        """
        with self._locked():
            try:
                yield self.partial
            except BaseException as error:
                self._tidy(error)
                raise

    def _locked(self) -> Any:
        """The open lock file, locked; it must still be the one in the folder, which another process may have ended."""
        path = self.partial / "lock"
        try:
            self.partial.mkdir(parents=True, exist_ok=True)
            lock = path.open("w")
        except OSError as error:
            place = self.folder.parent
            raise StoreError(f"the store {place} cannot be written: {error.strerror}; choose store=DIR") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise StoreError(f"another process is computing {self.folder}; wait for it, or stop it") from None
        if path.exists() and os.path.samestat(os.fstat(lock.fileno()), path.stat()):
            return lock
        lock.close()
        return self._locked()

    def _tidy(self, error: BaseException) -> None:
        """Leave nothing behind but a state that the same command can go on from."""
        diverged = isinstance(error, TrainingError)  # it would do so again
        if diverged or not (self.partial / "checkpoints").exists():
            shutil.rmtree(self.partial, ignore_errors=True)
            with contextlib.suppress(OSError):
                self.partial.parent.rmdir()
                self.partial.parent.parent.rmdir()

    def write(
        self,
        config: dict[str, Any],
        record: dict[str, Any],
        tables: Mapping[str, pd.DataFrame],
        arrays: Mapping[str, np.ndarray],
    ) -> Result:
        """Write a result aside, and open it there.

        Args:
            record: scalars, settings and provenance, for result.json.
        """
        out = self.aside
        (out / "config.yaml").write_text(to_yaml(config))
        for name, table in tables.items():
            table.to_csv(out / f"{name}.csv", index=False)
        if arrays:
            np.savez_compressed(out / "arrays.npz", **arrays)  # type: ignore[arg-type]
        (out / "result.json").write_text(json.dumps({"kind": self.kind, "key": self.key, **record}, indent=1) + "\n")
        return Result(out)

    def appear(self) -> Result:
        """Let the result that was written aside appear whole."""
        out = self.aside
        if (self.partial / "curves").exists():
            shutil.move(str(self.partial / "curves"), str(out / "curves"))
        if self.folder.exists():
            shutil.rmtree(self.folder)
        os.replace(out, self.folder)
        shutil.rmtree(self.partial)
        return Result(self.folder)
