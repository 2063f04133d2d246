"""Opens the logger that a configuration asks for, and closes it whatever happens."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from thinkalike.config import LoggerConfig
from thinkalike.loggers.tensorboard import TensorBoardTracker
from thinkalike.loggers.tracker import About, Tracker
from thinkalike.loggers.weights_and_biases import WandbTracker

TRACKERS: dict[str, type[Tracker]] = {
    "none": Tracker,
    "csv": Tracker,
    "wandb": WandbTracker,
    "tensorboard": TensorBoardTracker,
}


@contextlib.contextmanager
def tracked(config: LoggerConfig, about: About) -> Iterator[Tracker]:
    """Log a job while this is open.

    Raises:
        ConfigError: the logger's package is not there.
    """
    tracker, failed = TRACKERS[config.kind](config, about), True
    try:
        yield tracker
        failed = False
    finally:
        tracker.close(failed)


def publish_table(config: LoggerConfig, about: About, table: pd.DataFrame) -> None:
    """Log a table of several jobs, such as those of a sweep, as a run of its own; W&B alone has a place for it."""
    if config.kind != "wandb":
        return
    with tracked(config, about) as tracker:
        assert isinstance(tracker, WandbTracker)
        tracker.log_table(about.kind, table)


def publish_page(project: str, path: Path) -> None:
    """Log a page of results to a project of W&B, as a run of its own."""
    with tracked(LoggerConfig(kind="wandb", project=project), About(path.stem, "report", path.parent, path)) as tracker:
        assert isinstance(tracker, WandbTracker)
        tracker.log_page(path)
