"""The folder of a job: `<store>/<kind>/<key>/` appears only when the result in it is complete.

While a job runs, `<key>.partial/` holds its states, from which it can be resumed, and a lock, so that two processes
never work on the same job; the lock ends with its process, however that ends.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thinkalike.config.compose import to_yaml
from thinkalike.digests import digest_of
from thinkalike.errors import StoreError, TrainingError
from thinkalike.store.result import Result, check_sealed, is_sealed, seal, sync

if TYPE_CHECKING:
    from filelock import BaseFileLock
    from numpy import ndarray
    from pandas import DataFrame

log = logging.getLogger(__name__)

Record = dict[str, Any]


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
        return is_sealed(self.folder)

    def result(self) -> Result | None:
        """Return the result if it is there and undamaged, and clear away what a process that died left beside it.

        Raises:
            StoreError: a file of it is missing or damaged.
        """
        if not self.done:
            return None
        check_sealed(self.folder)
        if self.partial.exists():
            with contextlib.suppress(StoreError, OSError), self.running(wait=False):
                pass  # the process that gets the lock tidies up
        return Result(self.folder)

    @property
    def aside(self) -> Path:
        """The folder that becomes the result, for files of a job's own."""
        folder = self.partial / "result"
        folder.mkdir(exist_ok=True)
        return folder

    @contextlib.contextmanager
    def running(self, wait: bool = True) -> Iterator[Path]:
        """Hold the job's lock; yields the folder of its states.

        Args:
            wait: wait for another process that computes the same job; otherwise that is an error.

        Raises:
            StoreError: the store cannot be written, or another process computes the same job.
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
        """Leave nothing behind but a state from which the same command can resume."""
        diverged = isinstance(error, TrainingError)  # it would do so again
        if diverged or not any(self.states.glob("*.pt")):
            shutil.rmtree(self.partial, ignore_errors=True)
            with contextlib.suppress(OSError):
                self.partial.parent.rmdir()
                self.partial.parent.parent.rmdir()

    def write(self, config: Record, record: Record, tables: dict[str, DataFrame], arrays: dict[str, ndarray]) -> Result:
        """Write a result aside, with the `record` of scalars, settings and provenance, and open it there."""
        import numpy as np

        out = self.aside
        (out / "config.yaml").write_text(to_yaml(config))
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
        sync(self.folder.parent)
        shutil.rmtree(self.partial, ignore_errors=True)
        return Result(self.folder)


STATE = re.compile(r"(?P<name>.+)-(?P<number>\d+)-(?P<digest>[0-9a-f]{16})\.pt")


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
    with aside.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    path = folder / f"{name}-{max(before, default=0) + 1}-{digest_of(aside)[:16]}.pt"
    os.replace(aside, path)
    sync(folder)
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


NO_FLOCK = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)  # errors of file systems without flock
OFTEN = 9  # as many times in a row no other process removes a folder


@contextlib.contextmanager
def locked(path: Path, what: str, wait: bool = True) -> Iterator[None]:
    """Hold a lock between processes: flock where the file system has it, else a file that names its holder.

    Args:
        path: of the lock; its folder is made if it is not there, and may vanish meanwhile.
        what: the work of the process that has the lock, for the messages.
        wait: wait for another process; otherwise that is an error.

    Raises:
        OSError: the folder cannot be written.
        RuntimeError: this thread holds the lock, and would wait for itself.
        StoreError: another process has the lock, and `wait` is false.
    """
    from filelock import FileLock, SoftFileLock

    try:
        lock: BaseFileLock = FileLock(path)
        _acquire(lock, what, wait)
    except OSError as error:
        if error.errno not in NO_FLOCK:
            raise
        log.warning("%s has no flock (%s); using a lock file that names host and process", path.parent, error)
        lock = SoftFileLock(path.with_suffix(".soft"))
        _acquire(lock, what, wait)
    try:
        yield
    finally:
        lock.release()


def _acquire(lock: BaseFileLock, what: str, wait: bool) -> None:
    from filelock import Timeout

    file, timeout, vanished = Path(lock.lock_file), 0, 0
    while not (lock.is_locked and file.exists()):
        lock.release()  # one that is held in a folder that was removed
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=timeout)
        except Timeout:
            if not wait:
                raise StoreError(f"another process is {what}; wait for it (wait=true), or stop it") from None
            log.info("waiting for another process, which is %s", what)
            timeout = -1
        except FileNotFoundError:  # that process was done and removed the folder, unless it never can be there
            vanished += 1
            if vanished == OFTEN:
                raise
