"""The entry points, as scripts and as commands.

The commands are `thinkalike diff|lineage|train|analyze|results|report`. Hydra reads the command
lines of train and analyze.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from thinkalike.cli.job import entry_point
from thinkalike.cli.pair_words import NAMES_OF_MODELS as NAMES_OF_MODELS
from thinkalike.cli.pair_words import as_analysis as as_analysis
from thinkalike.cli.process import COMMAND, own_process
from thinkalike.cli.sweep import DRY_RUN as DRY_RUN
from thinkalike.cli.sweep import SHARED as SHARED
from thinkalike.cli.sweep import Sweep as Sweep
from thinkalike.completion import commands_that_begin, completed_command, is_query
from thinkalike.errors import nearest, plain, short

USAGE = (
    "usage: thinkalike diff|lineage|train|analyze|results|report [key=value ...]; "
    "thinkalike train --help says more"
)

train = entry_point("train")
analyze = entry_point("analyze")


@own_process()
def print_results() -> None:
    """List the results of a store."""
    from thinkalike.listing import list_results

    list_results(sys.argv[1:])


@own_process()
def report() -> None:
    """Write one HTML page of the results of a store."""
    from thinkalike.report.reports import write_report

    write_report(sys.argv[1:])


def diff() -> None:
    """Say what a change did, as `thinkalike analyze measure=diff`."""
    analyze_two_models("diff")


def lineage() -> None:
    """Say which blocks derive from another model, as `thinkalike analyze measure=lineage`."""
    analyze_two_models("lineage")


def analyze_two_models(command: str) -> None:
    """Run the analysis that a command of two models stands for."""
    if not is_query(sys.argv[1:]):
        with own_process():
            sys.argv[1:] = as_analysis(sys.argv[1:], command)
        os.environ[COMMAND] = "analyze"
    analyze()


COMMANDS = {
    "diff": diff,
    "lineage": lineage,
    "train": train,
    "analyze": analyze,
    "results": print_results,
    "report": report,
}


HELP_FLAGS = ("-h", "--help")
VERSION_FLAGS = ("-V", "--version")
COMPLETION_FLAGS = ("-sc", "--shell-completion")
OF_STORES = ("results", "report")  # commands whose words are files, which the shell completes


def main() -> None:
    """Call the entry point that the first word of the command line names."""
    words = sys.argv[1:]
    is_started_by_lightning = COMMAND in os.environ and "LOCAL_RANK" in os.environ
    if is_started_by_lightning:  # which does not pass on the first word
        words = [os.environ[COMMAND], *words]
    name = "--help"
    if words:
        name = words[0]

    if name in HELP_FLAGS:
        _print_answer(USAGE)
        return
    if name in VERSION_FLAGS:
        _print_answer(f"thinkalike {version('thinkalike')}")
        return
    if name in COMPLETION_FLAGS:
        command = _command_of_completion(words)
        if command is None:
            return
        words = [command, *words]
        name = command
    if name not in COMMANDS:
        message = f"error: thinkalike {short(name)} is not known; {nearest(name, COMMANDS)}"
        print(plain(message), file=sys.stderr)
        sys.exit(1)
    os.environ[COMMAND] = name
    sys.argv = [sys.argv[0], *words[1:]]
    COMMANDS[name]()


@own_process()
def _print_answer(text: str) -> None:
    """Print a text for which somebody has asked."""
    print(text)


def _command_of_completion(words: Sequence[str]) -> str | None:
    """Return the command that answers a shell.

    None: the answer is printed here, which is the names of the commands, or there is none.
    """
    if not is_query(words):
        return "train"  # the function that a shell installs is the same for all commands
    command = completed_command(COMMANDS)
    if command is None:
        separator = " "
        if words[-1].endswith("fish"):
            separator = "\n"
        print(*commands_that_begin(COMMANDS), sep=separator)
    if command in OF_STORES:
        return None
    return command
