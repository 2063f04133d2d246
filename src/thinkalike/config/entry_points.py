"""The decorator that makes a function of a configuration the main function of a script, and how a script ends.

Hydra reads the command line. The jobs of a sweep share a file, whichever process or machine they run on, in which each
notes that it began and how it ended: a job that fails, or whose process is killed, does not stop the others.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import shlex
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from thinkalike.config.compose import COMPOSING_ERRORS, checked, explained
from thinkalike.config.sources import CONF, register
from thinkalike.errors import ConfigError, ShareDone, ThinkalikeError, first_line
from thinkalike.processes import Interrupted, follow_parent, heeded
from thinkalike.progress import doing

PROGRAM = "THINKALIKE_PROGRAM"  # environment variable: how the user called the script, also for the workers of a sweep
SHARED = "THINKALIKE_SWEEP"  # environment variable: the file that the jobs of a sweep share
STARTED_BY = "THINKALIKE_STARTED_BY"  # environment variable: the process whose children end with it
ONE_AT_A_TIME = ["hydra.launcher.n_jobs=2", "hydra.launcher.pre_dispatch=1"]  # n_jobs=1 would have no worker to kill

Job = Callable[[Any, list[str]], list[Path]]  # of a configuration and the overrides: the folders of the results


class Made(NamedTuple):
    """A finished job of a sweep: its place among them, its overrides, and its folder."""

    number: int
    words: list[str]
    folder: str


def entry_point(
    name: str,
    joined: Callable[[Sequence[Made]], None],
    valued: Callable[[Sequence[Path]], float | None],
    status: Callable[[Sequence[Path]], int] = lambda folders: 0,
) -> Callable[[Job], Callable[[], None]]:
    """Make a function of a configuration the main function of a script.

    The function gets a checked dataclass, which is not completed, and the overrides of the job. It returns the folders
    of its results, which become the last lines of stdout. An error that a user can act on is one line on stderr and
    exit status 1; anything else keeps its traceback.

    Args:
        name: train or analyze.
        joined: shows the results of a sweep beside each other.
        valued: of the folders of a job's results, the number that a searching sweeper such as Optuna's goes by.
        status: of these folders, the exit status of the script, unless it is a sweep.
    """

    def decorate(job: Job) -> Callable[[], None]:
        @functools.wraps(job)
        def task(composed: DictConfig) -> float | None:
            logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s", force=True)
            logging.root.handlers[0].addFilter(lambda record: not getattr(record, "again", False))
            logging.getLogger("thinkalike").setLevel(logging.INFO)
            with own_process():
                if SHARED in os.environ:
                    with doing(f"job {HydraConfig.get().job.num + 1} of the sweep"):
                        return valued(_noted_down(job, composed))
                if ended := status(_done(job, composed)):
                    sys.exit(ended)
            return None

        def main() -> None:
            import hydra

            os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # its errors come here, and not to the screen
            script = Path(sys.argv[0])
            is_script = script.suffix == ".py" and script.stem == name
            os.environ[PROGRAM] = shlex.join(["python", str(script)] if is_script else ["thinkalike", name])
            with own_process():
                register()
                run = hydra.main(version_base=None, config_path=str(CONF), config_name=name)(task)
                _run_all(run, joined)

        return main

    return decorate


def _done(job: Job, composed: DictConfig) -> list[Path]:
    """Do the job of a composed configuration, and print the folders of its results; another process may have them."""
    hydra = HydraConfig.get()
    config = checked(composed, list(hydra.overrides.task), hydra.runtime.choices)
    if config.trainer.strategy == "ddp" and SHARED in os.environ:  # each process would begin the whole sweep
        raise ConfigError("trainer=ddp does not go with -m: start each such job by itself")
    with contextlib.suppress(ShareDone):
        folders = job(config, list(hydra.overrides.task))
        for folder in folders:
            print(f"results: {folder}", flush=True)
        return folders
    return []


def command_line() -> str:
    """Return the command line of the job that a script does, or that of this process."""
    if not HydraConfig.initialized() or PROGRAM not in os.environ:
        return shlex.join(sys.argv)
    hydra = HydraConfig.get()
    folders = [f"--config-dir={each.path}" for each in hydra.runtime.config_sources if each.provider == "command-line"]
    name = hydra.job.config_name
    own = [] if name in ("train", "analyze") else [f"--config-name={name}"]
    return f"{os.environ[PROGRAM]} {shlex.join([*folders, *own, *hydra.overrides.task])}".rstrip()


class Sweep(Callback):
    """Opens the file that the jobs of a sweep share, in the store, or, of a dry run, elsewhere."""

    def on_multirun_start(self, config: DictConfig, **given: Any) -> None:
        if SHARED in os.environ:  # what is not done runs again
            return
        store = Path(tempfile.gettempdir() if config.dry_run else config.store).expanduser()
        host = socket.gethostname()
        path = store.resolve() / f".sweep-{host}-{os.getpid()}"
        try:
            store.mkdir(parents=True, exist_ok=True)
            path.write_text("")
        except OSError as error:
            print(f"error: the store {store} cannot be written: {error.strerror}; choose store=DIR", file=sys.stderr)
            sys.exit(1)  # Hydra makes a warning of any other error of a callback
        for old in path.parent.glob(f".sweep-{host}-*"):  # of sweeps that died
            if not _alive(int(old.name.rpartition("-")[2])):
                old.unlink(missing_ok=True)
        os.environ[SHARED] = str(path)
        os.environ.setdefault("WANDB_RUN_GROUP", path.name.removeprefix("."))  # W&B shows the sweep's runs together


def _run_all(run: Callable[[], None], joined: Callable[[Sequence[Made]], None]) -> None:
    """Run a job, or all jobs of a sweep: then show their results, and list those that failed, for exit status 1.

    Where a worker process is killed, the jobs that are not done run again, one at a time; one that is killed again has
    failed.
    """
    failed: list[str] = []
    try:
        run()
    except BrokenProcessPool:
        _one_at_a_time(run)
    finally:  # also when a launcher gives up because a job was killed
        if shared := os.environ.pop(SHARED, None):
            failed, made = _noted(Path(shared), "failed"), _made(Path(shared))
            Path(shared).unlink(missing_ok=True)
            if made:
                joined(made)
            if failed:
                print(f"{len(failed)} of the sweep's jobs failed:", *failed, sep="\n  ", file=sys.stderr, flush=True)
    if failed:
        sys.exit(1)


def _one_at_a_time(run: Callable[[], None]) -> None:
    """Run the jobs that are not done; one during which a worker is killed has failed, and the next are tried."""
    print("a worker process was killed; what is not done runs again, one job at a time", file=sys.stderr, flush=True)
    sys.argv += ONE_AT_A_TIME
    path = Path(os.environ[SHARED])
    while True:
        before = len(_noted(path, "began"))
        try:
            return run()
        except BrokenProcessPool:
            began, ended = (_noted(path, what) for what in ("began", "ended"))
            for words in set(began[before:]) - set(ended):
                _note("failed", f"{words}: its process was killed")


def _noted_down(job: Job, composed: DictConfig) -> Sequence[Path]:
    """Do a job of a sweep, and note how it went; returns its results, or nothing if it failed, which stops no other."""
    given, number = list(HydraConfig.get().overrides.task), HydraConfig.get().job.num
    words = " ".join(given)
    if any(line.startswith(f"{words}: ") for line in _noted(Path(os.environ[SHARED]), "failed")):
        return []  # before the workers were started anew
    _note("began", words)
    folders: Sequence[Path] = []
    try:
        folders = _done(job, composed)
        for folder in folders:
            _note("made", json.dumps(Made(number, given, str(folder.resolve()))))
    except Exception as error:
        if not isinstance(error, (ThinkalikeError, *COMPOSING_ERRORS)):
            traceback.print_exception(error)
        line = f"{words}: {type(error).__name__}: {_one_line(error)}"
        print(f"failed: {line}", file=sys.stderr, flush=True)
        _note("failed", line)
    _note("ended", words)
    return folders


def _made(path: Path) -> list[Made]:
    """Return the finished jobs, in the order in which they were given; each once, also if it ran again."""
    made = {(each.number, each.folder): each for each in (Made(*json.loads(line)) for line in _noted(path, "made"))}
    return sorted(made.values(), key=lambda each: each.number)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, PermissionError) as error:  # it is gone, or another user's
        return isinstance(error, PermissionError)
    return True


def _note(what: str, line: str) -> None:
    if Path(os.environ[SHARED]).exists():  # else the sweep was given up, and its jobs on a cluster run on
        with open(os.environ[SHARED], "a") as file:
            file.write(f"{what} {line}\n")


def _noted(path: Path, what: str) -> list[str]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.removeprefix(f"{what} ") for line in lines if line.startswith(f"{what} ")]


@contextlib.contextmanager
def own_process() -> Iterator[None]:
    """Heed signals and errors, print to a stdout that may close, and end with the process that was started first."""
    if os.environ.setdefault(STARTED_BY, str(os.getpid())) != str(os.getpid()):
        follow_parent()
    with one_line_errors(), heeded(), contextlib.redirect_stdout(Stdout(sys.stdout)):  # type: ignore[type-var]
        yield


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn an error that a user can act on into one line and exit status 1, and a signal into one line and its own."""
    try:
        yield
    except Interrupted as error:
        print(error, file=sys.stderr, flush=True)
        sys.exit(error.status)
    except (ThinkalikeError, *COMPOSING_ERRORS) as error:
        if "THINKALIKE_TRACEBACK" in os.environ:
            raise
        print(f"error: {_one_line(error)}", file=sys.stderr, flush=True)
        sys.exit(1)


def _one_line(error: BaseException) -> str:
    return explained(error) if isinstance(error, COMPOSING_ERRORS) else first_line(error) or type(error).__name__


class Stdout:
    """A stdout whose reader may leave: what is printed then is lost, and nothing else."""

    def __init__(self, stream: Any):
        self._stream = stream or open(os.devnull, "w")  # noqa: SIM115

    def write(self, text: str) -> int:
        """Write, or forget what cannot be written."""
        self._forgetting(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        """Flush, or forget what cannot be written."""
        self._forgetting(self._stream.flush)

    def _forgetting(self, action: Callable[..., Any], *given: str) -> None:
        try:
            action(*given)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
