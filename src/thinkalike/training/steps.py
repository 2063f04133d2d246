"""Training by steps: batches that depend on the step alone, and a module that stops where its loss is no number."""

from __future__ import annotations

import pytorch_lightning as pl
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from thinkalike.errors import DataError, TrainingError


class StepBatches(Dataset):
    """Batches of rows by step: epoch after epoch, each in an order that `seed` decides.

    The batch of a step depends on nothing but the step, so a job that goes on reads what it would have read. Where
    `world` processes share a job, this gives the rows of the one with this `rank`. A row may hold more than the
    `context` tokens that count.
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
    ):
        self.rows, self.seed, self.first, self.steps, self.rank, self.world = rows, seed, first, steps, rank, world
        context = context or rows.shape[1]
        self.size = tokens_per_step // context
        if self.size == 0:
            raise DataError(f"tokens_per_step={tokens_per_step} is less than one row of {context} tokens")
        if self.size % world:
            raise DataError(f"{self.size} rows of {context} tokens cannot be shared by {world} processes")
        self._order: tuple[int, Tensor] = (-1, torch.empty(0))

    def __len__(self) -> int:
        return self.steps  # also after `first`: Lightning goes on counting batches where the state left off

    def __getitem__(self, index: int) -> Int[Tensor, "b t"]:
        start = (self.first + index) * self.size
        chosen = [self._row(position) for position in range(start + self.rank, start + self.size, self.world)]
        return self.rows[chosen].long()

    def _row(self, position: int) -> int:
        epoch, place = divmod(position, len(self.rows))
        if epoch != self._order[0]:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
            self._order = (epoch, torch.randperm(len(self.rows), generator=generator))
        return int(self._order[1][place])


class SteppedModule(pl.LightningModule):
    """A LightningModule that reads `StepBatches` and stops at once when its loss is no number."""

    def __init__(
        self, rows: Int[Tensor, "rows width"], tokens_per_step: int, steps: int, seed: int, context: int | None = None
    ):
        super().__init__()
        self.steps = steps
        self._batches = (rows, tokens_per_step, steps, seed, context)

    def train_dataloader(self) -> DataLoader:
        trainer = self.trainer
        batches = StepBatches(*self._batches, trainer.global_step, trainer.global_rank, trainer.world_size)
        return DataLoader(batches, batch_size=None)

    def first_batch(self) -> Int[Tensor, "b t"]:
        """Return this process's rows of step 0, on its device."""
        trainer = self.trainer
        return StepBatches(*self._batches, 0, trainer.global_rank, trainer.world_size)[0].to(self.device)

    def over_processes(self, losses: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Losses, averaged over the processes that share the job; no gradient."""
        return self.trainer.strategy.reduce(losses.detach().clone(), reduce_op="mean")  # type: ignore[return-value]

    def check_finite(self, loss: Tensor, remedy: str) -> None:
        """Raise a TrainingError that names the step, unless the loss is a number."""
        if not torch.isfinite(loss):
            raise TrainingError(f"the loss is {loss.item()} at step {self.global_step} of {self.steps}; {remedy}")
