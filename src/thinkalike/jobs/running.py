"""Does a job, with errors that call its settings by the fields of the job."""

from __future__ import annotations

import contextlib
import tempfile
import weakref
from dataclasses import replace

from thinkalike.errors import ConfigError
from thinkalike.global_state import isolated
from thinkalike.instruments import instrument_of, run_job
from thinkalike.jobs.base import Folder, Job
from thinkalike.jobs.configuration import check_measure, configuration, trust_plugins_of_job
from thinkalike.jobs.wording import naming
from thinkalike.screen import watched
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
    with isolated(), contextlib.ExitStack() as temporary, watched():
        # The first use of an instrument imports libraries, which change the environment.
        trust_plugins_of_job(job)
        instrument = job.instrument
        check_measure(job, instrument)
        with naming(job):
            config = configuration(job, instrument)
            if config.store is None and instrument_of(config).needs_store:
                folder = tempfile.TemporaryDirectory(prefix="thinkalike-")
                config = replace(config, store=temporary.enter_context(folder))
                result: Result = TemporaryResult(run_job(config, shown=False).folder)
                weakref.finalize(result, temporary.pop_all().close)
                return result
            return run_job(config, shown=False)
