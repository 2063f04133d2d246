"""The entry points, as scripts and as commands: `thinkalike diff|train|analyze|results|report`.

Hydra reads the command lines of train and analyze. The jobs of a sweep share a file, whichever process or machine they
run on, in which each notes its results, or why it failed; a job that fails does not stop the others.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import itertools
import json
import logging
import os
import re
import shlex
import shutil
import stat
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from thinkalike.config.compose import (
    COMPOSING_ERRORS,
    PROGRAM,
    Callback,
    DictConfig,
    HydraOptions,
    called,
    check_given_once,
    check_number_of_jobs,
    checked,
    command_line,
    explained,
    files_settings,
    get_args_parser,
    hydra_main,
    keys_of,
    loading_files_only,
    register,
    trust_plugins_of,
    use_folder,
    with_quoted_paths,
)
from thinkalike.config.groups import reading_options
from thinkalike.errors import (
    ConfigError,
    ResourceError,
    ShareDone,
    StoreError,
    ThinkalikeError,
    listed,
    nearest,
    plain,
    refuse_words,
    short,
)
from thinkalike.files import is_folder, is_there
from thinkalike.global_state import isolated
from thinkalike.plugins import TRUSTED
from thinkalike.processes import Interrupted, doing, follow_parent, heeded

STARTED_SWEEP = ".sweep-"  # how the file in a store begins that the jobs of a sweep share
SHARED = "THINKALIKE_SWEEP"  # environment variable: the file that the jobs of a sweep share
STARTED_BY = "THINKALIKE_STARTED_BY"  # environment variable: the process whose children end with it
COMMAND = "THINKALIKE_COMMAND"  # where a process that shares a job finds the word that Lightning does not hand on
log = logging.getLogger(__name__)
USER_ERRORS = (ThinkalikeError, *COMPOSING_ERRORS)  # which a user can act on
SHELLS = ("bash", "fish", "zsh")  # that Hydra can complete words for
DRY_RUN = "thinkalike-dry-run-"  # how the temporary folder of a sweep begins that does nothing
UNREACHABLE = (errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENOTDIR)  # of a place that was named
EXIT_STATUSES = range(1, 126)  # from 126 on they are those of shells and of signals
SHORT = ("margin", "null", "tokens", "tokens_per_part", "contrast", "path", "pairs", "steps", "other")  # of `diff`


def entry_point(name: str) -> Callable[[], None]:
    """Return the main function of a script, which does the jobs of a command line.

    The folders of the results become the last lines of stdout. An error that a user can act on is one line on stderr
    and exit status 1; any other keeps its traceback.
    """

    def task(composed: DictConfig) -> float | None:
        logging.basicConfig(stream=sys.stderr, level=logging.WARNING, force=True)
        logging.root.handlers[0].setFormatter(_Plainly("%(message)s"))
        logging.root.handlers[0].addFilter(lambda record: not getattr(record, "again", False))
        logging.getLogger("thinkalike").setLevel(logging.INFO)
        # isolated, so that nothing inside the job takes its own state for that of a user
        with own_process(), isolated(), reading_options(HydraOptions()):
            other = "train" if "task" in composed else "analyze"
            if name != other:
                raise ConfigError(f"this configuration begins with defaults: [{other}]; run thinkalike {other}")
            if SHARED in os.environ:
                return _in_sweep(composed)
            made = _done(composed)
            if made:
                _exit_as_asked(made[0])
        return None

    def main() -> None:
        os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # its errors come here, and not to the screen
        script = Path(sys.argv[0])
        is_script = script.suffix == ".py" and script.stem == name
        os.environ[PROGRAM] = shlex.join(["python", str(script)] if is_script else ["thinkalike", name])
        with own_process():
            register()
            sys.argv[1:] = with_quoted_paths(sys.argv[1:])
            os.environ.pop(SHARED, None)  # of a sweep that has ended, if somebody exported it
            sys.argv[1:] = _options_first(sys.argv[1:])
            words = get_args_parser().parse_args()
            _check_flags(words)
            _check_given_once(words)
            TRUSTED.clear()  # what an earlier command line named, it named for itself
            trust_plugins_of(words.overrides)
            if words.help:
                sys.argv[1:] = _without_overrides(sys.argv[1:], words.overrides)
            _run_all(hydra_main(name, task))

    return main


def _exit_as_asked(result: Any) -> None:
    """End the process with the exit status that a result asks for, if it asks for another than 0.

    Raises:
        StoreError: what it asks for is the exit status of no program; the stored result may come from anywhere.
    """
    status = result.scalars.get("exit_status")
    if status is None or status == 0:
        return
    if status not in EXIT_STATUSES:
        told = f"{result.folder} asks for the exit status {status!r}, which no job of this program has"
        raise StoreError(f"{told}; do the job again with force=true")
    sys.exit(int(status))


train, analyze = entry_point("train"), entry_point("analyze")


def _options_first(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with its options before its overrides; argparse takes no other order.

    Raises:
        ConfigError: an option is not known, or lacks its value.
    """
    parser = get_args_parser()
    parser.error = refuse_words  # type: ignore[method-assign]
    known, rest = parser.parse_known_args(list(words))
    for word in rest:
        if word.startswith("-"):
            flags = [flag for action in parser._actions for flag in action.option_strings]
            raise ConfigError(f"{short(word)} is not an option; {nearest(word, flags)}")
    overrides = [*known.overrides, *rest]
    options = list(words)
    for word in reversed(overrides):  # the value of an option may be the same word, and comes before
        options.reverse()
        options.remove(word)
        options.reverse()
    return [*options, *overrides]


