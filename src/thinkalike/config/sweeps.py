"""Sweeps: a job that fails, or whose process is killed, does not stop the others.

The jobs share a file, whichever process or machine they run on, in which each notes that it began and how it ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from thinkalike.config.compose import COMPOSING_ERRORS, one_line
from thinkalike.config.entry_points import SHARED, Made, overrides_of_job
from thinkalike.errors import StoreError, ThinkalikeError

ONE_AT_A_TIME = ["hydra.launcher.n_jobs=2", "hydra.launcher.pre_dispatch=1"]  # n_jobs=1 would have no worker to kill


def sweep(run: Callable[[], None], words: Sequence[str], joined: Callable[[Sequence[Made]], None]) -> None:
    """Run all jobs of a sweep, show their results with `joined`, and list those that failed: then exit status is 1.

    Where a worker process is killed, the jobs that are not done run again, one at a time; one that is killed again has
    failed.
    """
    with _shared_file(words) as path:
        try:
            run()
        except BrokenProcessPool:
            _one_at_a_time(run, path)
        finally:  # also when a launcher gives up because a job was killed
            failed, made = _noted(path, "failed"), _made(path)
            if made:
                joined(made)
            if failed:
                print(f"{len(failed)} of the sweep's jobs failed:", *failed, sep="\n  ", file=sys.stderr, flush=True)
    if failed:
        sys.exit(1)


def noted(job: Callable[[], Sequence[Path]], composed: DictConfig) -> Sequence[Path]:
    """Do a job of a sweep, and note how it went; returns its results, or nothing if it failed, which stops no other."""
    given, number = overrides_of_job(), HydraConfig.get().job.num
    words = " ".join(given)
    if any(line.startswith(f"{words}: ") for line in _noted(Path(os.environ[SHARED]), "failed")):
        return []  # before the workers were started anew
    _note("began", words)
    folders: Sequence[Path] = []
    try:
        folders = job()
        logger: Any = OmegaConf.to_container(composed.logger)
        for folder in folders:
            _note("made", json.dumps(Made(number, given, str(folder.resolve()), logger)))
    except Exception as error:
        if not isinstance(error, (ThinkalikeError, *COMPOSING_ERRORS)):
            traceback.print_exception(error)
        line = f"{words}: {type(error).__name__}: {one_line(error)}"
        print(f"failed: {line}", file=sys.stderr, flush=True)
        _note("failed", line)
    _note("ended", words)
    return folders


def _made(path: Path) -> list[Made]:
    """Return the finished jobs, in the order in which they were given; each once, also if it ran again."""
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
def _shared_file(words: Sequence[str]) -> Iterator[Path]:
    """The file of this sweep in the store, or, of a dry run, elsewhere; those of sweeps that died are removed."""
    given = {key: value.strip("'\"") for key, _, value in (word.partition("=") for word in words)}
    is_dry = given.get("dry_run", "false").lower() != "false"
    store = Path(tempfile.gettempdir() if is_dry else given.get("store", "results")).expanduser()
    host = socket.gethostname()
    path = store.resolve() / f".sweep-{host}-{os.getpid()}"
    try:
        store.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    except OSError as error:
        raise StoreError(f"the store {store} cannot be written: {error.strerror}; choose store=DIR") from error
    for old in path.parent.glob(f".sweep-{host}-*"):
        if not _alive(int(old.name.rpartition("-")[2])):
            old.unlink(missing_ok=True)
    os.environ[SHARED] = str(path)
    os.environ.setdefault("WANDB_RUN_GROUP", path.name.removeprefix("."))  # W&B shows the sweep's runs together
    try:
        yield path
    finally:
        os.environ.pop(SHARED)
        path.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, PermissionError) as error:  # it is gone, or another user's
        return isinstance(error, PermissionError)
    return True


def _note(what: str, line: str) -> None:
    if Path(os.environ[SHARED]).exists():  # else the sweep was given up, and its jobs on a cluster go on
        with open(os.environ[SHARED], "a") as file:
            file.write(f"{what} {line}\n")


def _noted(path: Path, what: str) -> list[str]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.removeprefix(f"{what} ") for line in lines if line.startswith(f"{what} ")]
