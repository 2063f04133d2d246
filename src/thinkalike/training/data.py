"""The rows of text that each step of a training reads."""

from __future__ import annotations

import logging

import pytorch_lightning as pl
import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils.data import DataLoader

from thinkalike.errors import DataError
from thinkalike.training.recipe import whole_rows

log = logging.getLogger(__name__)

SEED_STRIDE = 1_000_003  # a prime, so that the epochs of different seeds have different orders
NO_EPOCH = -1


class StepData(pl.LightningDataModule):
    """The rows that a training reads: epoch after epoch, each in an order that `seed` decides.

    The rows of a step depend on nothing but the step, so a resumed training reads what it would
    have read. Processes that share a training share the rows of each step.

    A step reads whole rows. Where those hold fewer tokens than were asked for, a warning says how
    many are read.

    Args:
        rows: All rows of text.
        tokens_per_step: How many tokens all processes together read in a step.
        steps: How many steps the training has.
        seed: Decides the order of the rows in each epoch.
        context: How many tokens of a row count; all, unless a row holds more than tokens; see
            `PackedLayout`.
        repeats: How many steps read the same rows.
        setting: What warnings and errors call the number of tokens.

    Raises:
        DataError: A step has less than one row.
    """

    def __init__(
        self,
        rows: Int[Tensor, "rows width"],
        tokens_per_step: int,
        steps: int,
        seed: int,
        context: int | None = None,
        repeats: int = 1,
        setting: str = "tokens_per_step",
    ):
        """Compute how many rows a step has, and warn if they hold fewer tokens than asked for.

        Args:
            rows: All rows of text.
            tokens_per_step: How many tokens all processes together read in a step.
            steps: How many steps the training has.
            seed: Decides the order of the rows in each epoch.
            context: How many tokens of the target a row has; None: as many as columns.
            repeats: How many steps in a row read the same rows.
            setting: What warnings and errors call the number of tokens.

        Raises:
            DataError: `tokens_per_step` is less than one row.
        """
        super().__init__()
        self.rows = rows
        self.steps = steps
        self.seed = seed
        self.repeats = repeats
        self.context = context or rows.shape[1]
        self.rows_per_step = tokens_per_step // self.context

        if self.rows_per_step == 0:
            raise DataError(
                f"{setting}={tokens_per_step} is less than one row of {self.context} tokens"
            )
        tokens_read = whole_rows(tokens_per_step, self.context)
        if tokens_read < tokens_per_step:
            log.warning(
                f"warning: {setting}={tokens_per_step:,} is no multiple of the {self.context:,} "
                f"tokens of a row: each step reads {tokens_read:,}"
            )
        # The epoch that was read last, and the order of its rows.
        self._epoch = NO_EPOCH
        self._order: list[int] = []

    def batch(self, step: int) -> Int[Tensor, "b width"]:
        """Return the rows that this process reads in a step.

        Of several processes that share the training, each reads an equal part of the step's rows.

        Raises:
            DataError: The number of processes does not divide the rows of a step.
        """
        rank = 0
        processes = 1
        if self.trainer:
            rank = self.trainer.global_rank
            processes = self.trainer.world_size
        if self.rows_per_step % processes:
            raise DataError(
                f"{self.rows_per_step} rows of {self.context} tokens cannot be shared by "
                f"{processes} processes"
            )
        # Positions count the rows read since the training began, over all epochs.
        start = step // self.repeats * self.rows_per_step  # `repeats` steps read the same rows
        positions = range(start + rank, start + self.rows_per_step, processes)
        row_indices = [self._row_index(position) for position in positions]
        return self.rows[row_indices].long()

    def _row_index(self, position: int) -> int:
        """Return the index of the row that is read as number `position`, counted over all epochs.

        Each epoch has its own random order, of which only the latest stays in memory.
        """
        epoch, position_in_epoch = divmod(position, len(self.rows))
        if epoch != self._epoch:
            # The stride keeps the epochs of one seed apart from those of another.
            generator = torch.Generator().manual_seed(self.seed * SEED_STRIDE + epoch)
            self._order = torch.randperm(len(self.rows), generator=generator).tolist()
            self._epoch = epoch
        return self._order[position_in_epoch]

    def train_dataloader(self) -> DataLoader[int]:
        """Return a loader that yields the rows of each step, from the first step of this run on.

        It offers `steps` further steps also in a resumed run; Lightning stops at the last step of
        the training.
        """
        assert self.trainer
        first_step = self.trainer.global_step
        steps = range(first_step, first_step + self.steps)
        # Rows in pinned memory are copied to a GPU while it computes.
        on_gpu = self.trainer.strategy.root_device.type == "cuda"
        return DataLoader(
            steps,  # type: ignore[arg-type]
            batch_size=None,  # so that `batch` is called with each step
            collate_fn=self.batch,  # type: ignore[arg-type]
            pin_memory=on_gpu,
        )
