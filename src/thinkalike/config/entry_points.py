"""The decorator that makes a function of a configuration the main function of a script, and how a script ends."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from thinkalike.config.compose import (
    COMPOSING_ERRORS,
    SCHEMAS,
    check_overrides,
    measures_of,
    one_line,
    options,
    register,
    resolve,
    with_default_target,
)
from thinkalike.config.overrides import at_home, folders_named, is_override, parse_overrides
from thinkalike.config.own_files import CONF, with_own
from thinkalike.errors import ConfigError, ShareDone, ThinkalikeError
from thinkalike.interrupts import Interrupted, follow_parent, heeded
from thinkalike.progress import doing

PROGRAM = "THINKALIKE_PROGRAM"  # environment variable: how the user called the script, also for the workers of a sweep
SHARED = "THINKALIKE_SWEEP"  # environment variable: the file that the jobs of a sweep share
STARTED_BY = "THINKALIKE_STARTED_BY"  # environment variable: the process whose children end with it
MANY = {"--multirun", "-m"}
HELP = {"--help", "-h", "--hydra-help"}  # which needs no settings of any measure

Job = Callable[[Any], list[Path]]  # of a configuration: the folders of the results

_overrides: list[str] | None = None  # of the job that this process does


class Made(NamedTuple):
    """A finished job of a sweep: its place among them, its overrides, its folder, and the settings of its logger."""

    number: int
    words: list[str]
    folder: str
    logger: dict[str, Any]


def entry_point(
    name: str,
    joined: Callable[[Sequence[Made]], None],
    valued: Callable[[Sequence[Path]], float | None],
    status: Callable[[Sequence[Path]], int] = lambda folders: 0,
) -> Callable[[Job], Callable[[], None]]:
    """Make a function of a configuration the main function of a script.

    The function gets a checked dataclass and returns the folders of its results, which become the last lines of stdout.
    An error that a user can act on is one line on stderr and exit status 1; anything else keeps its traceback.

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
                if SHARED not in os.environ:
                    if ended := status(_done(job, SCHEMAS[name], composed)):
                        sys.exit(ended)
                    return None
                from thinkalike.config.sweeps import noted

                with doing(f"job {HydraConfig.get().job.num + 1} of the sweep"):
                    return valued(noted(lambda: _done(job, SCHEMAS[name], composed), composed))

        def main() -> None:
            import hydra

            os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # its errors come here, and not to the screen
            run = hydra.main(version_base="1.3", config_path=str(CONF), config_name=name)(task)
            with own_process():
                words, folders = with_own(name, at_home(sys.argv[1:]))
                called(name, folders)
                _made_known(name, words)
                if MANY & {*words}:
                    from thinkalike.config.sweeps import sweep

                    sweep(run, words, joined)
                else:
                    run()

        return main

    return decorate


def _made_known(name: str, words: Sequence[str]) -> None:
    """Check a command line, and tell Hydra of all that it asks for."""
    is_help, is_sweep = (bool(options & {*words}) for options in (HELP, MANY))
    overrides = folders_named([word for word in words if is_override(word)])
    parsed = parse_overrides(overrides)
    check_overrides(overrides, SCHEMAS[name], is_sweep)
    if any(each.is_sweep_override() and each.key_or_group in ("measure", "experiment") for each in parsed):
        # Hydra composes a sweep once before its jobs, with a measure of none of them
        overrides = [f"++{word}" if word.startswith("measure.") else word for word in overrides]
    overrides = with_default_target(name, overrides)
    sys.argv[1:] = [*(word for word in words if not is_override(word)), *overrides]  # options before any override
    OmegaConf.register_new_resolver("groups", _groups, replace=True)  # of --help
    register(measures_of(parsed) if name == "analyze" and not is_help else (), parsed)


def _groups() -> str:
    names = sorted(folder.name for folder in CONF.iterdir() if folder.is_dir() and folder.name != "hydra")
    return "\n".join(f"{name}: {', '.join(options(name))}" for name in names)


def overrides_of_job() -> list[str]:
    """Return the overrides of the job that Hydra does, as they were given: ${...} is of the job's configuration."""
    return OmegaConf.to_container(HydraConfig.get().overrides.task)  # type: ignore[return-value]


def _done(job: Job, schema: Any, composed: DictConfig) -> list[Path]:
    """Do the job of a composed configuration, and print the folders of its results; another process may have them."""
    overrides = overrides_of_job()
    begin(overrides)
    config = resolve(composed, schema, overrides)
    if config.trainer.strategy == "ddp" and SHARED in os.environ:  # each process would begin the whole sweep
        raise ConfigError("trainer=ddp does not go with -m: start each such job by itself")
    with contextlib.suppress(ShareDone):
        folders = job(config)
        for folder in folders:
            print(f"results: {folder}", flush=True)
        return folders
    return []


def called(name: str, options: Sequence[str] = ()) -> None:
    """Remember how a user called a script, as a file or as a command of the package, and its folders' `options`."""
    script = Path(sys.argv[0])
    start = ["python", str(script)] if script.suffix == ".py" and script.stem == name else ["thinkalike", name]
    os.environ[PROGRAM] = shlex.join([*start, *options])


def begin(overrides: Sequence[str]) -> None:
    """Remember the overrides of the job that this process begins, one of a sweep or the only one."""
    global _overrides
    _overrides = list(overrides)


def command_words() -> list[str]:
    """Return the overrides of the job that a script does; none in a notebook."""
    return list(_overrides or []) if PROGRAM in os.environ else []


def command_line() -> str:
    """Return the command line of the job that a script does, or that of this process."""
    if _overrides is None or PROGRAM not in os.environ:
        return shlex.join(sys.argv)
    return f"{os.environ[PROGRAM]} {shlex.join(_overrides)}".rstrip()


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
        print(f"{error}{_requeued(error)}", file=sys.stderr, flush=True)
        sys.exit(error.status)
    except (ThinkalikeError, *COMPOSING_ERRORS) as error:
        if "THINKALIKE_TRACEBACK" in os.environ:
            raise
        print(f"error: {one_line(error)}", file=sys.stderr, flush=True)
        sys.exit(1)


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


def _requeued(error: Interrupted) -> str:
    """Put a job of SLURM that may be requeued back into the queue; returns what the user is told of it."""
    number, is_first = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_PROCID", "0") == "0"
    if error.number != signal.SIGTERM or not number or not is_first or not shutil.which("scontrol"):
        return ""
    again = subprocess.run(["scontrol", "requeue", number], capture_output=True)  # which refuses one that may not be
    return "; SLURM has the job in its queue again" if again.returncode == 0 else "; SLURM does not take it back"
