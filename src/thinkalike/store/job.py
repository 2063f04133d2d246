"""One computation: its lock, its states, and the folder in which its result appears."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from thinkalike.errors import StoreError, TrainingError, in_home, short
from thinkalike.processes import locked
from thinkalike.store.manifest import RECORD, is_sealed, seal, sync_to_disk
from thinkalike.store.result import Result, how_to_redo, undamaged, write_content
from thinkalike.store.tensor_file import TensorFile

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from torch import Tensor

# The folders in the folder of a running job, beside its lock.
PARTIAL_FOLDERS = ("checkpoints", "curves", "old", "result")


class StoredJob:
    """One computation and the folder of its result.

    Attributes:
        store: the folder of all results.
        folder: the folder of the result, which appears when the job is done.
        partial: the folder of the running job.
        states: the folder of the states from which the job can resume.
    """

    keeps_states = True  # an interrupted job can resume

    def __init__(self, store: str, kind: str, key: str):
        self.kind = kind
        self.key = key
        self.store = in_home(store)
        self.folder = self.store / kind / key
        self.partial = self.folder.with_name(f"{key}.partial")
        self.states = self.partial / "checkpoints"
        self.lock = self.partial / "lock"

    @property
    def done(self) -> bool:
        """Whether the result exists."""
        return is_sealed(self.folder)

    @property
    def aside(self) -> Path:
        """The folder that becomes the result; the job writes further files of its own into it."""
        folder = self.partial / "result"
        folder.mkdir(exist_ok=True)
        return folder

    def has_states(self) -> bool:
        """Return whether there is a state to resume from."""
        return any(self.states.glob("*.pt"))

    def result(self) -> Result | None:
        """Return the result, or None if the job is not done; remove what a dead process left.

        Raises:
            StoreError: the result is damaged or belongs to another job, or a link leads out of the
                store.
        """
        self._check_no_links()
        if not self.done:
            return None
        result = undamaged(Result(self.folder))
        if result.kind != self.kind or result.key != self.key:  # its folder was copied
            raise StoreError(
                f"{self.folder} holds the result {result.key} of {result.kind}; "
                f"delete {self.folder} {how_to_redo()}"
            )
        if self.partial.exists():
            # The process that gets the lock tidies up; another running process keeps its files.
            with contextlib.suppress(StoreError, OSError), self.running(wait=False):
                pass
        return result

    @contextlib.contextmanager
    def running(self, wait: bool = True) -> Iterator[None]:
        """Hold the job's lock while the context is open.

        After an error, nothing remains but a state from which the same command can resume. Once
        the job is done, the folder of the running job is removed.

        Args:
            wait: Whether to wait for another process that holds the lock; else that is an error.

        Raises:
            StoreError: the store cannot be written, or another process holds the lock.
        """
        with contextlib.ExitStack() as lock:
            try:
                self._check_leftovers()
                lock.enter_context(locked(self.lock, f"computing {self.folder}", wait))
            except OSError as error:
                reason = f"the store {self.folder.parent} cannot be written: {error.strerror}"
                raise StoreError(f"{reason}; choose store=DIR") from error

            # A process that died while it wrote its result left an incomplete one.
            shutil.rmtree(self.partial / "result", ignore_errors=True)
            try:
                yield
            except BaseException as error:
                # A training that diverged would do so again from its state.
                has_diverged = isinstance(error, TrainingError)
                if has_diverged or not self.has_states():
                    self._remove_partial()
                    with contextlib.suppress(OSError):  # these are removed if they are empty
                        self.folder.parent.rmdir()
                        self.store.rmdir()
                raise
            if self.done:
                self._remove_partial()

    def _check_leftovers(self) -> None:
        """Check the files of an earlier run, which may come from anywhere, before any is used.

        A link, also a hard link, would redirect what is written. Opening a pipe waits for ever,
        and a device never ends. A plain file in the place of a folder would fail much later.
        """
        self._check_no_links()
        for folder in [self.partial, *(self.partial / name for name in PARTIAL_FOLDERS)]:
            if folder.exists() and not folder.is_symlink() and not folder.is_dir():
                raise StoreError(
                    f"{folder} is not a folder, and a running job needs one there; remove it"
                )
        for path in _all_inside(self.partial):
            self._check_leftover(path)

    def _check_leftover(self, path: Path) -> None:
        """Raise a StoreError if a path in the folder of a job is no ordinary file or folder."""
        try:
            status = os.lstat(path)
        except FileNotFoundError:  # another process has removed it
            return
        if stat.S_ISLNK(status.st_mode):
            raise StoreError(
                f"{path} is a link, and links inside a store are not followed; remove it"
            )
        if stat.S_ISDIR(status.st_mode):
            holds_files = path.parent in (self.states, self.partial / "curves")
            if holds_files or path == self.lock:
                raise StoreError(f"{path} is a folder, and a file has its place; remove it")
        elif not stat.S_ISREG(status.st_mode):
            raise StoreError(
                f"{path} is not a regular file, and reading it may never end; remove it"
            )
        elif status.st_nlink > 1:
            raise StoreError(
                f"{path} has a second name, which would be written as well; remove it, or copy it"
            )

    def _check_no_links(self) -> None:
        """Check that the folders of the job are in the store itself, before they are used."""
        for folder in (self.folder.parent, self.folder, self.partial):
            try:
                is_link = folder.is_symlink()
            except OSError as error:  # a name that is too long, or a folder without permission
                store = short(str(self.folder.parent.parent))
                reason = f"the store {store} cannot be read: {error.strerror}"
                raise StoreError(f"{reason}; choose store=DIR") from error
            if is_link:
                raise StoreError(
                    f"{folder} is a link, and links inside a store are not followed; remove it"
                )

    def _remove_partial(self) -> None:
        """Remove the folder of the running job together with the lock in it, which must be held.

        The folder is renamed first: as soon as this lock is gone, the next process makes a folder
        and a lock of its own at the same place, and these must not be removed.
        """
        removed_name = f".{self.key}.removed-{os.getpid()}"
        with contextlib.suppress(OSError):
            os.rename(self.partial, self.partial.with_name(removed_name))
        # The pattern also finds the folders of processes that died before they removed them.
        for removed in self.folder.parent.glob(f".{self.key}.removed-*"):
            shutil.rmtree(removed, ignore_errors=True)

    def write(
        self,
        config: Mapping[str, object],
        record: Mapping[str, object],
        tables: Mapping[str, pd.DataFrame],
        arrays: Mapping[str, np.ndarray],
    ) -> Result:
        """Write a result into `aside`, and open it there.

        Args:
            config: the configuration as nested dictionaries.
            record: the scalars, settings and provenance of result.json.
            tables: the tables by name; one is `table`.
            arrays: the arrays by name.
        """
        whole_record = {"kind": self.kind, "key": self.key, **record}
        write_content(self.aside, config, whole_record, tables, arrays)
        return Result(self.aside)

    def add_tensors(
        self, name: str, tensors: Mapping[str, Tensor], about: Mapping[str, str]
    ) -> None:
        """Add a file of tensors, such as the stitches, to the result in `aside`.

        Args:
            name: the name of the file.
            tensors: the tensors by name.
            about: texts that describe them, by name.
        """
        TensorFile(tensors, about).write(self.aside / name)

    def add(self, record: Mapping[str, object]) -> Result:
        """Add entries to the record of the result in `aside`, replacing those of the same names.

        Returns the result, which reads its record again.
        """
        file = self.aside / RECORD
        earlier_record = {}
        if file.exists():
            earlier_record = json.loads(file.read_text())
        file.write_text(json.dumps({**earlier_record, **record}, indent=1) + "\n")
        return Result(self.aside)

    def appear(self) -> Result:
        """Move the result from `aside` to its folder at once, in place of an older result."""
        finished = self.aside
        curves = self.partial / "curves"
        # Curves are copied: a run that dies here still needs them when it resumes.
        if curves.exists():
            shutil.copytree(curves, finished / "curves", dirs_exist_ok=True)
        seal(finished)

        if self.folder.exists():
            old = self.partial / "old"
            shutil.rmtree(old, ignore_errors=True)
            os.rename(self.folder, old)
        os.rename(finished, self.folder)
        sync_to_disk(self.folder.parent)

        result = Result(self.folder)
        # The record is read now, as no other process can replace the result yet.
        _ = result._record
        return result


def _all_inside(folder: Path) -> list[Path]:
    """Return everything inside a folder, at any depth; nothing if the folder does not exist."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return list(folder.rglob("*"))
    return []
