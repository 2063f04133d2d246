"""The curves of a training: its loggers, and what the runs of one training wrote.

Lightning's logger begins its file, `CURVES_FILE`, again in each run. What earlier runs wrote is
moved to `EARLIER_CURVES_FILE` until the training ends.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

import pandas as pd
from pytorch_lightning.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger

from thinkalike.errors import StoreError, check_extra, one_line
from thinkalike.files import read_bytes
from thinkalike.processes import rank
from thinkalike.training.run import TrainingRun

FOLDER = "curves"
CURVES_FILE = "metrics.csv"
EARLIER_CURVES_FILE = "earlier.csv"
# A training logs about fifty rows; a training of layer pairs has a column for each.
MOST_CURVE_BYTES = 2**28
MOST_COLUMNS = 10_000


def loggers_of(run: TrainingRun, kind: str) -> list[Logger]:
    """Return Lightning's loggers of the curves of a run, by `logger.kind`; at most one.

    There is none for the further processes of a job, for csv and tensorboard without a folder, and
    for any kind but these and wandb. The job's tracker closes what it opened.
    """
    if rank(run):
        return []
    if kind == "wandb":
        assert run.tracker is not None, "a job that logs to W&B has a tracker"
        # Curves are over the steps, as in Lightning's own runs.
        run.tracker.run.define_metric("trainer/global_step")
        run.tracker.run.define_metric("*", step_metric="trainer/global_step", step_sync=True)
        return [WandbLogger(experiment=run.tracker.run)]
    if run.partial is None:
        return []
    if kind == "csv":
        return [CSVLogger(run.partial, name=FOLDER, version="")]
    if kind == "tensorboard":
        check_extra("tensorboard", ["tensorboard"], "logger=tensorboard")
        return [TensorBoardLogger(run.partial, name=FOLDER, version="")]
    return []


def move_to_earlier(folder: Path, steps_done: int) -> None:
    """Add what the last run wrote to the earlier curves, up to the step of its state.

    What it wrote after its last state is dropped, as those steps are done again.
    """
    _join_curves(folder, EARLIER_CURVES_FILE, before=float(steps_done))
    (folder / CURVES_FILE).unlink(missing_ok=True)


def join_all(folder: Path) -> None:
    """Write the curves of all runs as `CURVES_FILE`, when the training has ended.

    Nothing is done where there was a single run.
    """
    if not (folder / EARLIER_CURVES_FILE).exists():
        return
    _join_curves(folder, CURVES_FILE)
    (folder / EARLIER_CURVES_FILE).unlink(missing_ok=True)


def _join_curves(folder: Path, name: str, before: float = float("inf")) -> None:
    """Write the curves of all runs to one file, for the steps below `before`.

    The file is replaced at once, so that a kill leaves it whole. Without curves there is no file.

    Args:
        folder: Where the curves are, and where the file is written.
        name: The name of the file.
        before: The first step that is left out.
    """
    tables = read_curves(folder)
    if not tables:
        return
    rows = pd.concat(tables)
    rows = rows[rows["step"].astype(float) < before].drop_duplicates()
    temporary = folder / "joined"
    rows.to_csv(temporary, index=False)
    os.replace(temporary, folder / name)


def read_curves(folder: Path) -> list[pd.DataFrame]:
    """Return the curves of earlier runs and of the last one, if there are any.

    Raises:
        StoreError: a file, which may come from anywhere, is not a table of numbers by step.
    """
    tables = []
    for path in (folder / EARLIER_CURVES_FILE, folder / CURVES_FILE):
        if not os.path.lexists(path):
            continue
        try:
            table = _read_table(path)
        except OSError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {one_line(error)}"
            raise StoreError(
                f"{path} holds no curves of a training ({reason}); remove it"
            ) from error
        if table is not None:
            tables.append(table)
    return tables


def _read_table(path: Path) -> pd.DataFrame | None:
    """Return the rows of a file of curves as text; None if the file is empty."""
    content = read_bytes(path, MOST_CURVE_BYTES, follow=False)
    if not content:
        return None
    header = content.partition(b"\n")[0]
    columns = header.count(b",") + 1
    if columns > MOST_COLUMNS:
        raise ValueError(f"it has {columns:,} columns, and at most {MOST_COLUMNS:,} are read")

    # As numbers, a column that is empty in one of the files would turn integers into fractions.
    rows = pd.read_csv(io.BytesIO(content), dtype=str)
    # pandas takes the first cells of rows that are longer than the header as the index
    has_long_rows = not isinstance(rows.index, pd.RangeIndex)
    if has_long_rows or rows["step"].astype(float).isna().any():
        raise ValueError("its rows are of different lengths")
    return rows
