"""The states from which a training resumes: when they are kept, and how one is checked before use.

What a state holds is Lightning's own. Its files are those of all jobs, see `store.checkpoints`.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Checkpoint
from pytorch_lightning.plugins import CheckpointIO
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from thinkalike.errors import StoreError, listed
from thinkalike.processes import Activity, asked, stop, take_back
from thinkalike.store import read_state, write_state
from thinkalike.training.module import SteppedModule

RATE_TOLERANCE = 1e-9  # share of a rate by which two versions of torch may differ
# A state of more bytes is written only if the last one is as many seconds old.
LARGE_STATE = 100e6
SECONDS_BETWEEN_LARGE_STATES = 180.0
MOST_SHOWN = 40  # characters of a damaged value that a message shows


class StateFiles(CheckpointIO):
    """Lets Lightning keep its states as all jobs do: with digests, renamed into place, no code.

    Attributes:
        loaded: What Lightning is resuming from, until the training begins; empty otherwise.
    """

    def __init__(self) -> None:
        self.loaded: dict[str, Any] = {}

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: object = None
    ) -> None:
        """Write a checkpoint of Lightning to a path, in the format of this package's store.

        `storage_options`, which Lightning may pass, is ignored.
        """
        write_state(Path(path).parent, Path(path).name, checkpoint)

    def load_checkpoint(
        self, path: str | Path, map_location: object = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Return a checkpoint from this package's store, and store it in `loaded` to be checked.

        The options that Lightning passes besides the path are ignored.
        """
        self.loaded = read_state(Path(path))
        return self.loaded

    def remove_checkpoint(self, path: str | Path) -> None:
        """Do nothing: a checkpoint is removed when the next one has been written completely."""


def invalid_state(path: Path, reason: str) -> StoreError:
    """Return the error for a file that is no checkpoint of this training, with the reason."""
    return StoreError(f"{path} is no state of this training ({reason}); remove it")


@dataclass(frozen=True)
class KeptState:
    """The state of an earlier run, from which a training resumes.

    Attributes:
        path: The file of the state.
        step: How many steps were done.
        has_configured_rates: Whether its learning rates must be those of the settings; a callback
            of the user may change them.
    """

    path: Path
    step: int
    has_configured_rates: bool

    @classmethod
    def read(cls, path: Path, steps: int, *, has_configured_rates: bool) -> KeptState:
        """Read and check the step of a checkpoint, and return it with the path.

        Args:
            path: The file of the checkpoint.
            steps: How many steps the training has in all.
            has_configured_rates: Whether the learning rates in it must be those of the settings;
                callbacks of the user may have changed them.

        Raises:
            StoreError: The file is no checkpoint, or its step is not one of this training.
        """
        step = read_state(path).get("global_step")
        if type(step) is not int or not 0 < step <= steps:
            raise invalid_state(
                path,
                f"its global_step is {str(step)[:MOST_SHOWN]}, "
                f"and should be a number from 1 to {steps}",
            )
        return cls(path, step, has_configured_rates)

    def check(self, state: Mapping[str, object], trainer: pl.Trainer) -> None:
        """Raise a StoreError unless a checkpoint may be one that this very training has written.

        Its entries must have the names, types, shapes and dtypes of this training's. Options of
        optimizers and schedules must have the values that they have after as many steps (unless a
        callback of the user may have changed them), so that no setting differs from the job's.
        Weights and momenta must be finite; their values are not checked otherwise.

        Args:
            state: The checkpoint, which Lightning has read but not applied yet.
            trainer: Lightning's trainer, with the module, optimizers and schedules of this job.
        """
        for reason in self._reasons(state, trainer):
            if reason:
                raise invalid_state(self.path, reason)

    def _reasons(self, state: Mapping[str, object], trainer: pl.Trainer) -> Iterator[str]:
        """Yield, for each part of a checkpoint, what is wrong with it, or "" if nothing is."""
        module = trainer.lightning_module
        assert module is not None
        weights = state.get("state_dict")
        yield _difference(weights, module.state_dict(), "state_dict")
        yield _weight_not_finite(weights, module)

        with warnings.catch_warnings():
            # torch warns that a schedule has stepped before its optimizer.
            warnings.simplefilter("ignore")
            schedules = []
            for entry in trainer.lr_scheduler_configs:
                schedules.append(_state_after_steps(entry.scheduler, self.step))
        # The schedules have just set the learning rates that belong to `self.step`.
        expected_groups = [
            optimizer.state_dict()["param_groups"] for optimizer in trainer.optimizers
        ]
        optimizer_states = state.get("optimizer_states")
        if not isinstance(optimizer_states, list):
            optimizer_states = []
        groups = []
        for optimizer_state in optimizer_states:
            if isinstance(optimizer_state, dict):
                groups.append(optimizer_state.get("param_groups"))
            else:
                groups.append(optimizer_state)
        with_values = self.has_configured_rates
        yield _difference(groups, expected_groups, "param_groups", with_values=with_values)
        yield _difference(
            state.get("lr_schedulers"), schedules, "lr_schedulers", with_values=with_values
        )

        fit_loop = None
        loops = state.get("loops")
        if isinstance(loops, dict):
            fit_loop = loops.get("fit_loop")
        yield _difference(fit_loop, trainer.fit_loop.state_dict(), "fit_loop")
        yield _count_beyond(fit_loop, self.step)

        for optimizer_state, optimizer in zip(optimizer_states, trainer.optimizers, strict=False):
            if isinstance(optimizer_state, dict):
                yield invalid_momenta(optimizer_state.get("state"), optimizer, self.step)