def _without_overrides(words: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """Return the words of a command line that asks for help, which is the same text whatever the job.

    Hydra would compose the job first, and the settings of a measure stand in a module that imports torch.
    """
    return list(words[: len(words) - len(overrides)])


def _check_flags(words: argparse.Namespace) -> None:
    """Check the options of a command line that begin with a dash; Hydra ends in a traceback where they do not fit."""
    if words.resolve and not (words.cfg or words.help):
        raise ConfigError("--resolve goes with --cfg job|hydra|all or --help; add one of them")
    modes = {"--run": words.run, "--multirun": words.multirun, "--cfg": words.cfg, "--info": words.info,
             "--shell-completion": words.shell_completion}  # fmt: skip
    if words.experimental_rerun:  # Hydra unpickles this file, and a pickle runs whatever code its author chose
        raise ConfigError(
            "--experimental-rerun is not available, as its file could run code; repeat the command line of the job"
        )
    chosen = [name for name, value in modes.items() if value]
    if len(chosen) > 1:
        raise ConfigError(f"{' and '.join(chosen)} do not go together; leave {chosen[-1]} out")
    if words.config_dir and not words.config_name and os.path.isfile(os.path.join(words.config_dir, "config.yaml")):
        raise ConfigError(
            f"{short(os.path.join(words.config_dir, 'config.yaml'))} is not read without its name; "
            "add --config-name config, or give the file another name"
        )
    if words.shell_completion:
        first = words.overrides[0] if words.overrides else ""
        action, _, shell = first.partition("=")
        if len(words.overrides) != 1 or action not in ("install", "uninstall", "query") or shell not in SHELLS:
            raise ConfigError(f"--shell-completion takes one word: install=SHELL or uninstall=SHELL; {listed(SHELLS)}")


def _check_given_once(words: argparse.Namespace) -> None:
    """Check that a command line gives nothing twice, as the last one would be taken without a word."""
    options = argparse.ArgumentParser(add_help=False)
    for action in get_args_parser()._actions:
        if action.nargs is None and action.option_strings:  # an option with one value
            options.add_argument(*action.option_strings, dest=action.dest, action="append")
    given, _ = options.parse_known_args()
    for name, values in vars(given).items():
        if values and len(values) > 1:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option} is given twice, as {short(values[0])} and {short(values[1])}; give it once")
    check_given_once(words.overrides)


