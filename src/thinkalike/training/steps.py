"""Training by steps: rows whose batch depends on the step alone, a module that stops at NaN, and steps in microbatches.

Microbatches of another size sum the same gradients in another order, so they change a training by rounding alone. Their
size is kept with the state of a training, so that a resumed one gives the bits of one that was never stopped.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytorch_lightning as pl
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.data import DataLoader, Dataset

from thinkalike.config import TrainerConfig
from thinkalike.errors import DataError, ResourceError, TrainingError
from thinkalike.memory import GAPS, Budget, LiveBytes, OverLimit, hand_back, readable

log = logging.getLogger(__name__)

Losses = Callable[[Tensor, Sequence[int]], list[Tensor]]  # of each token, given rows and the numbers of stitches
Weights = Sequence[Sequence[nn.Parameter]]  # of each stitch


class StepBatches(Dataset):
    """Batches of rows by step: epoch after epoch, each in an order that `seed` decides.

    The batch of a step depends on nothing but the step, so a resumed job reads what it would have read. Where `world`
    processes share a job, this gives the rows of the one with this `rank`. A row may hold more than the `context`
    tokens that count. Each batch is read in `repeats` steps.

    Raises:
        DataError: a step has less than one row, or rows that the processes cannot share.
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


class StepData(pl.LightningDataModule):
    """The rows that a training reads, as `StepBatches`, from the step at which the trainer stands.

    Args:
        rows: tokens, (rows, width).
        tokens_per_step: tokens of all processes in one step.
        steps: of the whole training.
        seed: decides the order of the rows in each epoch.
        context: how many tokens of a row count, all unless a row holds more than tokens; see `Layout`.
        repeats: how many steps read the same rows.
    """

    def __init__(
        self,
        rows: Int[Tensor, "rows width"],
        tokens_per_step: int,
        steps: int,
        seed: int,
        context: int | None = None,
        repeats: int = 1,
    ):
        super().__init__()
        self.rows, self.tokens_per_step, self.steps, self.seed = rows, tokens_per_step, steps, seed
        self.context, self.repeats = context, repeats

    def batches(self, first: int = 0) -> StepBatches:
        """Return this process's rows of each step from this one on."""
        rank, world = (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)
        given = self.rows, self.tokens_per_step, self.steps, self.seed, self.context
        return StepBatches(*given, first, rank, world, self.repeats)

    def train_dataloader(self) -> DataLoader:
        assert self.trainer
        pinned = self.trainer.strategy.root_device.type == "cuda"  # so that they are copied while the device computes
        return DataLoader(self.batches(self.trainer.global_step), batch_size=None, pin_memory=pinned)


