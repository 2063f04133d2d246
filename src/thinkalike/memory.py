"""Memory: what a device has left, what a computation takes of it, and whether an error means that there is none."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import resource
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from thinkalike.errors import chain

__all__ = [
    "GAPS",
    "MARGIN",
    "Budget",
    "LiveBytes",
    "OverLimit",
    "at_hand",
    "exhausted",
    "hand_back",
    "in_use",
    "readable",
]


# ------------------------------------------------------------
# What a device has left for this process, and what the process already has of it.
#
# On a CPU that is the least of the memory that the system, the control groups around the process and its limits leave.

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
MARGIN = 0.95  # of a budget that is planned with: kernels have memory of their own
GAPS = 1.15  # what tensors that come and go take, of their bytes: allocators keep what is freed in small pieces
LIMITS = {  # the files of a control group: limit, usage, and the line of memory.stat with pages that can be given back
    2: ("memory.max", "memory.current", "inactive_file"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


@dataclass(frozen=True)
class Budget:
    """The bytes that a job may have on a device, and those that it has.

    Attributes:
        total: all that it may have, with what it has already.
        used: what it has.
        binding: whether it is the user who allows no more, and not the device.
    """

    total: float
    used: float
    binding: bool = False

    @classmethod
    def of(cls, device: torch.device, asked: float | None = None, processes: int = 1) -> Budget:
        """Return the budget on a device at this moment.

        Args:
            asked: the most that the user allows each process.
            processes: how many share what is left.
        """
        used = float(in_use(device))
        there = used + at_hand(device) / processes
        binding = asked is not None and asked < there
        return cls(asked if asked is not None and binding else there, used, binding)

    @property
    def room(self) -> float:
        """The bytes of tensors that can be planned with."""
        return (MARGIN * self.total - self.used) / GAPS

    @property
    def allowed(self) -> str:
        """Return what the message of an error says of it."""
        return f"{'trainer.memory allows' if self.binding else 'this device has'} {readable(self.total)}"

    @property
    def more(self) -> str:
        """Return what the message of an error gives as the last remedy."""
        return "or raise trainer.memory" if self.binding else "or choose a device with more memory"


def in_use(device: torch.device) -> int:
    """Return the bytes that this process has on a device."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    if device.type == "mps":
        return torch.mps.current_allocated_memory()
    with contextlib.suppress(OSError):
        return int((PROC / "self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def at_hand(device: torch.device) -> int:
    """Return the bytes that this process could get on a device beside those that it has."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    if device.type == "mps":
        return max(torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory(), 0)
    return max(min([_of_system(), *_of_groups(), *_of_process()]), 0)


def hand_back(device: torch.device) -> None:
    """Give memory that was freed, and that allocators have kept for themselves, back to the device."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "cpu":
        with contextlib.suppress(OSError, AttributeError):  # only glibc has it
            ctypes.CDLL(None).malloc_trim(0)


def readable(size: float) -> str:
    """Return a number of bytes as a person writes it, such as 7.1 GB."""
    unit = next((unit for unit in ("TB", "GB") if size >= UNITS[unit]), "MB")
    value = size / UNITS[unit]
    return f"{value:.0f} {unit}" if unit == "MB" or value >= 100 else f"{value:.1f} {unit}"


UNITS = {"MB": 1e6, "GB": 1e9, "TB": 1e12}


def _of_system() -> int:
    with contextlib.suppress(OSError, StopIteration):
        return next(size for name, size in _kilobytes(PROC / "meminfo") if name == "MemAvailable")
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") - in_use(torch.device("cpu"))


def _of_process() -> Iterator[int]:
    """Yield what the process's own limits on its addresses leave (ulimit -v)."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        with contextlib.suppress(OSError):
            yield limit - int((PROC / "self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def _of_groups() -> Iterator[int]:
    """Yield what each control group around this process leaves; inside a container their paths may not be there."""
    for version, group in _groups():
        limit, usage, reusable = LIMITS[version]
        for folder in (group, *group.parents):
            if not folder.is_relative_to(CGROUPS):
                break
            with contextlib.suppress(OSError, ValueError):  # the root has no such file, and no limit is a word
                most, now = (int((folder / name).read_text()) for name in (limit, usage))
                stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                yield most - now + int(stat.get(reusable, 0))


def _groups() -> Iterator[tuple[int, Path]]:
    """Yield the version and the folder of each control group of this process that can limit memory."""
    with contextlib.suppress(OSError):
        for line in (PROC / "self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield 2, CGROUPS / path.strip("/")
            elif "memory" in controllers.split(","):
                yield 1, CGROUPS / "memory" / path.strip("/")


def _kilobytes(path: Path) -> Iterator[tuple[str, int]]:
    for line in path.read_text().splitlines():
        name, _, size = line.partition(":")
        if size.endswith("kB"):
            yield name, int(size.split()[0]) * 1024


# ------------------------------------------------------------
# The bytes of the tensors that a piece of code makes, and the most of them that exist at the same time.
#
# Temporary memory inside a kernel, which is no tensor, is not seen.


class OverLimit(Exception):
    """The tensors of a measured piece of code have grown beyond the limit."""


class LiveBytes(TorchDispatchMode):
    """Counts the storages on a device that operators make while this is open, until they die.

    A storage that existed before, such as a weight's, does not count, nor does a view of it. Forward and backward
    passes are both seen. The numbers computed are what they would be without it.

        with LiveBytes(device) as live:
            loss = step()
            kept = live.now
            live.restart()
            loss.backward()
        live.peak

    Attributes:
        now: the bytes that exist.
        peak: the most bytes that existed since this began, or since `restart`.

    Args:
        limit: the bytes beyond which the code is stopped.

    Raises:
        OverLimit: there were more; raised by the operator that made them.
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
        tensors = (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))
        return [tensor.untyped_storage() for tensor in tensors if _same(tensor.device, self.device)]


def _same(one: torch.device, other: torch.device) -> bool:
    return one.type == other.type and (one.index or 0) == (other.index or 0)


# ------------------------------------------------------------
# Whether an error says that there was no memory left: libraries have many ways to say so.

WORDS = re.compile(
    r"out of memory"  # CUDA, HIP, MPS, XPU; "kind: OutOfMemory" below
    r"|outofmemory"
    r"|not enough memory|insufficient memory|too little memory"
    r"|(cannot|can't|unable to|could not|failed to) allocate"  # malloc and mmap, the CPU allocator, NumPy
    r"|bad_?alloc"
    r"|alloc_failed"  # cuBLAS, cuDNN
    r"|memory ?allocation.*(failed|failure)|cudaerrormemoryallocation"
    r"|paging file is too small"
    r"|os error (12|1455)\b|errno:? 12\b|error code:? 12\b",
    re.IGNORECASE,
)


def exhausted(error: BaseException) -> BaseException | None:
    """Return the error in the chain of causes of this one that says that there is no memory left, or None."""
    for each in chain(error, suppressed=True):
        if isinstance(each, MemoryError | torch.OutOfMemoryError):
            return each
        if isinstance(each, OSError) and each.errno is not None:
            if each.errno == errno.ENOMEM:
                return each
            continue  # a disk or a file has its own number, whatever the words
        if WORDS.search(str(each)):
            return each
    return None