@contextlib.contextmanager
def own_process() -> Iterator[None]:
    """Heed signals, end with the process that was started first, and print errors and signals as one line.

    The exit status is 1 after an error and that of the signal after a signal.
    """
    if os.environ.setdefault(STARTED_BY, str(os.getpid())) != str(os.getpid()):
        follow_parent()
    try:
        _check_working_folder()
        with heeded(), contextlib.redirect_stdout(Stdout(sys.stdout)):  # type: ignore[type-var]
            yield
    except Interrupted as error:
        print(error, file=sys.stderr, flush=True)
        sys.exit(error.status)
    except USER_ERRORS as error:
        if "THINKALIKE_TRACEBACK" in os.environ:
            raise
        print(plain(f"error: {_one_line(error)}"), file=sys.stderr, flush=True)
        sys.exit(1)
    except OSError as error:
        if error.errno not in UNREACHABLE or error.filename is None or "THINKALIKE_TRACEBACK" in os.environ:
            raise
        print(plain(f"error: {short(str(error.filename))}: {error.strerror}; name another place"), file=sys.stderr)
        sys.exit(1)
    except (MemoryError, ImportError) as error:
        if isinstance(error, ImportError) and "map segment" not in str(error):
            raise
        print("error: there is too little memory to start; see ulimit -v and the limits of the job", file=sys.stderr)
        sys.exit(1)


def _check_working_folder() -> None:
    """Refuse a working folder that was deleted: torch cannot be imported from it, and ends the process."""
    try:
        os.getcwd()
    except OSError as error:
        raise ConfigError("the working folder was deleted; cd to one that exists") from error


class _Plainly(logging.Formatter):
    """Writes messages without control characters, which names of models and tensors may have."""

    def format(self, record: logging.LogRecord) -> str:
        return plain(super().format(record))


class Stdout:
    """A stdout that may be full or closed: what is printed then is lost, and not the result."""

    def __init__(self, stream: Any):
        self._stream = stream or open(os.devnull, "w")  # noqa: SIM115
        if hasattr(self._stream, "reconfigure"):
            self._stream.reconfigure(errors="replace")  # a terminal in ASCII has no bars and no arrows

    def write(self, text: str) -> int:
        self._try("write", text)
        return len(text)

    def flush(self) -> None:
        self._try("flush")

    def _try(self, action: str, *given: str) -> None:
        try:
            getattr(self._stream, action)(*given)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _one_line(error: BaseException) -> str:
    said = explained(error) if isinstance(error, COMPOSING_ERRORS) else " ".join(str(error).split())
    return said or type(error).__name__


def _done(composed: DictConfig) -> list[Any]:
    """Do the jobs of a composed configuration, or foretell them, print the folders of the results, and return these."""
    from thinkalike.screen import watched

    made: list[Any] = []
    call = called()
    overrides = call.overrides
    trust_plugins_of(overrides)  # a worker of a sweep has not read the command line
    files = {file: {*keys} for file, keys in files_settings().items()}
    config = checked(composed, overrides, call.choices)
    if call.has_values_to_try and SHARED not in os.environ:
        log.warning("warning: hydra.sweeper.params is read with -m alone, and one job is done without its values")
    if call.has_launcher and SHARED not in os.environ:
        log.warning("warning: hydra.launcher is read with -m alone, and this job runs here, without a launcher")
    if config.store is None:
        raise ConfigError("store=null: a command line keeps its results; give store=DIR")
    if config.trainer.strategy == "ddp" and SHARED in os.environ:  # each process would begin the whole sweep
        raise ConfigError("trainer=ddp does not go with -m: start each such job by itself")
    with watched(), doing("starting", steps_aside=True), contextlib.suppress(ShareDone):
        from thinkalike.job.listed_jobs import asked_for  # torch takes seconds to import
        from thinkalike.job.performing import run_jobs
        from thinkalike.job.planning import may_take_long
        from thinkalike.job.provenance import called_by
        from thinkalike.job.unread_settings import check_read, warn_of_unread

        check_read(keys_of(overrides), config)
        warn_of_unread(files, config)
        if config.dry_run or config.budget:
            config = _foretold(config, keys_of(overrides))
        elif config.trainer.strategy != "ddp":
            with contextlib.suppress(ThinkalikeError):  # which the job itself explains
                if may_take_long(config):
                    _foretold(config, keys_of(overrides))
        if not config.dry_run:
            with called_by(command_line()):
                made = run_jobs(asked_for(config))
    for result in made:
        print(f"results: {result.folder}", flush=True)
    return made


