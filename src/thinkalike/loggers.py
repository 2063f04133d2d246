"""Loggers of jobs, open while one runs: W&B and TensorBoard.

Training logs its curves through Lightning's logger of the same kind, into the same run.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from thinkalike.config import LoggerConfig
from thinkalike.errors import check_extra, first_line
from thinkalike.store import Job, Result

log = logging.getLogger(__name__)

PATIENCE = 30.0  # seconds for the beginning of a run of W&B


def summary_of(result: Result) -> dict[str, float]:
    """Return the summary of a run: scalars, and headline numbers with the ends of their intervals."""
    return {**result.scalars, **{name: value for each in result.headlines for name, value in each.numbers.items()}}


def pictures_of(result: Result) -> dict[str, Path]:
    """Return the figures that loggers can show, by name."""
    return {path.stem: path for path in result.figures if path.suffix == ".png"}


def curves_of(result: Result) -> dict[int, dict[str, float]]:
    """Return the numbers that tables have for each step of a training, in the order of the steps.

    A number is called by its column and its place, such as "accuracy/layer 2, feature Tense".
    """
    found: dict[int, dict[str, float]] = {}
    for table in (each for each in result.tables.values() if "step" in each and "other" not in each):
        numbers = [str(name) for name in table.select_dtypes("float") if not str(name).endswith(("_low", "_high"))]
        for row in table.to_dict("records"):
            place = ", ".join(f"{name} {row[name]}" for name in ("layer", "feature") if name in row)
            own = {f"{name}/{place}".removesuffix("/"): row[name] for name in numbers if math.isfinite(row[name])}
            found.setdefault(row["step"], {}).update(own)
    return dict(sorted(found.items()))


class TensorBoardTracker:
    """Writes scalars, figures, and settings and table as text, into a folder that is called as the run."""

    def __init__(self, config: LoggerConfig, job: Job, name: str, folder: Path, settings: Mapping[str, Any]):
        check_extra("tensorboard", ["tensorboard"], "logger=tensorboard")
        self.folder, self.settings = folder / re.sub(r"[^\w.=+-]+", "_", name), settings

    def publish(self, result: Result) -> None:
        import numpy as np
        from PIL import Image
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(self.folder)) as writer:
            for name, value in summary_of(result).items():
                writer.add_scalar(f"result/{name}", value)
            for step, numbers in curves_of(result).items():
                for name, value in numbers.items():
                    writer.add_scalar(name, value, step)
            for name, path in pictures_of(result).items():
                with Image.open(path) as picture:
                    writer.add_image(f"figures/{name}", np.asarray(picture.convert("RGB")), dataformats="HWC")
            writer.add_text("settings", f"```\n{json.dumps(dict(self.settings), indent=1, default=str)}\n```")
            for name, table in result.tables.items():
                writer.add_text(name, f"```\n{table.to_string(index=False, max_rows=1000)}\n```")

    def close(self, failed: bool) -> None:
        """Do nothing: all was written when the result was there."""


class WandbTracker:
    """A run of W&B: the configuration, headline numbers as summary, tables, figures as images, the result's files.

    It stays offline without a key or where the server does not answer. What the environment says in WANDB_MODE wins;
    under `disabled` nothing is written.
    """

    def __init__(self, config: LoggerConfig, job: Job, name: str, folder: Path, settings: Mapping[str, Any]):
        options = {name: getattr(config, name) for name in ("project", "entity", "group")}
        options |= {"name": name, "job_type": job.kind, "dir": str(job.store), "config": dict(settings)}
        self.run = _begun(job.store, options)

    def publish(self, result: Result) -> None:
        import wandb

        tables = {"table" if name == "table" else f"tables/{name}": each for name, each in result.tables.items()}
        pictures = {f"figures/{name}": wandb.Image(str(path)) for name, path in pictures_of(result).items()}
        for step, numbers in curves_of(result).items():
            self.run.log(numbers, step=step)
        drawn = {name: wandb.Table(dataframe=each, allow_mixed_types=True) for name, each in tables.items()}
        self.run.log({**drawn, **pictures})
        self.run.summary.update(summary_of(result))
        paths = [path for pattern in ("*", "figures/*") for path in sorted(result.folder.glob(pattern))]
        files = [path for path in paths if path.is_file()]  # a model's checkpoint, of gigabytes, stays in the store
        artifact = wandb.Artifact(re.sub(r"[^\w.-]+", "-", f"{result.kind}-{result.key}"), type="result")
        for path in files:
            artifact.add_file(str(path), name=str(path.relative_to(result.folder)))
        self.run.log_artifact(artifact)

    def close(self, failed: bool) -> None:
        self.run.finish(exit_code=int(failed))


def _begun(store: Path, options: dict[str, Any]) -> Any:
    import wandb

    mode: Any = os.environ.get("WANDB_MODE", "online")
    if mode != "disabled":
        store.mkdir(parents=True, exist_ok=True)  # else W&B takes another place
    if mode == "online":
        mode, reason = "offline", "no key"
        try:
            if wandb.login(prompt=False):
                return wandb.init(mode="online", settings=wandb.Settings(init_timeout=PATIENCE), **options)
        except wandb.Error as error:
            wandb.teardown()  # what is left of the attempt
            reason = first_line(error)
        upload = f"to upload: wandb sync {store}/wandb/offline-run-*"
        log.info("W&B: %s, so the run stays offline; %s", reason, upload)
    return wandb.init(mode=mode, **options)


TRACKERS: dict[str, Any] = {"wandb": WandbTracker, "tensorboard": TensorBoardTracker}


@contextlib.contextmanager
def tracked(config: LoggerConfig, job: Job, name: str, folder: Path, settings: Mapping[str, Any]) -> Iterator[Any]:
    """Log a job while this is open.

    Args:
        job: its kind, and its store, in which W&B keeps a folder of its own.
        name: tells its run from those of other jobs.
        folder: for curves that belong to the result.
        settings: the resolved configuration.
    """
    tracker, failed = TRACKERS[config.kind](config, job, name, folder, settings), True
    try:
        yield tracker
        failed = False
    finally:
        tracker.close(failed)
