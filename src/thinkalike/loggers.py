"""The run of W&B that a job fills; training logs its curves to the same run."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from thinkalike.config import LoggerConfig
from thinkalike.errors import ConfigError, listed, one_line
from thinkalike.store import Result, StoredJob

if TYPE_CHECKING:
    import wandb

log = logging.getLogger(__name__)

PATIENCE = 30.0  # seconds for the beginning of a run of W&B
LONGEST_NAME = 128  # characters of the name of a run, the most that W&B takes


@dataclass
class Wandb:
    """Fills a run of W&B with a result.

    Headline numbers become its summary, tables its tables, figures its images, and the files of
    the result an artifact.
    """

    run: wandb.Run

    def publish(self, result: Result) -> None:
        """Log a result; the checkpoint of a model, of gigabytes, stays in the store."""
        import wandb

        logged: dict[str, object] = {}
        for name, table in result.tables.items():
            key = f"tables/{name}"
            if name == "table":
                key = "table"
            logged[key] = wandb.Table(dataframe=table, allow_mixed_types=True)
        for path in result.figures:
            if path.suffix == ".png":
                logged[f"figures/{path.stem}"] = wandb.Image(str(path))
        self.run.log(logged)

        summary = dict(result.scalars)
        for headline in result.headlines:
            summary |= headline.numbers
        self.run.summary.update(summary)

        artifact_name = re.sub(r"[^\w.-]+", "-", f"{result.kind}-{result.key}")
        artifact = wandb.Artifact(artifact_name, type="result")
        for path in sorted([*result.folder.glob("*"), *result.folder.glob("figures/*")]):
            if path.is_file():
                artifact.add_file(str(path), name=str(path.relative_to(result.folder)))
        self.run.log_artifact(artifact)


@dataclass(frozen=True)
class RunOptions:
    """What W&B is told of a new run; see `wandb.init`."""

    name: str
    job_type: str
    dir: str
    config: Mapping[str, object]
    project: str | None = None
    entity: str | None = None
    group: str | None = None

    def start(self, mode: str, settings: wandb.Settings | None = None) -> wandb.Run:
        """Return a new run in this mode: "online", "offline" or "disabled"."""
        import wandb

        return wandb.init(
            mode=mode,  # type: ignore[arg-type]
            settings=settings,
            name=self.name,
            job_type=self.job_type,
            dir=self.dir,
            config=dict(self.config),
            project=self.project,
            entity=self.entity,
            group=self.group,
        )


def wandb_run(mode: str, store: Path, options: RunOptions) -> wandb.Run:
    """Return a new run of W&B; without a key or an answer of its server, the run stays offline."""
    import wandb

    if mode != "disabled":
        store.mkdir(parents=True, exist_ok=True)  # W&B takes another folder if this does not exist
    reason = "no key"
    try:
        if mode != "online" or wandb.login(prompt=False):
            return options.start(mode, wandb.Settings(init_timeout=PATIENCE))
    except wandb.Error as error:
        wandb.teardown()  # what is left of the attempt
        reason = one_line(error)
    log.info(
        "W&B: %s, so the run stays offline; to upload: wandb sync %s/wandb/offline-run-*",
        reason,
        store,
    )
    try:
        return options.start("offline")
    except wandb.errors.UsageError as error:
        given = []
        for name in ("project", "entity", "group"):
            value = getattr(options, name)
            if value:
                given.append(f"logger.{name}={value}")
        raise ConfigError(f"{listed(given)}: W&B refuses: {one_line(error)}") from error


@contextlib.contextmanager
def tracked(
    config: LoggerConfig, job: StoredJob, inputs: Mapping[str, object], settings: Mapping[str, object]
) -> Iterator[Wandb]:
    """Log a job while this is open; the environment variable WANDB_MODE takes precedence."""
    options = RunOptions(
        name=run_name(job.kind, job.key, inputs),
        job_type=job.kind,
        dir=str(job.store),
        config=settings,
        project=config.project,
        entity=config.entity,
        group=config.group,
    )
    run = wandb_run(os.environ.get("WANDB_MODE", "online"), job.store, options)
    has_failed = True
    try:
        yield Wandb(run)
        has_failed = False
    finally:
        run.finish(exit_code=int(has_failed))


def run_name(kind: str, key: str, inputs: Mapping[str, object]) -> str:
    """Return the name of a run: kind, models and key, as "cka gpt2, bert 9d95e636c1fb"."""
    labels = inputs.get("labels") or inputs.get("names") or ""
    title = kind
    if isinstance(labels, str):
        models = ", ".join(dict.fromkeys(labels.split(", ")))
        title = f"{kind} {models}".strip()
    room = LONGEST_NAME - len(key) - 1
    return f"{title[:room]} {key}"
