"""Where and how a module is trained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from thinkalike.config import TrainerConfig

if TYPE_CHECKING:
    from thinkalike.loggers import Wandb

STATE = "training"  # the name of the state


@dataclass(frozen=True)
class TrainingRun:
    """Where and how a module is trained.

    Attributes:
        partial: The folder of the running job; None keeps no state and no curves.
        device: Where the module is trained.
        trainer: The settings of the trainer.
        tracker: What logs to W&B, if the job does.
        name: The name of this training, if a job has several; the first has none.
    """

    partial: Path | None
    device: torch.device
    trainer: TrainerConfig
    tracker: Wandb | None = None
    name: str = ""

    @property
    def state_folder(self) -> Path | None:
        """The folder of the checkpoints; None if the job has no folder."""
        if self.partial is None:
            return None
        return self.partial / "checkpoints"

    @property
    def state_name(self) -> str:
        """The name of this training's checkpoints, which tells it from others of the same job."""
        if self.name:
            return f"{STATE}-{self.name}"
        return STATE