def _foretold(config: Any, chosen: Sequence[str]) -> Any:
    """Return the configuration within its budget; print what a dry run would do, and offer a long job a budget."""
    import torch

    from thinkalike.budget import offered, within
    from thinkalike.forecast import forecast, in_words, show
    from thinkalike.screen import aside

    if config.threads:
        torch.set_num_threads(config.threads)  # as the job will have them
    config = within(config, chosen)
    plan = forecast(config)
    seconds = plan.seconds()
    if config.dry_run:
        with aside():
            show(plan, seconds)
    offer = offered(config, chosen, seconds)
    if offer:
        log.info("about %s on this machine%s", in_words(seconds), offer)
    return config


class Sweep(Callback):
    """Opens the file that the jobs of a sweep share, in the store, or, of a dry run, elsewhere."""

    def on_multirun_start(self, config: DictConfig, **given: Any) -> None:
        try:
            check_number_of_jobs(config)
        except USER_ERRORS as error:  # Hydra makes a warning of any error of a callback
            print(plain(f"error: {_one_line(error)}"), file=sys.stderr)
            sys.exit(1)
        if config.dry_run:
            store = Path(tempfile.mkdtemp(prefix=DRY_RUN))
            use_folder(config, str(store))
        else:
            store = Path(str(config.store)).expanduser().resolve()
        folder, remedy = f"store {store}", "choose store=DIR"
        try:
            store.mkdir(parents=True, exist_ok=True)
            _remove_stale(store)
            opened, path = tempfile.mkstemp(prefix=STARTED_SWEEP, dir=store)
            folder, remedy = f"folder {config.hydra.sweep.dir}", "choose hydra.sweep.dir=DIR"
            Path(config.hydra.sweep.dir).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            print(f"error: the {folder} cannot be written: {error.strerror}; {remedy}", file=sys.stderr)
            sys.exit(1)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(opened, fcntl.LOCK_EX)  # until this process has ended: then the file is stale
        os.environ[SHARED] = path
        os.environ.setdefault("WANDB_RUN_GROUP", Path(path).name.removeprefix("."))  # W&B shows its runs together


def _remove_stale(store: Path) -> None:
    """Remove the files of sweeps that were killed, which nobody locks any more."""
    for path in store.glob(f"{STARTED_SWEEP}*"):
        with contextlib.suppress(OSError):  # locked, so that its sweep runs, or a link, or not ours
            opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if stat.S_ISREG(os.fstat(opened).st_mode):
                    path.unlink()
            finally:
                os.close(opened)


def _run_all(run: Callable[[], None]) -> None:
    """Run a job, or all jobs of a sweep: then show their results, and list those that failed, for exit status 1."""
    try:
        with loading_files_only(), _folder_of_run():
            run()
    except BrokenProcessPool as error:
        raise ResourceError(
            "a worker process of the sweep was killed; rerun the command, which skips what is done, perhaps with "
            "fewer jobs at once (hydra.launcher.n_jobs)"
        ) from error
    finally:  # also when a launcher gives up because a job was killed
        failed = _summed_up(Path(shared)) if (shared := os.environ.pop(SHARED, None)) else False
    if failed:
        sys.exit(1)


@contextlib.contextmanager
def _folder_of_run() -> Iterator[None]:
    """Turn an error of Hydra, which makes a folder for each run before the job begins, into one line."""
    try:
        yield
    except OSError as error:
        frames = traceback.extract_tb(error.__traceback__)
        is_of_hydra = any(frame.name == "run_job" for frame in frames) and not any(
            frame.name == "task" for frame in frames
        )
        if not is_of_hydra:
            raise
        folder = short(str(error.filename))
        raise ConfigError(f"the folder {folder} cannot be made: {error.strerror}; choose hydra.run.dir=DIR") from error


