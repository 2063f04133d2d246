"""The two doors, as scripts and as commands: `thinkalike train ...`, `thinkalike analyze ...`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from thinkalike.config import AnalyzeConfig, TrainConfig, door
from thinkalike.errors import nearest


@door("train")
def train(config: TrainConfig) -> list[Path]:
    """Fit something with Lightning; returns the folder of the result, alone in a list."""
    from thinkalike.instruments import run_job  # after the command line was checked: torch takes seconds to import

    return [run_job(config).folder]


@door("analyze")
def analyze(config: AnalyzeConfig) -> list[Path]:
    """Measure, or do the experiment of a paper; returns the folders of the results: several with `models=[...]`."""
    from thinkalike.instruments import asked_for, run_jobs

    if config.experiment and config.models is None:
        from thinkalike.papers import reproduce

        return [reproduce(config).folder]
    return [result.folder for result in run_jobs(asked_for(config))]


DOOR = "THINKALIKE_DOOR"  # where a process that shares a job finds the word that Lightning does not hand on
COMMANDS = {"train": train, "analyze": analyze}


def main() -> None:
    """Call the door that the first word of the command line names."""
    words = ([os.environ[DOOR]] if DOOR in os.environ and "LOCAL_RANK" in os.environ else []) + sys.argv[1:]
    name = words[0] if words else "--help"
    if name in ("-h", "--help"):
        print("usage: thinkalike train|analyze [key=value ...]; thinkalike train --help says more")
        return
    if name not in COMMANDS:
        print(f"error: thinkalike {name} is not known; {nearest(name, COMMANDS)}", file=sys.stderr)
        sys.exit(1)
    os.environ[DOOR] = name
    sys.argv = [sys.argv[0], *words[1:]]
    COMMANDS[name]()
