"""Runs jobs: a look into the store, the lock, the run, and the result with its provenance."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from thinkalike.advice import named_setting
from thinkalike.config import AnalyzeConfig, JobConfig
from thinkalike.digests import versions_of
from thinkalike.errors import ConfigError, ThinkalikeError, plain_line
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
from thinkalike.job.work import Work, naming_resumed_states, phase_of_all
from thinkalike.processes import ProcessGroup, counted, doing, together
from thinkalike.store import Result, StoredJob
from thinkalike.store.damaged_results import reporting_damage

# The environment variable of jobs that an agent of a W&B sweep starts.
WANDB_AGENT = "WANDB_SWEEP_ID"

log = logging.getLogger(__name__)


def run_job(config: JobConfig, shown: bool = True) -> Result:
    """Return the result of the job that a configuration describes.

    The job is done unless its result is in the store already.

    Args:
        config: The configuration.
        shown: Whether the result is printed.

    Raises:
        ConfigError: There is no such task or measure, recorded activations are given and it takes
            none, or the setting `models` stands for several jobs.
    """
    instrument = instrument_of(config)
    models = getattr(config, "models", None)
    if models is not None and instrument.of_models != "all":
        raise ConfigError(
            f"models={models} stands for several jobs; call run_jobs(asked_for(config))"
        )
    return perform(instrument, config, shown)


def run_jobs(configs: Sequence[JobConfig], shown: bool = True) -> list[Result]:
    """Do several jobs; those that can share one pass over the text are done together.

    Results that are in the store are not computed again.

    Args:
        configs: The configurations of the jobs.
        shown: Whether the results are printed.

    Returns:
        The results, in the order of the configurations.
    """
    positions_of_passes: Iterable[list[int]] = jobs_by_pass(configs)
    if len(configs) > 1:
        positions_of_passes = counted(positions_of_passes, "pass")  # shows the progress

    by_position: dict[int, Result] = {}
    for positions in positions_of_passes:
        jobs = [(instrument_of(configs[position]), configs[position]) for position in positions]
        results = perform_all(jobs, shown)
        by_position.update(zip(positions, results, strict=True))
    return [by_position[position] for position in range(len(configs))]


def jobs_by_pass(configs: Sequence[JobConfig]) -> list[list[int]]:
    """Group jobs by the pass over the text that they share; returns their indices in `configs`.

    Jobs whose kinds have the same function `run_all`, which does several jobs at once, share a
    pass. Every other job has a pass of its own, and so has a job that compares recordings.
    """
    positions_by_pass: dict[RunTogether | int, list[int]] = {}
    for position, config in enumerate(configs):
        run_all = None
        if not getattr(config, "activations", None):
            run_all = instrument_of(config).run_all
        pass_key = run_all or position  # a job with a pass of its own has its position as the key
        positions_by_pass.setdefault(pass_key, []).append(position)
    return list(positions_by_pass.values())


def perform(instrument: Instrument[Config], config: Config, shown: bool = True) -> Result:
    """Return the result of a job, which is done unless its result is in the store already.

    Args:
        instrument: The instrument that does the job.
        config: Its configuration.
        shown: Whether the result is printed.

    Raises:
        StoreError: The store cannot be written, the result in it is damaged, or another process is
            doing the same job and the setting `wait` is false.
        ThinkalikeError: Whatever the instrument raises.
    """
    return perform_all([(instrument, config)], shown)[0]


def perform_all(
    jobs: Sequence[tuple[AnyInstrument, JobConfig]], shown: bool = True
) -> list[Result]:
    """Return the result of each job, in their order; those that the store lacks are done together.

    Each job has its own key (a hash of its settings and inputs), lock, state and folder, as if it
    were done alone. If some fail, the rest are finished before the first error is raised. Jobs
    with the same key are done once.

    Args:
        jobs: The jobs, each an instrument and a configuration. Several jobs must have the same
            function `run_all`, which does them together, in one pass over the text.
        shown: Whether the results are printed.

    Raises:
        ConfigError: A configuration asks for a dry run, which has no result.
        ThinkalikeError: Whatever the instruments raise.
    """
    if any(config.dry_run for _, config in jobs):
        raise ConfigError(
            "dry_run=true computes no result; leave it out, or call thinkalike.forecast.forecast "
            "with this configuration"
        )
    with GatheredWarnings() as warnings, contextlib.ExitStack() as opened:
        with doing("reading what the job needs", steps_aside=True):
            requested = [plan(instrument, config) for instrument, config in jobs]
            job_of_key = {planned.key: planned for planned in requested}
            results = _stored_results(job_of_key.values(), shown)
            missing = [planned for key, planned in job_of_key.items() if key not in results]
            notices = [planned.check() for planned in missing]
        for notice in dict.fromkeys(notices):  # each notice once
            if notice:
                log.info(notice)

        _hold_locks(missing, opened)

        # Another process may have finished some of them while this one waited for their locks.
        results |= _stored_results(missing, shown)
        missing = [planned for planned in missing if planned.key not in results]
        if missing:
            results |= _run_missing(missing, len(requested), warnings, opened, shown)
    return [results[planned.key] for planned in requested]


def _hold_locks(jobs: Iterable[PlannedJob], opened: contextlib.ExitStack) -> None:
    """Acquire the locks of jobs, and hold them until `opened` is closed.

    A lock that another process holds is waited for, or is an error if the setting `wait` is false.
    All processes acquire locks in the order of keys, so that no two wait for each other. Of
    several processes that share one job, only the first acquires its lock; from now on, the
    others log nothing but errors. While `opened` is open, errors that mean too little memory or
    disk space are turned into one line.
    """
    for planned in sorted(jobs, key=lambda planned: planned.key):
        if planned.is_of_first_process:
            opened.enter_context(planned.job.running(wait=planned.config.wait))
        else:
            LOGGER.setLevel(logging.ERROR)
        opened.enter_context(explaining_machine_errors(planned.job))


def _stored_results(jobs: Iterable[PlannedJob], shown: bool) -> dict[str, Result]:
    """Return the stored results of jobs by key, after logging their warnings again.

    Jobs without a stored result are left out, and so are jobs with force=true, which are to be
    done again. In an agent of a W&B sweep, the numbers of the results are logged to W&B once more.

    Args:
        jobs: The jobs.
        shown: Whether the results are printed.
    """
    results = {}
    for planned in jobs:
        result = None if planned.config.force else planned.job.result()
        if result is None:
            continue
        results[planned.key] = result
        again = named_setting("force", True)
        log.info(
            f"{plain_line(result.subject)} ({result.key}): already done; {again} does it again"
        )
        _repeat_warnings(result)
        if shown:
            with reporting_damage(result.place, result.kind):
                planned.show(result)

        # An agent of W&B waits for the numbers of every job that it starts.
        if WANDB_AGENT in os.environ and planned.is_of_first_process:
            with planned.tracked(result.config) as tracker:
                if tracker is not None:
                    tracker.publish(result)
    return results


def _repeat_warnings(result: Result) -> None:
    """Log the warnings that a stored result came with, and the packages that changed since.

    These are the packages that have another version now than when the result was computed.
    """
    provenance = result.provenance
    for warning in provenance.get("warnings", ()):
        log.warning("%s%s", WARNING, plain_line(warning))

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
    requested_count: int,
    warnings: GatheredWarnings,
    opened: contextlib.ExitStack,
    shown: bool,
) -> dict[str, Result]:
    """Run jobs together, store their results, and return these by key.

    Args:
        missing: The jobs, whose locks are held.
        requested_count: How many jobs were asked for, including those whose results are stored.
        warnings: Gathers the warnings of the jobs.
        opened: Keeps the contexts of the jobs open until they are finished.
        shown: Whether the results are printed.
    """
    began = time.monotonic()
    running = opened.enter_context(_with_contexts(missing, requested_count))
    for job in running:
        if isinstance(job.planned.job, StoredJob):
            names = [model.called for model in job.planned.models.values()]
            warnings.store_beside_states(job.planned.job.states, names)

    works = [job.work for job in running]
    with phase_of_all(works, "computing"), naming_resumed_states(works):
        outcomes = _compute(running)

    run_facts = RunFacts(round(time.monotonic() - began, 1), len(running))
    return _stored_outcomes(running, outcomes, run_facts, warnings, shown)


def _compute(running: Sequence[_Running]) -> Sequence[OutcomeOrError]:
    """Return the outcome, or the error, of each of several jobs that run together, in their order.

    Several jobs have the same function `run_all`, which does them in one pass over the text. A
    single job is run by itself, and its error is raised.
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
def _with_contexts(jobs: Sequence[PlannedJob], requested_count: int) -> Iterator[list[_Running]]:
    """Yield jobs with the context that each needs to run, and release everything at the end.

    This also sets the seed and the number of threads of torch.

    Args:
        jobs: The jobs, which have the same settings of processes, threads and `force`.
        requested_count: How many jobs were asked for, including those whose results are stored.
    """
    import torch

    first = jobs[0]
    # With force=true a job starts from the beginning and must not resume from a stored state.
    if first.config.force and first.is_of_first_process:
        for planned in jobs:
            if isinstance(planned.job, StoredJob):
                shutil.rmtree(planned.job.states, ignore_errors=True)
    # The jobs of a sweep run one after another in one process, so each sets the seed again.
    torch.manual_seed(first.instrument.seed(first.config))
    if first.config.threads:
        torch.set_num_threads(first.config.threads)

    with contextlib.ExitStack() as opened:
        processes = ProcessGroup()
        if first.instrument.is_shared:
            shared = together(first.config.trainer, first.config.model.device)
            processes = opened.enter_context(shared)

        # All processes run the jobs that the first one runs. Each has looked into the store on its
        # own, and a job may have been finished in between.
        if requested_count > 1:
            keys = processes.everyone([planned.key for planned in jobs])[0]
            jobs = [planned for planned in jobs if planned.key in keys]

        running = []
        for planned in jobs:
            work = planned.work(processes)
            opened.enter_context(work.opened)
            running.append(_Running(planned, work))
        yield running


