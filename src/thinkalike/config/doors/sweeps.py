"""Sweeps: a job that fails, or whose process is killed, does not stop the others.

The jobs share a file, whichever process or machine they run on, in which each notes that it began and how it ended.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Glob, IntervalSweep, Override

from thinkalike.config.compose import measures_of, options
from thinkalike.config.doors.commands import words_of_job
from thinkalike.config.doors.exits import USER_ERRORS
from thinkalike.config.words.plain import one_line
from thinkalike.config.words.spelling import settings_of
from thinkalike.errors import ConfigError, ResourceError, StoreError, first_line

SHARED = "THINKALIKE_SWEEP"  # environment variable: the file that the jobs of a sweep share
NOT_TAKEN = re.compile(r"\b(srun|sbatch)\b")  # how submitit says that there is no SLURM, or that it refuses
JOBS = "THINKALIKE_SWEEP_JOBS"  # environment variable: how many jobs it has, for its workers, too
ONE_AT_A_TIME = ["hydra.launcher.n_jobs=2", "hydra.launcher.pre_dispatch=1"]  # n_jobs=1 would have no worker to kill


class Made(NamedTuple):
    """A job of a sweep that is done: its place among them, its words, its folder, and the settings of its logger."""

    number: int
    words: list[str]
    folder: str
    logger: dict[str, Any]


def sweep(run: Callable[[], None], words: list[str], joined: Callable[[Sequence[Made]], None]) -> None:
    """Run all jobs of a sweep, show what they made, then list those that failed; exit status 1 if there are any.

    Where a worker process is killed, the jobs that are not done run again, one at a time; one that is killed again has
    failed.

    Args:
        joined: shows what the jobs made beside each other.
    """
    stores = [word.partition("=")[2].strip("'\"") for word in words if word.startswith("store=")]
    store = stores[-1] if stores else "results"
    failed: list[str] = []
    with _folder_of_notes(words, Path(store).expanduser()) as folder, _shared_file(folder) as path:
        try:
            run()
        except BrokenProcessPool:
            _one_at_a_time(run, path)
        except Exception as error:
            if NOT_TAKEN.search(str(error)):
                raise ResourceError(f"SLURM does not take the jobs: {first_line(error)}") from error
            raise
        finally:  # also when a launcher gives up because a job was killed
            failed, made = _noted(path, "failed"), _made(path)
            if made:
                joined(made)
            if failed:
                print(f"{len(failed)} of the sweep's jobs failed:", *failed, sep="\n  ", file=sys.stderr, flush=True)
    if failed:
        sys.exit(1)


def of_every_measure(parsed: Sequence[Override]) -> list[str]:
    """Return the words of a sweep; where it is over measures, their settings are added to whichever it is.

    Hydra composes a sweep once before its jobs, with a measure of none of them.

    Raises:
        ConfigError: a setting is not one of all the measures.
    """
    measures, words = measures_of(parsed), list[str]()
    is_over = any(each.is_sweep_override() and each.key_or_group in ("measure", "experiment") for each in parsed)
    for override in parsed:
        word, (part, _, setting) = str(override.input_line), str(override.key_or_group).partition(".")
        if is_over and part == "measure" and setting:
            for kind in measures:
                if setting.partition(".")[0] not in settings_of("measure", [kind]):
                    raise ConfigError(f"{word} is no setting of measure={kind}; sweep over the measures that have it")
            word = f"++{word.lstrip('+')}"
        words.append(word)
    return words


def jobs_of_sweep(parsed: Sequence[Override]) -> str:
    """Return how many jobs the words of a sweep stand for; "?" where a sweeper that searches decides.

    Raises:
        ConfigError: a word stands for none.
    """
    swept = [override for override in parsed if override.is_sweep_override()]
    if any(isinstance(override.value(), IntervalSweep) for override in swept):
        return "?"
    return str(math.prod(map(_values, swept)))


def _values(override: Override) -> int:
    """Return how many values a word of a sweep stands for."""
    value, key = override.value(), str(override.key_or_group)
    try:
        values = value.filter(options(key)) if isinstance(value, Glob) else list(override.sweep_iterator())
    except ValueError as error:  # of range
        raise ConfigError(f"{override.input_line} stands for no values: {first_line(error)}") from None
    if not values:
        raise ConfigError(f"{override.input_line} stands for no values; there would be no job")
    return len(values)


def in_sweep() -> bool:
    """Return whether this process does the jobs of a sweep."""
    return SHARED in os.environ


def noted(job: Callable[[], Sequence[Path]], logger: Callable[[], Mapping[str, Any]]) -> Sequence[Path]:
    """Do a job of a sweep; note that it began, how it ended and what it made, and let the sweep go on if it failed.

    Args:
        job: returns the folders of the results, none if another process has them.
        logger: returns the settings of its logger when it is done.

    Returns:
        The folders; none of a job that failed.
    """
    words = " ".join(words_of_job())
    if any(line.startswith(f"{words}: ") for line in _noted(Path(os.environ[SHARED]), "failed")):
        return []  # before the workers were started anew
    _note("began", words)
    folders: Sequence[Path] = []
    try:
        number, given, folders = HydraConfig.get().job.num, words_of_job(), job()
        for folder in folders:
            made = Made(number, given, str(folder.resolve()), dict(logger()))
            _note("made", json.dumps(made))
    except Exception as error:
        if not isinstance(error, USER_ERRORS):
            traceback.print_exception(error)
        line = f"{words}: {type(error).__name__}: {one_line(error)}"
        print(f"failed: {line}", file=sys.stderr, flush=True)
        _note("failed", line)
    _note("ended", words)
    return folders


def _made(path: Path) -> list[Made]:
    """Return what the jobs made, in the order in which they were given; each once, also if it ran again."""
    made = {(each.number, each.folder): each for each in (Made(*json.loads(line)) for line in _noted(path, "made"))}
    return sorted(made.values(), key=lambda each: each.number)


def _one_at_a_time(run: Callable[[], None], path: Path) -> None:
    """Run the jobs that are not done; one during which a worker is killed has failed, and the next are tried."""
    print("a worker process was killed; what is not done runs again, one job at a time", file=sys.stderr, flush=True)
    sys.argv += [word for word in ONE_AT_A_TIME if word not in sys.argv]
    while True:
        before = len(_noted(path, "began"))
        try:
            return run()
        except BrokenProcessPool:
            began, ended = (_noted(path, what) for what in ("began", "ended"))
            for words in set(began[before:]) - set(ended):
                _note("failed", f"{words}: its process was killed")


@contextlib.contextmanager
def _folder_of_notes(words: Sequence[str], store: Path) -> Iterator[Path]:
    """Give the folder in which jobs note how they ended: the store, or, where nothing is to be written, another one."""
    if not any(word.startswith("dry_run=") and word.lower() != "dry_run=false" for word in words):
        yield store
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@contextlib.contextmanager
def _shared_file(store: Path) -> Iterator[Path]:
    """The file of this sweep in a store, after removing those of sweeps of this machine that died."""
    host = socket.gethostname()
    path = store / f".sweep-{host}-{os.getpid()}"
    try:
        store.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    except OSError as error:
        raise StoreError(f"the store {store} cannot be written: {error.strerror}; choose store=DIR") from error
    for old in store.glob(f".sweep-{host}-*"):
        if old != path and not _alive(int(old.name.rpartition("-")[2])):
            old.unlink(missing_ok=True)
    os.environ[SHARED] = str(path.resolve())
    os.environ.setdefault("WANDB_RUN_GROUP", path.name.removeprefix("."))  # W&B shows the sweep's runs together
    try:
        yield path.resolve()
    finally:
        os.environ.pop(SHARED)
        path.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is another user's
        pass
    return True


def _note(what: str, line: str) -> None:
    with contextlib.suppress(FileNotFoundError):  # the sweep was given up and its jobs on a cluster go on
        handle = os.open(os.environ[SHARED], os.O_WRONLY | os.O_APPEND)
        with open(handle, "a") as file:
            file.write(f"{what} {line}\n")


def _noted(path: Path, what: str) -> list[str]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.removeprefix(f"{what} ") for line in lines if line.startswith(f"{what} ")]
