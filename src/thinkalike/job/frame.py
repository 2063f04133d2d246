"""The frame of every job: a kind is declared once, and key, lock, seed, provenance and results follow from that.

    class Loss(Instrument, kind="loss", version=1, reads=("model", "data")):
        def run(self, config, work): ...       # the computation, from models and data to tables
        def draw(self, result, folder): ...    # its figure, from the result
        def show(self, result): ...            # what the screen says, from the result

`perform(Loss(), config)` does the rest, and returns the finished `Result`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch

from thinkalike.config import AnalyzeConfig, as_dict, command_words, relevant
from thinkalike.data import text_fingerprint
from thinkalike.errors import ConfigError
from thinkalike.job.names import run_name
from thinkalike.job.outcome import Outcome
from thinkalike.job.phases import Phases
from thinkalike.job.provenance import environment, versions
from thinkalike.job.resources import explained
from thinkalike.loggers import About, Tracker, tracked
from thinkalike.models import check_models, checkpoint_fingerprint, told_apart
from thinkalike.processes import Team, rank, together
from thinkalike.store import Headline, Job, Result, first_scalar, newest_state, read_state, write_state

log = logging.getLogger(__name__)

ALWAYS = ("store", "force", "wait", "seed", "threads", "trainer", "logger")  # parts that the frame itself reads
AGENT = "WANDB_SWEEP_ID"  # environment variable of jobs that an agent of a W&B sweep starts


@dataclass
class Work:
    """What a running job is given.

    Attributes:
        job: its folders: `job.partial` for a state to go on from, `job.aside` for files of the result.
        settings: the configuration as dictionaries, without the parts that the job does not read.
        inputs: what `Instrument.inputs` read.
        opened: contexts that stay open until the result is there.
        team: the processes that share the job.
        tracker: the logger of the job, to which the frame gives the result; None in a process that only helps.
        phase: counts the time of a part of the run: `with work.phase("loading"): ...`; the rest is "computing".
    """

    job: Job
    settings: dict[str, Any]
    inputs: Mapping[str, Any]
    opened: contextlib.ExitStack
    team: Team = field(default_factory=Team)
    tracker: Tracker | None = None
    phase: Phases = field(default_factory=Phases)

    def resume(self, name: str) -> dict[str, Any] | None:
        """Return the state that an earlier run kept under a name, or None.

        Raises:
            StoreError: the state is damaged.
        """
        path = newest_state(self.job.states, name)
        if path is None:
            return None
        state = read_state(path)
        log.info("going on from %s", path)
        return state

    def keep(self, name: str, state: dict[str, Any]) -> None:
        """Keep a state of tensors and plain values under a name, in place of the one before."""
        write_state(self.job.states, name, state)


class Instrument(ABC):
    """A kind of job.

    Args:
        kind: the folder of its results in a store.
        version: raised when its numbers change for one and the same configuration.
        config: which door's configuration it takes.
        reads: the parts of it that can change the numbers.

    Raises:
        TypeError: a part does not exist.
    """

    kind: str
    version: ClassVar[int]
    reads: ClassVar[tuple[str, ...]]
    takes_activations: ClassVar[bool] = False  # whether recordings can take the place of the model
    is_shared: ClassVar[bool] = False  # whether several processes of analyze.py can share the job
    takes_subjects: ClassVar[bool] = False  # whether they can be several subjects
    known: ClassVar[dict[str, type[Instrument]]] = {}  # by module

    def __init_subclass__(
        cls, *, kind: str = "", reads: Sequence[str] = (), version: int = 1, config: type = AnalyzeConfig, **more: Any
    ):
        super().__init_subclass__(**more)
        if not kind:
            return  # what several kinds have in common
        parts = {item.name for item in fields(config)}
        if unknown := set(reads) - parts:
            raise TypeError(f"{cls.__name__} reads {sorted(unknown)}, and {config.__name__} has {sorted(parts)}")
        cls.kind, cls.reads, cls.version = kind, tuple(reads), version
        Instrument.known[cls.__module__] = cls

    def inputs(self, config: Any) -> Mapping[str, Any]:
        """Read what decides, beside the settings, what the numbers will be, before the job begins.

        Returns:
            By name a fingerprint, or something that has one as `.fingerprint()`. Unless a kind says otherwise, the
            fingerprints of the models' checkpoints and of the text, if it reads them.
        """
        return fingerprints(config, self.reads)

    def narrowed(self, config: Any) -> Any:
        """Return the configuration with defaults for what this very job does not read of its parts, or None for one."""
        return config

    def seed(self, config: Any) -> int:
        """Return the seed of torch's global generator."""
        return int(config.seed) if "seed" in self.reads else 0

    @abstractmethod
    def run(self, config: Any, work: Work) -> Outcome:
        """Compute the numbers."""

    def draw(self, result: Result, folder: Path) -> None:  # noqa: B027
        """Draw the figures of a result into a folder; a kind may have none."""

    def headlines(self, result: Result) -> Sequence[Headline]:
        """Return the numbers that sum a result up, the most telling one first.

        Screens, lists of results, the table of a sweep and W&B's summary show them. Unless a kind says otherwise, it is
        the first of the scalars.
        """
        return first_scalar(result.scalars)

    def show(self, result: Result) -> None:  # noqa: B027
        """Print what a reader wants to know at once."""