def _state_after_steps(scheduler: LRScheduler, steps: int) -> dict[str, object]:
    """Advance a learning rate schedule by so many steps, and return its state.

    As a side effect, its optimizer gets the learning rate of the step that it has reached.
    """
    for _ in range(steps):
        scheduler.step()
    return scheduler.state_dict()


def _difference(stored: object, expected: object, name: str, *, with_values: bool = False) -> str:
    """Return a text of the first difference between a stored and an expected value, or "".

    Mappings and lists are compared entry by entry. Types, shapes and dtypes must be equal.

    Args:
        stored: A value of a checkpoint.
        expected: What this training has in its place.
        name: What the text calls the value: its path of keys.
        with_values: Whether numbers and strings must be equal, too. The entries of tensors are
            never compared.
    """
    if isinstance(expected, dict):
        return _difference_of_mappings(stored, expected, name, with_values)
    if isinstance(expected, list):
        return _difference_of_lists(stored, expected, name, with_values)
    if isinstance(expected, Tensor):
        return _difference_of_tensors(stored, expected, name)
    if type(stored) is not type(expected):
        return (
            f"{name} is {str(stored)[:MOST_SHOWN]}, of another type than "
            f"{str(expected)[:MOST_SHOWN]}"
        )
    if not with_values:
        return ""
    is_equal = stored == expected
    if isinstance(stored, float) and isinstance(expected, float):
        is_equal = math.isclose(stored, expected, rel_tol=RATE_TOLERANCE)
    if is_equal:
        return ""
    return (
        f"{name} is {str(stored)[:MOST_SHOWN]}, and {str(expected)[:MOST_SHOWN]} in this training"
    )


def _difference_of_mappings(
    stored: object, expected: Mapping[str, object], name: str, with_values: bool
) -> str:
    """Return a text of the first difference between a stored and an expected mapping, or "".

    Args:
        stored: A value of a checkpoint, which may be no mapping.
        expected: The mapping that this training has in its place.
        name: What the text calls the mapping: its path of keys.
        with_values: Whether numbers and strings in it must be equal, too.
    """
    if not isinstance(stored, dict):
        return f"{name} is {type(stored).__name__}, and should have {len(expected)} entries"
    if stored.keys() != expected.keys():
        unequal_keys = sorted(map(str, stored.keys() ^ expected.keys()))
        return f"{name} has other entries than this training: {listed(unequal_keys)}"
    for key, value in expected.items():
        reason = _difference(stored[key], value, f"{name}.{key}", with_values=with_values)
        if reason:
            return reason
    return ""


def _difference_of_lists(
    stored: object, expected: list[object], name: str, with_values: bool
) -> str:
    """Return a text of the first difference between a stored and an expected list, or "".

    Args:
        stored: A value of a checkpoint, which may be no list.
        expected: The list that this training has in its place.
        name: What the text calls the list: its path of keys.
        with_values: Whether numbers and strings in it must be equal, too.
    """
    if not isinstance(stored, list):
        return f"{name} should have {len(expected)} entries, and has none"
    if len(stored) != len(expected):
        return f"{name} should have {len(expected)} entries, and has {len(stored)}"
    for position, value in enumerate(expected):
        path = f"{name}[{position}]"
        reason = _difference(stored[position], value, path, with_values=with_values)
        if reason:
            return reason
    return ""


def _difference_of_tensors(stored: object, expected: Tensor, name: str) -> str:
    """Return a text of how the shape or dtype of a stored tensor differs, or "" if neither does.

    Args:
        stored: A value of a checkpoint, which may be no tensor.
        expected: The tensor that this training has in its place.
        name: What the text calls the tensor: its path of keys.
    """
    if not isinstance(stored, Tensor):
        return f"{name} is {type(stored).__name__}, and should be a tensor"
    stored_form = (tuple(stored.shape), stored.dtype)
    expected_form = (tuple(expected.shape), expected.dtype)
    if stored_form == expected_form:
        return ""
    return f"{name} has shape and dtype {stored_form}, and should have {expected_form}"


