"""Runs one job or several: key, "already done", lock, seed, provenance, and the place in the store."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import logging
import os
import re
import resource
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from thinkalike.config import AnalyzeConfig, TrainConfig, command_line, command_words, relevant
from thinkalike.config.roots import chosen_scale
from thinkalike.digests import versions_of
from thinkalike.errors import ConfigError, ThinkalikeError
from thinkalike.job.instrument import Instrument, Outcome, Work
from thinkalike.job.phases import Phases, phase_of_all
from thinkalike.job.resources import explained
from thinkalike.job.said import WARNING, Warnings, gathered
from thinkalike.plugins import digest, named_in
from thinkalike.processes import ProcessGroup, rank, together
from thinkalike.progress import doing
from thinkalike.screen import aside
from thinkalike.store import Job, Result

log = logging.getLogger(__name__)

ALWAYS = ("store", "force", "screen", "wait", "seed", "threads", "trainer", "logger")  # parts that every job reads
FOR_CURVES = ("csv", "none")  # loggers of curves, which analyses do not have
AGENT = "WANDB_SWEEP_ID"  # environment variable of jobs that an agent of a W&B sweep starts


def perform(instrument: Instrument, config: Any, shown: bool = True) -> Result:
    """Do a job, or return its result if that is in the store.

    Args:
        config: a dataclass with the parts of `ALWAYS` and those that the instrument reads.
        shown: whether the result is printed, as those of parts of another job are not.

    Raises:
        StoreError: the store cannot be written, the result in it is damaged, or another process is at the same job and
            `wait` is false.
        ThinkalikeError: see the instrument.
    """
    return perform_all([(instrument, config)], shown)[0]


def perform_all(jobs: Sequence[tuple[Instrument, Any]], shown: bool = True) -> list[Result]:
    """Do the jobs that the store lacks, in one pass; returns the result of each.

    Each is an instrument with a configuration; all instruments have the same `run_all`. Each has a key, a lock, a state
    and a folder as if it were done alone. Where some fail the others are finished, and then the first error is raised.

    Raises:
        ThinkalikeError: see `perform`.
    """
    with gathered() as warnings, contextlib.ExitStack() as held:
        return _performed(jobs, shown, warnings, held)


def _performed(
    jobs: Sequence[tuple[Instrument, Any]], shown: bool, warnings: Warnings, held: contextlib.ExitStack
) -> list[Result]:
    with doing("reading what the job needs", steps_aside=True):
        asked = [_Planned(instrument, config, shown) for instrument, config in jobs]
        different = {each.job.key: each for each in asked}
        missing = [each for each in different.values() if not each.is_done()]
        for each in missing:
            each.check_models()
            each.check_text()
    for line in dict.fromkeys(filter(None, (each.scale_taken() for each in missing))):
        log.info(line)
    for each in sorted(missing, key=lambda each: each.job.key):  # so that no two processes wait for each other
        held.enter_context(_with_lock(each.job, each.config))
        held.enter_context(explained(each.job.partial))
    missing = [each for each in missing if not each.is_done()]  # by the process that had the lock before
    if missing:
        _pass(missing, len(asked), warnings)
    return [different[each.job.key].found for each in asked]


def is_stored(instrument: Instrument, config: Any) -> bool:
    """Return whether the store has the result of a job; nothing is computed, printed or written.

    Raises:
        ThinkalikeError: the configuration is wrong, or what the job reads cannot be had.
    """
    return not config.force and _Planned(instrument, config, shown=False).job.done


class _Planned:
    """A job before it runs: its inputs, its key, and its place in the store."""

    found: Result

    def __init__(self, instrument: Instrument, config: Any, shown: bool):
        if isinstance(config, AnalyzeConfig) and config.trainer.strategy == "ddp" and not instrument.is_shared:
            raise ConfigError(f"{instrument.kind} is done by one process; leave trainer=ddp out")
        self.instrument, self.config = instrument, config
        self.is_shown = shown and not rank(config)
        self.inputs, self.read = instrument.inputs(config), instrument.with_unread_reset(config)
        read = relevant(self.read).items()
        self.entered = {name: part for name, part in read if name in instrument.reads and part is not None}
        read_parts = [part for name, part in asdict(self.read).items() if name in instrument.reads]
        self.plugins = {name: digest(name) for name in named_in(read_parts)}
        if self.plugins:
            self.inputs = {**self.inputs, "plugins": " ".join(sorted(self.plugins.values()))}
        self.contents = contents_of(self.inputs)
        self.job = Job(config.store, instrument.kind, key_of(instrument, self.entered, self.contents))
        self.name = run_name(self.job.kind, self.job.key, self.inputs, command_words())

    def is_done(self) -> bool:
        """Return whether the result is in the store, and remember it in `found`."""
        if self.config.force or not (result := self.job.result()):
            return False
        self._again(result)
        self.found = result
        return True

    def check_models(self) -> None:
        """Check what can be known of the models before they are loaded."""
        from thinkalike.models.outline import check_models

        check_models({side: getattr(self.read, side) for side in ("model", "target") if side in self.instrument.reads})

    def check_text(self) -> None:
        """Check what can be known of the text before models are loaded."""
        from thinkalike.data.split import check_text

        if "data" in self.instrument.reads and self.read.data is not None:
            contexts = [model.context for model in self.instrument.models_of(self.read).values() if model.context]
            check_text(self.read.data, min(contexts, default=None))

    def scale_taken(self) -> str:
        """Return which scale of its recipe a job that reads text takes, why, and what the other one is, or nothing."""
        models = list(self.instrument.models_of(self.config).values())
        scale, why = chosen_scale(getattr(self.config, "scale", "mini"), models)
        other = "scale=paper takes the papers' recipe" if scale == "mini" else "scale=mini takes a laptop's"
        return f"scale={scale}: {why}; {other}" if why and "data" in self.instrument.reads else ""

    def work(self, processes: ProcessGroup) -> Work:
        """Return the context of the running job."""
        shown = (*self.instrument.reads, *ALWAYS)
        settings = {name: part if name in shown else None for name, part in asdict(self.read).items()}
        work = Work(self.job, settings, self.inputs, contextlib.ExitStack(), processes=processes)
        if not rank(self.config):
            work.phase = Phases(self.job.states)
            if isinstance(self.config, TrainConfig) or self.config.logger.kind not in FOR_CURVES:
                work.tracker = work.opened.enter_context(self._tracked(self.job.partial / "curves", settings))
        return work

    def _tracked(self, folder: Path, settings: Mapping[str, Any]) -> contextlib.AbstractContextManager[Any]:
        """Log the job, and files of its result in a folder, while this is open."""
        from thinkalike.loggers import About, tracked

        return tracked(self.config.logger, About(self.name, self.job.kind, self.job.store, folder, settings))

    def finish(self, work: Work, computed: Outcome | ThinkalikeError, took: Mapping[str, Any]) -> None:
        """Store, draw, publish and print the result, with the provenance of the run and what it `took`."""
        if isinstance(computed, ThinkalikeError):
            raise computed
        began, outcome = time.monotonic(), computed.guarded()
        record = {"version": self.instrument.version, "scalars": outcome.scalars, "settings": self.entered}
        facts = {"seed": self.config.seed, "models": list(outcome.models), **outcome.facts}
        provenance = {**environment(), **facts, **took, "inputs": self.contents}
        if self.plugins:
            provenance["plugins"] = [{"name": name, "sha256": digest} for name, digest in self.plugins.items()]
        tables = {"table": outcome.table, **outcome.tables}
        written = self.job.write(work.settings, {**record, "provenance": provenance}, tables, outcome.arrays)
        with work.phase("drawing"):
            self.instrument.draw(written, written.folder / "figures")
            outcome.draw(written.folder / "figures")
        provenance["wall_seconds"] = round(took["wall_seconds"] + time.monotonic() - began, 1)
        headlines = [each._asdict() for each in self.instrument.headlines(written)]
        self.job.add({"headlines": headlines, "provenance": provenance | {"phases": work.phase.seconds}})
        if work.tracker:
            work.tracker.publish(Result(written.folder))
        work.opened.close()
        self.found = self.job.appear()
        self._show(self.found)

    def _show(self, result: Result) -> None:
        """Print the result, unless it is a part of another one."""
        if not self.is_shown:
            return
        with aside():
            self.instrument.show(result)
            if self.config.screen == "full":
                self.instrument.show_full(result)

    def _again(self, result: Result) -> None:
        """Say that the job is already done, with its warnings, name versions that differ, and print the result."""
        log.info("already done; force=true does it again")
        for text in result.provenance.get("warnings", ()):
            log.warning("%s%s", WARNING, text)
        before, there = result.provenance["versions"], versions_of(PACKAGES).items()
        others = [f"{name} {before.get(name)} (now {now})" for name, now in there if before.get(name) != now]
        if others:
            log.warning("it was computed with %s", ", ".join(others))
        self._show(result)
        if AGENT in os.environ and not rank(self.config):  # it waits for the numbers of every job that it starts
            with self._tracked(result.folder, result.config) as tracker:
                tracker.publish(result)


def _pass(jobs: Sequence[_Planned], among: int, warnings: Warnings) -> None:
    """Compute and store the jobs whose locks this process holds, `among` as many that were asked for."""
    import torch

    instrument, config, began, errors = jobs[0].instrument, jobs[0].config, time.monotonic(), []
    if config.force and not rank(config):
        for each in jobs:
            each.job.forget()
    torch.manual_seed(instrument.seed(config))  # the jobs of a sweep share a process
    if config.threads:
        torch.set_num_threads(config.threads)
    with contextlib.ExitStack() as opened:
        processes = ProcessGroup()
        if instrument.is_shared:
            processes = opened.enter_context(together(config.trainer, config.model.device))
        if among > 1:  # the first process says which, as another one may finish a job meanwhile
            chosen = processes.everyone([each.job.key for each in jobs])[0]
            jobs = [each for each in jobs if each.job.key in chosen]
        works = [each.work(processes) for each in jobs]
        for work in works:
            opened.enter_context(work.opened)
        given = [(each.instrument, each.config, work) for each, work in zip(jobs, works, strict=True)]
        with phase_of_all(works, "computing"):
            outcomes = instrument.run_all(given)
        seconds = time.monotonic() - began
        took = {"wall_seconds": round(seconds, 1)}
        took |= {"jobs_in_this_pass": len(jobs)} if len(jobs) > 1 else {}
        names = [_models_of(outcome) for outcome in outcomes]
        for each, work, outcome, own in zip(jobs, works, outcomes, names, strict=True):
            said = {"warnings": found} if (found := warnings.of(own, itertools.chain(*names))) else {}
            try:
                each.finish(work, outcome, {**took, **said})
            except ThinkalikeError as error:
                errors.append(error)
    for further in errors[1:]:
        log.error("error: %s", further)
    if errors:
        raise errors[0]


def _models_of(outcome: Outcome | ThinkalikeError) -> list[str]:
    return [] if isinstance(outcome, ThinkalikeError) else [model["name"] for model in outcome.models]


def contents_of(inputs: Mapping[str, Any]) -> dict[str, str]:
    """Return the fingerprint of each thing that a job reads, see `Instrument.inputs`."""
    return {name: part if isinstance(part, str) else part.fingerprint() for name, part in inputs.items()}


def key_of(instrument: Instrument, entered: dict[str, Any], inputs: Mapping[str, Any]) -> str:
    """Return the key of a job: a hash of the version of its kind, its settings, and the content of its inputs."""
    text = json.dumps([instrument.kind, instrument.version, entered, contents_of(inputs)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _with_lock(job: Job, config: Any) -> contextlib.AbstractContextManager[Any]:
    """Hold the job's lock in the first of the processes that share it; the others run without it, and silently."""
    if rank(config):
        logging.getLogger("thinkalike").setLevel(logging.ERROR)
    return contextlib.nullcontext() if rank(config) else job.running(wait=config.wait)


