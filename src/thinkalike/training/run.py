"""One run of Lightning: the rows of each step, a module that stops at NaN, and states that a run resumes from."""

from __future__ import annotations

import contextlib
import io
import logging
import math
import os
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytorch_lightning as pl
import torch
from jaxtyping import Float, Int
from pytorch_lightning.callbacks import Callback, Checkpoint, LearningRateMonitor
from pytorch_lightning.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger
from pytorch_lightning.plugins import CheckpointIO
from pytorch_lightning.strategies import DDPStrategy
from torch import Tensor
from torch.utils.data import DataLoader

from thinkalike import plugins
from thinkalike.config import TrainerConfig
from thinkalike.errors import (
    DataError,
    ShareDone,
    StoreError,
    ThinkalikeError,
    TrainingError,
    check_extra,
    listed,
    one_line,
)
from thinkalike.files import read_bytes
from thinkalike.memory import exhausted
from thinkalike.processes import Activity, asked, at_boundaries, check_processes, doing, rank, stop, take_back
from thinkalike.store import newest_state, read_state, write_state
from thinkalike.training.recipe import whole_rows

log = logging.getLogger(__name__)
STATE = "training"  # the name of the state
FOLDER, WRITTEN, EARLIER = "curves", "metrics.csv", "earlier.csv"
MOST_OF_CURVES = 2**28  # bytes; a training logs some fifty rows, and those of layer pairs have a column for each
MOST_COLUMNS = 10_000  # of these curves
ROUNDED = 1e-9  # share of a rate by which two versions of torch may differ
LARGE, PAUSE = 100e6, 180.0  # a state of more bytes is written after this many seconds at the soonest
ANNOUNCING = [logging.getLogger(library) for library in ("pytorch_lightning", "lightning_fabric")]


