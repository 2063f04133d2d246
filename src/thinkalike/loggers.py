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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thinkalike.config import LoggerConfig
from thinkalike.errors import check_extra, one_line
from thinkalike.store import Job, Result

log = logging.getLogger(__name__)

PATIENCE = 30.0  # seconds for the beginning of a run of W&B
LONGEST = 128  # characters of the name of a run, the most that W&B takes


@dataclass
class TensorBoard:
    """Writes scalars, figures, and settings and table as text, into a folder."""

    folder: Path
    settings: Mapping[str, Any]

    def publish(self, result: Result) -> None:
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


@dataclass
class Wandb:
    """Fills a run of W&B: headline numbers as summary, tables, figures as images, the files of the result."""

    run: Any

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


def wandb_run(mode: Any, store: Path, **options: Any) -> Any:
    """Return a new run of W&B, which stays offline without a key or where the server does not answer."""
    import wandb

    if mode != "disabled":
        store.mkdir(parents=True, exist_ok=True)  # else W&B takes another place
    reason = "no key"
    try:
        if mode != "online" or wandb.login(prompt=False):
            return wandb.init(mode=mode, settings=wandb.Settings(init_timeout=PATIENCE), **options)
    except wandb.Error as error:
        wandb.teardown()  # what is left of the attempt
        reason = one_line(error)
    log.info("W&B: %s, so the run stays offline; to upload: wandb sync %s/wandb/offline-run-*", reason, store)
    return wandb.init(mode="offline", **options)


@contextlib.contextmanager
def tracked(
    config: LoggerConfig, job: Job, inputs: Mapping[str, Any], folder: Path, settings: Mapping[str, Any]
) -> Iterator[Any]:
    """Log a job while this is open; what the environment says in WANDB_MODE wins."""
    name = run_name(job.kind, job.key, inputs)
    if config.kind == "tensorboard":
        check_extra("tensorboard", ["tensorboard"], "logger=tensorboard")
        yield TensorBoard(folder / re.sub(r"[^\w.=+-]+", "_", name), settings)
        return
    options: dict[str, Any] = {name: getattr(config, name) for name in ("project", "entity", "group")}
    options |= {"name": name, "job_type": job.kind, "dir": str(job.store), "config": dict(settings)}
    run, failed = wandb_run(os.environ.get("WANDB_MODE", "online"), job.store, **options), True
    try:
        yield Wandb(run)
        failed = False
    finally:
        run.finish(exit_code=int(failed))


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