def _weight_not_finite(weights: object, module: pl.LightningModule) -> str:
    """Return a text of which stored weight of a module is not finite, or "" if all are.

    Buffers are not checked: curves of losses have NaN for the steps that are yet to come.

    Args:
        weights: The stored weights by name. A mapping or a weight of another type passes here: it
            is found when the types of all entries are compared.
        module: The module, which says which names are weights and not buffers.
    """
    if not isinstance(weights, dict):
        return ""
    for name, _ in module.named_parameters():
        weight = weights.get(name)
        if isinstance(weight, Tensor) and not weight.isfinite().all():
            return f"state_dict.{name} has values that are not finite"
    return ""


def _count_beyond(progress: object, steps: int, name: str = "fit_loop") -> str:
    """Return a text of the first count that is impossible after so many steps, or "".

    Args:
        progress: The stored progress of Lightning's loops: nested mappings, in which each integer
            is a count. Other values, such as booleans, are not checked.
        steps: How many steps were done.
        name: What the text calls `progress`: its path of keys.
    """
    if isinstance(progress, dict):
        for key, entry in progress.items():
            reason = _count_beyond(entry, steps, f"{name}.{key}")
            if reason:
                return reason
        return ""
    if type(progress) is int and not 0 <= progress <= max(steps, 1):  # a bool is no count
        return f"{name} is {progress}, and should be a number from 0 to {steps}"
    return ""


def invalid_momenta(state: object, optimizer: torch.optim.Optimizer, steps: int) -> str:
    """Return a text of what is wrong with the first invalid momentum of a checkpoint, or "".

    A momentum must be finite and have the shape and dtype of its weight. The entry "step", which
    Adam has for each weight, must be a number from 1 to the steps done.

    Args:
        state: The stored entries of each weight, by the index of the weight and then by name.
        optimizer: The optimizer of this training.
        steps: How many steps were done.
    """
    weights = _weights_of(optimizer)
    if not isinstance(state, dict):
        return f"the state of an optimizer is {type(state).__name__}"
    for index, entries in state.items():
        is_known = type(index) is int and 0 <= index < len(weights)
        if not is_known or not isinstance(entries, dict):
            return (
                f"the state of an optimizer has the entry {str(index)[:MOST_SHOWN]}, "
                f"and there are {len(weights)} weights"
            )
        for name, value in entries.items():
            subject = f"{str(name)[:MOST_SHOWN]} of weight {index}"
            if name == "step":
                reason = _invalid_count(value, steps)
            else:
                reason = _invalid_momentum(value, weights[index])
            if reason:
                return f"{subject} {reason}"
    return ""


def _invalid_count(count: object, steps: int) -> str:
    """Return a text of what is wrong with a weight's stored number of steps, or "".

    Adam stores it as a tensor of one floating-point number without axes.
    """
    is_number = (
        isinstance(count, Tensor) and count.shape == torch.Size() and count.is_floating_point()
    )
    if is_number and 0 < float(count) <= steps:  # type: ignore[arg-type]
        return ""
    return f"is {str(count)[:MOST_SHOWN]}, and should be a number from 1 to {steps}"


def _invalid_momentum(momentum: object, weight: Tensor) -> str:
    """Return a text of what is wrong with the stored momentum of a weight, or ""."""
    if not isinstance(momentum, Tensor):
        return f"is {str(momentum)[:MOST_SHOWN]}, and should have shape {tuple(weight.shape)}"
    if momentum.shape != weight.shape:
        return f"is {tuple(momentum.shape)}, and should have shape {tuple(weight.shape)}"
    if momentum.dtype != weight.dtype:
        return f"has dtype {momentum.dtype}, and should have {weight.dtype}"
    if not momentum.isfinite().all():
        return "has values that are not finite"
    return ""


