"""The two doors, as scripts and as commands: `thinkalike train ...`, `thinkalike analyze ...`."""

from __future__ import annotations

import sys
from pathlib import Path

from thinkalike.config import AnalyzeConfig, TrainConfig, door
from thinkalike.errors import nearest


@door("train")
def train(config: TrainConfig) -> Path:
    """Fit something with Lightning; returns the folder of the result."""
    from thinkalike.instruments import run_job  # after the command line was checked: torch takes seconds to import

    return run_job(config).folder


@door("analyze")
def analyze(config: AnalyzeConfig) -> Path:
    """Measure, or do the experiment of a paper; returns the folder of the result."""
    from thinkalike.instruments import run_job

    if config.experiment:
        from thinkalike.papers import reproduce

        return reproduce(config).folder
    return run_job(config).folder


COMMANDS = {"train": train, "analyze": analyze}


def main() -> None:
    """Call the door that the first word of the command line names."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help"):
        print("usage: thinkalike train|analyze [key=value ...]; thinkalike train --help says more")
        return
    if name not in COMMANDS:
        print(f"error: thinkalike {name} is not known; {nearest(name, COMMANDS)}", file=sys.stderr)
        sys.exit(1)
    sys.argv = [f"thinkalike {name}", *sys.argv[2:]]
    COMMANDS[name]()