def fingerprints(config: Any, parts: Sequence[str]) -> dict[str, str]:
    """Return the fingerprints of checkpoints and text, as far as they are among these parts, and the models' labels."""
    read: dict[str, Callable[[Any], str]]
    read = {"model": checkpoint_fingerprint, "target": checkpoint_fingerprint, "data": text_fingerprint}
    given = {part: getattr(config, part) for part in parts if part in read}
    models = [given[part] for part in ("model", "target") if given.get(part) is not None]
    labels = {"labels": ", ".join(told_apart(models))} if models else {}
    return {part: read[part](value) for part, value in given.items() if value is not None} | labels


def perform(instrument: Instrument, config: Any, shown_again: bool = True) -> Result:
    """Do a job, or return its result if that is in the store.

    Args:
        config: a dataclass with `seed`, `store`, `force`, `wait`, `threads`, `trainer`, `logger` and the parts that the
            instrument reads.
        shown_again: whether a result that is in the store is printed, too.

    Raises:
        StoreError: the store cannot be written, the result that is there is damaged, or another process is at the same
            job and `wait` is false.
        ThinkalikeError: see the instrument.
    """
    _check_shared(instrument, config)
    inputs, narrowed = instrument.inputs(config), instrument.narrowed(config)
    read = relevant(narrowed).items()
    entered = {name: part for name, part in read if name in instrument.reads and part is not None}
    job = Job(config.store, instrument.kind, key_of(instrument, entered, inputs))
    name = run_name(job.kind, job.key, inputs, command_words())
    again = partial(_again, instrument, config, name, shown_again and not rank(config))
    if not config.force and (result := job.result()):
        return again(result)
    check_models({side: getattr(narrowed, side) for side in ("model", "target") if side in instrument.reads})
    with _with_lock(job, config), explained(job.partial), contextlib.ExitStack() as opened:
        if config.force:
            if not rank(config):
                job.forget()
        elif result := job.result():  # of the process that had the lock before
            return again(result)
        began = time.monotonic()
        torch.manual_seed(instrument.seed(config))  # the jobs of a sweep share a process
        if config.threads:
            torch.set_num_threads(config.threads)
        shown = (*instrument.reads, *ALWAYS)
        settings = {name: part if name in shown else None for name, part in as_dict(narrowed).items()}
        team = opened.enter_context(together(config.trainer, config.model.device)) if instrument.is_shared else Team()
        tracker = None
        if not rank(config):
            about = About(name, job.kind, job.store, job.partial / "curves", settings)
            tracker = opened.enter_context(tracked(config.logger, about))
        phases = Phases(None if rank(config) else job.states)
        work = Work(job, settings, inputs, opened, team, tracker, phases)
        with work.phase("computing"):
            outcome = instrument.run(config, work).guarded()
        facts = {"seed": config.seed, "models": list(outcome.models), **outcome.facts}
        provenance = {**environment(), **facts}
        record = {"version": instrument.version, "scalars": outcome.scalars, "settings": entered}
        tables = {"table": outcome.table, **outcome.tables}
        written = job.write(settings, {**record, "provenance": provenance}, tables, outcome.arrays)
        with work.phase("drawing"):
            instrument.draw(written, written.folder / "figures")
            outcome.draw(written.folder / "figures")
        took = {"wall_seconds": round(time.monotonic() - began, 1), "phases": work.phase.seconds}
        headlines = [each._asdict() for each in instrument.headlines(written)]
        job.add({"headlines": headlines, "provenance": provenance | took})
        written = Result(written.folder)
        if tracker:
            tracker.publish(written)
        opened.close()
        result = job.appear()
    instrument.show(result)
    return result


def _again(instrument: Instrument, config: Any, name: str, shown: bool, result: Result) -> Result:
    """Say that a job was done before, by what if that was not what is here now, and what came out."""
    log.info("already done; force=true does it again")
    before, now = result.provenance["versions"], versions()
    others = [f"{name} {before.get(name)} (now {now.get(name)})" for name in now if before.get(name) != now[name]]
    if others:
        log.warning("it was computed with %s", ", ".join(others))
    if shown:
        instrument.show(result)
    if AGENT in os.environ and not rank(config):  # it waits for the numbers of every job that it starts
        about = About(name, result.kind, result.folder.parent.parent, result.folder, result.config)
        with tracked(config.logger, about) as tracker:
            tracker.publish(result)
    return result


def key_of(instrument: Instrument, entered: dict[str, Any], inputs: Mapping[str, Any]) -> str:
    """Return the name of a job: a hash of its kind's version, of its settings and of the content of what it reads."""
    content = {name: part if isinstance(part, str) else part.fingerprint() for name, part in inputs.items()}
    text = json.dumps([instrument.kind, instrument.version, entered, content], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _check_shared(instrument: Instrument, config: Any) -> None:
    """Refuse several processes for what one process does; those of a training are Lightning's affair."""
    if isinstance(config, AnalyzeConfig) and config.trainer.strategy == "ddp" and not instrument.is_shared:
        raise ConfigError(f"{instrument.kind} is done by one process; leave trainer=ddp out")


def _with_lock(job: Job, config: Any) -> contextlib.AbstractContextManager[Any]:
    """Hold the job's lock in the first of the processes that share it; the others run without it, and silently."""
    if not rank(config):
        return job.running(wait=config.wait)
    logging.getLogger("thinkalike").setLevel(logging.ERROR)
    return contextlib.nullcontext()
