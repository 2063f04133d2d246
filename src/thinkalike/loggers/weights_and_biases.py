"""logger=wandb: a run of W&B for each job, online where a key and the server are there, else offline."""

from __future__ import annotations

import logging
import os
import re
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from thinkalike.config import LoggerConfig
from thinkalike.errors import first_line
from thinkalike.loggers.tracker import About, Tracker, pictures_of, summary_of
from thinkalike.store import Result

log = logging.getLogger(__name__)

PATIENCE = 5.0  # seconds for the server's first answer
BEGINNING = 30.0  # seconds for the beginning of a run, which W&B itself tries again


class WandbTracker(Tracker):
    """A run of W&B: the configuration, headline numbers as summary, tables, figures as images, the result's files.

    What the environment says in WANDB_MODE wins; under `disabled` nothing is written.
    """

    def __init__(self, config: LoggerConfig, about: About):
        super().__init__(config, about)
        self.run = _begun(config, about)

    def publish(self, result: Result) -> None:
        import wandb

        tables = {"table" if name == "table" else f"tables/{name}": each for name, each in result.tables.items()}
        pictures = {f"figures/{name}": wandb.Image(str(path)) for name, path in pictures_of(result).items()}
        self.run.log({**{name: _as_table(each) for name, each in tables.items()}, **pictures})
        self.run.summary.update(summary_of(result))
        self._log_files(f"{result.kind}-{result.key}", "result", result.folder, _kept(result.folder))

    def log_table(self, name: str, table: pd.DataFrame) -> None:
        """Log a table alone."""
        self.run.log({name: _as_table(table)})

    def log_page(self, path: Path) -> None:
        """Log a page of results alone, as an artifact of its own type."""
        self._log_files(path.stem, "report", path.parent, [path])

    def _log_files(self, name: str, kind: str, folder: Path, files: Sequence[Path]) -> None:
        import wandb

        artifact = wandb.Artifact(_plain(name), type=kind)
        for path in files:
            artifact.add_file(str(path), name=str(path.relative_to(folder)))
        self.run.log_artifact(artifact)

    def close(self, failed: bool) -> None:
        self.run.finish(exit_code=int(failed))


def _kept(folder: Path) -> list[Path]:
    """Return the files of a result that become its artifact: all at its top, a report page too, and its figures.

    The checkpoint of a model that was trained, which may be of gigabytes, stays in the store.
    """
    return sorted(path for pattern in ("*", "figures/*") for path in folder.glob(pattern) if path.is_file())


def _as_table(table: pd.DataFrame) -> Any:
    import wandb

    return wandb.Table(dataframe=table, allow_mixed_types=True)


def _begun(config: LoggerConfig, about: About) -> Any:
    """Begin a run; where the server cannot be reached, say so in one line and begin it offline."""
    import wandb

    options: dict[str, Any] = {
        "name": about.name,
        "project": config.project,
        "entity": config.entity,
        "group": config.group,
        "job_type": about.kind,
        "dir": str(about.store),
        "config": dict(about.settings),
    }
    mode = os.environ.get("WANDB_MODE", "online")
    if mode != "disabled":
        about.store.mkdir(parents=True, exist_ok=True)  # else W&B takes another place
    if mode != "online":
        return wandb.init(mode=mode, **options)  # type: ignore[arg-type]
    run, reason = _online(options)
    if run is None:
        upload = f"to upload: wandb sync {about.store}/wandb/offline-run-*"
        log.info("W&B: %s, so the run stays offline; %s", reason, upload)
        run = wandb.init(mode="offline", **options)
    return run


def _online(options: dict[str, Any]) -> tuple[Any, str]:
    """Return a run that is online, or None and the reason why it cannot be."""
    import wandb

    settings = wandb.setup().settings
    netrc = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    if not (settings.api_key or netrc.is_file()):
        return None, "no key"
    if reason := _away(str(settings.base_url)):  # W&B itself would try for minutes
        return None, reason
    try:
        if not wandb.login(prompt=False):
            return None, "no key"
        return wandb.init(mode="online", settings=wandb.Settings(init_timeout=BEGINNING), **options), ""
    except wandb.Error as error:
        wandb.teardown()  # what is left of the attempt
        return None, first_line(error)


def _away(address: str) -> str | None:
    """Return why a server does not answer, or None if it does, whatever its answer is."""
    try:
        with urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=PATIENCE):
            return None
    except urllib.error.HTTPError:
        return None
    except (OSError, ValueError) as error:
        why = first_line(getattr(error, "reason", error) if isinstance(error, urllib.error.URLError) else error)
        return f"{address} does not answer ({why or type(error).__name__})"


def _plain(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name)
