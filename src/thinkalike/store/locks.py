"""Locks between processes that share a store: flock where the file system has it, else a file that names its holder."""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from thinkalike.errors import StoreError

log = logging.getLogger(__name__)

NO_FLOCK = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)  # what file systems without it answer
OFTEN = 9  # as many times in a row no other process takes a folder away
SAY_EVERY = 60.0  # seconds, how often a process that waits says so

_HELD: dict[Path, int] = {}  # locks of this process, and the threads that hold them


@contextlib.contextmanager
def locked(path: Path, what: str, wait: bool = True) -> Iterator[None]:
    """Hold the lock at a path, whose folder is made if it is not there and may vanish meanwhile.

    Args:
        what: what another process is doing if it has the lock, for the messages.
        wait: until that process is done; else it is an error.

    Raises:
        OSError: the folder cannot be written.
        StoreError: another process has the lock, and `wait` is false; or this thread has it, and would wait for itself.
    """
    if wait and _HELD.get(path.absolute()) == threading.get_ident():
        raise StoreError(
            f"this process is {what} already; a script that is imported while it runs keeps its jobs behind "
            'if __name__ == "__main__":'
        )
    lock = _acquired(path, what, wait)
    _HELD[path.absolute()] = threading.get_ident()
    try:
        yield
    finally:
        del _HELD[path.absolute()]
        lock.release()


def _acquired(path: Path, what: str, wait: bool) -> BaseFileLock:
    kind: type[BaseFileLock] = FileLock
    vanished = 0
    while True:
        lock = kind(path if kind is FileLock else path.with_suffix(".soft"))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with warnings.catch_warnings(record=True) as said:
                lock.acquire(timeout=SAY_EVERY if wait else 0)
        except Timeout:
            if not wait:
                raise StoreError(f"another process is {what}; wait for it (wait=true), or stop it") from None
            log.info("waiting for another process, which is %s", what)
        except FileNotFoundError:  # that process was done and took the folder away, unless it never can be there
            vanished += 1
            if vanished == OFTEN:
                raise
        except OSError as error:
            if kind is SoftFileLock or error.errno not in NO_FLOCK:
                raise
            kind = SoftFileLock
            log.warning("%s has no flock (%s); using a lock file that names host and process", path.parent, error)
        else:
            for warning in said:
                log.warning("%s: %s", path.parent, warning.message)
            if Path(lock.lock_file).exists():  # and not in a folder that was taken away
                return lock
            lock.release()