LONGEST = 128  # characters of a name, the most that W&B takes
UNSAID = re.compile(  # words that the kind and the names of models say already, or that leave the numbers alone
    r"[+~]*((task|measure|experiment)(=|$)|(models?|target|store|force|wait|logger|trainer|threads|hydra)([=.@/]|$)"
    r"|data\.(files|cache)=)"
)


def run_name(kind: str, key: str, inputs: Mapping[str, Any], words: Sequence[str]) -> str:
    """Return the name of a run: kind, models, main settings, key, as "cka gpt2, bert measure.batches=4 9d95e636c1fb".

    Args:
        inputs: what the instrument read; of models it holds their labels.
        words: those of the job's command line, as many of which are in the name as there is room for.
    """
    labels = inputs.get("labels") or inputs.get("names") or ""
    models = ", ".join(dict.fromkeys(labels.split(", "))) if isinstance(labels, str) else ""
    name = f"{kind} {models}".strip()
    for word in words:
        if not UNSAID.match(word) and len(f"{name} {word} {key}") <= LONGEST:
            name = f"{name} {word}"
    return f"{name[: LONGEST - len(key) - 1]} {key}"


PACKAGES = ("thinkalike", "torch", "transformers", "transformer-lens", "pytorch-lightning", "datasets", "numpy")


def environment() -> dict[str, Any]:
    """Return date (UTC), command line, host, versions, commit, threads and peak memory of this process."""
    import torch

    gpu = {"peak_gpu_bytes": torch.cuda.max_memory_allocated()} if torch.cuda.is_available() else {}
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command_line(),
        "host": socket.gethostname(),
        "versions": versions_of(PACKAGES),
        "git_commit": _commit(),
        "threads": torch.get_num_threads(),
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        **gpu,
    }


def _commit() -> str:
    """The commit of the checkout that this code runs from."""
    command = ["git", "describe", "--always", "--dirty"]
    with contextlib.suppress(OSError):  # there is no git
        run = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
        return run.stdout.strip() or "unknown"
    return "unknown"
