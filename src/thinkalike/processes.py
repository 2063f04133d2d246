"""Several processes that share one job (`trainer=ddp`), and how they exchange what they computed."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from thinkalike.config import TrainerConfig
from thinkalike.errors import ConfigError, ShareDone
from thinkalike.interrupts import asked
from thinkalike.models.places import pick_device

RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID")  # where launchers say which of a job's processes this is
CHATTY = ("lightning_fabric.utilities.distributed", "lightning_fabric.utilities.rank_zero")
T = TypeVar("T")


class Round(NamedTuple):
    """One round of batches, at most one for each process."""

    before: int  # batches that were done when it began
    done: int
    asked: bool  # whether a signal waits for one of the processes

    def passes(self, every: int) -> bool:
        """Return whether the count of batches passed a multiple of `every` in this round."""
        return self.done // every > self.before // every


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

    def rounds(
        self, starting: Callable[[int, int], Iterator[T]], first: int, add: Callable[[int, T], None]
    ) -> Iterator[Round]:
        """Go through batches from number `first` on; the processes take turns.

        Args:
            starting: given a number and a step, yields every step-th batch, or pool of batches, from that number on.
            add: takes a batch with its number.
        """
        own, done = starting(first + self.rank, self.size), first
        while True:
            batch = next(own, None)
            if batch is not None:
                add(done + self.rank, batch)
            there, waiting = zip(*self.everyone((batch is not None, asked())), strict=True)
            if any(there):
                yield Round(done, done + sum(there), any(waiting))
            done += sum(there)
            if not all(there):
                return

    def end_of_share(self) -> None:
        """End every process but the first, once all that it found is gathered.

        Raises:
            ShareDone: this is not the first.
        """
        if self.rank:
            raise ShareDone


@contextlib.contextmanager
def together(trainer: TrainerConfig, device: str) -> Iterator[ProcessGroup]:
    """Join the processes that a configuration asks for, starting them unless torchrun or srun did.

    Args:
        device: where models are to be; on GPUs each process has one of its own.

    Raises:
        ConfigError: see `check_processes`.
    """
    if trainer.strategy != "ddp":
        yield ProcessGroup()
        return
    kind = pick_device(device).partition(":")[0]
    check_processes(trainer, kind)
    from lightning_fabric import Fabric  # it takes seconds to import
    from torch import distributed

    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning_fabric")
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


def check_processes(trainer: TrainerConfig, device: str) -> None:
    """Check that the number of processes is known; Lightning compares it with the tasks of SLURM.

    Raises:
        ConfigError: there is no GPU, and `trainer.devices` is not given.
    """
    if trainer.strategy == "ddp" and not trainer.devices and not own_device(device, trainer).startswith("cuda"):
        raise ConfigError("trainer=ddp without a GPU needs trainer.devices=N: how many processes")


def own_device(device: str, trainer: TrainerConfig) -> str:
    """Return the device of this process: each of the processes that share a job has its own GPU."""
    place = pick_device(device) if device == "auto" else device
    if trainer.strategy != "ddp" or not place.startswith("cuda"):
        return place
    return f"cuda:{os.environ.get('LOCAL_RANK', os.environ.get('SLURM_LOCALID', '0'))}"