class StepData(pl.LightningDataModule):
    """The rows that a training reads: epoch after epoch, each in an order that `seed` decides.

    The rows of a step depend on nothing but the step, so a resumed training reads what it would have read. Processes
    that share a training share the rows of each step.

    A step reads whole rows. Where those hold fewer tokens than were asked for, a warning says how many are read.

    Args:
        tokens_per_step: of all processes.
        context: how many tokens of a row count, all unless a row holds more than tokens; see `PackedLayout`.
        repeats: how many steps read the same rows.
        setting: what warnings and errors call the number of tokens.

    Raises:
        DataError: a step has less than one row.
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
        super().__init__()
        self.rows, self.steps, self.seed, self.repeats = rows, steps, seed, repeats
        self.context = context or rows.shape[1]
        self.size = tokens_per_step // self.context
        if self.size == 0:
            raise DataError(f"{setting}={tokens_per_step} is less than one row of {self.context} tokens")
        tokens_read = whole_rows(tokens_per_step, self.context)
        if tokens_read < tokens_per_step:
            log.warning(
                f"warning: {setting}={tokens_per_step:,} is no multiple of the {self.context:,} tokens of a row: "
                f"each step reads {tokens_read:,}"
            )
        self._order: tuple[int, list[int]] = (-1, [])

    def batch(self, step: int) -> Int[Tensor, "b width"]:
        """Return the rows that this process reads in a step; a DataError if processes cannot share them."""
        rank, world = (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)
        if self.size % world:
            raise DataError(f"{self.size} rows of {self.context} tokens cannot be shared by {world} processes")
        start = step // self.repeats * self.size
        return self.rows[[self._row(place) for place in range(start + rank, start + self.size, world)]].long()

    def _row(self, position: int) -> int:
        epoch, place = divmod(position, len(self.rows))
        if epoch != self._order[0]:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
            self._order = (epoch, torch.randperm(len(self.rows), generator=generator).tolist())
        return self._order[1][place]

    def train_dataloader(self) -> DataLoader:
        assert self.trainer
        first = self.trainer.global_step
        steps: Any = range(first, first + self.steps)  # no fewer: Lightning counts from where the state left off
        read: Any = self.batch
        pinned = self.trainer.strategy.root_device.type == "cuda"  # so that they are copied while the device computes
        return DataLoader(steps, batch_size=None, collate_fn=read, pin_memory=pinned)


def _callback(name: str) -> Callback:
    """Return the callback that the class or function FILE.py:NAME of a user makes."""
    function: Any = plugins.load(name)
    with plugins.blaming(f"callback {name}"):
        return function()  # type: ignore[no-any-return]


class SteppedModule(pl.LightningModule):
    """A LightningModule that is trained for a number of steps, and stops when its loss is not finite."""

    latest: Float[Tensor, ""]  # the loss of the last step, on the device
    last_read: float | None = None  # the loss that was last read from the device

    def __init__(self, steps: int):
        super().__init__()
        self.steps = steps
        self._unread: list[tuple[int, Float[Tensor, " p"], str]] = []  # step, losses on the device, what to do

    def over_processes(self, losses: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Losses, averaged over the processes that share the job; no gradient."""
        return self.trainer.strategy.reduce(losses.detach().clone(), reduce_op="mean")  # type: ignore[return-value]

    def log_losses(self, losses: Float[Tensor, " p"], names: Sequence[str] = (), *, remedy: str) -> None:
        """Take the losses of this step; every `log_every_n_steps` steps and at the last, check and log them.

        They stay on the device until then, so that no step waits for it. Loggers get each loss that has a name, and
        `loss`, the mean of these or of all. `remedy` says what the user can do where a loss is not finite.
        """
        self._unread.append((self.global_step, losses, remedy))
        own, following = losses[: len(names)] if names else losses, self.global_step + 1
        self.latest = own.mean()
        if following % self.trainer.log_every_n_steps == 0 or following == self.steps:  # type: ignore[attr-defined]
            self.check_losses()
            self.log_dict({**dict(zip(names, own, strict=False)), "loss": self.latest})

    def check_losses(self) -> None:
        """Read the losses of all steps since the last reading in one copy; a TrainingError names one not finite."""
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


