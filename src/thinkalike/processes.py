"""What a process does: activities, the signals that end it, and the processes of a shared job.

    with doing("report"):
        for batch in counted(batches, "batch"): ...

A screen may show activities; no number depends on them. At SIGTERM, SIGINT or SIGUSR1 a job writes
a state where it can resume, and ends with the exit status of the signal. Several processes may
share a job (`trainer=ddp`).
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
from typing import NoReturn, Protocol, TypeVar, runtime_checkable

from thinkalike.errors import ConfigError, ShareDone, StoreError

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)  # SLURM may warn by any of these
SIGNAL_STATUS = 128  # a shell adds this to the number of a signal
# where launchers say which process of a job this is
RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID")
CHATTY = ("lightning_fabric.utilities.distributed", "lightning_fabric.utilities.rank_zero")
# If the folder of a lock vanishes this many times in a row, no other process removes it.
MOST_VANISHED = 9
T = TypeVar("T")

_waiting_signal: int | None = None  # a signal that came while `at_boundaries` was open
_is_postponing = False  # whether `at_boundaries` is open
_our_signals: list[signal.Signals] = []  # those whose handlers `heeded` has set


@runtime_checkable
class TextStream(Protocol):
    """Where a process prints: a stream of text, such as stderr, or one in memory."""

    def write(self, text: str, /) -> int:
        """Write a text; return its length."""

    def flush(self) -> None:
        """Write everything that is still in memory."""

    def isatty(self) -> bool:
        """Return whether it is a terminal."""

    def fileno(self) -> int:
        """Return the number of its file, if it has one."""


@dataclass(eq=False)
class Activity:
    """Something that a thread does, and its progress.

    Attributes:
        name: what it is, or what it counts, such as "step".
        total: the number of items; None: they are not counted, or the number is not known.
        done: how many items are done.
        first: how many of these an earlier run did; they do not count for the rate.
        steps_aside: whether it is hidden while another activity runs inside it.
        note: further text, such as a loss.
        since: when it began.
        reached: when `done` last grew.
        thread: the thread that does it.
    """

    name: str
    total: int | None = None
    done: int = 0
    first: int = 0
    steps_aside: bool = False
    note: str = ""
    since: float = field(default_factory=time.monotonic)
    reached: float = field(default_factory=time.monotonic)
    thread: int = field(default_factory=threading.get_ident)

    def begin(self, done: int) -> None:
        """Begin counting after the items that an earlier run did."""
        now = time.monotonic()
        self.done = done
        self.first = done
        self.since = now
        self.reached = now

    def reach(self, done: int) -> None:
        """Set the number of items done."""
        self.done = done
        self.reached = time.monotonic()

    @property
    def rate(self) -> float | None:
        """Items per second, or None before the first item."""
        seconds = self.reached - self.since
        items = self.done - self.first
        if items <= 0 or seconds <= 0:
            return None
        return items / seconds

    def seconds_left(self, now: float) -> float | None:
        """Return the estimated seconds until it is done, or None if unknown."""
        rate = self.rate
        if rate is None or self.total is None:
            return None
        seconds_from_last_item = (self.total - self.done) / rate
        return max(seconds_from_last_item - (now - self.reached), 0.0)


_open_activities: list[Activity] = []  # the outermost first


def under_way() -> list[Activity]:
    """Return the current activities, the outermost first."""
    activities = list(_open_activities)
    shown = []
    for position, activity in enumerate(activities, 1):
        is_innermost = position == len(activities)
        if is_innermost or not activity.steps_aside:
            shown.append(activity)
    return shown


@contextlib.contextmanager
def doing(name: str, total: int | None = None, done: int = 0, *, steps_aside: bool = False) -> Iterator[Activity]:
    """Show an activity while this is open; an earlier run did the first `done` items."""
    activity = Activity(name, total, done, done, steps_aside)
    _open_activities.append(activity)
    try:
        yield activity
    finally:
        _close(activity)


def _close(activity: Activity) -> None:
    """Close an activity, and those that the same thread has left open inside it."""
    if activity not in _open_activities:
        return
    position = _open_activities.index(activity)
    inside = _open_activities[position:]
    of_other_threads = [entry for entry in inside if entry.thread != activity.thread]
    _open_activities[position:] = of_other_threads


@functools.cache
def log_once(logger: logging.Logger, message: str) -> None:
    """Log an information the first time in a process only, as a job may come to it several times.

    Warnings need no such care: repeated ones are not printed, and each result gets its own.
    """
    logger.info(message)


def counted(items: Iterable[T], name: str, total: int | None = None) -> Iterator[T]:
    """Yield items, and count those that are done; `name` is what one of them is."""
    if total is None and isinstance(items, Collection):
        total = len(items)
    with doing(name, total) as activity:
        for item in items:
            yield item
            activity.reach(activity.done + 1)


class Interrupted(BaseException):
    """A signal ended the job.

    Attributes:
        number: that of the signal.
        where: where the job left a state; empty if it left none.
        status: the exit status, as a shell gives it.
        kept: whether there is a state to resume from; None if that is not known.
    """

    def __init__(self, number: int, where: str = ""):
        super().__init__(number, where)
        self.number = number
        self.where = where
        self.status = SIGNAL_STATUS + number
        self.kept: bool | None = None
        if where:
            self.kept = True

    def __str__(self) -> str:
        message = "interrupted"
        if self.where:
            message += f" {self.where}"
        message += "; rerun the command"
        if self.kept is None:
            return message
        if self.kept:
            return f"{message} to resume"
        return f"{message}, which begins again, as no state was kept yet"


@contextlib.contextmanager
def heeded() -> Iterator[None]:
    """Raise `Interrupted` on signals while this is open.

    It does nothing in a thread that is not the main one, or where another handler is set.
    """
    global _waiting_signal, _our_signals
    is_main = threading.current_thread() is threading.main_thread()
    default_handlers = (signal.SIG_DFL, signal.default_int_handler)
    earlier_handlers = {}
    for number in SIGNALS:
        if is_main and signal.getsignal(number) in default_handlers:
            earlier_handlers[number] = signal.signal(number, _heed)
    outer_signals = _our_signals
    _our_signals = [*outer_signals, *earlier_handlers]
    try:
        yield
    finally:
        _waiting_signal = None
        _our_signals = outer_signals
        for number, handler in earlier_handlers.items():
            signal.signal(number, handler)


def _heed(number: int, frame: FrameType | None) -> None:
    """Postpone the first signal while `at_boundaries` is open, and else end the job."""
    global _waiting_signal
    if not _is_postponing or _waiting_signal is not None:
        raise Interrupted(number)
    _waiting_signal = number


@contextlib.contextmanager
def at_boundaries() -> Iterator[None]:
    """Postpone a signal until the job checks `asked`, while this is open; a second ends it."""
    global _is_postponing
    earlier = _is_postponing
    _is_postponing = True
    try:
        yield
    finally:
        _is_postponing = earlier


def take_back() -> None:
    """Set our handlers of signals again, after a library has replaced them."""
    for number in _our_signals:
        signal.signal(number, _heed)


def asked() -> bool:
    """Return whether a signal waits for the job to save its state and `stop`."""
    return _waiting_signal is not None


def stop(where: str) -> NoReturn:
    """End the job by an `Interrupted`, at a boundary where it has saved its state."""
    raise Interrupted(_waiting_signal or signal.SIGTERM, where)


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
    """The processes that share a job. The first, 0, gathers what all have found, writes and draws.

    Attributes:
        rank: the number of this process.
        size: the number of processes.
    """

    rank: int = 0
    size: int = 1

    def everyone(self, value: T) -> list[T]:
        """Return the values of all processes, in order of rank; each process must call this."""
        if self.size == 1:
            return [value]
        from torch import distributed

        values: list[T] = [value] * self.size
        distributed.all_gather_object(values, value)
        return values

    def end_of_share(self) -> None:
        """End every process but the first, by a `ShareDone`, once all results are gathered."""
        if self.rank:
            raise ShareDone


@runtime_checkable
class TrainerSettings(Protocol):
    """The settings of `trainer=` that say which processes share a job."""

    @property
    def strategy(self) -> str:
        """How they share it: "ddp", or not at all."""

    @property
    def devices(self) -> int | None:
        """How many processes a node has; None: one for each GPU."""

    @property
    def num_nodes(self) -> int:
        """How many nodes there are."""


@runtime_checkable
class SharedJob(Protocol):
    """A job, or a run of one, that several processes may share."""

    @property
    def trainer(self) -> TrainerSettings:
        """The settings that say which processes share it."""


@contextlib.contextmanager
def together(trainer: TrainerSettings, device: str) -> Iterator[ProcessGroup]:
    """Join the processes that share a job, and start them unless torchrun or srun did."""
    if trainer.strategy != "ddp":
        yield ProcessGroup()
        return
    check_processes(trainer, device)
    from lightning_fabric import Fabric  # importing it takes seconds
    from torch import distributed

    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning_fabric")
        device_type = own_device(device, trainer).partition(":")[0]
        fabric = Fabric(
            accelerator=device_type,
            devices=trainer.devices or -1,
            num_nodes=trainer.num_nodes,
            strategy="ddp",
        )
        fabric.launch()
    try:
        yield ProcessGroup(fabric.global_rank, fabric.world_size)
    finally:
        distributed.destroy_process_group()


def rank(job: SharedJob) -> int:
    """Return the rank of this process; process 0 does everything but the shared batches."""
    if job.trainer.strategy != "ddp":
        return 0
    for name in RANKS:
        if name in os.environ:
            return int(os.environ[name])
    return 0


def check_processes(trainer: TrainerSettings, device: str) -> None:
    """Check that the number of processes is known; Lightning compares it with the tasks of SLURM.

    Raises:
        ConfigError: it is not.
    """
    if trainer.strategy != "ddp" or trainer.devices:
        return
    if not own_device(device, trainer).startswith("cuda"):
        raise ConfigError("trainer=ddp without a GPU needs trainer.devices=N: how many processes")


def own_device(device: str, trainer: TrainerSettings) -> str:
    """Return the device of this process; processes that share a job have a GPU each."""
    if device == "auto":
        import torch

        device = "cpu"
        if torch.cuda.is_available():
            device = "cuda"
    if trainer.strategy != "ddp" or not device.startswith("cuda"):
        return device
    number = os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0"))
    return f"cuda:{number}"


@contextlib.contextmanager
def locked(path: Path, work: str, wait: bool = True) -> Iterator[None]:
    """Hold a lock between processes.

    Its folder is made if it does not exist, and may be removed by another process meanwhile.

    Args:
        work: what the process that has the lock is doing, for the messages.
        wait: whether to wait for another process.

    Raises:
        StoreError: another process has the lock, and `wait` is false.
        OSError: the folder cannot be written, or its file system has no locks.
        RuntimeError: this thread has the lock, and would wait for itself.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    timeout = 0
    vanished = 0
    while not (lock.is_locked and path.exists()):
        lock.release()  # a lock that is held in a folder that was removed
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=timeout)
        except Timeout:
            if not wait:
                raise StoreError(f"another process is {work}; wait for it (wait=true), or stop it") from None
            log.warning("waiting for another process, which is %s", work)  # for hours if it stopped
            timeout = -1
        except FileNotFoundError:
            # That process was done and removed the folder, unless the folder cannot exist at all.
            vanished += 1
            if vanished == MOST_VANISHED:
                raise
    try:
        yield
    finally:
        lock.release()
