"""One run of Lightning: batches that depend on the step alone, a state to go on from, loggers always closed."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytorch_lightning as pl
import torch
from jaxtyping import Int
from pytorch_lightning.callbacks import Callback, LearningRateMonitor, ModelCheckpoint, RichProgressBar
from pytorch_lightning.loggers import CSVLogger, Logger, WandbLogger
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from thinkalike.config import LoggerConfig, TrainerConfig
from thinkalike.errors import DataError, StoreError, TrainingError

log = logging.getLogger(__name__)
for chatty in ("pytorch_lightning.utilities.rank_zero", "pytorch_lightning.trainer.connectors.signal_connector"):
    logging.getLogger(chatty).setLevel(logging.WARNING)  # devices, tips, "fit stopped"


class StepBatches(Dataset):
    """Batches of rows by step: epoch after epoch, each in an order that `seed` decides.

    The batch of a step depends on nothing but the step, so a job that goes on reads what it would have read.
    """

    def __init__(self, rows: Int[Tensor, "rows context"], tokens_per_step: int, steps: int, seed: int, first: int = 0):
        self.rows, self.seed, self.first, self.steps = rows, seed, first, steps
        self.size = tokens_per_step // rows.shape[1]
        if self.size == 0:
            raise DataError(f"tokens_per_step={tokens_per_step} is less than one row of {rows.shape[1]} tokens")
        self._order: tuple[int, Tensor] = (-1, torch.empty(0))

    def __len__(self) -> int:
        return self.steps  # also after `first`: Lightning goes on counting batches where the state left off

    def __getitem__(self, index: int) -> Int[Tensor, "b t"]:
        start = (self.first + index) * self.size
        chosen = [self._row(position) for position in range(start, start + self.size)]
        return self.rows[chosen].long()

    def _row(self, position: int) -> int:
        epoch, place = divmod(position, len(self.rows))
        if epoch != self._order[0]:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
            self._order = (epoch, torch.randperm(len(self.rows), generator=generator))
        return int(self._order[1][place])


class SteppedModule(pl.LightningModule):
    """A LightningModule that reads `StepBatches` and stops at once when its loss is no number."""

    def __init__(self, rows: Int[Tensor, "rows context"], tokens_per_step: int, steps: int, seed: int):
        super().__init__()
        self.steps = steps
        self._batches = (rows, tokens_per_step, steps, seed)

    def train_dataloader(self) -> DataLoader:
        return DataLoader(StepBatches(*self._batches, first=self.trainer.global_step), batch_size=None)

    def check_finite(self, loss: Tensor, remedy: str) -> None:
        """Raise a TrainingError that names the step, unless the loss is a number."""
        if not torch.isfinite(loss):
            raise TrainingError(f"the loss is {loss.item()} at step {self.global_step} of {self.steps}; {remedy}")


class _Progress(Callback):
    """Where there is no terminal for a progress bar: one line every tenth of the way."""

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        step, steps = trainer.global_step, trainer.max_steps
        if step % max(steps // 10, 1) == 0 or step == steps:
            log.info("step %d of %d: loss %.4f", step, steps, trainer.callback_metrics["loss"])


@dataclass(frozen=True)
class Run:
    """Where and how a module is trained, apart from what it is.

    Attributes:
        name: what loggers call it.
        partial: folder for its state, to go on from.
        device: where Lightning runs it.
        settings: the job's configuration, for loggers.
    """

    name: str
    partial: Path
    device: torch.device
    trainer: TrainerConfig
    logger: LoggerConfig
    settings: dict[str, Any]


def fit(module: SteppedModule, run: Run, loggers: Sequence[Logger] = ()) -> None:
    """Train `module` to its last step, from the state that an earlier run left if there is one.

    Args:
        loggers: what `logged` opened.

    Raises:
        StoreError: that state is damaged.
        TrainingError: the loss is not finite.
    """
    state, trainer = run.partial / "checkpoints" / "last.ckpt", run.trainer
    if state.exists():
        _check_state(state)
        log.info("going on from %s", state)
    keep = ModelCheckpoint(
        state.parent, filename="last", every_n_train_steps=trainer.checkpoint_every, enable_version_counter=False
    )
    watch: list[Callback] = [LearningRateMonitor("step")] if loggers else []
    with warnings.catch_warnings():
        for library in ("pytorch_lightning", "lightning_fabric"):
            warnings.filterwarnings("ignore", module=library)
        pl.Trainer(
            max_steps=module.steps,
            max_epochs=-1,
            accelerator="gpu" if run.device.type == "cuda" else run.device.type,
            devices=[run.device.index or 0] if run.device.type == "cuda" else 1,
            precision=trainer.precision,  # type: ignore[arg-type]
            callbacks=[keep, *watch, RichProgressBar() if sys.stdout.isatty() else _Progress()],
            logger=list(loggers) or False,
            log_every_n_steps=max(1, min(10, module.steps // 50)),
            enable_progress_bar=sys.stdout.isatty(),
            enable_model_summary=False,
            default_root_dir=run.partial,
        ).fit(module, ckpt_path=state if state.exists() else None)


def _check_state(path: Path) -> None:
    try:
        torch.load(path, map_location="cpu", weights_only=False)
    except Exception as error:  # whatever unpickling half a file raises
        raise StoreError(
            f"the state {path} is damaged ({type(error).__name__}); deleting it is safe: training starts anew"
        ) from error


def _loggers(run: Run) -> list[Logger]:
    config = run.logger
    if config.kind == "csv":
        return [CSVLogger(run.partial, name="curves", version="")]
    if config.kind == "wandb":
        import wandb

        offline = not wandb.login(prompt=False)
        if offline:
            log.info("W&B: no key is configured, so the run stays offline, in %s; wandb sync uploads it", run.partial)
        return [
            WandbLogger(
                name=run.name,
                project=config.project,
                entity=config.entity,
                group=config.group,
                save_dir=run.partial,
                mode="offline" if offline else "online",  # offline=True would set it for later jobs, too
                config=run.settings,
            )
        ]
    return []


@contextlib.contextmanager
def logged(run: Run) -> Iterator[list[Logger]]:
    """The run's loggers; a W&B run is finished whatever happens, so that a sweep's next job gets one of its own."""
    loggers = _loggers(run)
    failed = True
    try:
        yield loggers
        failed = False
    finally:
        if any(isinstance(logger, WandbLogger) for logger in loggers):
            import wandb

            wandb.finish(exit_code=int(failed))


def upload(loggers: Sequence[Logger], table: pd.DataFrame, folder: Path, name: str) -> None:
    """Give W&B the table, the figures of a result's folder as images, and its stitches as an artifact."""
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            import wandb

            images = {f"figures/{path.stem}": wandb.Image(str(path)) for path in (folder / "figures").glob("*.png")}
            logger.experiment.log({"table": wandb.Table(dataframe=table), **images})
            for path in folder.glob("*.safetensors"):
                artifact = wandb.Artifact(re.sub(r"[^\w.-]+", "-", name), type="stitch")
                artifact.add_file(str(path))
                logger.experiment.log_artifact(artifact)
