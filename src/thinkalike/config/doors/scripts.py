"""The decorator that makes a script a door: compose, check, call."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from thinkalike.config.compose import SCHEMAS, measures_of, models_of, register, resolve, with_default_target
from thinkalike.config.doors import commands
from thinkalike.config.doors.exits import OneLineErrors, Stdout
from thinkalike.config.doors.helping import register_help
from thinkalike.config.doors.sweeps import JOBS, Made, in_sweep, jobs_of_sweep, noted, of_every_measure, sweep
from thinkalike.config.overrides import at_home, folders_named, is_override, parse_overrides
from thinkalike.config.words.folders import CONF, with_own
from thinkalike.config.words.spelling import check_overrides
from thinkalike.errors import ConfigError, ShareDone
from thinkalike.interrupts import follow_parent, heeded
from thinkalike.progress import doing

MULTIRUN = {"--multirun", "-m"}
SHOWN = {"--cfg", "-c", "--info", "-i", "--help", "-h", "--hydra-help"}  # these say something, and no job is done
STARTED_BY = "THINKALIKE_STARTED_BY"  # environment variable: the process whose children end with it

Job = Callable[[Any], list[Path]]  # of a configuration: the folders of the results


def door(
    name: str, joined: Callable[[Sequence[Made]], None], valued: Callable[[Sequence[Path]], float | None]
) -> Callable[[Job], Callable[[], None]]:
    """Make a function of a configuration the main function of a script.

    The function gets a checked dataclass and returns the folders of its results, which become the last lines of stdout:
    one, or as many as there are jobs that the command line stands for.
    An error that a user can act on is one line on stderr and exit status 1; anything else keeps its traceback.

    Args:
        joined: shows what the jobs of a sweep made beside each other.
        valued: the number that a sweeper which searches, such as Optuna's, goes by, of the folders of a job's results.
    """
    schema = SCHEMAS[name]

    def decorate(job: Job) -> Callable[[], None]:
        @functools.wraps(job)
        def task(composed: DictConfig) -> float | None:
            logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s", force=True)
            logging.getLogger("thinkalike").setLevel(logging.INFO)

            def logger() -> dict[str, Any]:
                return OmegaConf.to_container(composed.logger)  # type: ignore[return-value]

            do = functools.partial(_done, job, schema, composed)
            with own_process():
                if not in_sweep():
                    do()
                    return None
                with doing(f"job {HydraConfig.get().job.num + 1} of {os.environ.get(JOBS, '?')} of the sweep"):
                    return valued(noted(do, logger))

        def main() -> None:
            import hydra

            os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # its errors come here, and not to the screen
            run = hydra.main(version_base="1.3", config_path=str(CONF), config_name=name)(task)
            with own_process():
                words, folders = with_own(name, at_home(sys.argv[1:]))
                commands.called(name, folders)
                parsed = _made_known(name, words)
                if MULTIRUN & set(words):
                    os.environ[JOBS] = jobs_of_sweep(parsed)
                    sweep(run, words, joined)
                else:
                    run()

        return main

    return decorate


def _done(job: Job, schema: type, composed: DictConfig) -> list[Path]:
    """Do the job of a composed configuration, and print the folders of its results; another process may have them."""
    words = commands.words_of_job()
    commands.begin(words)
    config = resolve(composed, schema, words)
    _refuse_processes_in_a_sweep(config)
    config.logger.check_package()  # before anything is imported
    with contextlib.suppress(ShareDone):
        folders = job(config)
        for folder in folders:
            print(f"results: {folder}", flush=True)
        return folders
    return []


def _made_known(name: str, words: Sequence[str]) -> list[Override]:
    """Check a command line, and tell Hydra of all that it asks for; returns its overrides."""
    asking = {"--help", "-h", "--hydra-help"} & set(words)  # which needs no settings of any measure
    sweeps = bool(MULTIRUN & set(words))
    overrides = folders_named(list(filter(is_override, words)))
    options = [word for word in words if not is_override(word)]
    _check_options(options)
    parsed = parse_overrides(overrides)
    check_overrides(overrides, SCHEMAS[name], sweeps)
    _check_hydra(parsed, sweeps, is_shown=bool(SHOWN & set(words)))
    whole = ["all"] if options[-1:] in (["-i"], ["--info"]) else []  # or it would take the first override
    words = of_every_measure(parsed) if sweeps else overrides
    sys.argv[1:] = [*options, *whole, *with_default_target(name, words)]  # options before any override
    register_help()
    register(measures_of(parsed) if name == "analyze" and not asking else (), models_of(parsed))
    return parsed


def _check_options(options: Sequence[str]) -> None:
    """Refuse options that Hydra does not have.

    Raises:
        ConfigError: one is none of its options, or lacks its value.
    """
    from hydra._internal.utils import get_args_parser

    def refuse(message: str) -> NoReturn:
        dashes = message.startswith("unrecognized")
        raise ConfigError(message + ("; settings are given as key=value, without dashes" if dashes else ""))

    parser = get_args_parser()
    parser.error = refuse  # type: ignore[method-assign]
    parser.parse_args([*options])


def _check_hydra(parsed: Sequence[Override], sweeps: bool, is_shown: bool) -> None:
    """Refuse what Hydra would pass over without a word.

    Raises:
        ConfigError: a launcher without a sweep, whose job would run here; one record of all jobs of a sweep; folders
            of configurations, or a sweep, by other ways than options.
    """
    given = {str(override.key_or_group): override for override in parsed}
    for key in ("hydra/launcher", "hydra/sweeper"):
        if key in given and not (sweeps or is_shown):
            raise ConfigError(f"{given[key].input_line} is for the jobs of a sweep; add -m, also for a single job")
    if sweeps and "hydra.output_subdir" in given and "hydra.sweep.subdir" not in given:
        raise ConfigError(
            "hydra.output_subdir= of a sweep needs a folder for each of its jobs, such as "
            "hydra.sweep.dir=records 'hydra.sweep.subdir=${hydra.job.num}'"
        )
    verbose = given["hydra.verbose"].value() if "hydra.verbose" in given else True
    if not isinstance(verbose, bool | str | list):
        raise ConfigError(f"hydra.verbose={verbose} must be true, the name of a logger, or a list of such names")
    for key, instead in {"hydra.searchpath": "--config-dir DIR", "hydra.mode": "-m"}.items():
        if key in given:
            raise ConfigError(f"{given[key].input_line} is said by {instead} here")


@contextlib.contextmanager
def own_process() -> Iterator[None]:
    """Heed signals and errors, print to a stdout that may close, and end with the process of the first door."""
    if os.environ.setdefault(STARTED_BY, str(os.getpid())) != str(os.getpid()):
        follow_parent()
    with OneLineErrors(), heeded(), contextlib.redirect_stdout(Stdout(sys.stdout)):  # type: ignore[type-var]
        yield


def _refuse_processes_in_a_sweep(config: Any) -> None:
    """Processes of a DDP job start from the same command line, so each would begin the whole sweep."""
    from hydra.types import RunMode

    trainer = getattr(config, "trainer", None)
    if trainer and trainer.strategy == "ddp" and HydraConfig.get().mode == RunMode.MULTIRUN:
        raise ConfigError(
            "trainer=ddp does not go with -m: start each such job by itself, or sweep with trainer=default"
        )
