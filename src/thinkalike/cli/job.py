"""The jobs of a command line of train or analyze."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from thinkalike.cli.process import (
    COMMAND,
    USER_ERRORS,
    PlainFormatter,
    let_output_be_lost,
    own_process,
)
from thinkalike.cli.sweep import SHARED, do_in_sweep, run_all
from thinkalike.cli.words import (
    check_flags,
    check_words_given_once,
    options_first,
    without_overrides,
)
from thinkalike.completion import LINE, harmless, is_query, readable_line
from thinkalike.config import JobConfig
from thinkalike.config.called import PROGRAM
from thinkalike.config.compose import (
    DictConfig,
    HydraOptions,
    called,
    file_notes,
    get_args_parser,
    hydra_main,
    keys_of,
    loading_files_only,
    register,
    trust_plugins_of,
    with_quoted_paths,
)
from thinkalike.config.compose_jobs import checked
from thinkalike.config.groups import reading_options
from thinkalike.errors import ConfigError, ShareDone, StoreError, ThinkalikeError
from thinkalike.global_state import isolated
from thinkalike.plugins import TRUSTED
from thinkalike.processes import doing

if TYPE_CHECKING:
    from thinkalike.store import Result

log = logging.getLogger(__name__)

EXIT_STATUSES = range(1, 126)  # from 126 on they are those of shells and of signals


def entry_point(name: str) -> Callable[[], None]:
    """Return the main function of a script, which does the jobs of a command line.

    The folders of the results are the last lines of stdout. An error that a user can act on is one
    line on stderr and exit status 1; any other keeps its traceback.
    """

    def task(composed: DictConfig) -> float | None:
        _set_up_logging()
        # It is isolated, so that nothing inside the job takes its own state for that of a user.
        with own_process(), isolated(), reading_options(HydraOptions()):
            _check_entry_point(name, composed)
            if SHARED in os.environ:
                return do_in_sweep(lambda: do_jobs(composed))
            results = do_jobs(composed)
            if results:
                exit_as_asked(results[0])
        return None

    def main() -> None:
        os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # its errors come here, not to the screen
        os.environ[PROGRAM] = _program(name)
        if is_query(sys.argv[1:]):
            _complete(name, hydra_main(name, task))
            return
        with own_process():
            register()
            sys.argv[1:] = with_quoted_paths(sys.argv[1:])
            os.environ.pop(SHARED, None)  # of a sweep that has ended, if somebody exported it
            sys.argv[1:] = options_first(sys.argv[1:])
            words = get_args_parser().parse_args()
            check_flags(words)
            check_words_given_once(words)
            TRUSTED.clear()  # what an earlier command line named, it named for itself
            trust_plugins_of(words.overrides)
            if words.help:
                sys.argv[1:] = without_overrides(sys.argv[1:], words.overrides)
            run_all(hydra_main(name, task))

    return main


def _complete(name: str, run: Callable[[], None]) -> None:
    """Print what completes the line of a shell.

    If the line cannot be read, it prints nothing: somebody is typing.
    """
    line = readable_line(os.environ[LINE], os.environ.get(COMMAND, name))
    if line is None:
        return
    os.environ[LINE] = line
    answer = io.StringIO()
    with (
        contextlib.redirect_stdout(answer),
        contextlib.suppress(*USER_ERRORS),
        loading_files_only(),
    ):
        register()
        run()
    print(harmless(answer.getvalue()))


def _set_up_logging() -> None:
    """Log to stderr, without control characters and without repeated messages."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, force=True)
    handler = logging.root.handlers[0]
    handler.setFormatter(PlainFormatter("%(message)s"))
    handler.addFilter(lambda record: not getattr(record, "again", False))
    logging.getLogger("thinkalike").setLevel(logging.INFO)


def _check_entry_point(name: str, composed: DictConfig) -> None:
    """Check that a configuration is that of this entry point: only train has tasks."""
    expected = "analyze"
    if "task" in composed:
        expected = "train"
    if name != expected:
        raise ConfigError(
            f"this configuration begins with defaults: [{expected}]; run thinkalike {expected}"
        )


