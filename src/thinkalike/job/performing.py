"""Runs jobs: a look into the store, the lock, the run, and the result with its provenance."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from thinkalike.config import AnalyzeConfig, JobConfig
from thinkalike.digests import versions_of
from thinkalike.errors import ConfigError, ThinkalikeError
from thinkalike.job.damaged_results import reporting_damage
from thinkalike.job.gathered_warnings import LOGGER, WARNING, GatheredWarnings
from thinkalike.job.instrument import (
    AnyInstrument,
    Config,
    Instrument,
    OutcomeOrError,
    RunTogether,
)
from thinkalike.job.lookup import instrument_of
from thinkalike.job.machine_errors import explaining_machine_errors
from thinkalike.job.outcome import Outcome
from thinkalike.job.planning import PlannedJob, RunFacts, plan
from thinkalike.job.provenance import PACKAGES
from thinkalike.job.work import Work, phase_of_all
from thinkalike.processes import ProcessGroup, counted, doing, together
from thinkalike.store import Result, StoredJob

# The environment variable of jobs that an agent of a W&B sweep starts.
WANDB_AGENT = "WANDB_SWEEP_ID"

log = logging.getLogger(__name__)


def run_job(config: JobConfig, shown: bool = True) -> Result:
    """Do the job that a configuration describes, or return its result if that is in the store.

    Args:
        config: The configuration.
        shown: Whether the result is printed, as those of parts of another job are not.

    Raises:
        ConfigError: There is no such task or measure, it takes no activations, or `models` stands
            for several jobs.
    """
    instrument = instrument_of(config)
    models = getattr(config, "models", None)
    if models is not None and instrument.of_models != "all":
        raise ConfigError(
            f"models={models} stands for several jobs; call run_jobs(asked_for(config))"
        )
    return perform(instrument, config, shown)


def run_jobs(configs: Sequence[JobConfig], shown: bool = True) -> list[Result]:
    """Do several jobs, those together that have less work in one pass.

    Results that are in the store are not computed again.

    Args:
        configs: The configurations of the jobs.
        shown: Whether the results are printed.

    Returns:
        The results, in the order of the configurations.
    """
    positions_of_passes: Iterable[list[int]] = jobs_by_pass(configs)
    if len(configs) > 1:
        positions_of_passes = counted(positions_of_passes, "pass")

    by_position: dict[int, Result] = {}
    for positions in positions_of_passes:
        jobs = [(instrument_of(configs[position]), configs[position]) for position in positions]
        results = perform_all(jobs, shown)
        by_position.update(zip(positions, results, strict=True))
    return [by_position[position] for position in range(len(configs))]


def jobs_by_pass(configs: Sequence[JobConfig]) -> list[list[int]]:
    """Return the positions of the jobs of each pass over the text.

    Jobs of kinds that have one `run_all` share a pass; every other job is in one by itself, and so
    is a job that compares recordings.
    """
    shared: dict[RunTogether | int, list[int]] = {}
    for position, config in enumerate(configs):
        run_all = None
        if not getattr(config, "activations", None):
            run_all = instrument_of(config).run_all
        shared.setdefault(run_all or position, []).append(position)
    return list(shared.values())


def perform(instrument: Instrument[Config], config: Config, shown: bool = True) -> Result:
    """Do a job, or return its result if that is in the store.

    Args:
        instrument: The instrument that does the job.
        config: Its configuration.
        shown: Whether the result is printed.

    Raises:
        StoreError: The store cannot be written, the result in it is damaged, or another process is
            at the same job and `wait` is false.
        ThinkalikeError: Whatever the instrument raises.
    """
    return perform_all([(instrument, config)], shown)[0]


def perform_all(
    jobs: Sequence[tuple[AnyInstrument, JobConfig]], shown: bool = True
) -> list[Result]:
    """Do the jobs that the store lacks, in one pass; returns the result of each, in their order.

    Several jobs have the same `run_all`. Each has a key, a lock, a state and a folder as if it
    were done alone. If some fail, the rest are finished before the first error is raised. Jobs
    with the same key are done once.

    Args:
        jobs: The jobs, each an instrument and a configuration.
        shown: Whether the results are printed.
    """
    with GatheredWarnings() as warnings, contextlib.ExitStack() as opened:
        with doing("reading what the job needs", steps_aside=True):
            requested = [plan(instrument, config) for instrument, config in jobs]
            job_of_key = {job.key: job for job in requested}
            results = _stored_results(job_of_key.values(), shown)
            missing = [job for key, job in job_of_key.items() if key not in results]
            notices = [job.check() for job in missing]
        for notice in dict.fromkeys(notices):
            if notice:
                log.info(notice)

        _lock(missing, opened)

        # Another process may have finished some of them while this one waited for its locks.
        results |= _stored_results(missing, shown)
        missing = [job for job in missing if job.key not in results]
        if missing:
            results |= _run_missing(missing, len(requested), warnings, opened, shown)
    return [results[job.key] for job in requested]


def _lock(jobs: Iterable[PlannedJob], opened: contextlib.ExitStack) -> None:
    """Hold the locks of jobs until `opened` is closed.

    They are taken in one order by all processes, so that no two wait for each other. Of several
    processes that share a job, the first one has the lock, and the others log errors alone.
    """
    for job in sorted(jobs, key=lambda job: job.key):
        if job.is_of_first_process:
            opened.enter_context(job.job.running(wait=job.config.wait))
        else:
            LOGGER.setLevel(logging.ERROR)
        opened.enter_context(explaining_machine_errors(job.job))


def _stored_results(jobs: Iterable[PlannedJob], shown: bool) -> dict[str, Result]:
    """Return the results of those jobs that are done, by key, and print them.

    A job with force=true counts as not done. Warnings of a result are repeated.

    Args:
        jobs: The jobs.
        shown: Whether the results are printed.
    """
    results = {}
    for job in jobs:
        result = None if job.config.force else job.job.result()
        if result is None:
            continue
        results[job.key] = result
        log.info("already done; force=true does it again")
        _repeat_warnings(result)
        if shown:
            with reporting_damage(result):
                job.show(result)

        # An agent of W&B waits for the numbers of every job that it starts.
        if WANDB_AGENT in os.environ and job.is_of_first_process:
            with job.tracked(result.config) as tracker:
                if tracker is not None:
                    tracker.publish(result)
    return results


def _repeat_warnings(result: Result) -> None:
    """Log the warnings of a stored result, and the packages that had another version then."""
    provenance = result.provenance
    for warning in provenance.get("warnings", ()):
        log.warning("%s%s", WARNING, warning)

    versions_then = provenance.get("versions", {})
    changed = []
    for name, version_now in versions_of(PACKAGES).items():
        version_then = versions_then.get(name)
        if version_then != version_now:
            changed.append(f"{name} {version_then} (now {version_now})")
    if changed:
        log.warning("it was computed with %s", ", ".join(changed))


@dataclass(frozen=True)
class _Running:
    """A job whose lock is held, and its context."""

    planned: PlannedJob
    work: Work


def _run_missing(
    missing: Sequence[PlannedJob],
    requested: int,
    warnings: GatheredWarnings,
    opened: contextlib.ExitStack,
    shown: bool,
) -> dict[str, Result]:
    """Run jobs whose locks are held, in one pass; returns their results by key.

    Args:
        missing: The jobs.
        requested: The number of jobs that were asked for, with those that are done.
        warnings: Gathers the warnings of the pass.
        opened: Keeps the contexts of the jobs open until they are finished.
        shown: Whether the results are printed.
    """
    began = time.monotonic()
    running = opened.enter_context(_begun(missing, requested))
    for job in running:
        if isinstance(job.planned.job, StoredJob):
            names = [model.called for model in job.planned.models.values()]
            warnings.keep_beside(job.planned.job.states, names)

    with phase_of_all([job.work for job in running], "computing"):
        outcomes = _compute(running)

    took = RunFacts(round(time.monotonic() - began, 1), len(running))
    return _finished(running, outcomes, took, warnings, shown)


def _compute(running: Sequence[_Running]) -> Sequence[OutcomeOrError]:
    """Return the outcome, or the error, of each job of a pass, in their order.

    The error of a job that is alone in its pass is raised.
    """
    first = running[0].planned
    if len(running) > 1 and first.instrument.run_all is not None:
        jobs = []
        for job in running:
            config = job.planned.config
            assert isinstance(config, AnalyzeConfig), "only analyses share a pass"
            jobs.append((job.planned.instrument, config, job.work))
        return first.instrument.run_all(jobs)
    return [first.instrument.run(first.config, running[0].work)]


@contextlib.contextmanager
def _begun(jobs: Sequence[PlannedJob], requested: int) -> Iterator[list[_Running]]:
    """Yield the jobs that run, each with its context.

    Args:
        jobs: The jobs, which have the same settings of processes, threads and `force`.
        requested: The number of jobs that were asked for, with those that are done.
    """
    import torch

    first = jobs[0]
    # A job that is forced starts anew, and resumes from no state.
    if first.config.force and first.is_of_first_process:
        for job in jobs:
            if isinstance(job.job, StoredJob):
                shutil.rmtree(job.job.states, ignore_errors=True)
    torch.manual_seed(first.instrument.seed(first.config))  # the jobs of a sweep share a process
    if first.config.threads:
        torch.set_num_threads(first.config.threads)

    with contextlib.ExitStack() as opened:
        processes = ProcessGroup()
        if first.instrument.is_shared:
            shared = together(first.config.trainer, first.config.model.device)
            processes = opened.enter_context(shared)

        # The first process says which jobs run, as another one may finish some meanwhile.
        if requested > 1:
            keys = processes.everyone([job.key for job in jobs])[0]
            jobs = [job for job in jobs if job.key in keys]

        running = []
        for job in jobs:
            work = job.work(processes)
            opened.enter_context(work.opened)
            running.append(_Running(job, work))
        yield running


def _finished(
    running: Sequence[_Running],
    outcomes: Sequence[OutcomeOrError],
    took: RunFacts,
    warnings: GatheredWarnings,
    shown: bool,
) -> dict[str, Result]:
    """Store the outcomes of a pass; returns the results by key, or raises the first error.

    Further errors are logged.

    Args:
        running: The jobs.
        outcomes: The outcome, or the error, of each.
        took: How long the pass took.
        warnings: The warnings of the pass.
        shown: Whether the results are printed.
    """
    pass_models: list[str] = []
    for outcome in outcomes:
        if isinstance(outcome, Outcome):
            pass_models += outcome.model_names

    results: dict[str, Result] = {}
    errors: list[ThinkalikeError] = []
    for job, outcome in zip(running, outcomes, strict=True):
        if isinstance(outcome, ThinkalikeError):
            errors.append(outcome)
            continue
        planned = job.planned
        warnings_of_job = warnings.of_models(outcome.model_names, pass_models)
        try:
            result = planned.write(job.work, outcome.guarded(), took, warnings_of_job)
            results[planned.key] = result
            if shown:
                planned.show(result)
        except ThinkalikeError as error:
            errors.append(error)

    for further in errors[1:]:
        log.error("error: %s", further)
    if errors:
        raise errors[0]
    return results
