"""The decorator that makes a script a door: compose, check, call; one line for an error that a user can act on.

In a sweep (`-m`) a job that fails does not stop the others: it leaves a line in a file that all jobs of the sweep
share, whichever process or machine they run on, and the door lists those lines at the end.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from thinkalike.config.compose import CONF, SCHEMAS, measures_of, parse_overrides, register, resolve
from thinkalike.config.spelling import check_overrides
from thinkalike.errors import ConfigError, ShareDone, StoreError, ThinkalikeError

USER_ERRORS = (ThinkalikeError, OmegaConfBaseException, HydraException)
FAILURES = "THINKALIKE_SWEEP_FAILURES"  # environment variable: the file that the jobs of a sweep share


def door(name: str) -> Callable[[Callable[[Any], Any]], Callable[[], None]]:
    """Make a function of a configuration the main function of a script.

    The function gets a checked dataclass and returns the folder of its results, which becomes the last line of stdout.
    An error that a user can act on is one line on stderr and exit status 1; anything else keeps its traceback.
    """
    schema = SCHEMAS[name]

    def decorate(job: Callable[[Any], Any]) -> Callable[[], None]:
        @functools.wraps(job)
        def task(composed: DictConfig) -> None:
            logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s", force=True)
            logging.getLogger("thinkalike").setLevel(logging.INFO)
            with _noted_failure() if os.environ.get(FAILURES) else _one_line_errors():
                config = resolve(composed, schema, HydraConfig.get().overrides.task)
                _refuse_processes_in_a_sweep(config)
                with contextlib.suppress(ShareDone):
                    print(f"results: {job(config)}", flush=True)

        def main() -> None:
            import hydra

            os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # its errors come here, and not to the screen
            words = sys.argv[1:]
            asking = {"--help", "-h", "--hydra-help"} & set(words)  # which needs no settings of any measure
            run = hydra.main(version_base="1.3", config_path=str(CONF), config_name=name)(task)
            with _one_line_errors():
                overrides = [word for word in words if word[:1] in "+~" or ("=" in word and word[0] != "-")]
                check_overrides(overrides, schema)
                register(measures_of(parse_overrides(overrides)) if name == "analyze" and not asking else ())
                _sweep(run, words) if {"-m", "--multirun"} & set(words) else run()

        return main

    return decorate


def _sweep(run: Callable[[], Any], words: list[str]) -> None:
    """Run all jobs of a sweep, then list those that failed; exit status 1 if there are any."""
    store = next((word.partition("=")[2] for word in words if word.startswith("store=")), "results")
    try:
        Path(store).mkdir(parents=True, exist_ok=True)
        handle, path = tempfile.mkstemp(prefix=".sweep-", suffix=".failures", dir=store)
    except OSError as error:
        raise StoreError(f"the store {store} cannot be written: {error.strerror}; choose store=DIR") from error
    os.close(handle)
    os.environ[FAILURES] = os.path.abspath(path)
    os.environ.setdefault("WANDB_RUN_GROUP", Path(path).stem.removeprefix("."))  # W&B shows the sweep's runs together
    lines: list[str] = []
    try:
        run()
    finally:  # also when a launcher gives up because a job was killed
        os.environ.pop(FAILURES)
        lines = Path(path).read_text().splitlines()
        os.unlink(path)
        if lines:
            print(f"{len(lines)} of the sweep's jobs failed:", *lines, sep="\n  ", file=sys.stderr, flush=True)
    if lines:
        sys.exit(1)


def _refuse_processes_in_a_sweep(config: Any) -> None:
    """Processes of a DDP job start from the same command line, so each would begin the whole sweep."""
    from hydra.types import RunMode

    trainer = getattr(config, "trainer", None)
    if trainer and trainer.strategy == "ddp" and HydraConfig.get().mode == RunMode.MULTIRUN:
        raise ConfigError(
            "trainer=ddp does not go with -m: start each such job by itself, or sweep with trainer=default"
        )


class _noted_failure:
    """Note that a job of a sweep failed, with its overrides and the reason, and let the sweep go on."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if not isinstance(error, Exception):
            return False
        words = " ".join(HydraConfig.get().overrides.task)
        if not isinstance(error, USER_ERRORS):
            traceback.print_exception(error)
        line = f"{words}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        print(f"failed: {line}", file=sys.stderr, flush=True)
        with (  # no new file where the sweep was given up and its jobs on a cluster go on
            contextlib.suppress(FileNotFoundError),
            open(os.open(os.environ[FAILURES], os.O_WRONLY | os.O_APPEND), "a") as file,
        ):
            file.write(line + "\n")
        return True


class _one_line_errors:
    """Turn an error that a user can act on into one line and exit status 1."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, USER_ERRORS) and "THINKALIKE_TRACEBACK" not in os.environ:
            print(f"error: {_line(error)}", file=sys.stderr, flush=True)
            sys.exit(1)


def _line(error: BaseException) -> str:
    if isinstance(error, HydraException):  # says what it could not do; its cause says why
        cause = next(iter(str(error.__cause__ or "").splitlines()), "")  # below stands where in a schema it was
        return " ".join(f"{error}: {cause}".split()).removesuffix(":")
    key = getattr(error, "full_key", None)
    first = str(error).splitlines()[0]
    return f"{key}: {first}" if key and isinstance(error, OmegaConfBaseException) and key not in first else first
