"""A Lightning module that is trained for a number of steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytorch_lightning as pl
import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.errors import TrainingError


class UnreadLosses(NamedTuple):
    """The losses of a step that are still on the device, and what to do if one is not finite."""

    step: int
    losses: Float[Tensor, " p"]
    remedy: str


class SteppedModule(pl.LightningModule):
    """A LightningModule that is trained for some steps, and stops at a loss that is not finite.

    Attributes:
        latest: The mean loss of the last step, on the device.
        last_read: The loss that was last read from the device; None before the first reading.
    """

    latest: Float[Tensor, ""]
    last_read: float | None = None

    def __init__(self, steps: int):
        """Store how many steps the training has in all."""
        super().__init__()
        self.steps = steps
        self._unread: list[UnreadLosses] = []

    def over_processes(self, losses: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Return the mean of losses over the processes that share the job, without gradients."""
        detached = losses.detach().clone()
        mean = self.trainer.strategy.reduce(detached, reduce_op="mean")
        assert isinstance(mean, Tensor)
        return mean

    def log_losses(
        self, losses: Float[Tensor, " p"], names: Sequence[str] = (), *, remedy: str
    ) -> None:
        """Collect the losses of this step; check and log them every `log_every_n_steps` steps.

        Until then they stay on the device, so that steps need not wait for it. Losses are also
        checked and logged at the last step.

        Args:
            losses: The losses of this step.
            names: Names under which the first losses are logged. Their mean is logged as "loss";
                losses after them are only checked. Without any names, only the mean of all losses
                is logged.
            remedy: The part of the error that says what to do if a loss is not finite.
        """
        self._unread.append(UnreadLosses(self.global_step, losses, remedy))
        logged = losses
        if names:
            logged = losses[: len(names)]
        self.latest = logged.mean()

        steps_done = self.global_step + 1
        log_every = self.trainer.log_every_n_steps  # type: ignore[attr-defined]
        if steps_done % log_every == 0 or steps_done == self.steps:
            self.check_losses()
            # `strict=False`: without names, there are losses but nothing to log one by one.
            self.log_dict({**dict(zip(names, logged, strict=False)), "loss": self.latest})

    def check_losses(self) -> None:
        """Check that the losses collected since the last check are finite.

        One copy from the device reads them all, with the latest mean loss, which goes to
        `last_read` for displays.

        Raises:
            TrainingError: A loss is not finite.
        """
        unread = self._unread
        self._unread = []
        if not unread:
            return
        sums = [entry.losses.sum() for entry in unread]  # a sum is not finite if one loss is not
        *totals, self.last_read = torch.stack([*sums, self.latest]).tolist()
        for entry, total in zip(unread, totals, strict=True):
            if not math.isfinite(total):
                raise TrainingError(
                    f"the loss is {total} at step {entry.step} of {self.steps}; {entry.remedy}"
                )

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check the losses before a checkpoint is written, so that none has a loss of NaN."""
        self.check_losses()
