"""The command line of the job that runs, as one could paste it."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

PROGRAM = "THINKALIKE_PROGRAM"  # environment variable: how a user called the door, also for the workers of a sweep

_words: list[str] | None = None  # of the job that a door does


def called(door: str, options: Sequence[str] = ()) -> None:
    """Remember how a user called a door: as a script, or as a command of the installed package.

    Args:
        options: those that say which configurations there are.
    """
    script = Path(sys.argv[0])
    start = ["python", str(script)] if script.suffix == ".py" and script.stem == door else ["thinkalike", door]
    os.environ[PROGRAM] = shlex.join([*start, *options])


def begin(words: Sequence[str]) -> None:
    """Remember the words of the job that a door begins; those of a sweep are of this one of its jobs."""
    global _words
    _words = list(words)


def words_of_job() -> list[str]:
    """Return the words of the job that Hydra does, as they were given: ${...} in them is of the job's configuration."""
    words: Any = OmegaConf.to_container(HydraConfig.get().overrides.task)
    return list(words)


def command_words() -> list[str]:
    """Return the words of the job that a door does; none if no door does one."""
    return list(_words or []) if PROGRAM in os.environ else []


def command_line() -> str:
    """Return the command line of the job that a door does, or that of this process if no door does one."""
    if _words is None or PROGRAM not in os.environ:
        return shlex.join(sys.argv)
    return " ".join([os.environ[PROGRAM], *map(shlex.quote, _words)])
