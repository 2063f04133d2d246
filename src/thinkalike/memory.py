"""Memory: what a device has free, what tensors take, and which errors mean that it ran out."""

from __future__ import annotations

import contextlib
import errno
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

import psutil
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from thinkalike.advice import named_setting
from thinkalike.errors import ResourceError, chain

# of control groups (version 2): the group of this process, and the folder of all groups
PROCESS_GROUP = Path("/proc/self/cgroup")
GROUPS_FOLDER = Path("/sys/fs/cgroup")
CPU = torch.device("cpu")
# bytes of states that a stitching job holds on a CPU outside of training, whatever is free
STATE_BYTES_ON_CPU = 2**31
UNITS = {"TB": 1e12, "GB": 1e9, "MB": 1e6}
USABLE_SHARE = 0.95  # of the memory of a device: kernels have memory of their own
# allocators keep freed memory in small pieces, so tensors that come and go take more than their
# bytes
FRAGMENTATION = 1.15
# what torch says where memory runs out, on CUDA and MPS, on CPUs, and for sizes beyond 64 bits
OUT_OF_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "annot allocate memory",
    "size calculation overflowed",
)

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Budget:
    """The bytes that a job may use on a device.

    Attributes:
        total: including those in use.
        used: those in use.
        is_requested: whether trainer.memory is the limit, and not the device.
    """

    total: float
    used: float
    is_requested: bool = False

    @classmethod
    def of(cls, device: torch.device, requested: float | None = None, processes: int = 1) -> Budget:
        """Return the budget at this moment.

        Args:
            requested: the most bytes that each process may use; None for all of the device.
            processes: how many processes share the device.
        """
        used = float(bytes_in_use(device))
        reachable = used + available_bytes(device) / processes
        if requested is not None and requested < reachable:
            return cls(requested, used, is_requested=True)
        return cls(reachable, used)

    @property
    def room(self) -> float:
        """The bytes of the tensors that can still be made."""
        return (USABLE_SHARE * self.total - self.used) / FRAGMENTATION

    @property
    def limit(self) -> str:
        """The limit, as error messages state it."""
        if self.is_requested:
            return f"{named_setting('trainer.memory')} allows {readable(self.total)}"
        return f"this device has {readable(self.total)}"


def check_memory(subject: str, memory: float, budget: Budget, remedy: str) -> None:
    """Check that a budget has this memory left.

    Args:
        subject: what needs the memory, with its verb: "the stitches need".

    Raises:
        ResourceError: it has less.
    """
    if budget.used + memory > budget.total:
        in_all = readable(budget.used + memory)
        needed = f"{in_all} of memory ({readable(budget.used)} of it are in use already)"
        more = "allow more, or " if budget.is_requested else ""
        raise ResourceError(f"{subject} at least {needed}, and {budget.limit}; {more}{remedy}")


