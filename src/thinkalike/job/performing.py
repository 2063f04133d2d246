"""Doing jobs: key, "already done", lock, seed, provenance and the place in the store, of one job or of several."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from thinkalike.config import AnalyzeConfig, as_dict, relevant
from thinkalike.errors import ConfigError, ThinkalikeError
from thinkalike.job.frame import Instrument, Work
from thinkalike.job.outcome import Outcome
from thinkalike.job.provenance import environment, versions
from thinkalike.job.resources import explained
from thinkalike.models import check_models
from thinkalike.processes import Team, rank, together
from thinkalike.store import Job, Result

log = logging.getLogger(__name__)

ALWAYS = ("store", "force", "wait", "seed", "threads", "trainer", "logger")  # parts that are read for every job


def perform(instrument: Instrument, config: Any) -> Result:
    """Do a job, or return its result if that is in the store.

    Args:
        config: a dataclass with `seed`, `store`, `force`, `wait`, `threads` and the parts that the instrument reads.

    Raises:
        StoreError: the store cannot be written, the result that is there is damaged, or another process is at the same
            job and `wait` is false.
        ThinkalikeError: see the instrument.
    """
    return perform_all(instrument, [config])[0]


def perform_all(instrument: Instrument, configs: Sequence[Any]) -> list[Result]:
    """Do jobs of one kind, those that the store lacks in one pass; returns the result of each.

    Each has a key, a lock, a state and a folder as if it were done alone. Where some fail the others are finished, and
    then the first error is raised.

    Raises:
        ThinkalikeError: see `perform`.
    """
    asked = [_Planned(instrument, config) for config in configs]
    different = {each.job.key: each for each in asked}
    missing = [each for each in different.values() if not each.is_done()]
    for each in missing:
        check_models({side: getattr(each.narrowed, side) for side in ("model", "target") if side in instrument.reads})
    with contextlib.ExitStack() as held:
        for each in sorted(missing, key=lambda each: each.job.key):  # so that no two processes wait for each other
            held.enter_context(_with_lock(each.job, each.config))
            held.enter_context(explained(each.job.partial))
        missing = [each for each in missing if not each.is_done()]  # by the process that had the lock before
        if missing:
            _pass(instrument, missing, among=len(asked))
    return [different[each.job.key].found for each in asked]


class _Planned:
    """A job before its numbers: what it reads, its key, and its place in the store."""

    found: Result

    def __init__(self, instrument: Instrument, config: Any):
        _check_shared(instrument, config)
        self.instrument, self.config = instrument, config
        self.inputs, self.narrowed = instrument.inputs(config), instrument.narrowed(config)
        read = relevant(self.narrowed).items()
        self.entered = {name: part for name, part in read if name in instrument.reads and part is not None}
        self.job = Job(config.store, instrument.kind, key_of(instrument, self.entered, self.inputs))

    def is_done(self) -> bool:
        """Return whether the result is in the store and need not be done again; then it is `found`."""
        if self.config.force or not (result := self.job.result()):
            return False
        self.found = _again(self.instrument, result)
        return True

    def work(self, team: Team) -> Work:
        """Return what the running job is given."""
        shown = (*self.instrument.reads, *ALWAYS)
        settings = {name: part if name in shown else None for name, part in as_dict(self.narrowed).items()}
        return Work(self.job, settings, self.inputs, contextlib.ExitStack(), team=team)

    def finish(self, work: Work, computed: Outcome | ThinkalikeError, facts: dict[str, Any]) -> None:
        """Store what was computed, draw it, let it appear, and print it."""
        if isinstance(computed, ThinkalikeError):
            raise computed
        outcome = computed.guarded()
        facts = {"seed": self.config.seed, "models": list(outcome.models), **outcome.facts, **facts}
        record = {"version": self.instrument.version, "scalars": outcome.scalars, "settings": self.entered}
        tables = {"table": outcome.table, **outcome.tables}
        whole = {**record, "provenance": {**environment(), **facts}}
        written = self.job.write(work.settings, whole, tables, outcome.arrays)
        self.instrument.draw(written, written.folder / "figures")
        outcome.draw(written.folder / "figures")
        for publish in work.publish:
            publish(written)
        work.opened.close()
        self.found = self.job.appear()
        self.instrument.show(self.found)


def _pass(instrument: Instrument, jobs: Sequence[_Planned], among: int) -> None:
    """Compute and store jobs whose locks are held, of so many that were asked for."""
    config, began, errors = jobs[0].config, time.monotonic(), []
    if config.force and not rank(config):
        for each in jobs:
            each.job.forget()
    torch.manual_seed(instrument.seed(config))  # the jobs of a sweep share a process
    if config.threads:
        torch.set_num_threads(config.threads)
    with contextlib.ExitStack() as opened:
        team = opened.enter_context(together(config.trainer, config.model.device)) if instrument.is_shared else Team()
        if among > 1:  # the first process says which, as another one may finish a job meanwhile
            chosen = team.everyone([each.job.key for each in jobs])[0]
            jobs = [each for each in jobs if each.job.key in chosen]
        works = [each.work(team) for each in jobs]
        for work in works:
            opened.enter_context(work.opened)
        configs = [each.config for each in jobs]
        outcomes = instrument.run_all(list(zip(configs, works, strict=True)))
        facts = {"wall_seconds": round(time.monotonic() - began, 1)}
        facts |= {"jobs_in_this_pass": len(jobs)} if len(jobs) > 1 else {}
        for each, work, outcome in zip(jobs, works, outcomes, strict=True):
            try:
                each.finish(work, outcome, facts)
            except ThinkalikeError as error:
                errors.append(error)
    for further in errors[1:]:
        log.error("error: %s", further)
    if errors:
        raise errors[0]


def _again(instrument: Instrument, result: Result) -> Result:
    """Say that a job was done before, and by what if that was not what is here now."""
    log.info("already done; force=true does it again")
    before, now = result.provenance["versions"], versions()
    others = [f"{name} {before.get(name)} (now {now.get(name)})" for name in now if before.get(name) != now[name]]
    if others:
        log.warning("it was computed with %s", ", ".join(others))
    if instrument.shown_again:
        instrument.show(result)
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