def _summed_up(shared: Path) -> bool:
    """Show the results of a sweep, each once, and what failed; returns whether any job did."""
    from thinkalike.listing import show_sweep

    notes = [json.loads(line) for line in shared.read_text().splitlines()]
    shared.unlink()
    if shared.parent.name.startswith(DRY_RUN):
        shutil.rmtree(shared.parent, ignore_errors=True)
    made = sorted((note for note in notes if "folder" in note), key=lambda note: note["number"])
    if made:
        show_sweep([(note["words"], Path(note["folder"])) for note in made])
    if failed := [note["failed"] for note in notes if "failed" in note]:
        print(f"{len(failed)} of the sweep's jobs failed:", *failed, sep="\n  ", file=sys.stderr, flush=True)
    return bool(failed)


def _in_sweep(composed: DictConfig) -> float | None:
    """Do a job of a sweep and note how it went; returns its first headline number, or None, which stops no other."""
    number, words = called().number, called().overrides
    try:
        with doing(f"job {number + 1} of the sweep"):
            made = _done(composed)
    except Exception as error:
        if not isinstance(error, USER_ERRORS):
            traceback.print_exception(error)
        line = f"{' '.join(words)}: {type(error).__name__}: {_one_line(error)}"
        print(f"failed: {line}", file=sys.stderr, flush=True)
        _note(failed=line)
        return None
    for result in made:
        _note(number=number, words=words, folder=str(result.folder.resolve()))
    numbers = made[0].headlines if made else []
    return numbers[0].value if numbers else None


def _note(**what: Any) -> None:
    if (path := Path(os.environ[SHARED])).exists():  # else the sweep was given up, and its jobs on a cluster run on
        with path.open("a") as file:
            file.write(f"{json.dumps(what)}\n")


@own_process()
def results() -> None:
    """List the results of a store."""
    from thinkalike.listing import list_results

    list_results(sys.argv[1:])


@own_process()
def report() -> None:
    """Write one HTML page of the results of a store."""
    from thinkalike.report.reports import write_report

    write_report(sys.argv[1:])


def as_analysis(words: Sequence[str]) -> list[str]:
    """Return the command line of analyze.py that `thinkalike diff BASE CHANGED [key=value ...]` stands for."""
    if {"-h", "--help"} & {*words}:
        return ["measure=diff", "--help"]
    models = list(itertools.takewhile(_is_model, words))
    if len(models) != 2:
        raise ConfigError("thinkalike diff BASE CHANGED [key=value ...] takes two models, by name or folder")
    here = [name for name in models if "/" not in name and (is_folder(name) or name.endswith(".ckpt"))]
    base, changed = (f"./{name}" if name in here else name for name in models)
    base, changed = (f"'{name}'" if "=" in name else name for name in (base, changed))
    own = [f"measure.{word}" if re.split("[.=]", word)[0] in SHORT else word for word in words[2:]]
    return ["measure=diff", f"model={base}", f"model@target={changed}", *own]


def _is_model(word: str) -> bool:
    is_setting = "=" in word and not (word.endswith(".ckpt") or is_there(word))  # not epoch=0-step=500.ckpt
    return word[:1] not in "+~-" and not is_setting


def diff() -> None:
    """Say what a change did, as `thinkalike analyze measure=diff`."""
    with own_process():
        sys.argv[1:] = as_analysis(sys.argv[1:])
    os.environ[COMMAND] = "analyze"
    analyze()


COMMANDS = {"diff": diff, "train": train, "analyze": analyze, "results": results, "report": report}


def main() -> None:
    """Call the entry point that the first word of the command line names."""
    words = ([os.environ[COMMAND]] if COMMAND in os.environ and "LOCAL_RANK" in os.environ else []) + sys.argv[1:]
    name = words[0] if words else "--help"
    if name in ("-h", "--help"):
        print("usage: thinkalike diff|train|analyze|results|report [key=value ...]; thinkalike train --help says more")
        return
    if name in ("-V", "--version"):
        print(f"thinkalike {sys.modules[__package__].__version__}")
        return
    if name not in COMMANDS:
        print(plain(f"error: thinkalike {short(name)} is not known; {nearest(name, COMMANDS)}"), file=sys.stderr)
        sys.exit(1)
    os.environ[COMMAND] = name
    sys.argv = [sys.argv[0], *words[1:]]
    COMMANDS[name]()
