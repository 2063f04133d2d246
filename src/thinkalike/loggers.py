"""Loggers of jobs, open while one runs: W&B and TensorBoard.

Training logs its curves through Lightning's logger of the same kind, into the same run.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from thinkalike.config import LoggerConfig
from thinkalike.errors import check_extra, one_line
from thinkalike.store import Job, Result

log = logging.getLogger(__name__)

PATIENCE = 30.0  # seconds for the beginning of a run of W&B
LONGEST = 128  # characters of the name of a run, the most that W&B takes


class TensorBoardTracker:
    """Writes scalars, figures, and settings and table as text, into a folder that is called as the run."""

    def __init__(self, config: LoggerConfig, job: Job, name: str, folder: Path, settings: Mapping[str, Any]):
        check_extra("tensorboard", ["tensorboard"], "logger=tensorboard")
        self.folder, self.settings = folder / re.sub(r"[^\w.=+-]+", "_", name), settings

    def publish(self, result: Result) -> None:
        """Log a result."""
        import numpy as np
        from PIL import Image
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(self.folder)) as writer:
            for name, value in _summary(result).items():
                writer.add_scalar(f"result/{name}", value)
            for name, path in _pictures(result).items():
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
        import wandb

        options: dict[str, Any] = {name: getattr(config, name) for name in ("project", "entity", "group")}
        options |= {"name": name, "job_type": job.kind, "dir": str(job.store), "config": dict(settings)}
        mode: Any = os.environ.get("WANDB_MODE", "online")
        if mode != "disabled":
            job.store.mkdir(parents=True, exist_ok=True)  # else W&B takes another place
        self.run: Any = None
        reason = "no key"
        try:
            if mode != "online" or wandb.login(prompt=False):
                self.run = wandb.init(mode=mode, settings=wandb.Settings(init_timeout=PATIENCE), **options)
        except wandb.Error as error:
            wandb.teardown()  # what is left of the attempt
            reason = one_line(error)
        if self.run is None:
            upload = f"to upload: wandb sync {job.store}/wandb/offline-run-*"
            log.info("W&B: %s, so the run stays offline; %s", reason, upload)
            self.run = wandb.init(mode="offline", **options)

    def publish(self, result: Result) -> None:
        """Log a result; the checkpoint of a model, of gigabytes, stays in the store."""
        import wandb

        tables = {"table" if name == "table" else f"tables/{name}": each for name, each in result.tables.items()}
        drawn = {name: wandb.Table(dataframe=each, allow_mixed_types=True) for name, each in tables.items()}
        pictures = {f"figures/{name}": wandb.Image(str(path)) for name, path in _pictures(result).items()}
        self.run.log({**drawn, **pictures})
        self.run.summary.update(_summary(result))
        artifact = wandb.Artifact(re.sub(r"[^\w.-]+", "-", f"{result.kind}-{result.key}"), type="result")
        for path in sorted([*result.folder.glob("*"), *result.folder.glob("figures/*")]):
            if path.is_file():
                artifact.add_file(str(path), name=str(path.relative_to(result.folder)))
        self.run.log_artifact(artifact)

    def close(self, failed: bool) -> None:
        """End the run."""
        self.run.finish(exit_code=int(failed))


TRACKERS: dict[str, Any] = {"wandb": WandbTracker, "tensorboard": TensorBoardTracker}


@contextlib.contextmanager
def tracked(
    config: LoggerConfig, job: Job, inputs: Mapping[str, Any], folder: Path, settings: Mapping[str, Any]
) -> Iterator[Any]:
    """Log a job while this is open.

    Args:
        inputs: what it reads, by name.
        folder: for curves that belong to the result.
        settings: the resolved configuration.
    """
    name = run_name(job.kind, job.key, inputs)
    tracker, failed = TRACKERS[config.kind](config, job, name, folder, settings), True
    try:
        yield tracker
        failed = False
    finally:
        tracker.close(failed)


def run_name(kind: str, key: str, inputs: Mapping[str, Any]) -> str:
    """Return the name of a run: kind, models and key, as "cka gpt2, bert 9d95e636c1fb"."""
    labels = inputs.get("labels") or inputs.get("names") or ""
    models = ", ".join(dict.fromkeys(labels.split(", "))) if isinstance(labels, str) else ""
    return f"{f'{kind} {models}'.strip()[: LONGEST - len(key) - 1]} {key}"


def _summary(result: Result) -> dict[str, float]:
    """Return the summary of a run: scalars, and headline numbers with the ends of their intervals."""
    return {**result.scalars, **{name: value for each in result.headlines for name, value in each.numbers.items()}}


def _pictures(result: Result) -> dict[str, Path]:
    """Return the figures that loggers can show, by name."""
    return {path.stem: path for path in result.figures if path.suffix == ".png"}