def bytes_in_use(device: torch.device) -> int:
    """Return the bytes that this process uses on a device."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    if device.type == "mps":
        return torch.mps.current_allocated_memory()
    return int(psutil.Process().memory_info().rss)


def available_bytes(device: torch.device) -> int:
    """Return the bytes that this process can still get on a device.

    On a CPU, it is what both the machine and the control groups of the process leave.
    """
    if device.type == "cuda":
        unused_cache = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        free_on_device, _ = torch.cuda.mem_get_info(device)
        return free_on_device + unused_cache
    if device.type == "mps":
        available = torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
        return max(available, 0)
    machine_has = psutil.virtual_memory().available
    return max(min([machine_has, *_free_in_control_groups()]), 0)


def _free_in_control_groups() -> Iterator[int]:
    """Yield the bytes that each control group around this process leaves.

    A container sees the path of its group on the host. The folders of that path do not exist in
    the container, and the topmost folder is that of its own group.
    """
    with contextlib.suppress(OSError):
        path_of_group = PROCESS_GROUP.read_text().rpartition("0::/")[2].strip()
        group_folder = GROUPS_FOLDER / path_of_group
        for folder in [group_folder, *group_folder.parents]:
            if not folder.is_relative_to(GROUPS_FOLDER):
                break
            # The root group has no such files, and where there is no limit, the limit is a word.
            with contextlib.suppress(OSError, ValueError):
                yield _free_in_control_group(folder)


def _free_in_control_group(folder: Path) -> int:
    limit = int((folder / "memory.max").read_text())
    current = int((folder / "memory.current").read_text())
    statistics = {}
    for line in (folder / "memory.stat").read_text().splitlines():
        name, value = line.split()
        statistics[name] = value
    cached_files = int(statistics.get("inactive_file", 0))  # the system can drop these pages
    return limit - current + cached_files


def free_cached_memory(device: torch.device) -> None:
    """Give freed memory, which torch keeps for later tensors, back to a GPU."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def readable(size: float) -> str:
    """Return a number of bytes with its unit, such as 7.1 GB."""
    unit = "MB"
    for larger_unit in ("GB", "TB"):
        if size >= UNITS[larger_unit]:
            unit = larger_unit
    value = size / UNITS[unit]
    if unit == "MB" or value >= 100:
        return f"{value:.0f} {unit}"
    return f"{value:.1f} {unit}"


class OverLimitError(Exception):
    """The tensors of a measured piece of code have grown beyond the limit."""


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of tensors that operators make while this is open, until these are freed.

    It counts storages, and not tensors: neither a storage that existed before, such as that of a
    weight, nor a view of it counts, nor the temporary memory of a kernel. Numbers do not change,
    except for functions that torch computes in another way under a dispatch mode (`svdvals`).

    Attributes:
        now: the bytes that exist.
        peak: the most bytes that existed since this was opened or since `restart`.
    """

    def __init__(self, device: torch.device, limit: float = float("inf")):
        """Count on `device`; the operator that exceeds `limit` raises OverLimitError."""
        super().__init__()
        self.device = device
        self.limit = limit
        self.now = 0
        self.peak = 0
        self._seen_storages: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def restart(self) -> None:
        """Forget the peak so far."""
        self.peak = self.now

    def __torch_dispatch__(
        self,
        func: Callable[..., T],
        types: object,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> T:
        kwargs = kwargs or {}
        # The input of an operator existed before its output, so it is marked as seen first.
        self._seen_storages.update(self._storages_in((args, kwargs)))

        output = func(*args, **kwargs)
        for storage in self._storages_in(output):
            if storage not in self._seen_storages:
                self._seen_storages.add(storage)
                size = storage.nbytes()
                self.now += size
                weakref.finalize(storage, self._free, size).atexit = False

        self.peak = max(self.peak, self.now)
        if self.now > self.limit:
            raise OverLimitError(f"{self.now} bytes of {self.limit:.0f}")
        return output

    def _free(self, size: int) -> None:
        self.now -= size

    def _storages_in(self, tree: object) -> list[torch.UntypedStorage]:
        """Return the storages on this device of all tensors in nested lists and dictionaries."""
        storages = []
        for leaf in tree_leaves(tree):
            if isinstance(leaf, Tensor) and _is_same_device(leaf.device, self.device):
                storages.append(leaf.untyped_storage())
        return storages


def _is_same_device(first: torch.device, second: torch.device) -> bool:
    """Return whether two devices are one; "cuda" and "cuda:0" are."""
    return first.type == second.type and (first.index or 0) == (second.index or 0)


def out_of_memory_error(error: BaseException) -> BaseException | None:
    """Return the one among an error and its causes that says that memory ran out, or None."""
    for cause in chain(error, suppressed=True):
        if isinstance(cause, MemoryError | torch.OutOfMemoryError):
            return cause
        if isinstance(cause, OSError) and cause.errno == errno.ENOMEM:
            return cause
        if isinstance(cause, RuntimeError) and any(words in str(cause) for words in OUT_OF_MEMORY):
            return cause
    return None
