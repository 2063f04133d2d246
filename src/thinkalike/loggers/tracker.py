"""What a logger is told of a job, and the logger that writes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thinkalike.config import LoggerConfig
from thinkalike.store import Result


@dataclass(frozen=True)
class About:
    """A job as a logger needs to know it.

    Attributes:
        name: tells its run from those of other jobs.
        kind: of the job.
        store: where W&B keeps a folder of its own, of runs that fail, too.
        folder: where curves are written that belong to the result.
        settings: the resolved configuration.
    """

    name: str
    kind: str
    store: Path
    folder: Path
    settings: Mapping[str, Any] = field(default_factory=dict)


class Tracker:
    """A logger of a job, which begins when this is made; this one, of logger=csv and logger=none, writes nothing.

    Training writes its curves by Lightning's logger of the same kind, into the same run.
    """

    def __init__(self, config: LoggerConfig, about: About):
        self.config, self.about = config, about

    def publish(self, result: Result) -> None:
        """Log a result that is drawn: its headline numbers and scalars, its tables and figures, and the files of it."""

    def close(self, failed: bool) -> None:
        """End the run, also when the job has failed."""


def summary_of(result: Result) -> dict[str, float]:
    """Return the numbers by which runs are sorted and sweeps steered: scalars, and headline numbers with their ends."""
    headlines = {name: value for each in result.headlines for name, value in each.numbers.items()}
    return {**result.scalars, **headlines}


def pictures_of(result: Result) -> dict[str, Path]:
    """Return the figures that loggers can show, by name."""
    return {path.stem: path for path in result.figures if path.suffix == ".png"}
