"""What a process does: its activities and their progress, the signals that end it, and those that share its job.

    with doing("report"):
        for batch in counted(batches, "batch"): ...

A screen may show activities; no number depends on them. At SIGTERM, SIGINT or SIGUSR1 a job writes a state where it can
resume, and ends with the exit status of the signal. Several processes may share a job (`trainer=ddp`).
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
import threading
import time
import warnings
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypeVar

from thinkalike.errors import ConfigError, ShareDone, StoreError

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)  # SLURM may warn by any of these
RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID")  # where launchers say which of a job's processes this is
CHATTY = ("lightning_fabric.utilities.distributed", "lightning_fabric.utilities.rank_zero")
OFTEN = 9  # as many times in a row no other process removes a folder
T = TypeVar("T")

_waiting: int | None = None  # a signal that came while `at_boundaries` was open
_patient = False
_ours: list[signal.Signals] = []  # the signals that `heeded` has taken


@dataclass(eq=False)
class Activity:
    """Something that a thread does, and how far it has come."""

    name: str  # what it is, or what it counts, such as "step"
    total: int | None = None  # items; None: they are not counted, or nobody knows
    done: int = 0  # items
    first: int = 0  # of these, those that an earlier run did, which count for no rate
    steps_aside: bool = False  # not shown while something is done inside it
    note: str = ""  # what else to say, such as a loss
    since: float = field(default_factory=time.monotonic)  # when it began
    reached: float = field(default_factory=time.monotonic)  # when `done` last grew
    thread: int = field(default_factory=threading.get_ident)

    def begin(self, done: int) -> None:
        """Begin counting after the items that an earlier run did."""
        self.done = self.first = done
        self.since = self.reached = time.monotonic()

    def reach(self, done: int) -> None:
        """Set the number of items done."""
        self.done, self.reached = done, time.monotonic()

    @property
    def rate(self) -> float | None:
        """Items per second, or None before the first item."""
        passed = self.reached - self.since
        return (self.done - self.first) / passed if self.done > self.first and passed > 0 else None

    def left(self, now: float) -> float | None:
        """Return the estimated seconds left, or None if unknown."""
        if self.rate is None or self.total is None:
            return None
        return max((self.total - self.done) / self.rate - (now - self.reached), 0.0)


_open: list[Activity] = []  # the outermost first


def under_way() -> list[Activity]:
    """Return the current activities, the outermost first."""
    activities = list(_open)
    return [each for place, each in enumerate(activities, 1) if place == len(activities) or not each.steps_aside]


@contextlib.contextmanager
def doing(name: str, total: int | None = None, done: int = 0, *, steps_aside: bool = False) -> Iterator[Activity]:
    """Show an activity while this is open; an earlier run did the first `done` items."""
    activity = Activity(name, total, done, done, steps_aside)
    _open.append(activity)
    try:
        yield activity
    finally:
        if activity in _open:  # close it, and those that the same thread has left open inside it
            place = _open.index(activity)
            _open[place:] = [each for each in _open[place:] if each.thread != activity.thread]


def counted(items: Iterable[T], name: str, total: int | None = None) -> Iterator[T]:
    """Yield items, and count those that are done; `name` is what one of them is."""
    if total is None and isinstance(items, Collection):
        total = len(items)
    with doing(name, total) as activity:
        for item in items:
            yield item
            activity.reach(activity.done + 1)


class Interrupted(BaseException):
    """A signal of this number ended the job, `where` it left a state, if it did."""

    def __init__(self, number: int, where: str = ""):
        super().__init__(number, where)
        self.number, self.where = number, where
        self.status = 128 + number  # as a shell gives it
        self.kept: bool | None = True if where else None  # whether there is a state to resume from, if known

    def __str__(self) -> str:
        after = {True: " to resume", False: ", which begins anew, as no state was kept yet", None: ""}[self.kept]
        return f"interrupted{self.where and ' '}{self.where}; rerun the command{after}"


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


def _heed(number: int, frame: FrameType | None) -> None:
    global _waiting
    if not _patient or _waiting is not None:
        raise Interrupted(number)
    _waiting = number


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


@dataclass(frozen=True)
class ProcessGroup:
    """The processes that share a job; this one is `rank` of `size`. The first, 0, gathers, writes and draws."""

    rank: int = 0
    size: int = 1

    def everyone(self, value: T) -> list[T]:
        """Return the values of all processes in the order of their ranks; each process must call this."""
        if self.size == 1:
            return [value]
        from torch import distributed

        values: list[Any] = [None] * self.size
        distributed.all_gather_object(values, value)
        return values

    def end_of_share(self) -> None:
        """End every process but the first, by a `ShareDone`, once all that it found is gathered."""
        if self.rank:
            raise ShareDone


@contextlib.contextmanager
def together(trainer: Any, device: str) -> Iterator[ProcessGroup]:
    """Join the processes that a `TrainerConfig` asks for, starting them unless torchrun or srun did."""
    if trainer.strategy != "ddp":
        yield ProcessGroup()
        return
    check_processes(trainer, device)
    from lightning_fabric import Fabric  # it takes seconds to import
    from torch import distributed

    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning_fabric")
        kind = own_device(device, trainer).partition(":")[0]
        fabric = Fabric(accelerator=kind, devices=trainer.devices or -1, num_nodes=trainer.num_nodes, strategy="ddp")
        fabric.launch()
    try:
        yield ProcessGroup(fabric.global_rank, fabric.world_size)
    finally:
        distributed.destroy_process_group()


def rank(config: Any) -> int:
    """Return the rank of this process; process 0 does everything but the shared batches."""
    if config.trainer.strategy != "ddp":
        return 0
    return next((int(os.environ[name]) for name in RANKS if name in os.environ), 0)


def check_processes(trainer: Any, device: str) -> None:
    """Raise a ConfigError unless the number of processes is known; Lightning compares it with the tasks of SLURM."""
    if trainer.strategy == "ddp" and not trainer.devices and not own_device(device, trainer).startswith("cuda"):
        raise ConfigError("trainer=ddp without a GPU needs trainer.devices=N: how many processes")


def own_device(device: str, trainer: Any) -> str:
    """Return the device of this process: each of the processes that share a job has its own GPU."""
    if device == "auto":
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
    if trainer.strategy != "ddp" or not device.startswith("cuda"):
        return device
    return f"cuda:{os.environ.get('LOCAL_RANK', os.environ.get('SLURM_LOCALID', '0'))}"


@contextlib.contextmanager
def locked(path: Path, what: str, wait: bool = True) -> Iterator[None]:
    """Hold a lock between processes, in a folder that is made if it is not there, and may vanish meanwhile.

    Args:
        what: the work of the process that has the lock, for the messages.
        wait: wait for another process; otherwise that is a StoreError.

    Raises:
        OSError: the folder cannot be written, or its file system has no locks.
        RuntimeError: this thread holds the lock, and would wait for itself.
    """
    from filelock import FileLock, Timeout

    lock, timeout, vanished = FileLock(path), 0, 0
    while not (lock.is_locked and path.exists()):
        lock.release()  # one that is held in a folder that was removed
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
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
    try:
        yield
    finally:
        lock.release()
