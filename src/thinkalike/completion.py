"""What Hydra completes of a command line: a line that its completion can read, whichever options are in it.

The shell functions that `-sc install=SHELL` prints know a program by its first word, and ask it `-sc query=SHELL` with
the line in COMP_LINE. Hydra's answer is for one entry point, with options before overrides and each with its value.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection

LINE = "COMP_LINE"  # environment variable: the line that is being completed, up to the cursor
OPTIONS_WITH_VALUE = ("--package", "-p", "--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd")
# The shell has these options complete without a configuration, so that they are left out of what Hydra reads.
DROPPED = ("--help", "-h", "--hydra-help", "--version", "--resolve", "--run", "-r", "--multirun", "-m")
DROPPED_WITH_VALUE = ("--cfg", "-c", "--info", "-i")


# Candidates of other characters are left out: bash expands what it is given to complete, so that a
# file named $(command) would run the command.
HARMLESS = re.compile(r"[\w./:=@,+~%-]+")


def harmless(candidates: str) -> str:
    """Return the candidates of an answer, one in a line, that a shell takes as they are.

    Args:
        candidates: They are separated by blanks or line ends.
    """
    return "\n".join(filter(HARMLESS.fullmatch, candidates.split()))


def is_query(words: Collection[str]) -> bool:
    """Return whether the words of a command line ask what completes another line."""
    return LINE in os.environ and any(word.startswith("query=") for word in words)


def completed_command(commands: Collection[str]) -> str | None:
    """Return the command of the line that is being completed; None: the command itself is being typed.

    >>> os.environ[LINE] = "thinkalike train stitch=l"
    >>> completed_command(["train", "diff"])
    'train'
    """
    words = os.environ[LINE].split()[1:]
    is_complete = len(words) > 1 or os.environ[LINE].endswith(" ")
    if words and is_complete and words[0] in commands:
        return words[0]
    return None


def commands_that_begin(commands: Collection[str]) -> list[str]:
    """Return the commands that complete the line; none where it has other words already."""
    words = os.environ[LINE].split()[1:]
    if len(words) > 1 or (words and os.environ[LINE].endswith(" ")):
        return []
    begins = words[0] if words else ""
    return sorted(name for name in commands if name.startswith(begins))


def readable_line(line: str, command: str) -> str | None:
    """Return a line as Hydra's completion reads it; None: it ends with an option, which Hydra does not complete.

    Args:
        line: `thinkalike COMMAND ...`, `python COMMAND.py ...`, or `COMMAND.py ...`.

    >>> readable_line("thinkalike train seed=1 -m -cd mine stitch=l", "train")
    'thinkalike -cd mine seed=1 stitch=l'
    """
    words = line.split()
    is_script = len(words) > 1 and words[0].rpartition("/")[2].startswith("python")
    start = 2 if is_script else 1
    program, rest = words[:start], words[start:]
    if not is_script and rest[:1] == [command]:
        rest = rest[1:]

    options: list[str] = []
    overrides: list[str] = []
    expects_value = False
    drops_value = False
    for word in rest:
        if expects_value or drops_value:
            if expects_value:
                options.append(word)
            expects_value = drops_value = False
        elif word in OPTIONS_WITH_VALUE:
            options.append(word)
            expects_value = True
        elif word in DROPPED_WITH_VALUE:
            drops_value = True
        elif word.startswith("-"):
            if "=" in word and word.partition("=")[0] in OPTIONS_WITH_VALUE:
                options.append(word)
        else:
            overrides.append(word)

    is_new_word = line.endswith(" ")
    ends_with_option = bool(rest) and not is_new_word and rest[-1] not in overrides
    if ends_with_option or expects_value or drops_value:
        return None
    if command in ("diff", "lineage"):  # whose two models are folders, which the shell completes
        models_typed = [word for word in overrides if "=" not in word]
        if overrides and not is_new_word and overrides[-1] in models_typed[:2]:
            return None
        overrides = [f"measure={command}", *(word for word in overrides if word not in models_typed[:2])]
    end = " " if is_new_word else ""
    return " ".join([*program, *options, *overrides]) + end
