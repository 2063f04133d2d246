"""The entry points, as scripts and as commands: `thinkalike diff|train|analyze|results|report`."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from thinkalike.config import AnalyzeConfig, Made, TrainConfig, entry_point, own_process
from thinkalike.errors import ConfigError, nearest
from thinkalike.progress import doing


@contextlib.contextmanager
def at_work() -> Iterator[None]:
    """Show progress from the first imports on, which take seconds."""
    from thinkalike.screen import watched

    with watched(), doing("starting", steps_aside=True):
        yield


def joined(made: Sequence[Made]) -> None:
    """Show the results of a sweep beside each other."""
    from thinkalike.listing import show_sweep

    show_sweep(made)


def headline(folders: Sequence[Path]) -> float | None:
    """Return the first headline number of the first result; None if there is none, which Optuna counts as failed."""
    from thinkalike.store import Result

    numbers = Result(folders[0]).headlines if folders else []
    return numbers[0].value if numbers else None


def foretold(config: TrainConfig | AnalyzeConfig) -> list[Path]:
    """Print the cost of a job; returns no folder, as there is no result."""
    from thinkalike.forecast import forecast, show, speed

    with at_work():
        plan = forecast(config)
        here = speed() if config.dry_run is True else float(config.dry_run)
    show(plan, here)
    return []


@entry_point("train", joined, headline)
def train(config: TrainConfig, overrides: Sequence[str]) -> list[Path]:
    """Fit something with Lightning; returns the folder of the result, alone in a list."""
    return done(config, overrides)


def done(config: TrainConfig | AnalyzeConfig, overrides: Sequence[str]) -> list[Path]:
    """Do all jobs that a configuration stands for, or foretell them; returns the folders of their results."""
    with at_work():
        from thinkalike.instruments import asked_for, check_read, run_jobs  # torch takes seconds to import

        check_read(overrides, config)
        if not config.dry_run:
            return [result.folder for result in run_jobs(asked_for(config))]
    return foretold(config)


def verdict(folders: Sequence[Path]) -> int:
    """Return the exit status of a result that was compared with a margin, else 0."""
    from thinkalike.store import Result

    return int(Result(folders[0]).scalars.get("exit_status", 0)) if folders else 0


@entry_point("analyze", joined, headline, verdict)
def analyze(config: AnalyzeConfig, overrides: Sequence[str]) -> list[Path]:
    """Measure, or do the experiment of a paper; returns the folders of the results: several with `models=[...]`."""
    return done(config, overrides)


@own_process()
def results() -> None:
    """List the results of a store."""
    from thinkalike.listing import list_results

    list_results(sys.argv[1:])


@own_process()
def report() -> None:
    """Write one HTML page of the results of a store."""
    from thinkalike.report import write_report

    write_report(sys.argv[1:])


SHORT = ("margin", "null", "tokens", "tokens_per_part", "contrast", "path", "pairs", "steps", "rate")  # of `diff`


def as_analysis(words: Sequence[str]) -> list[str]:
    """Return the command line of analyze.py that `thinkalike diff BASE CHANGED [key=value ...]` stands for.

    Raises:
        ConfigError: there are not two models before the settings.
    """
    models = list(itertools.takewhile(lambda word: "=" not in word and word[:1] not in "+~-", words))
    if len(models) != 2:
        raise ConfigError("thinkalike diff BASE CHANGED [key=value ...] takes two models, by name or folder")
    base, changed = (f"./{name}" if "/" not in name and Path(name).is_dir() else name for name in models)
    own = [f"measure.{word}" if re.split("[.=]", word)[0] in SHORT else word for word in words[2:]]
    return ["measure=diff", f"model={base}", f"model@target={changed}", *own]


def diff() -> None:
    """Say what a change did, as `thinkalike analyze measure=diff`."""
    with own_process():
        sys.argv[1:] = as_analysis(sys.argv[1:])
    os.environ[COMMAND] = "analyze"
    analyze()


COMMAND = "THINKALIKE_COMMAND"  # where a process that shares a job finds the word that Lightning does not hand on
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
        print(f"error: thinkalike {name} is not known; {nearest(name, COMMANDS)}", file=sys.stderr)
        sys.exit(1)
    os.environ[COMMAND] = name
    sys.argv = [sys.argv[0], *words[1:]]
    COMMANDS[name]()
