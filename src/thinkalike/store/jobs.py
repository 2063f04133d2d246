"""The folder of a job: `<store>/<kind>/<key>/` appears only when the result in it is complete.

While a job runs, `<key>.partial/` holds what it needs to go on, and a lock, so that two processes never work on the
same job; the lock ends with its process, however that ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from thinkalike.config import to_yaml
from thinkalike.errors import StoreError, TrainingError
from thinkalike.store import manifest
from thinkalike.store.locks import locked
from thinkalike.store.result import Result


class Job:
    """One computation and the folder of its result."""

    def __init__(self, store: str, kind: str, key: str):
        self.kind, self.key, self.store = kind, key, Path(store).expanduser()
        self.folder = self.store / kind / key
        self.partial = self.folder.with_name(f"{key}.partial")
        self.states = self.partial / "checkpoints"

    @property
    def done(self) -> bool:
        """Whether the result is there."""
        return (self.folder / manifest.NAME).exists()

    def result(self) -> Result | None:
        """Return the result if it is there and undamaged, after clearing away what a process that died left beside it.

        Raises:
            StoreError: a file of it is missing or damaged.
        """
        if not self.done:
            return None
        manifest.check(self.folder)
        if self.partial.exists():
            with contextlib.suppress(StoreError, OSError), self.running(wait=False):
                pass  # what holds the lock tidies up
        return Result(self.folder)

    @property
    def aside(self) -> Path:
        """The folder that becomes the result, for files of a job's own."""
        folder = self.partial / "result"
        folder.mkdir(exist_ok=True)
        return folder

    @contextlib.contextmanager
    def running(self, wait: bool = True) -> Iterator[Path]:
        """Hold the job's lock; yields the folder for states to go on from.

        Args:
            wait: for a process that is at the same job; else it is an error.

        Raises:
            StoreError: the store cannot be written, or another process is at the same job.
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
                self._tidy(error)
                raise
            if self.done:
                shutil.rmtree(self.partial, ignore_errors=True)

    def forget(self) -> None:
        """Delete the states of earlier runs."""
        shutil.rmtree(self.states, ignore_errors=True)

    def _tidy(self, error: BaseException) -> None:
        """Leave nothing behind but a state that the same command can go on from."""
        diverged = isinstance(error, TrainingError)  # it would do so again
        if diverged or not any(self.states.glob("*.pt")):
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
        self.add({"kind": self.kind, "key": self.key, **record})
        return Result(out)

    def add(self, record: Mapping[str, Any]) -> None:
        """Add entries to the record of a result that is written aside; those of a name that is there take its place."""
        file = self.aside / "result.json"
        before = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps({**before, **record}, indent=1) + "\n")

    def appear(self) -> Result:
        """Let the result that was written aside appear whole, in place of an older one if there is one."""
        out = self.aside
        if (self.partial / "curves").exists():
            shutil.move(str(self.partial / "curves"), str(out / "curves"))
        manifest.seal(out)
        _put(out, self.folder)
        manifest.sync(self.folder.parent)
        shutil.rmtree(self.partial, ignore_errors=True)
        return Result(self.folder)


def _put(new: Path, place: Path) -> None:
    """Rename a folder to a place; a folder that is there changes places with it, in one step where the system can."""
    if not place.exists():
        os.rename(new, place)
    elif not _exchanged(new, place):
        old = new.with_name("old")
        shutil.rmtree(old, ignore_errors=True)
        os.rename(place, old)
        os.rename(new, place)


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange two folders in one step (Linux); returns whether that was possible."""
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    return rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0
