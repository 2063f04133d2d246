"""Runs jobs: fingerprints, key, a look into the store, the lock, the run, and the result with its provenance."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import logging
import math
import os
import re
import resource
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from thinkalike.config import AnalyzeConfig, ModelConfig, TrainConfig
from thinkalike.config.parts import AFTER, chosen_scale
from thinkalike.config.schema import as_settings
from thinkalike.digests import versions_of
from thinkalike.errors import ConfigError, ModelError, ResourceError, ThinkalikeError, chain, one_line, panicked
from thinkalike.files import read_bytes
from thinkalike.job.instrument import Instrument, Outcome, Work, phase_of_all, readable
from thinkalike.job.settings import ONE_SITE, asked_for
from thinkalike.plugins import check_trusted, digest, instrument_of, named_in
from thinkalike.processes import Interrupted, ProcessGroup, counted, doing, rank, together
from thinkalike.screen import aside
from thinkalike.store import Job, Result
from thinkalike.store.record import MOST_JSON_BYTES
from thinkalike.unkept import UnkeptJob, UnkeptResult

ALWAYS = ("store", "force", "wait", "seed", "threads", "trainer", "logger")  # parts that every job reads
PACKAGES = ("thinkalike", "torch", "transformers", "transformer-lens", "pytorch-lightning", "datasets", "numpy",
            "mamba-ssm", "causal-conv1d")  # fmt: skip
MUCH = 2**18  # tokens; embedded minis read as many in minutes
AGENT = "WANDB_SWEEP_ID"  # environment variable of jobs that an agent of a W&B sweep starts
WARNING = "warning: "
SMALLER = "lower trainer.memory, measure.tokens_per_batch, pairs or layers, or choose a larger machine"
NO_PLACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES)
PLACES = "free some space, or choose other places with store=DIR and data.cache=DIR"
NUMBERED = re.compile(r"\(os error (\d+)\)")  # how libraries written in Rust say it

_command_line: ContextVar[str | None] = ContextVar("command line", default=None)

log = logging.getLogger(__name__)
LOGGER = logging.getLogger("thinkalike")


def run_job(config: TrainConfig | AnalyzeConfig, shown: bool = True) -> Result:
    """Do the job that a configuration describes, or return its result if that is in the store.

    It is printed unless `shown` is false, as the results of parts of another job are not.

    Raises:
        ConfigError: there is no such task or measure, it takes no activations, or `models` stands for several jobs.
    """
    chosen = instrument_of(config)
    if isinstance(config, AnalyzeConfig) and config.models is not None and chosen.of_models != "all":
        raise ConfigError(f"models={config.models} stands for several jobs; call run_jobs(asked_for(config))")
    return perform(chosen, config, shown)


def run_jobs(configs: Sequence[TrainConfig | AnalyzeConfig], shown: bool = True) -> list[Result]:
    """Do several jobs, those together that have less work in one pass; returns the result of each, see `run_job`."""
    found: dict[int, Result] = {}
    for places in counted(passes(configs), "pass") if len(configs) > 1 else passes(configs):
        results = perform_all([(instrument_of(configs[place]), configs[place]) for place in places], shown)
        found |= zip(places, results, strict=True)
    return [found[place] for place in range(len(configs))]


def passes(configs: Sequence[TrainConfig | AnalyzeConfig]) -> list[list[int]]:
    """Return the places of the jobs of each pass: those of kinds that can share one, and every other by itself."""
    together: dict[Any, list[int]] = {}
    for place, config in enumerate(configs):
        shares = None if getattr(config, "activations", None) else instrument_of(config).run_all
        together.setdefault(shares or place, []).append(place)
    return list(together.values())


def perform(instrument: Instrument, config: Any, shown: bool = True) -> Result:
    """Do a job, or return its result if that is in the store; see `perform_all`.

    Raises:
        StoreError: the store cannot be written, the result in it is damaged, or another process is at the same job and
            `wait` is false.
        ThinkalikeError: see the instrument.
    """
    return perform_all([(instrument, config)], shown)[0]


def perform_all(jobs: Sequence[tuple[Instrument, Any]], shown: bool = True) -> list[Result]:
    """Do the jobs that the store lacks, in one pass; returns the result of each, which is printed if it is `shown`.

    Each is an instrument with a configuration that has the parts of `ALWAYS` and those that it reads; several have the
    same `run_all`. Each has a key, a lock, a state and a folder as if it were done alone. Where some fail the others
    are finished, and then the first error is raised.
    """
    with Warnings() as warnings, contextlib.ExitStack() as opened:
        with doing("reading what the job needs", steps_aside=True):
            asked = [plan(*job) for job in jobs]
            different = {each.job.key: each for each in asked}
            found = _stored(different.values(), shown)
            missing = [each for key, each in different.items() if key not in found]
            said = [each.check() for each in missing]
        for line in dict.fromkeys(filter(None, said)):
            log.info(line)
        for each in sorted(missing, key=lambda each: each.job.key):  # so that no two processes wait for each other
            if rank(each.config):
                LOGGER.setLevel(logging.ERROR)  # the first of the processes that share it has the lock, and speaks
            else:
                opened.enter_context(each.job.running(wait=each.config.wait))
            opened.enter_context(_explained(each.job))
        found |= _stored(missing, shown)  # by the process that had the lock before
        if missing := [each for each in missing if each.job.key not in found]:
            began, works = time.monotonic(), opened.enter_context(_begun(missing, len(asked)))
            for each, _ in works:
                if each.job.keeps_states:
                    warnings.keep(each.job.states, [model.called for model in each.models.values()])
            given = [(each.instrument, each.config, work) for each, work in works]
            with phase_of_all((work for _, work in works), "computing"):
                (kind, config, work), *others = given
                outcomes = kind.run_all(given) if others and kind.run_all else [kind.run(config, work)]
            found |= _finished(works, outcomes, time.monotonic() - began, warnings, shown)
    return [found[each.job.key] for each in asked]


def is_stored(instrument: Instrument, config: Any) -> bool:
    """Return whether the store has the result of a job; nothing is computed, printed or written."""
    return not config.force and plan(instrument, config).job.done


def is_known_done(instrument: Instrument, config: Any) -> bool:
    """Return whether the store has the result of a job; False where only other jobs, or the hub, could tell."""
    if type(instrument).prepare is not Instrument.prepare:
        return False
    with contextlib.suppress(ModelError):
        return is_stored(instrument, config)
    return False


def may_take_long(config: TrainConfig | AnalyzeConfig) -> bool:
    """Return whether a job is to be done whose models are no minis, or read much text."""
    if any(getattr(config, several, None) for several in ("experiment", "models", "activations")):
        return False
    (job,) = asked_for(config)
    kind = instrument_of(job)
    batches = (getattr(getattr(job, "measure", None), name, None) or 0 for name in ("batches", "tokens_per_batch"))
    is_much = max(job.data.report_tokens or 0, math.prod(batches)) > MUCH
    is_large = is_much or not all(model.mini for model in kind.models_of(job).values())
    return is_large and not is_known_done(kind, job)


@dataclass(frozen=True)
class Planned:
    """A job whose key is known."""

    instrument: Instrument
    config: Any
    read: Any  # the configuration of `Instrument.as_read`
    inputs: Mapping[str, Any]  # what it reads besides its settings
    contents: dict[str, str]  # the fingerprints of these
    entered: dict[str, Any]  # the settings that are in the key
    plugins: dict[str, str]  # the files of the user by name, each with its digest
    job: Job | UnkeptJob

    @cached_property
    def models(self) -> Mapping[str, ModelConfig]:
        """The models that run; for those of a run on the hub it is asked which there are."""
        return self.instrument.models_of(self.read)

    def check(self) -> str:
        """Check what can be known of models before they are loaded; returns which scale is taken, and why."""
        from thinkalike.models.families import check_models

        reads, models = self.instrument.reads, self.models.values()
        if not self.instrument.takes_sites and any(each.site != AFTER for each in models):
            raise ConfigError(ONE_SITE.format("model.site", self.instrument.kind))
        check_models({side: getattr(self.read, side) for side in ("model", "target") if side in reads})
        if "data" not in reads:
            return ""
        scale, why = chosen_scale(getattr(self.config, "scale", "mini"), list(models))
        other = "scale=paper takes the papers' recipe" if scale == "mini" else "scale=mini takes a laptop's"
        return f"scale={scale}: {why}; {other}" if why else ""

    def work(self, processes: ProcessGroup) -> Work:
        """Return the context of the running job."""
        shown = (*self.instrument.reads, *ALWAYS)
        settings = {name: part if name in shown else None for name, part in as_settings(self.read).items()}
        work = Work(self.job, settings, self.inputs, contextlib.ExitStack(), processes=processes)
        if not rank(self.config):
            work.tracker = work.opened.enter_context(self.tracked(settings))
        return work

    def tracked(self, settings: Mapping[str, Any]) -> contextlib.AbstractContextManager[Any]:
        """Log the job to W&B, if it is asked for, while this is open; yields what publishes the result there."""
        if self.config.logger.kind != "wandb":
            return contextlib.nullcontext()
        from thinkalike.loggers import tracked

        assert isinstance(self.job, Job), "a job without a store has no logger"
        return tracked(self.config.logger, self.job, self.inputs, settings)

    def write(self, work: Work, outcome: Outcome, took: Mapping[str, Any]) -> Result:
        """Write, draw and publish the result, with the provenance of the run and what it `took`."""
        began = time.monotonic()
        record = {"version": self.instrument.version, "scalars": outcome.scalars, "settings": self.entered}
        facts = {"seed": self.config.seed, "models": list(outcome.models), **outcome.facts}
        provenance = {**environment(), **facts, **took, "inputs": self.contents}
        if self.plugins:
            provenance["plugins"] = [{"name": name, "sha256": digest} for name, digest in self.plugins.items()]
        tables = {"table": outcome.table, **outcome.tables}
        written = self.job.write(work.settings, {**record, "provenance": provenance}, tables, outcome.arrays)
        if isinstance(written, UnkeptResult):
            written.add_figures(outcome.draw)
        else:
            with work.phase("drawing"):
                self.instrument.draw(written, written.folder / "figures")
                outcome.draw(written.folder / "figures")
        provenance["wall_seconds"] = round(took["wall_seconds"] + time.monotonic() - began, 1)
        headlines = [each._asdict() for each in self.instrument.headlines(written)]
        written = self.job.add({"headlines": headlines, "provenance": provenance | {"phases": work.phase.seconds}})
        if work.tracker:
            work.tracker.publish(written)
        work.opened.close()
        return self.job.appear()

    def show(self, result: Result) -> None:
        if not rank(self.config):
            with aside():
                self.instrument.show(result)


def plan(instrument: Instrument, config: Any) -> Planned:
    """Return a job with its key, after the jobs whose results it reads are done."""
    if isinstance(config, AnalyzeConfig) and config.trainer.strategy == "ddp" and not instrument.is_shared:
        raise ConfigError(f"{instrument.kind} is done by one process; leave trainer=ddp out")
    if getattr(config, "budget", None):
        raise ConfigError(f"budget={config.budget} is for a command line: choose layers and the amount of text here")
    config = instrument.completed(config)
    inputs = {**instrument.inputs(config), **instrument.prepare(config)}
    read = instrument.as_read(config)
    entered = instrument.key_settings(config)
    parts = [part for name, part in as_settings(read).items() if name in instrument.reads]
    plugins: dict[str, str] = {}
    for name in named_in(parts):
        check_trusted(name)  # for a `Stitch`, whatever kind it is given is the word of a person
        plugins[name] = digest(name)
    if plugins:
        inputs["plugins"] = " ".join(sorted(plugins.values()))
    contents = contents_of(inputs)
    key = key_of(instrument, entered, contents)
    is_kept = config.store is not None
    job = Job(config.store, instrument.kind, key) if is_kept else UnkeptJob(instrument.kind, key, instrument)
    return Planned(instrument, config, read, inputs, contents, entered, plugins, job)


def contents_of(inputs: Mapping[str, Any]) -> dict[str, str]:
    """Return the fingerprint of each thing that a job reads, see `Instrument.inputs`."""
    return {name: part if isinstance(part, str) else part.fingerprint() for name, part in inputs.items()}


def key_of(instrument: Instrument, entered: dict[str, Any], inputs: Mapping[str, Any]) -> str:
    """Return the key of a job: a hash of the version of its kind, its settings, and the content of its inputs."""
    text = json.dumps([instrument.kind, instrument.version, entered, contents_of(inputs)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _stored(jobs: Iterable[Planned], shown: bool) -> dict[str, Result]:
    """Return the results of those jobs that are done, by key, and print them with their warnings."""
    found = {}
    for each in jobs:
        if each.config.force or not (result := each.job.result()):
            continue
        found[each.job.key] = result
        log.info("already done; force=true does it again")
        for text in result.provenance.get("warnings", ()):
            log.warning("%s%s", WARNING, text)
        before, there = result.provenance.get("versions", {}), versions_of(PACKAGES).items()
        if others := [f"{name} {before.get(name)} (now {now})" for name, now in there if before.get(name) != now]:
            log.warning("it was computed with %s", ", ".join(others))
        if shown:
            with readable(result):
                each.show(result)
        if AGENT in os.environ and not rank(each.config):  # it waits for the numbers of every job that it starts
            with each.tracked(result.config) as tracker:
                tracker.publish(result)
    return found


@contextlib.contextmanager
def _begun(jobs: Sequence[Planned], among: int) -> Iterator[list[tuple[Planned, Work]]]:
    """Yield the jobs that run, of `among` requested ones, each with its context."""
    import torch

    instrument, config = jobs[0].instrument, jobs[0].config
    if config.force and config.store is not None and not rank(config):
        for each in jobs:
            shutil.rmtree(each.job.states, ignore_errors=True)
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
        works = [(each, each.work(processes)) for each in jobs]
        for _, work in works:
            opened.enter_context(work.opened)
        yield works


def _finished(
    works: Sequence[tuple[Planned, Work]],
    outcomes: Sequence[Outcome | ThinkalikeError],
    seconds: float,
    warnings: Warnings,
    shown: bool,
) -> dict[str, Result]:
    """Store the outcomes of a pass that took so many seconds; returns the results by key, or raises the first error."""
    found, errors = dict[str, Result](), list[ThinkalikeError]()
    took = {"wall_seconds": round(seconds, 1)} | ({"jobs_in_this_pass": len(works)} if len(works) > 1 else {})
    names = [[] if isinstance(each, ThinkalikeError) else [model["name"] for model in each.models] for each in outcomes]
    for (planned, work), outcome, own in zip(works, outcomes, names, strict=True):
        said = {"warnings": texts} if (texts := warnings.of(own, itertools.chain(*names))) else {}
        try:
            if isinstance(outcome, ThinkalikeError):
                raise outcome
            found[planned.job.key] = planned.write(work, outcome.guarded(), {**took, **said})
            if shown:
                planned.show(found[planned.job.key])
        except ThinkalikeError as error:
            errors.append(error)
    for further in errors[1:]:
        log.error("error: %s", further)
    if errors:
        raise errors[0]
    return found


class Warnings(logging.Handler):
    """Gathers warnings while it is open, and marks records that repeat one, as `record.again`."""

    def __init__(self) -> None:
        super().__init__()
        self.said: dict[str, None] = {}
        self.kept: dict[Path, list[str]] = {}  # names of models of each job

    def __enter__(self) -> Warnings:
        LOGGER.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        LOGGER.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith(WARNING):
            record.again = getattr(record, "again", False) or text in self.said
            self.said[text] = None
            for file, own in self.kept.items():
                with contextlib.suppress(FileNotFoundError):  # of a job that is done by now
                    file.parent.mkdir(exist_ok=True)
                    said = self.of(own, itertools.chain(*self.kept.values()))
                    (aside := file.with_suffix(".aside")).write_text(json.dumps(said))
                    os.replace(aside, file)
        if not logging.root.handlers and logging.lastResort and LOGGER.handlers[0] is self:  # as if this were not there
            logging.lastResort.handle(record)

    def keep(self, states: Path, own: list[str]) -> None:
        """Keep warnings beside the states of a job of these models, and give those again that a stopped run left."""
        file = states / "warnings.json"
        for text in _kept_warnings(file):
            log.warning("%s%s", WARNING, text)
        self.kept[file] = own

    def of(self, own: Iterable[str], others: Iterable[str]) -> list[str]:
        """Return the warnings that name none of the `others`, models that other jobs of the pass have, unless `own`."""
        foreign = [re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])") for name in {*others} - {*own}]
        texts = [text.removeprefix(WARNING) for text in self.said]
        return [text for text in texts if not any(name.search(text) for name in foreign)]


def _kept_warnings(file: Path) -> list[str]:
    """Return the warnings that a stopped run kept; of a file that holds none, say so and go on without."""
    try:
        texts = json.loads(read_bytes(file, MOST_JSON_BYTES, follow=False))
    except FileNotFoundError:
        return []
    except (OSError, ValueError, RecursionError) as error:  # such as of a machine that went down while it was written
        log.warning("%s cannot be read (%s); the job goes on without them", file, one_line(error))
        return []
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        log.warning("%s holds no list of warnings; the job goes on without them", file)
        return []
    return texts


@contextlib.contextmanager
def _explained(job: Job | UnkeptJob) -> Iterator[None]:
    """Turn an error that means that the machine has too little of something into one line, and say what was kept."""
    try:
        yield
    except Interrupted as error:
        error.kept = error.kept or job.has_states()
        raise
    except Exception as error:
        if not isinstance(error, ResourceError) and (reason := _reason(error)):
            after = " to resume from the last state" if job.has_states() else ""
            raise ResourceError(f"{reason}, and rerun the command{after}") from error
        raise
    except BaseException as error:
        if panicked(error):
            found = f"a tokenizer gives up on the text ({one_line(error)})"
            raise ModelError(f"{found}: a pattern of its tokenizer.json takes too many steps; replace it") from error
        raise


def _reason(error: BaseException) -> str | None:
    """Return what the machine lacks and what to do, or None if an error means something else."""
    from thinkalike.memory import out_of_memory_error

    if cause := out_of_memory_error(error):
        return f"there is too little memory ({one_line(cause) or type(cause).__name__}): {SMALLER}"
    for each in chain(error, suppressed=True):
        numbered = NUMBERED.search(str(each))
        number = each.errno if isinstance(each, OSError) else int(numbered[1]) if numbered else None
        if number in NO_PLACE:
            return f"{one_line(each)}: {PLACES}"
    return None


@contextlib.contextmanager
def called_by(command_line: str) -> Iterator[None]:
    """Let the provenance of results name this command line while this is open, and not that of the process."""
    before = _command_line.set(command_line)
    try:
        yield
    finally:
        _command_line.reset(before)


def environment() -> dict[str, Any]:
    """Return date (UTC), command line, host, versions, commit, threads and peak memory of this process."""
    import torch

    commit, gpu = "", {"peak_gpu_bytes": torch.cuda.max_memory_allocated()} if torch.cuda.is_available() else {}
    with contextlib.suppress(OSError):  # there is no git
        describe = ["git", "describe", "--always", "--dirty"]
        commit = subprocess.run(describe, cwd=Path(__file__).parent, capture_output=True, text=True).stdout.strip()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": _command_line.get() or shlex.join(sys.argv),
        "host": socket.gethostname(),
        "versions": versions_of(PACKAGES),
        "git_commit": commit or "unknown",
        "threads": torch.get_num_threads(),
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        **gpu,
    }
