"""The curves of a training: its loggers, and what the runs of one training wrote.

Lightning's logger begins its file, `CURVES_FILE`, again in each run. What earlier runs wrote is
moved to `EARLIER_CURVES_FILE` until the training ends.
"""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path

import pandas as pd
from pytorch_lightning.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger

from thinkalike.errors import StoreError, check_extra, reason_in_words
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
    """Return the Lightning logger that a job asks for, as a list of one; or an empty list.

    The list is empty in all processes of a job but the first, for csv and tensorboard if the job
    has no folder, and for any other kind than these two and wandb.

    Args:
        run: Where the training runs.
        kind: The setting `logger.kind`.
    """
    if rank(run):  # not the first process
        return []
    if kind == "wandb":
        assert run.tracker is not None, "a job that logs to W&B has a tracker"
        # The horizontal axis of all curves is the step, as in runs that Lightning begins itself.
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
    """Move the curves of an interrupted run to the file of earlier curves, before it is resumed.

    Rows from step `steps_done` on are dropped: the training resumes there and writes them again.
    """
    _join_curves(folder, EARLIER_CURVES_FILE, before=float(steps_done))
    (folder / CURVES_FILE).unlink(missing_ok=True)


def join_all(folder: Path) -> None:
    """Join the curves of all runs of a training, which has ended, in `CURVES_FILE`.

    A run is what a training did until an interruption or its end. Without earlier runs, the file
    is complete already and nothing is done.
    """
    if not (folder / EARLIER_CURVES_FILE).exists():
        return
    _join_curves(folder, CURVES_FILE)
    (folder / EARLIER_CURVES_FILE).unlink(missing_ok=True)


def _join_curves(folder: Path, name: str, before: float = float("inf")) -> None:
    """Write the curves of all runs to one file, for the steps below `before`.

    The file is replaced in one step, so that a kill leaves it whole. If there are no curves,
    nothing is written.

    Args:
        folder: The folder with the files of curves, in which the joined file is written.
        name: The name of the joined file.
        before: Rows of this step and later ones are left out.
    """
    tables = read_curves(folder)
    if not tables:
        return
    rows = pd.concat(tables)
    # An interruption between writing the joined file and removing its parts can leave a row twice.
    rows = rows[rows["step"].astype(float) < before].drop_duplicates()
    temporary = folder / "joined"
    # Lightning's line ends: the file of a resumed training has the bytes of one without a pause.
    rows.to_csv(temporary, index=False, lineterminator=csv.excel.lineterminator)
    os.replace(temporary, folder / name)


def read_curves(folder: Path) -> list[pd.DataFrame]:
    """Return the table of curves of earlier runs, then that of the last run, if they exist.

    Empty files are left out.

    Raises:
        StoreError: A file is not a table of numbers by step.
    """
    tables = []
    for path in (folder / EARLIER_CURVES_FILE, folder / CURVES_FILE):
        if not os.path.lexists(path):
            continue
        try:
            table = _read_table(path)
        except OSError:  # the file cannot be read at all, which says nothing of its content
            raise
        except Exception as error:
            reason = reason_in_words(error)
            raise StoreError(
                f"{path} holds no curves of a training ({reason}); remove it"
            ) from error
        if table is not None:
            tables.append(table)
    return tables


def _read_table(path: Path) -> pd.DataFrame | None:
    """Return the table in a file of curves, with strings as cells; None if the file is empty.

    Raises:
        ValueError: It has too many columns, or its rows have different lengths or no step.
    """
    content = read_bytes(path, MOST_CURVE_BYTES, follow=False)
    if not content:
        return None
    header = content.partition(b"\n")[0]
    columns = header.count(b",") + 1
    if columns > MOST_COLUMNS:
        raise ValueError(f"it has {columns:,} columns, and at most {MOST_COLUMNS:,} are read")

    # Read as numbers, integers of a column with empty cells would become floats such as "3.0".
    rows = pd.read_csv(io.BytesIO(content), dtype=str)
    # If rows are longer than the header, pandas makes an index of their first cells.
    has_long_rows = not isinstance(rows.index, pd.RangeIndex)
    if has_long_rows or rows["step"].astype(float).isna().any():
        raise ValueError("its rows are of different lengths")
    return rows
