"""SIGTERM, SIGINT, SIGUSR1: a job writes a state where it can resume, and ends with the exit status of the signal."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)  # SLURM may warn by any of these

_waiting: int | None = None  # a signal that came while `at_boundaries` was open
_patient = False
_ours: list[signal.Signals] = []  # the signals that `heeded` has taken


class Interrupted(BaseException):
    """A signal ended the job.

    Args:
        number: of the signal.
        where: how far the job came, if it left a state there.

    Attributes:
        status: the exit status that a shell gives to a process that this signal ended.
    """

    def __init__(self, number: int, where: str = ""):
        super().__init__(number, where)
        self.number, self.where, self.status = number, where, 128 + number

    def __str__(self) -> str:
        after = "rerun the command to resume" if self.where else "rerun the command to resume from its last state"
        return f"interrupted{self.where and ' '}{self.where}; {after}"


@contextlib.contextmanager
def heeded() -> Iterator[None]:
    """Raise `Interrupted` on signals while this is open, unless this is a thread or another handler is set."""
    global _waiting, _ours
    is_main = threading.current_thread() is threading.main_thread()
    untouched = (signal.SIG_DFL, signal.default_int_handler)
    ours = [number for number in SIGNALS if is_main and signal.getsignal(number) in untouched]
    before, outer = {number: signal.signal(number, _heed) for number in ours}, _ours
    _ours = [*outer, *ours]
    try:
        yield
    finally:
        _waiting, _ours = None, outer
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def at_boundaries() -> Iterator[None]:
    """Postpone a signal until `asked` is checked, while this is open; a second signal is not postponed."""
    global _patient
    before, _patient = _patient, True
    try:
        yield
    finally:
        _patient = before


def take_back() -> None:
    """Restore these handlers after a library has replaced them."""
    for number in _ours:
        signal.signal(number, _heed)


def asked() -> bool:
    """Return whether a signal waits for the job to save its state and `stop`."""
    return _waiting is not None


def stop(where: str) -> NoReturn:
    """End the job, by an `Interrupted`, at a boundary where it has saved its state."""
    raise Interrupted(_waiting or signal.SIGTERM, where)


@functools.cache
def follow_parent() -> None:
    """End this process with SIGTERM when its parent has ended."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True, name="follow-parent").start()


def _heed(number: int, frame: FrameType | None) -> None:
    global _waiting
    if not _patient or _waiting is not None:
        raise Interrupted(number)
    _waiting = number
