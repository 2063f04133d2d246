"""The run of W&B that a job fills; training logs its curves through Lightning's logger into the same run."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thinkalike.config import LoggerConfig
from thinkalike.errors import one_line
from thinkalike.store import Job, Result

log = logging.getLogger(__name__)

PATIENCE = 30.0  # seconds for the beginning of a run of W&B
LONGEST = 128  # characters of the name of a run, the most that W&B takes


@dataclass
class Wandb:
    """Fills a run of W&B: headline numbers as summary, tables, figures as images, the files of the result."""

    run: Any

    def publish(self, result: Result) -> None:
        """Log a result; the checkpoint of a model, of gigabytes, stays in the store."""
        import wandb

        tables = {"table" if name == "table" else f"tables/{name}": each for name, each in result.tables.items()}
        drawn = {name: wandb.Table(dataframe=each, allow_mixed_types=True) for name, each in tables.items()}
        pictures = [path for path in result.figures if path.suffix == ".png"]
        self.run.log(drawn | {f"figures/{path.stem}": wandb.Image(str(path)) for path in pictures})
        headlines = {name: value for each in result.headlines for name, value in each.numbers.items()}
        self.run.summary.update({**result.scalars, **headlines})
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
def tracked(config: LoggerConfig, job: Job, inputs: Mapping[str, Any], settings: Mapping[str, Any]) -> Iterator[Wandb]:
    """Log a job while this is open; what the environment says in WANDB_MODE wins."""
    options: dict[str, Any] = {name: getattr(config, name) for name in ("project", "entity", "group")}
    name, place = run_name(job.kind, job.key, inputs), str(job.store)
    options |= {"name": name, "job_type": job.kind, "dir": place, "config": dict(settings)}
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
