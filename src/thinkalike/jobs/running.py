"""Does a job, and says how long it takes and what an interruption leaves."""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
import weakref
from collections.abc import Iterator
from dataclasses import replace

from thinkalike.budget import announcement
from thinkalike.config import JobConfig
from thinkalike.errors import ConfigError, ThinkalikeError
from thinkalike.global_state import isolated
from thinkalike.instruments import instrument_of, run_job
from thinkalike.job.planning import may_take_long
from thinkalike.jobs.base import Folder, Job
from thinkalike.jobs.configuration import (
    check_measure,
    configuration,
    setting_of,
    trust_plugins_of_job,
)
from thinkalike.processes import Interrupted, heeded
from thinkalike.screen import say, watched
from thinkalike.store import Result, TemporaryResult


def run(job: Job, store: Folder | None = None, force: bool = False) -> Result:
    """Do a job, or return its result if the store has it.

    Args:
        store: the folder in which the result is kept and found again; None takes that of the job.
            If the job has none, the result is in memory, and nothing is written.
        force: do it again if the store has its result.

    >>> result = run(Compare("gelu-3l-mini", "solu-3l-mini", batches=2, tokens_per_batch=128))
    >>> result.is_kept
    False
    """
    if not isinstance(job, Job) or type(job) is Job:
        raise ConfigError(
            f"job is {type(job).__name__}: give one, such as thinkalike.Compare('gpt2', 'gelu-3l')"
        )
    if store is not None or force:
        job = replace(job, store=job.store if store is None else store, force=force or job.force)
    with (
        _explaining_interruption(job),
        isolated(),
        contextlib.ExitStack() as temporary,
        watched(),
    ):
        # The first use of an instrument imports libraries, which change the environment.
        trust_plugins_of_job(job)
        instrument = job.instrument
        check_measure(job, instrument)
        config = configuration(job, instrument)
        _say_how_long(job, config)
        if config.store is None and instrument_of(config).needs_store:
            folder = tempfile.TemporaryDirectory(prefix="thinkalike-")
            config = replace(config, store=temporary.enter_context(folder))
            result: Result = TemporaryResult(run_job(config, shown=False).folder)
            weakref.finalize(result, temporary.pop_all().close)
            return result
        return run_job(config, shown=False)


def _say_how_long(job: Job, config: JobConfig) -> None:
    """Say about how long a job will take before it begins, if that is long.

    A job with a budget has said so already.
    """
    if job.budget is not None:
        return
    with contextlib.suppress(ThinkalikeError):  # which the job itself explains
        if may_take_long(config):
            chosen = [setting_of(field, job.does, job.instrument) for field in job.settings()]
            line = announcement(config, chosen)
            if line:
                say(line)


@contextlib.contextmanager
def _explaining_interruption(job: Job) -> Iterator[None]:
    """Let an interruption say what is kept of a job, and which call continues it.

    A job with a store keeps a state at the first signal, from which the same call resumes. A
    second signal ends it at once, as the first one does to a job that keeps nothing.

    Raises:
        KeyboardInterrupt: The job was interrupted, as by Ctrl-C.
        SystemExit: A different signal ended it, with the exit status that a shell gives it.
    """
    with contextlib.ExitStack() as signals:
        if job.store is not None:
            signals.enter_context(heeded())
        try:
            yield
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_interruption_in_words(job, "", None)) from None
        except Interrupted as interrupted:
            line = _interruption_in_words(job, interrupted.where, interrupted.kept)
            if interrupted.number == signal.SIGINT:
                raise KeyboardInterrupt(line) from None
            print(line, file=sys.stderr, flush=True)
            raise SystemExit(interrupted.status) from None


def _interruption_in_words(job: Job, where: str, is_kept: bool | None) -> str:
    """Return in a line what is kept of an interrupted job, and which call continues it.

    Args:
        job: The job.
        where: Where it left a state, such as "at pool 4 of 12"; "" if that is not known.
        is_kept: Whether there is a state to resume from; None: that is not known.
    """
    call = f"thinkalike.{type(job).__name__.lower()}(..., store="
    if job.store is None:
        return (
            f"interrupted, and nothing of it is kept; next time, {call}'results') keeps states "
            "from which the same call resumes"
        )
    same_call = f"{call}{str(job.store)!r}) with the same arguments"
    place = f" {where}" if where else ""
    if is_kept:
        return f"interrupted{place}; {same_call} resumes from what is kept"
    if is_kept is None:
        return f"interrupted{place}; {same_call} resumes from the last state, if one was kept"
    return f"interrupted{place}; {same_call} begins again, as no state was kept yet"