class SteppedModule(pl.LightningModule):
    """A LightningModule that is trained for a number of steps, and stops when its loss is not finite.

    Attributes:
        steps: of the whole training.
        latest: the loss of the last step, on the device.
        last_read: the loss that was last read from the device; None before the first reading.
        seconds, steps_here: the duration and the number of the steps of this run; 0 before it has ended.
    """

    latest: Float[Tensor, ""]
    last_read: float | None = None

    def __init__(self, steps: int):
        super().__init__()
        self.steps = steps
        self._started, self.seconds, self.steps_here = (0.0, 0), 0.0, 0
        self._unread: list[tuple[int, Float[Tensor, " p"], str]] = []  # step, losses on the device, what to do

    def on_train_epoch_start(self) -> None:
        self._started = (time.monotonic(), self.global_step)

    def on_train_end(self) -> None:
        started, first = self._started
        self.seconds, self.steps_here = time.monotonic() - started, self.global_step - first

    def over_processes(self, losses: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Losses, averaged over the processes that share the job; no gradient."""
        return self.trainer.strategy.reduce(losses.detach().clone(), reduce_op="mean")  # type: ignore[return-value]

    def log_losses(self, losses: Float[Tensor, " p"], names: Sequence[str] = (), *, remedy: str) -> None:
        """Take the losses of this step; every `log_every_n_steps` steps and at the last, check and log them.

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
            self.log_dict({**dict(zip(names, own, strict=False)), "loss": self.latest})

    def check_losses(self) -> None:
        """Read the losses of all steps since the last reading, and `latest`, in one copy from the device.

        Raises:
            TrainingError: one is not finite; the message names the first such step.
        """
        unread, self._unread = self._unread, []
        if not unread:
            return
        *totals, self.last_read = torch.stack([*(losses.sum() for _, losses, _ in unread), self.latest]).tolist()
        for (step, _, remedy), total in zip(unread, totals, strict=True):
            if not math.isfinite(total):
                raise TrainingError(f"the loss is {total} at step {step} of {self.steps}; {remedy}")

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep no state of a training that has failed unseen."""
        self.check_losses()


class Microbatch(NamedTuple):
    """The most rows and the most stitches that are in memory at once."""

    rows: int
    stitches: int


def _gradients(
    losses: Losses, weights: Weights, rows: Tensor, chosen: Sequence[int]
) -> tuple[Float[Tensor, " p"], int, tuple[Tensor, ...]]:
    """Return the summed losses of some stitches, over how many values, and the gradients of these sums."""
    with torch.enable_grad():
        values = losses(rows, chosen)
        total = torch.stack([each.sum() for each in values])
    with torch.autocast(total.device.type, enabled=False):  # as in any backward pass
        flat = [weight for i in chosen for weight in weights[i]]
        return total.detach(), len(values[0]), torch.autograd.grad(total, flat, torch.ones_like(total))


class _Accumulated(torch.autograd.Function):
    """Losses that take their gradient in the forward pass; the backward pass multiplies it by the one that comes in.

    So whatever drives the training (autocast, several processes, clipping) sees one forward and one backward pass.
    """

    @staticmethod
    def forward(ctx: Any, losses: Losses, weights: Weights, rows: Tensor, size: Microbatch, *flat: Tensor) -> Tensor:
        sums, count = torch.zeros(len(weights), device=rows.device), 0  # each stitch has as many values as any other
        gradients = [[torch.zeros_like(weight) for weight in own] for own in weights]
        for some in rows.split(size.rows):
            for start in range(0, len(weights), size.stitches):
                chosen = range(len(weights))[start : start + size.stitches]
                total, values, added = _gradients(losses, weights, some, chosen)
                for sum_, gradient in zip([g for i in chosen for g in gradients[i]], added, strict=True):
                    sum_ += gradient
                sums[chosen.start : chosen.stop] += total
                count += values if not start else 0
        ctx.gradients, ctx.count = gradients, count
        return sums / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Any) -> Any:
        gradients, ctx.gradients = ctx.gradients, None  # to be taken over by the parameters, not copied
        for own, factor in zip(gradients, outer[0] / ctx.count, strict=True):
            for gradient in own:
                gradient.mul_(factor)
        return (None, None, None, None, *(gradient for own in gradients for gradient in own))


def mean_losses(losses: Losses, weights: Weights, rows: Tensor, size: Microbatch) -> Float[Tensor, " p"]:
    """Return the mean loss of every stitch on a step's rows, differentiable once in the parameters of each stitch."""
    if len(rows) <= size.rows and len(weights) <= size.stitches:
        return torch.stack([values.mean() for values in losses(rows, range(len(weights)))])
    flat = [weight for own in weights for weight in own]
    return _Accumulated.apply(losses, weights, rows, size, *flat)  # type: ignore[no-any-return]


def _fits(losses: Losses, weights: Weights, rows: Tensor, chosen: Sequence[int], room: float) -> bool:
    try:
        with LiveBytes(rows.device, room):
            _gradients(losses, weights, rows, chosen)
    except (OverLimit, torch.OutOfMemoryError):
        return False
    return True


def largest_microbatch(
    limits: TrainerConfig,
    losses: Losses,
    weights: Weights,
    rows: Tensor,
    tails: Sequence[int],
    momenta: int,
) -> Microbatch:
    """Return the largest microbatch of a step that fits into memory: fewer rows first, then of one row fewer stitches.

    Each size is tried once, forward and backward, and nothing is left of it.

    Args:
        rows: those of a step, on the device that counts.
        tails: the blocks that run after each stitch; those with the longest tails are tried.
        momenta: how many numbers the optimiser keeps of each weight.

    Raises:
        ResourceError: one row and one stitch do not fit.
    """
    shared = limits.strategy == "ddp"
    hand_back(rows.device)
    processes = limits.devices or 1 if shared and rows.device.type == "cpu" else 1
    budget = Budget.of(rows.device, limits.memory, processes)
    copies = 1 + momenta + int(shared)  # gradients, and those that processes exchange
    room = budget.room - copies * sum(weight.nbytes for own in weights for weight in own) / GAPS
    longest = sorted(range(len(weights)), key=lambda number: -tails[number])
    size = whole = Microbatch(len(rows), len(weights))
    while room <= 0 or not _fits(losses, weights, rows[: size.rows], longest[: size.stitches], room):
        if room <= 0 or size == (1, 1):
            raise ResourceError(
                f"one row of text and {len(weights)} stitches do not fit into memory: {budget.limit}; set "
                "trainer.recompute=true, lower data.context, choose fewer or later layers, or stitch=low_rank"
            )
        size = Microbatch((size.rows + 1) // 2, size.stitches if size.rows > 1 else (size.stitches + 1) // 2)
        hand_back(rows.device)
    if size != whole:
        sizes = f"{size.rows} of {whole.rows} rows and {size.stitches} of {whole.stitches} stitches"
        log.info(f"memory: each step runs in microbatches of {sizes}, to fit into {readable(budget.total)}")
    return size