def _stored_outcomes(
    running: Sequence[_Running],
    outcomes: Sequence[OutcomeOrError],
    run_facts: RunFacts,
    warnings: GatheredWarnings,
    shown: bool,
) -> dict[str, Result]:
    """Store the outcomes of jobs that ran together, and return the results by key.

    All outcomes are stored before the first error, if there is one, is raised. Further errors are
    logged.

    Args:
        running: The jobs.
        outcomes: The outcome, or the error, of each.
        run_facts: How long they took together.
        warnings: The warnings that were logged meanwhile.
        shown: Whether the results are printed.

    Raises:
        ThinkalikeError: A job failed, or a number of its outcome is not finite.
    """
    models_of_all_jobs: list[str] = []
    for outcome in outcomes:
        if isinstance(outcome, Outcome):
            models_of_all_jobs += outcome.model_names

    results: dict[str, Result] = {}
    errors: list[ThinkalikeError] = []
    for job, outcome in zip(running, outcomes, strict=True):
        if isinstance(outcome, ThinkalikeError):
            errors.append(outcome)
            continue
        planned = job.planned
        few_documents = outcome.why_intervals_say_little
        if few_documents:
            log.warning("%s%s", WARNING, few_documents)
        warnings_of_job = warnings.warnings_of_job(outcome.model_names, models_of_all_jobs)
        try:
            checked = outcome.checked_for_storing()  # that all its numbers are finite
            result = planned.write(job.work, checked, run_facts, warnings_of_job)
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
