"""Loggers of jobs: W&B, TensorBoard, or none besides the files of the result."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thinkalike.config import LoggerConfig
from thinkalike.errors import first_line
from thinkalike.store import Result

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class About:
    """A job as a logger sees it.

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
    """The logger of a job, open from construction to `close`; this one, of logger=csv and logger=none, writes nothing.

    Training logs its curves through Lightning's logger of the same kind, into the same run.
    """

    def __init__(self, config: LoggerConfig, about: About):
        self.config, self.about = config, about

    def publish(self, result: Result) -> None:
        """Log a result: headline numbers, scalars, tables, figures and files."""

    def log_table(self, name: str, table: pd.DataFrame) -> None:
        """Log a table alone."""

    def log_page(self, path: Path) -> None:
        """Log a page of results alone."""

    def close(self, failed: bool) -> None:
        """End the run."""


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


class TensorBoardTracker(Tracker):
    """Writes scalars, figures, and settings and table as text, into a folder that is called as the run.

    Raises:
        ConfigError: the package tensorboard is not there.
    """

    def __init__(self, config: LoggerConfig, about: About):
        super().__init__(config, about)
        config.check_package()
        self.folder = about.folder / re.sub(r"[^\w.=+-]+", "_", about.name)

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
            writer.add_text("settings", f"```\n{json.dumps(dict(self.about.settings), indent=1, default=str)}\n```")
            for name, table in result.tables.items():
                writer.add_text(name, f"```\n{table.to_string(index=False, max_rows=1000)}\n```")


# ---- logger=wandb: a run of W&B for each job, online where a key and the server are there, else offline.

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
        for step, numbers in curves_of(result).items():
            self.run.log(numbers, step=step)
        self.run.log({**{name: _as_table(each) for name, each in tables.items()}, **pictures})
        self.run.summary.update(summary_of(result))
        paths = [path for pattern in ("*", "figures/*") for path in sorted(result.folder.glob(pattern))]
        files = [path for path in paths if path.is_file()]  # a model's checkpoint, of gigabytes, stays in the store
        self._log_files(f"{result.kind}-{result.key}", "result", result.folder, files)

    def log_table(self, name: str, table: pd.DataFrame) -> None:
        self.run.log({name: _as_table(table)})

    def log_page(self, path: Path) -> None:
        self._log_files(path.stem, "report", path.parent, [path])

    def _log_files(self, name: str, kind: str, folder: Path, files: Sequence[Path]) -> None:
        import wandb

        artifact = wandb.Artifact(re.sub(r"[^\w.-]+", "-", name), type=kind)
        for path in files:
            artifact.add_file(str(path), name=str(path.relative_to(folder)))
        self.run.log_artifact(artifact)

    def close(self, failed: bool) -> None:
        self.run.finish(exit_code=int(failed))


def _as_table(table: pd.DataFrame) -> Any:
    import wandb

    return wandb.Table(dataframe=table, allow_mixed_types=True)


def _begun(config: LoggerConfig, about: About) -> Any:
    """Begin a run, offline if the server cannot be reached."""
    import wandb

    options: dict[str, Any] = {name: getattr(config, name) for name in ("project", "entity", "group")}
    options |= {"name": about.name, "job_type": about.kind, "dir": str(about.store), "config": dict(about.settings)}
    mode: Any = os.environ.get("WANDB_MODE", "online")
    if mode != "disabled":
        about.store.mkdir(parents=True, exist_ok=True)  # else W&B takes another place
    if mode != "online":
        return wandb.init(mode=mode, **options)
    run, reason = _online(options)
    if run is None:
        upload = f"to upload: wandb sync {about.store}/wandb/offline-run-*"
        log.info("W&B: %s, so the run stays offline; %s", reason, upload)
        run = wandb.init(mode="offline", **options)
    return run


def _online(options: dict[str, Any]) -> tuple[Any, str]:
    """Return an online run, or None and the reason."""
    import wandb

    settings = wandb.setup().settings
    netrc = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    if not (settings.api_key or netrc.is_file()):
        return None, "no key"
    if reason := _away(str(settings.base_url)):  # W&B itself would try for minutes
        return None, reason
    try:
        if wandb.login(prompt=False):
            return wandb.init(mode="online", settings=wandb.Settings(init_timeout=BEGINNING), **options), ""
    except wandb.Error as error:
        wandb.teardown()  # what is left of the attempt
        return None, first_line(error)
    return None, "no key"


def _away(address: str) -> str | None:
    """Return why a server does not answer, or None if it answers anything."""
    try:
        with urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=PATIENCE):
            return None
    except urllib.error.HTTPError:
        return None
    except (OSError, ValueError) as error:
        return f"{address} does not answer ({first_line(error)})"


TRACKERS = {"none": Tracker, "csv": Tracker, "wandb": WandbTracker, "tensorboard": TensorBoardTracker}


@contextlib.contextmanager
def tracked(config: LoggerConfig, about: About) -> Iterator[Tracker]:
    """Log a job while this is open."""
    tracker, failed = TRACKERS[config.kind](config, about), True
    try:
        yield tracker
        failed = False
    finally:
        tracker.close(failed)


def publish_table(config: LoggerConfig, about: About, table: pd.DataFrame) -> None:
    """Log a table of several jobs, such as those of a sweep, as a run of its own; W&B alone has a place for it."""
    with tracked(config, about) as tracker:
        tracker.log_table(about.kind, table)


def publish_page(project: str, path: Path) -> None:
    """Log a page of results to a project of W&B, as a run of its own."""
    with tracked(LoggerConfig(kind="wandb", project=project), About(path.stem, "report", path.parent, path)) as tracker:
        tracker.log_page(path)
