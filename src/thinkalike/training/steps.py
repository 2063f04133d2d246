"""Training by steps: batches that depend on the step alone, a module that stops where its loss is NaN, and rates."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytorch_lightning as pl
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from thinkalike import plugins
from thinkalike.config import StitchConfig
from thinkalike.errors import DataError, TrainingError


class StepBatches(Dataset):
    """Batches of rows by step: epoch after epoch, each in an order that `seed` decides.

    The batch of a step depends on nothing but the step, so a resumed job reads what it would have read. Where `world`
    processes share a job, this gives the rows of the one with this `rank`. A row may hold more than the `context`
    tokens that count. Each batch is read in `repeats` steps. A step of less than a row, or of rows that cannot be
    shared, is a DataError.
    """

    def __init__(
        self,
        rows: Int[Tensor, "rows width"],
        tokens_per_step: int,
        steps: int,
        seed: int,
        context: int | None = None,
        first: int = 0,
        rank: int = 0,
        world: int = 1,
        repeats: int = 1,
    ):
        self.rows, self.seed, self.first, self.steps = rows, seed, first, steps
        self.rank, self.world, self.repeats = rank, world, repeats
        context = context or rows.shape[1]
        self.size = tokens_per_step // context
        if self.size == 0:
            raise DataError(f"tokens_per_step={tokens_per_step} is less than one row of {context} tokens")
        if self.size % world:
            raise DataError(f"{self.size} rows of {context} tokens cannot be shared by {world} processes")
        self._order: tuple[int, list[int]] = (-1, [])

    def __len__(self) -> int:
        return self.steps  # also after `first`: Lightning counts batches from where the state left off

    def __getitem__(self, index: int) -> Int[Tensor, "b t"]:
        start = (self.first + index) // self.repeats * self.size
        chosen = [self._row(position) for position in range(start + self.rank, start + self.size, self.world)]
        return self.rows[chosen].long()

    def _row(self, position: int) -> int:
        epoch, place = divmod(position, len(self.rows))
        if epoch != self._order[0]:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
            self._order = (epoch, torch.randperm(len(self.rows), generator=generator).tolist())
        return self._order[1][place]


class SteppedModule(pl.LightningModule):
    """A LightningModule that reads `StepBatches`, and stops when its loss is not finite.

    Attributes:
        latest: the loss of the last step, on the device.
        last_read: the loss that was last read from the device; None before the first reading.
        seconds, steps_here: the duration and the number of the steps of this run; 0 before it has ended.
    """

    latest: Float[Tensor, ""]
    repeats: int = 1  # how many steps read the same rows
    last_read: float | None = None

    def __init__(
        self, rows: Int[Tensor, "rows width"], tokens_per_step: int, steps: int, seed: int, context: int | None = None
    ):
        super().__init__()
        self.steps = steps
        self._batches = (rows, tokens_per_step, steps, seed, context)
        self._started, self.seconds, self.steps_here = (0.0, 0), 0.0, 0
        self._unread: list[tuple[int, Float[Tensor, " p"], str]] = []  # step, losses on the device, what to do

    def on_train_epoch_start(self) -> None:
        self._started = (time.monotonic(), self.global_step)

    def on_train_end(self) -> None:
        started, first = self._started
        self.seconds, self.steps_here = time.monotonic() - started, self.global_step - first

    def train_dataloader(self) -> DataLoader:
        pinned = self.trainer.strategy.root_device.type == "cuda"  # so that they are copied while the device computes
        return DataLoader(self.batches(self.trainer.global_step), batch_size=None, pin_memory=pinned)

    def batches(self, first: int = 0) -> StepBatches:
        """Return this process's rows of each step from this one on."""
        trainer = self.trainer
        return StepBatches(*self._batches, first, trainer.global_rank, trainer.world_size, self.repeats)

    def over_processes(self, losses: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Losses, averaged over the processes that share the job; no gradient."""
        return self.trainer.strategy.reduce(losses.detach().clone(), reduce_op="mean")  # type: ignore[return-value]

    def note(self, losses: Float[Tensor, " p"], names: Sequence[str] = (), *, remedy: str) -> None:
        """Take the losses of this step; every `trainer.log_every` steps and at the last, read and log those so far.

        They stay on the device until then, so that no step waits for it. Loggers get each named loss, and `loss`, the
        mean of the named losses or of all.

        Args:
            losses: of each thing that is trained; no gradient.
            names: of the first of them, for loggers.
            remedy: what the user can do where a loss is not finite, see `check_losses`.
        """
        self._unread.append((self.global_step, losses, remedy))
        own, following = losses[: len(names)] if names else losses, self.global_step + 1
        self.latest = own.mean()
        if following % self.trainer.log_every_n_steps == 0 or following == self.steps:  # type: ignore[attr-defined]
            self.check_losses()
            read = torch.cat([own[: len(names)], self.latest[None]]).tolist()
            self.last_read = read[-1]
            for logger in self.loggers:
                logger.log_metrics(dict(zip((*names, "loss"), read, strict=True)), step=self.global_step)

    def check_losses(self) -> None:
        """Read the losses of all steps since the last reading, in one copy from the device.

        Raises:
            TrainingError: one is not finite; the message names the first such step.
        """
        unread, self._unread = self._unread, []
        totals = torch.stack([losses.sum() for _, losses, _ in unread]).tolist() if unread else []
        for (step, _, remedy), total in zip(unread, totals, strict=True):
            if not math.isfinite(total):
                raise TrainingError(f"the loss is {total} at step {step} of {self.steps}; {remedy}")

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep no state of a training that has failed unseen."""
        self.check_losses()


def scheduled(optimizer: torch.optim.Optimizer, share: Callable[[int], float]) -> dict[str, Any]:
    """Return what Lightning takes for an optimiser whose rate at each step is a share of its peak."""
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def rate(step: int, config: StitchConfig) -> float:
    """Return the learning rate at a step, as a share of the peak.

    linear: (s + 1) / (W + 1) in the W warm-up steps, 1 at step W, then down to 1 / (N - W) at the last step N - 1.
    cosine: the same warm-up, then half a cosine towards 0 at step N. average: the same warm-up, then 1. tuned_lens:
    s / W, then linear to 0 at step N - W, as in that library; step 0 and the last W steps do not train.
    """
    steps, warmup = config.steps, config.warmup
    if config.schedule == "tuned_lens":
        if step < warmup:
            return step / warmup
        return max(0.0, (steps - warmup - step) / max(steps - 2 * warmup, 1))
    if step < warmup:
        return (step + 1) / (warmup + 1)
    if config.schedule == "average":
        return 1.0
    progress = (step - warmup) / (steps - warmup)
    return (1 + math.cos(math.pi * progress)) / 2 if config.schedule == "cosine" else 1 - progress


def cosine(step: int, steps: int, warmup: int, floor: float = 0.1) -> float:
    """Rate at a step as a share of the peak: (step + 1) / warmup at first, then a half cosine down to `floor`."""
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(steps - warmup, 1)
    return floor + (1 - floor) * (1 + math.cos(math.pi * progress)) / 2


def momenta(config: StitchConfig) -> int:
    """Return how many numbers the optimiser keeps for each weight."""
    if plugins.is_plugin(config.optimizer):
        return int(plugins.load(config.optimizer).momenta)
    return 2 if config.optimizer == "adam" else int(config.momentum > 0)


def peak_rate(config: StitchConfig, width: int) -> float:
    """Return the peak rate of the optimiser for a φ that reads states of this width.

    SGD: lr, or lr (1 - momentum) as in tuned-lens. Adam: lr / √width, as it moves every entry by about its rate, and
    the entries of an isometry are of size 1 / √width. A plugin's optimiser: lr.
    """
    if plugins.is_plugin(config.optimizer):
        return config.peak
    if config.optimizer == "adam":
        return config.peak / math.sqrt(width)
    return config.peak * (1 - config.momentum) if config.scale_lr_by_momentum else config.peak
