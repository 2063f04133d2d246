"""What a job has at hand while it runs: its folder, its inputs, its states to resume from."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from thinkalike.errors import StoreError, ThinkalikeError, one_line
from thinkalike.job.inputs import Inputs
from thinkalike.job.phases import Phases
from thinkalike.loggers import Wandb
from thinkalike.processes import ProcessGroup, doing
from thinkalike.store import StoredJob, newest_state, read_state, write_state
from thinkalike.unkept import UnkeptJob

log = logging.getLogger(__name__)

InputType = TypeVar("InputType")
SavedType = TypeVar("SavedType")


@dataclass(frozen=True)
class SavedState:
    """The tensors and plain values that a stopped run of a job stored under one name.

    Attributes:
        path: The file that they were read from.
        entries: The tensors and values, by name.
    """

    path: Path
    entries: Mapping[str, object]

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    def entry(self, name: str, kind: type[SavedType]) -> SavedType:
        """Return an entry by its name, after a check of its class.

        Raises:
            StoreError: There is no such entry, or it has another class: a different version of the
                job may have stored the state.
        """
        if name not in self.entries:
            raise StoreError(f"{self.path} has no {name}, from which the job resumes; remove it")
        value = self.entries[name]
        if not isinstance(value, kind):
            raise StoreError(
                f"{self.path} has {name} of type {type(value).__name__}, and the job resumes from "
                f"{kind.__name__}; remove it"
            )
        return value


@dataclass
class Work:
    """The context of a running job.

    Attributes:
        job: With a store, `job.partial` is the folder of its states, `job.aside` of the result.
        settings: The settings as nested dictionaries; a part that the job does not read is None.
        inputs: What `Instrument.inputs` read.
        opened: Contexts that stay open until the result is written.
        processes: The processes that share the job.
        tracker: The run of W&B that gets the curves; None where there is none.
        phase: Times phases, as in `with work.phase("loading"): ...`; the rest is "computing".
        resumed: The files of states from which the job resumed.
    """

    job: StoredJob | UnkeptJob
    settings: dict[str, object]
    inputs: Inputs
    opened: contextlib.ExitStack
    processes: ProcessGroup = field(default_factory=ProcessGroup)
    tracker: Wandb | None = None
    phase: Phases = field(default_factory=Phases)
    resumed: list[Path] = field(default_factory=list)

    def input(self, name: str, kind: type[InputType]) -> InputType:
        """Return an input of the job by its name, after an assertion of its class.

        Raises:
            KeyError: There is no input of this name.
        """
        value = self.inputs[name]
        assert isinstance(value, kind), (
            f"{name} is {type(value).__name__}, and not {kind.__name__}"
        )
        return value

    def optional_input(self, name: str, kind: type[InputType]) -> InputType | None:
        """Return an input of the job by its name; None if there is no input of this name."""
        return self.input(name, kind) if name in self.inputs else None

    def resume(self, name: str) -> SavedState | None:
        """Return the tensors and plain values that a stopped run of the job stored under a name.

        None means that there are none, or that the job stores no states, as one without a store. A
        damaged state is moved aside.

        Raises:
            StoreError: The state is that of another job.
        """
        if not self.job.keeps_states:
            return None
        path = newest_state(self.job.states, name)
        if path is None:
            return None
        log.info("resuming from %s", path)
        state = SavedState(path, read_state(path))
        self.resumed.append(path)
        return state

    def keep(self, name: str, state: Mapping[str, object]) -> None:
        """Store tensors and plain values under a name, to resume from them after an interruption.

        They replace those of the same name. A job without a store stores nothing.
        """
        if self.job.keeps_states:
            write_state(self.job.states, name, state)


@contextlib.contextmanager
def naming_resumed_states(works: Sequence[Work]) -> Iterator[None]:
    """Turn an unexpected error into a StoreError that names the states from which jobs resumed.

    A state that somebody has changed may have any content, and a job takes it for its own. Other
    errors pass: those of this package, those of files and of too little memory, and all errors of
    jobs that began anew.

    Args:
        works: The jobs that run in the body.
    """
    from thinkalike.memory import out_of_memory_error

    try:
        yield
    except (ThinkalikeError, OSError):
        raise
    except Exception as error:
        paths = [str(path) for work in works for path in work.resumed]
        if not paths or out_of_memory_error(error):
            raise
        raise StoreError(
            f"the job resumed from {', '.join(paths)}, and failed "
            f"({type(error).__name__}: {one_line(error)}); remove it to begin anew"
        ) from error


@contextlib.contextmanager
def phase_of_all(works: Iterable[Work], name: str) -> Iterator[None]:
    """Add the time of the body to a phase of each of several jobs that run together.

    While a job runs another phase inside the body, the time counts for that phase alone, so that
    no second of a job counts twice. The screen shows the name of the phase as the current
    activity, unless another activity runs inside it (`steps_aside`).

    Args:
        works: The jobs, each with its own phases.
        name: The name of the phase.
    """
    with contextlib.ExitStack() as phases, doing(name, steps_aside=True):
        for work in works:
            phases.enter_context(work.phase.counting(name))
        yield