class _StateFiles(CheckpointIO):
    """Lets Lightning keep its states as all jobs do: with a digest, renamed into place, and without code."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        write_state(Path(path).parent, Path(path).name, checkpoint)

    def __init__(self) -> None:
        self.loaded: dict[str, Any] = {}  # what Lightning is resuming from

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        self.loaded = read_state(Path(path))
        return self.loaded

    def remove_checkpoint(self, path: Any) -> None:
        """Nothing: a state is removed when the next one is whole."""


@dataclass(frozen=True)
class _Kept:
    """What a state says of the training that kept it."""

    path: Path
    step: int  # the steps that were done
    has_settings: bool  # whether its rates are those of the settings, as no callback of the user may change them

    @classmethod
    def read(cls, path: Path, steps: int, *, has_settings: bool) -> _Kept:
        """Return what a state of a training of so many steps says; a StoreError if it does not say it."""
        step = read_state(path).get("global_step")
        if type(step) is not int or not 0 < step <= steps:
            raise _no_state(path, f"its global_step is {str(step)[:40]}, and should be a number from 1 to {steps}")
        return cls(path, step, has_settings)

    def check(self, state: dict[str, Any], trainer: pl.Trainer) -> None:
        """Check a state before Lightning takes it up: it must be one that this very training would have written.

        Its entries have the names, types, shapes and dtypes of this training's, and weights and momenta are finite.
        Optimizers and schedules have the values that they have after these steps, so that no setting is other than the
        job's. Finite weights and momenta, zeros among them, cannot be told from those that this training would have.
        """
        assert trainer.lightning_module
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says that a schedule moved before its optimizer
            schedulers = [_after_steps(entry.scheduler, self.step) for entry in trainer.lr_scheduler_configs]
        optimizers = [optimizer.state_dict()["param_groups"] for optimizer in trainer.optimizers]
        kept = state.get("optimizer_states")
        kept_optimizers = kept if isinstance(kept, list) else []
        groups = [entry.get("param_groups") if isinstance(entry, dict) else entry for entry in kept_optimizers]
        loops = state.get("loops")
        fit_loop = loops.get("fit_loop") if isinstance(loops, dict) else None
        reasons = (
            _difference(state.get("state_dict"), trainer.lightning_module.state_dict(), "state_dict"),
            _weight_not_finite(state.get("state_dict"), trainer.lightning_module),
            _difference(groups, optimizers, "param_groups", with_values=self.has_settings),
            _difference(state.get("lr_schedulers"), schedulers, "lr_schedulers", with_values=self.has_settings),
            _difference(fit_loop, trainer.fit_loop.state_dict(), "fit_loop"),
            _count_beyond(fit_loop, self.step),
            *(
                _odd_momenta(entry.get("state"), optimizer, self.step)
                for entry, optimizer in zip(kept_optimizers, trainer.optimizers, strict=False)
                if isinstance(entry, dict)
            ),
        )
        for reason in reasons:
            if reason:
                raise _no_state(self.path, reason)


def _after_steps(scheduler: Any, steps: int) -> dict[str, Any]:
    """Move a schedule to where it is after so many steps, and with it the rates of its optimizer; return its state."""
    for _ in range(steps):
        scheduler.step()
    return scheduler.state_dict()  # type: ignore[no-any-return]


def _difference(found: Any, expected: Any, name: str, *, with_values: bool = False) -> str:
    """Return in what a value differs from an expected one: in names, types, shapes or dtypes, or also in values."""
    if isinstance(expected, dict):
        if not isinstance(found, dict):
            return f"{name} is {type(found).__name__}, and should have {len(expected)} entries"
        if found.keys() != expected.keys():
            odd = sorted(map(str, found.keys() ^ expected.keys()))
            return f"{name} has other entries than this training: {listed(odd)}"
        inside = ((f"{name}.{key}", found[key], expected[key]) for key in expected)
    elif isinstance(expected, list):
        if not isinstance(found, list) or len(found) != len(expected):
            count = len(found) if isinstance(found, list) else "none"
            return f"{name} should have {len(expected)} entries, and has {count}"
        inside = ((f"{name}[{place}]", found[place], expected[place]) for place in range(len(expected)))
    elif isinstance(expected, Tensor):
        wanted = (tuple(expected.shape), expected.dtype)
        if not isinstance(found, Tensor):
            return f"{name} is {type(found).__name__}, and should be a tensor"
        shape = (tuple(found.shape), found.dtype)
        return "" if shape == wanted else f"{name} has shape and dtype {shape}, and should have {wanted}"
    else:
        if type(found) is not type(expected):
            return f"{name} is {str(found)[:40]}, of another type than {str(expected)[:40]}"
        is_equal = not with_values or found == expected
        if isinstance(expected, float) and with_values:
            is_equal = math.isclose(found, expected, rel_tol=ROUNDED)
        return "" if is_equal else f"{name} is {str(found)[:40]}, and {str(expected)[:40]} in this training"
    reasons = (_difference(entry, wanted, path, with_values=with_values) for path, entry, wanted in inside)
    return next((reason for reason in reasons if reason), "")


def _weight_not_finite(weights: Any, module: pl.LightningModule) -> str:
    """Return which weight is not finite; buffers, such as curves, have NaN for steps that are yet to come."""
    for name, _ in module.named_parameters():
        weight = weights.get(name) if isinstance(weights, dict) else None
        if isinstance(weight, Tensor) and not weight.isfinite().all():
            return f"state_dict.{name} has values that are not finite"
    return ""


def _count_beyond(progress: Any, step: int, name: str = "fit_loop") -> str:
    """Return which count of the loops is none of a training that has done so many steps."""
    if isinstance(progress, dict):
        reasons = (_count_beyond(entry, step, f"{name}.{key}") for key, entry in progress.items())
        return next((reason for reason in reasons if reason), "")
    is_count = type(progress) is int and not 0 <= progress <= max(step, 1)
    return f"{name} is {progress}, and should be a number from 0 to {step}" if is_count else ""


def _odd_momenta(state: Any, optimizer: torch.optim.Optimizer, steps: int) -> str:
    """Return which state of a weight is none that this optimizer would have after so many steps.

    Each is finite and has the shape and dtype of its weight. Adam's `step` is a count, and so a single number.
    """
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    if not isinstance(state, dict):
        return f"the state of an optimizer is {type(state).__name__}"
    for number, entries in state.items():
        if type(number) is not int or not 0 <= number < len(weights) or not isinstance(entries, dict):
            return f"the state of an optimizer has the entry {str(number)[:40]}, and there are {len(weights)} weights"
        weight = weights[number]
        for name, value in entries.items():
            subject = f"{str(name)[:40]} of weight {number}"
            if name == "step":
                is_count = isinstance(value, Tensor) and value.shape == torch.Size() and value.is_floating_point()
                if not is_count or not 0 < float(value) <= steps:
                    return f"{subject} is {str(value)[:40]}, and should be a number from 1 to {steps}"
                continue
            if not isinstance(value, Tensor) or value.shape != weight.shape:
                shape = tuple(value.shape) if isinstance(value, Tensor) else str(value)[:40]
                return f"{subject} is {shape}, and should have shape {tuple(weight.shape)}"
            if value.dtype != weight.dtype:
                return f"{subject} has dtype {value.dtype}, and should have {weight.dtype}"
            if not value.isfinite().all():
                return f"{subject} has values that are not finite"
    return ""


def _no_state(path: Path, reason: str) -> StoreError:
    return StoreError(f"{path} is no state of this training ({reason}); remove it")


class _States(Checkpoint):
    """Keeps a state every so many steps, and at the end of the step in which a signal came; reports the steps done.

    A state of gigabytes is kept at the first of these steps that comes minutes after the last state. Lightning's
    `ModelCheckpoint` knows neither, and a kill can leave its files half written; what a state holds is Lightning's own.
    """

    def __init__(
        self,
        folder: Path | None,
        name: str,
        every: int,
        activity: Activity,
        files: _StateFiles,
        kept: _Kept | None = None,
    ):
        self.folder, self.name, self.every, self.activity = folder, name, every, activity
        self.files = files
        self.kept = kept  # the state of an earlier run
        self.momenta: list[list[str]] = []  # that this state has
        self._kept = time.monotonic()  # when the last state was
        self.begun = False  # whether that state, if there is one, was taken up without an error

    def on_fit_start(self, trainer: pl.Trainer, *_: Any) -> None:
        if self.kept:
            self.kept.check(self.files.loaded, trainer)
        self.files.loaded = {}

    def on_train_start(self, trainer: pl.Trainer, *_: Any) -> None:
        take_back()  # Lightning's own handler ends a job with status 0 and without a state
        self._kept = time.monotonic()
        if self.kept and trainer.global_step != self.kept.step:
            done = f"its loops have done {trainer.global_step} steps, and its global_step is {self.kept.step}"
            raise _no_state(self.kept.path, done)
        self.momenta = _momenta(trainer)
        self.begun = True
        self.activity.begin(trainer.global_step)

    def on_train_batch_end(self, trainer: pl.Trainer, module: SteppedModule, *_: Any) -> None:  # type: ignore[override]
        step, steps = trainer.global_step, trainer.max_steps
        if self.kept and step == self.kept.step + 1 and _momenta(trainer) != self.momenta:
            raise _no_state(self.kept.path, "it lacks the momenta of some weights")
        self.activity.reach(step)
        self.activity.note = "" if module.last_read is None else f"loss {module.last_read:.4f}"
        stopping = trainer.strategy.reduce_boolean_decision(asked(), all=False)
        if stopping or (step % self.every == 0 and self._due(trainer, module)):
            for logger in trainer.loggers:
                logger.save()  # so that curves have no gap before the state
            if self.folder is not None:
                trainer.save_checkpoint(self.folder / self.name)
            self._kept = time.monotonic()
        if stopping:
            stop(f"at step {step} of {steps}")

    def _due(self, trainer: pl.Trainer, module: pl.LightningModule) -> bool:
        """Return whether a state is small, or the last one is old; all processes agree."""
        weights = sum(weight.nbytes for weight in module.state_dict().values())
        momenta = (value for each in trainer.optimizers for held in each.state.values() for value in held.values())
        size = weights + sum(value.nbytes for value in momenta if isinstance(value, torch.Tensor))
        old = time.monotonic() - self._kept >= PAUSE
        return size < LARGE or trainer.strategy.reduce_boolean_decision(old, all=False)


def _momenta(trainer: pl.Trainer) -> list[list[str]]:
    """Return the names of the states that each weight has in an optimizer."""
    weights = [
        (optimizer, weight)
        for optimizer in trainer.optimizers
        for group in optimizer.param_groups
        for weight in group["params"]
    ]
    return [sorted(optimizer.state.get(weight, {})) for optimizer, weight in weights]


@dataclass(frozen=True)
class Run:
    """Where and how a module is trained, apart from what it is."""

    partial: Path | None  # the folder of its state; None: no state and no curve is kept
    device: torch.device
    trainer: TrainerConfig
    tracker: Any = None  # of `thinkalike.loggers`, if there is one, which gets the curves
    part: str = ""  # the name of one of several trainings of a job; the first has none


def fit(
    module: SteppedModule, data: StepData, run: Run, loggers: Sequence[Logger] = (), callbacks: Sequence[Callback] = ()
) -> None:
    """Train a module on rows to its last step, from the state of an earlier run if there is one; see `loggers_of`.

    Raises:
        ShareDone: this is not the first of the processes that share the job, and its share is done.
        TrainingError: the loss is not finite.
        StoreError: the state or the curves of an earlier run are not those of this training.
        Interrupted: a signal came; a state is kept.
    """
    trainer = run.trainer
    folder = None if run.partial is None else run.partial / "checkpoints"
    curves = None if run.partial is None or not loggers else run.partial / FOLDER
    name = f"{STATE}-{run.part}" if run.part else STATE
    state = newest_state(folder, name) if folder else None
    if state:
        log.info("resuming from %s", state)
    kept = _Kept.read(state, module.steps, has_settings=not trainer.callbacks) if state else None
    if curves:
        _ = _curves_in(curves)  # now, and not when they are joined after hours
    if kept and curves:
        _join_curves(curves, EARLIER, before=float(kept.step))
    watch: list[Callback] = [LearningRateMonitor("step")] if loggers else []
    steps, undone = doing("training step", module.steps), contextlib.ExitStack()
    with warnings.catch_warnings(), at_boundaries(), undone, steps as activity:
        warnings.filterwarnings("ignore", module="pytorch_lightning|lightning_fabric")
        undone.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        torch.set_float32_matmul_precision(trainer.matmul)
        for library in ANNOUNCING:
            undone.callback(library.setLevel, library.level)
            library.setLevel(logging.WARNING)
        files = _StateFiles()
        states = _States(folder, name, trainer.checkpoint_every, activity, files, kept)
        trained = pl.Trainer(
            max_steps=module.steps,
            max_epochs=-1,
            accelerator="gpu" if run.device.type == "cuda" else run.device.type,
            **_processes(run),  # type: ignore[arg-type]
            precision=trainer.precision,  # type: ignore[arg-type]
            callbacks=[*callbacks, *map(_callback, trainer.callbacks), states, *watch],
            plugins=[files],
            logger=list(loggers) or False,
            log_every_n_steps=max(1, min(trainer.log_every, module.steps // 50)),
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=run.partial,
        )
        try:
            trained.fit(module, data, ckpt_path=state, weights_only=True)
        except (ThinkalikeError, OSError, MemoryError):
            raise
        except Exception as error:
            if state is None or states.begun or exhausted(error):
                raise
            raise _no_state(state, f"{type(error).__name__}: {one_line(error)}") from error
    if rank(run):
        raise ShareDone
    if curves and (curves / EARLIER).exists():
        _join_curves(curves, WRITTEN)


def _processes(run: Run) -> dict[str, Any]:
    trainer, on_gpu = run.trainer, run.device.type == "cuda"
    if trainer.strategy != "ddp":
        return {"devices": [run.device.index or 0] if on_gpu else 1}
    check_processes(trainer, run.device.type)
    return {
        "devices": trainer.devices or -1,
        "num_nodes": trainer.num_nodes,
        "strategy": DDPStrategy(broadcast_buffers=False),
        "use_distributed_sampler": False,  # StepData shares the rows
    }


def loggers_of(run: Run, kind: str) -> list[Logger]:
    """Return Lightning's loggers of the curves of a run, by `logger.kind`; the job's tracker closes what it opened."""
    tracker = run.tracker
    if rank(run):
        return []
    if run.partial is None and kind != "wandb":
        return []
    if kind == "wandb":
        tracker.run.define_metric("trainer/global_step")  # curves are over the steps, as in Lightning's own runs
        tracker.run.define_metric("*", step_metric="trainer/global_step", step_sync=True)
        return [WandbLogger(experiment=tracker.run)]
    if kind == "tensorboard":
        check_extra("tensorboard", ["tensorboard"], "logger=tensorboard")
    written = {"csv": CSVLogger, "tensorboard": TensorBoardLogger}
    return [written[kind](run.partial, name=FOLDER, version="")] if kind in written else []


def _join_curves(folder: Path, joined: str, before: float = float("inf")) -> None:
    """Join the curves that were set aside and those written since, up to a step, in one file, and remove the other.

    Lightning's logger begins its file, WRITTEN, anew in each run; what was there before is set aside until the end.
    """
    if parts := _curves_in(folder):
        rows = pd.concat(parts)
        rows[rows["step"].astype(float) < before].drop_duplicates().to_csv(folder / "joined", index=False)
        os.replace(folder / "joined", folder / joined)
    (folder / (WRITTEN if joined == EARLIER else EARLIER)).unlink(missing_ok=True)


def _curves_in(folder: Path) -> list[pd.DataFrame]:
    """Return the curves of earlier runs and of this one, those that there are.

    Raises:
        StoreError: a file is no table of numbers by step; it may come from anywhere.
    """
    curves = []
    for path in (folder / EARLIER, folder / WRITTEN):
        if not os.path.lexists(path):
            continue
        try:
            content = read_bytes(path, MOST_OF_CURVES, follow=False)
            if not content:
                continue
            columns = content.partition(b"\n")[0].count(b",") + 1
            if columns > MOST_COLUMNS:
                raise ValueError(f"it has {columns:,} columns, and at most {MOST_COLUMNS:,} are read")
            # as text: a column that is empty in one of the files would turn its whole numbers into fractions
            rows = pd.read_csv(io.BytesIO(content), dtype=str)
            # pandas takes the first cells of rows that are longer than the header for their names
            if rows["step"].astype(float).isna().any() or not isinstance(rows.index, pd.RangeIndex):
                raise ValueError("its rows are of different lengths")
        except OSError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {one_line(error)}"
            raise StoreError(f"{path} holds no curves of a training ({reason}); remove it") from error
        curves.append(rows)
    return curves
