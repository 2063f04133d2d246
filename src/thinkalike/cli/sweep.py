"""The jobs of a sweep: they share a file, in which each notes its results, or why it failed.

They may run in several processes or on several machines. A job that fails does not stop the
others.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import stat
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TYPE_CHECKING

from thinkalike.cli.process import USER_ERRORS, message_of, print_error
from thinkalike.config.compose import (
    Callback,
    DictConfig,
    called,
    check_number_of_jobs,
    loading_files_only,
    use_folder,
)
from thinkalike.config.sweep_checks import check_launcher
from thinkalike.errors import ConfigError, ResourceError, in_home, reason_in_words, short
from thinkalike.processes import doing

if TYPE_CHECKING:
    from thinkalike.store import Result

SHARED = "THINKALIKE_SWEEP"  # environment variable: the file that the jobs of a sweep share
SHARED_PREFIX = ".sweep-"  # how the name of that file begins
DRY_RUN = "thinkalike-dry-run-"  # how the name of the temporary folder of a dry run begins


class Sweep(Callback):
    """Opens the file that the jobs of a sweep share: in the store, or elsewhere for a dry run."""

    def on_multirun_start(self, config: DictConfig, **_: object) -> None:
        try:
            check_number_of_jobs(config.hydra)
            check_launcher(config.hydra.launcher)
        except USER_ERRORS as error:  # Hydra makes a warning of any error of a callback
            print_error(message_of(error))
            sys.exit(1)
        if config.dry_run:
            for folder in reversed(_make_sweep_folder(Path(config.hydra.sweep.dir))):
                folder.rmdir()  # a dry run leaves nothing
            store = Path(tempfile.mkdtemp(prefix=DRY_RUN))
            use_folder(config, str(store))
        else:
            store = in_home(str(config.store)).resolve()

        handle, path = _new_shared_file(store)
        _make_sweep_folder(Path(config.hydra.sweep.dir))
        # The lock is held until this process has ended: then the file is stale.
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        os.environ[SHARED] = path
        # W&B shows the runs of a group together.
        os.environ.setdefault("WANDB_RUN_GROUP", Path(path).name.removeprefix("."))


def _new_shared_file(store: Path) -> tuple[int, str]:
    """Return handle and path of a new shared file in a store; exit if it cannot be written."""
    try:
        store.mkdir(parents=True, exist_ok=True)
        _remove_stale(store)
        return tempfile.mkstemp(prefix=SHARED_PREFIX, dir=store)
    except OSError as error:
        print_error(f"the store {store} cannot be written: {error.strerror}; choose store=DIR")
        sys.exit(1)


def _make_sweep_folder(folder: Path) -> list[Path]:
    """Make the folder of Hydra's own files; exit if it cannot be written.

    Returns it and its parents, as far as they did not exist, the outermost first.
    """
    made = [path for path in (*reversed(folder.parents), folder) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        print_error(
            f"the folder {folder} cannot be written: {error.strerror}; choose hydra.sweep.dir=DIR"
        )
        sys.exit(1)
    return made


def _remove_stale(store: Path) -> None:
    """Remove the shared files of sweeps that were killed, whose locks nobody holds any more."""
    for path in store.glob(f"{SHARED_PREFIX}*"):
        # An error means that the file is locked by a running sweep, is a link, or is not ours.
        with contextlib.suppress(OSError):
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if stat.S_ISREG(os.fstat(handle).st_mode):
                    path.unlink()
            finally:
                os.close(handle)


def run_all(run: Callable[[], None]) -> None:
    """Run a job, or all jobs of a sweep; then show the results of a sweep.

    If any of its jobs failed, the exit status is 1.
    """
    any_failed = False
    try:
        with loading_files_only(), _folder_of_run():
            run()
    except BrokenProcessPool as error:
        raise ResourceError(
            "a worker process of the sweep was killed; rerun the command, which skips what is "
            "done, perhaps with fewer jobs at once (hydra.launcher.n_jobs)"
        ) from error
    except Exception as error:
        is_said_elsewhere = isinstance(error, (*USER_ERRORS, OSError, MemoryError, ImportError))
        if is_said_elsewhere or SHARED not in os.environ:
            raise
        # The jobs of a sweep note their own errors, so this one is of what starts them.
        reason = reason_in_words(error)
        raise ConfigError(
            f"the launcher or the sweeper of the sweep cannot go on ({reason}); change "
            "hydra.launcher or hydra.sweeper"
        ) from error
    finally:  # also when a launcher gives up because a job was killed
        shared = os.environ.pop(SHARED, None)
        if shared:
            any_failed = _sum_up(Path(shared))
    if any_failed:
        sys.exit(1)


@contextlib.contextmanager
def _folder_of_run() -> Iterator[None]:
    """Turn an error of Hydra, which makes a folder for each run before its job, into one line."""
    try:
        yield
    except OSError as error:
        functions = {frame.name for frame in traceback.extract_tb(error.__traceback__)}
        is_of_hydra = "run_job" in functions and "task" not in functions
        if not is_of_hydra:
            raise
        folder = short(str(error.filename))
        raise ConfigError(
            f"the folder {folder} cannot be made: {error.strerror}; choose hydra.run.dir=DIR"
        ) from error


def _sum_up(shared: Path) -> bool:
    """Show the results of a sweep, and which jobs failed; return whether any did."""
    from thinkalike.listing import show_sweep

    notes = [json.loads(line) for line in shared.read_text().splitlines()]
    shared.unlink()
    if shared.parent.name.startswith(DRY_RUN):
        shutil.rmtree(shared.parent, ignore_errors=True)

    finished = [note for note in notes if "folder" in note]
    finished.sort(key=lambda note: note["number"])
    if finished:
        show_sweep([(note["words"], Path(note["folder"])) for note in finished])
    failures = [note["failed"] for note in notes if "failed" in note]
    if failures:
        title = f"{len(failures)} of the sweep's jobs failed:"
        print(title, *failures, sep="\n  ", file=sys.stderr, flush=True)
    return bool(failures)


def do_in_sweep(do_jobs: Callable[[], Sequence[Result]]) -> float | None:
    """Do a job of a sweep and note how it went.

    Returns its first headline number for Hydra's sweeper; None if it has none, or if the job
    failed, which does not stop the others.
    """
    number = called().number
    words = called().overrides
    try:
        with doing(f"job {number + 1} of the sweep"):
            results = do_jobs()
    except Exception as error:
        if not isinstance(error, USER_ERRORS):
            traceback.print_exception(error)
        line = f"{' '.join(words)}: {type(error).__name__}: {message_of(error)}"
        print(f"failed: {line}", file=sys.stderr, flush=True)
        _note({"failed": line})
        return None
    for result in results:
        _note({"number": number, "words": words, "folder": str(result.folder.resolve())})
    if not results or not results[0].headlines:
        return None
    return results[0].headlines[0].value


def _note(entry: dict[str, object]) -> None:
    """Add an entry to the shared file, unless the sweep was given up while jobs still run."""
    path = Path(os.environ[SHARED])
    if path.exists():
        with path.open("a") as file:
            file.write(f"{json.dumps(entry)}\n")