def _program(name: str) -> str:
    """Return how the user called this entry point: "python train.py" or "thinkalike train"."""
    script = Path(sys.argv[0])
    is_script = script.suffix == ".py" and script.stem == name
    if is_script:
        return shlex.join(["python", str(script)])
    return shlex.join(["thinkalike", name])


def exit_as_asked(result: Result) -> None:
    """End the process with the exit status that a result asks for, unless that is 0.

    Raises:
        StoreError: no program of this package has that status; a stored result may come from
            anywhere.
    """
    status = result.scalars.get("exit_status")
    if status is None or status == 0:
        return
    if status not in EXIT_STATUSES:
        raise StoreError(
            f"{result.folder} asks for the exit status {status!r}, which no job of this program "
            "has; do the job again with force=true"
        )
    sys.exit(int(status))


def do_jobs(composed: DictConfig) -> list[Result]:
    """Do the jobs of a composed configuration, or forecast them, and print their folders.

    Returns their results.
    """
    from thinkalike.screen import watched

    call = called()
    trust_plugins_of(call.overrides)  # a worker of a sweep has not read the command line
    settings_of_files = {file: set(keys) for file, keys in file_notes().settings.items()}
    config = checked(composed, call.overrides, call.choices)
    chosen_keys = keys_of(call.overrides)
    _warn_of_sweep_settings()
    _check_command_line(config)

    results: list[Result] = []
    with watched(), doing("starting", steps_aside=True), contextlib.suppress(ShareDone):
        # importing torch takes seconds
        from thinkalike.job.listed_jobs import asked_for
        from thinkalike.job.performing import run_jobs
        from thinkalike.job.planning import may_take_long
        from thinkalike.job.provenance import called_by
        from thinkalike.job.unread_settings import refuse_unread_settings, warn_of_unread

        refuse_unread_settings(chosen_keys, config)
        warn_of_unread(settings_of_files, config)
        if config.dry_run or config.budget:
            config = _forecast(config, chosen_keys)
        elif config.trainer.strategy != "ddp":
            with contextlib.suppress(ThinkalikeError):  # which the job itself explains
                if may_take_long(config):
                    _announce(config, chosen_keys)
        if not config.dry_run:
            let_output_be_lost()
            with called_by(call.command_line()):
                results = run_jobs(asked_for(config))
    for result in results:
        print(f"results: {result.folder}", flush=True)
    return results


def _warn_of_sweep_settings() -> None:
    """Warn of settings of Hydra that change nothing without -m."""
    if SHARED in os.environ:
        return
    call = called()
    if call.has_values_to_try:
        log.warning(
            "warning: hydra.sweeper.params is read with -m alone, "
            "and one job is done without its values"
        )
    if call.has_launcher:
        log.warning(
            "warning: hydra.launcher is read with -m alone, "
            "and this job runs here, without a launcher"
        )


def _check_command_line(config: JobConfig) -> None:
    """Check what a job from Python may have, and one of a command line may not."""
    if config.store is None:
        raise ConfigError("store=null: a command line keeps its results; give store=DIR")
    if config.trainer.strategy == "ddp" and SHARED in os.environ:
        # each of the processes would begin the whole sweep
        raise ConfigError("trainer=ddp does not go with -m: start each such job by itself")


def _forecast(config: JobConfig, chosen_keys: Sequence[str]) -> JobConfig:
    """Return a configuration within its budget; a dry run prints what the job would do.

    Args:
        chosen_keys: the settings that the user has chosen, which a budget leaves as they are.
    """
    import torch

    from thinkalike.budget import within
    from thinkalike.forecast import forecast, show
    from thinkalike.screen import aside

    if config.threads:
        torch.set_num_threads(config.threads)  # as the job will have them
    config = within(config, chosen_keys)
    if config.dry_run:
        plan = forecast(config)
        seconds = plan.seconds()
        with aside():
            show(plan, seconds)
    return config


def _announce(config: JobConfig, chosen_keys: Sequence[str]) -> None:
    """Say about how long a job will take if that is long; a very long one is offered a budget.

    Args:
        chosen_keys: the settings that the user has chosen, which a budget leaves as they are.
    """
    from thinkalike.budget import announcement

    line = announcement(config, chosen_keys)
    if line:
        log.info("%s", line)
