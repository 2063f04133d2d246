"""One run of Lightning, which trains a module to its last step."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from typing import TypedDict

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback, LearningRateMonitor
from pytorch_lightning.loggers import Logger
from pytorch_lightning.strategies import DDPStrategy

from thinkalike import plugins
from thinkalike.errors import ShareDone, ThinkalikeError, reason_in_words
from thinkalike.global_state import matmul_precision
from thinkalike.memory import out_of_memory_error
from thinkalike.processes import Activity, at_boundaries, check_processes, doing, rank
from thinkalike.store import newest_state
from thinkalike.training.checkpoints import KeepStates, KeptState, StateFiles, invalid_state
from thinkalike.training.curves import FOLDER, join_all, move_to_earlier, read_curves
from thinkalike.training.data import StepData
from thinkalike.training.module import SteppedModule
from thinkalike.training.run import TrainingRun

log = logging.getLogger(__name__)

LOGGED_ROWS = 50  # at least, of the curves of a training
CHATTY_LIBRARIES = ("pytorch_lightning", "lightning_fabric")


def fit(
    module: SteppedModule,
    data: StepData,
    run: TrainingRun,
    loggers: Sequence[Logger] = (),
    callbacks: Sequence[Callback] = (),
) -> None:
    """Train a module to its last step, from the checkpoint of an interrupted run if there is one.

    Args:
        module: The module, whose weights are changed.
        data: The rows of each step.
        run: Where and how the module is trained.
        loggers: Lightning's loggers of the curves of losses; (): the curves are not stored.
        callbacks: Callbacks besides those of the user's settings.

    Raises:
        ShareDone: This is not the first of the processes that share the job, and its share is
            done.
        TrainingError: The loss is not finite.
        StoreError: The state or the curves of an earlier run are not those of this training.
        Interrupted: A signal came. A checkpoint was written if the run has a folder.
    """
    resumed = _resumed_state(run, module.steps)
    curve_folder = None
    if run.partial is not None and loggers:
        curve_folder = run.partial / FOLDER
        read_curves(curve_folder)  # so that a damaged file is found before the training
        if resumed:
            move_to_earlier(curve_folder, resumed.step)

    with (
        at_boundaries(),
        _quiet_libraries(),
        matmul_precision(run.trainer.matmul),
        doing("training step", module.steps) as activity,
    ):
        _train_by_lightning(module, data, run, loggers, callbacks, resumed, activity)

    if rank(run):
        raise ShareDone
    if curve_folder is not None:
        join_all(curve_folder)


def _resumed_state(run: TrainingRun, steps: int) -> KeptState | None:
    """Return the newest checkpoint of an interrupted run of a training; None if there is none.

    Args:
        run: Where the training runs.
        steps: How many steps the training has in all.

    Raises:
        StoreError: The newest checkpoint is not one of this training.
    """
    if run.state_folder is None:
        return None
    path = newest_state(run.state_folder, run.state_name)
    if path is None:
        return None
    log.info("resuming from %s", path)
    # Callbacks of the user may have changed the learning rates.
    return KeptState.read(path, steps, has_configured_rates=not run.trainer.callbacks)


def _train_by_lightning(
    module: SteppedModule,
    data: StepData,
    run: TrainingRun,
    loggers: Sequence[Logger],
    callbacks: Sequence[Callback],
    resumed: KeptState | None,
    activity: Activity,
) -> None:
    """Let Lightning train a module to its last step.

    Args:
        module, data, run, loggers, callbacks: See `fit`.
        resumed: The state of an earlier run; None: training begins at the first step.
        activity: Shows the steps done.
    """
    files = StateFiles()
    keep_states = KeepStates(
        run.state_folder,
        run.state_name,
        run.trainer.checkpoint_every,
        activity,
        files,
        resumed,
    )
    all_callbacks = [*callbacks]
    for name in run.trainer.callbacks:
        all_callbacks.append(_callback_of_user(name))
    all_callbacks.append(keep_states)
    if loggers:
        all_callbacks.append(LearningRateMonitor("step"))

    accelerator = run.device.type
    if accelerator == "cuda":
        accelerator = "gpu"
    trainer = pl.Trainer(
        max_steps=module.steps,
        max_epochs=-1,
        accelerator=accelerator,
        **_process_options(run),
        precision=run.trainer.precision,  # type: ignore[arg-type]
        callbacks=all_callbacks,
        plugins=[files],
        logger=list(loggers) or False,
        log_every_n_steps=max(1, min(run.trainer.log_every, module.steps // LOGGED_ROWS)),
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=run.partial,
    )
    state_path = None
    if resumed:
        state_path = resumed.path
    try:
        trainer.fit(module, data, ckpt_path=state_path, weights_only=True)
    except (ThinkalikeError, OSError, MemoryError):
        raise
    except Exception as error:
        # Before the training begins, an error of Lightning comes from the state.
        is_from_state = resumed and not keep_states.has_begun and not out_of_memory_error(error)
        if not resumed or not is_from_state:
            raise
        reason = reason_in_words(error)
        raise invalid_state(resumed.path, reason) from error


def _callback_of_user(name: str) -> Callback:
    """Return the Lightning callback that a user's class or function FILE.py:NAME makes.

    Errors of the user's code become errors that name it.
    """
    function = plugins.load(name)
    with plugins.blaming(f"callback {name}"):
        assert callable(function), "it is neither a class nor a function"
        callback: Callback = function()
        return callback


class ProcessOptions(TypedDict, total=False):
    """The arguments of Lightning's trainer that say which processes share a training."""

    devices: list[int] | int
    num_nodes: int
    strategy: DDPStrategy
    use_distributed_sampler: bool


def _process_options(run: TrainingRun) -> ProcessOptions:
    """Return the options of Lightning's trainer that decide its devices and processes.

    Without the strategy "ddp", a single process trains on the device of the run.
    """
    if run.trainer.strategy == "ddp":
        check_processes(run.trainer, run.device.type)
        return ProcessOptions(
            devices=run.trainer.devices or -1,  # -1: all
            num_nodes=run.trainer.num_nodes,
            strategy=DDPStrategy(broadcast_buffers=False),
            use_distributed_sampler=False,  # StepData shares the rows
        )
    if run.device.type == "cuda":
        return ProcessOptions(devices=[run.device.index or 0])
    return ProcessOptions(devices=1)


@contextlib.contextmanager
def _quiet_libraries() -> Iterator[None]:
    """Silence Lightning within this context: its warnings, and what it logs below WARNING."""
    loggers = [logging.getLogger(library) for library in CHATTY_LIBRARIES]
    earlier_levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="pytorch_lightning|lightning_fabric")
        for logger in loggers:
            logger.setLevel(logging.WARNING)
        try:
            yield
        finally:
            for logger, level in zip(loggers, earlier_levels, strict=True):
                logger.setLevel(level)
