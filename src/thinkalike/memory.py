"""Memory: what a device has left, what tensors take, and whether an error says that there is too little."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from thinkalike.errors import ResourceError, chain

OWN, CGROUP = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")  # of control groups (version 2)
CPU = torch.device("cpu")
PAGE_OUT, LARGE = 21, 2**24  # of madvise, by which changed pages stay as they are; bytes: libraries have less
AT_ONCE = 2**31  # bytes of states of a stitching job on a CPU, outside of training and whatever is free
UNITS = {"TB": 1e12, "GB": 1e9, "MB": 1e6}
MARGIN = 0.95  # of the memory of a device: kernels have memory of their own
GAPS = 1.15  # what tensors that come and go take, of their bytes: allocators keep what is freed in small pieces
# by torch on CUDA and MPS, on CPUs, and of sizes beyond 64 bits
SAID = ("out of memory", "can't allocate memory", "annot allocate memory", "size calculation overflowed")


@dataclass(frozen=True)
class Budget:
    """The bytes that a job may have on a device."""

    total: float  # including those in use
    used: float
    binding: bool = False  # whether trainer.memory is the limit, and not the device

    @classmethod
    def of(cls, device: torch.device, asked: float | None = None, processes: int = 1) -> Budget:
        """Return the budget at this moment: at most `asked` for each process, and what is left by `processes`."""
        used = float(in_use(device))
        there = used + at_hand(device) / processes
        return cls(min(asked or there, there), used, asked is not None and asked < there)

    @property
    def room(self) -> float:
        """The bytes of tensors that can be made."""
        return (MARGIN * self.total - self.used) / GAPS

    @property
    def limit(self) -> str:
        """The limit, as error messages state it."""
        return f"{'trainer.memory allows' if self.binding else 'this device has'} {readable(self.total)}"


def check_memory(what: str, memory: float, budget: Budget, remedy: str) -> None:
    """Raise a ResourceError unless there is this memory beside what is in use; `what` is a subject with its verb."""
    if budget.used + memory > budget.total:
        needed = f"{readable(memory)} of memory beside {readable(budget.used)} in use"
        raise ResourceError(f"{what} at least {needed}, and {budget.limit}; {remedy}")


def in_use(device: torch.device) -> int:
    """Return the bytes that this process has on a device."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    if device.type == "mps":
        return torch.mps.current_allocated_memory()
    return int(psutil.Process().memory_info().rss)


def at_hand(device: torch.device) -> int:
    """Return the bytes that this process could get on a device: on a CPU, what machine and control groups leave."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    if device.type == "mps":
        return max(torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory(), 0)
    return max(min([psutil.virtual_memory().available, *_of_groups()]), 0)


def hand_back(device: torch.device) -> None:
    """Give memory that was freed, and that allocators have kept for themselves, back to the device."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "cpu":
        with contextlib.suppress(OSError, AttributeError):  # only glibc has it
            ctypes.CDLL(None).malloc_trim(0)


def page_out() -> None:
    """Take weights that are mapped from files out of memory until they are read again; only Linux does so."""
    with contextlib.suppress(OSError, AttributeError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            start, stop = (int(end, 16) for end in line.split()[0].split("-"))
            if " rw-p " in line and "/" in line and stop - start > LARGE:
                ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), PAGE_OUT)


def readable(size: float) -> str:
    """Return a number of bytes with its unit, such as 7.1 GB."""
    unit = next((unit for unit in UNITS if size >= UNITS[unit]), "MB")
    value = size / UNITS[unit]
    return f"{value:.0f} {unit}" if unit == "MB" or value >= 100 else f"{value:.1f} {unit}"


def _of_groups() -> Iterator[int]:
    """Yield what each control group around this process leaves; inside a container it is the mounted one."""
    with contextlib.suppress(OSError):
        own = CGROUP / OWN.read_text().rpartition("0::/")[2].strip()
        for folder in (each for each in (own, *own.parents) if each.is_relative_to(CGROUP)):
            with contextlib.suppress(OSError, ValueError):  # the root has no such file, and no limit is a word
                most, now = (int((folder / name).read_text()) for name in ("memory.max", "memory.current"))
                stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                yield most - now + int(stat.get("inactive_file", 0))  # pages of files can be given back


class OverLimit(Exception):
    """The tensors of a measured piece of code have grown beyond the limit."""


class LiveBytes(TorchDispatchMode):
    """Counts the storages on a device that operators make while this is open, until they die.

    A storage that existed before, such as a weight's, does not count, nor does a view of it, nor the temporary memory
    of a kernel. Numbers stay the same, but for functions that torch composes differently under a mode (`svdvals`).

    Attributes:
        now, peak: the bytes that exist, and the most that existed since this began or since `restart`.

    Args:
        limit: the bytes beyond which the operator that makes more raises an `OverLimit`.
    """

    def __init__(self, device: torch.device, limit: float = float("inf")):
        super().__init__()
        self.device, self.limit = device, limit
        self.now = self.peak = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def restart(self) -> None:
        """Forget the peak so far."""
        self.peak = self.now

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self._known.update(self._storages((args, kwargs)))  # an operator's input was there before its output
        made = func(*args, **(kwargs or {}))
        for storage in self._storages(made):
            if storage not in self._known:
                self._known.add(storage)
                size = storage.nbytes()
                self.now += size
                weakref.finalize(storage, self._free, size).atexit = False
        self.peak = max(self.peak, self.now)
        if self.now > self.limit:
            raise OverLimit(f"{self.now} bytes of {self.limit:.0f}")
        return made

    def _free(self, size: int) -> None:
        self.now -= size

    def _storages(self, tree: Any) -> list[Any]:
        tensors = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
        kind, place = self.device.type, self.device.index or 0
        return [t.untyped_storage() for t in tensors if (t.device.type, t.device.index or 0) == (kind, place)]


def exhausted(error: BaseException) -> BaseException | None:
    """Return the error in the chain of causes of this one that says that there is no memory left, or None."""
    for each in chain(error, suppressed=True):
        if isinstance(each, MemoryError | torch.OutOfMemoryError) or getattr(each, "errno", None) == errno.ENOMEM:
            return each
        if isinstance(each, RuntimeError) and any(words in str(each) for words in SAID):
            return each
    return None