def _weights_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the weights of all groups of an optimizer, in the order of their indices."""
    return [weight for group in optimizer.param_groups for weight in group["params"]]


class KeepStates(Checkpoint):
    """Keeps a state every so many steps, and when a signal came; reports the steps done.

    A large state is kept at the first of these steps that comes minutes after the last state.
    Lightning's `ModelCheckpoint` knows neither signals nor minutes, and a kill can leave its files
    half written.

    Args:
        folder: The folder of the states; None keeps none.
        name: The name of the state.
        every: How many steps are between two states.
        activity: Shows the steps done.
        files: What Lightning reads the states with.
        resumed: The state of an earlier run; None if there is none.

    Attributes:
        has_begun: Whether the state of an earlier run, if there is one, was taken up without
            error.
    """

    def __init__(
        self,
        folder: Path | None,
        name: str,
        every: int,
        activity: Activity,
        files: StateFiles,
        resumed: KeptState | None = None,
    ):
        """Store where and how often checkpoints are written; see the class for the arguments.

        Large checkpoints are some minutes apart; the first of them is timed from now.
        """
        self.folder = folder
        self.name = name
        self.every = every
        self.activity = activity
        self.files = files
        self.resumed = resumed
        self.has_begun = False
        self._momenta_at_start: list[list[str]] = []
        self._time_of_last_state = time.monotonic()

    def on_fit_start(self, trainer: pl.Trainer, *_: object) -> None:
        """If the training resumes, check the checkpoint that Lightning has loaded."""
        if self.resumed:
            self.resumed.check(self.files.loaded, trainer)
        self.files.loaded = {}

    def on_train_start(self, trainer: pl.Trainer, *_: object) -> None:
        """Restore this package's signal handlers, and check at which step the training resumes.

        Raises:
            StoreError: The loops of Lightning have resumed at another step than the checkpoint
                states.
        """
        take_back()  # Lightning's own handler would end a job with status 0 and no checkpoint
        self._time_of_last_state = time.monotonic()
        if self.resumed and trainer.global_step != self.resumed.step:
            raise invalid_state(
                self.resumed.path,
                f"its loops have done {trainer.global_step} steps, "
                f"and its global_step is {self.resumed.step}",
            )
        self._momenta_at_start = _momenta_names(trainer)
        self.has_begun = True  # from here on, errors of Lightning are not blamed on the checkpoint
        self.activity.begin(trainer.global_step)

    def on_train_batch_end(  # type: ignore[override]
        self, trainer: pl.Trainer, module: SteppedModule, *_: object
    ) -> None:
        """Report the step, write a checkpoint if it is time for one, and stop after a signal.

        A checkpoint is due at every `every`-th step (a large one only if the last is some minutes
        old), and always before stopping.

        Raises:
            StoreError: This is the first step of a resumed training, and its checkpoint lacked
                the momenta of some weights.
            Interrupted: A signal came.
        """
        step = trainer.global_step
        # The optimizer makes missing momenta in its first step. So if their names have changed
        # since the checkpoint was loaded, it lacked some.
        is_first_step = self.resumed is not None and step == self.resumed.step + 1
        if is_first_step and _momenta_names(trainer) != self._momenta_at_start:
            assert self.resumed is not None
            raise invalid_state(self.resumed.path, "it lacks the momenta of some weights")

        self.activity.reach(step)
        self.activity.note = ""
        if module.last_read is not None:
            self.activity.note = f"loss {module.last_read:.4f}"

        # `asked` says whether a signal has come. All processes stop if it came to any of them.
        is_stopping = trainer.strategy.reduce_boolean_decision(asked(), all=False)
        if is_stopping or (step % self.every == 0 and self._is_due(trainer, module)):
            for logger in trainer.loggers:
                logger.save()  # so that the curves have no gap before the checkpoint
            if self.folder is not None:
                trainer.save_checkpoint(self.folder / self.name)
            self._time_of_last_state = time.monotonic()
        if is_stopping:
            stop(f"at step {step} of {trainer.max_steps}")

    def _is_due(self, trainer: pl.Trainer, module: pl.LightningModule) -> bool:
        """Return whether to write a checkpoint now: it is small, or the last one is old enough.

        Of several processes, all write one if the last one is old by the clock of any of them.
        """
        byte_count = sum(weight.nbytes for weight in module.state_dict().values())
        for optimizer in trainer.optimizers:
            for entries_of_weight in optimizer.state.values():  # such as its momentum
                for value in entries_of_weight.values():
                    if isinstance(value, Tensor):
                        byte_count += value.nbytes
        if byte_count < LARGE_STATE:
            return True
        is_old = time.monotonic() - self._time_of_last_state >= SECONDS_BETWEEN_LARGE_STATES
        # `all=False`: true in all processes if it is true in any.
        return trainer.strategy.reduce_boolean_decision(is_old, all=False)


def _momenta_names(trainer: pl.Trainer) -> list[list[str]]:
    """Return, for each weight, the sorted names of its optimizer's entries for it.

    They are names such as "momentum_buffer"; a weight that has taken no step has none.
    """
    names = []
    for optimizer in trainer.optimizers:
        for weight in _weights_of(optimizer):
            names.append(sorted(optimizer.state.get(weight, {})))
    return names
