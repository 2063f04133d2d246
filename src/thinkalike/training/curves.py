"""Learning curves of a job that was interrupted: what the CSV logger wrote before, joined to what it writes after.

Lightning's logger begins a new file whenever a job goes on.
"""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd

FOLDER = "curves"


def set_aside(partial: Path, step: int) -> None:
    """Keep the curves of the steps before the one that a job goes on from, out of the logger's way."""
    written, earlier = _files(partial)
    parts = [pd.read_csv(path) for path in (earlier, written) if path.exists() and path.stat().st_size]
    if parts:
        rows = pd.concat(parts)
        _write(rows[rows["step"] < step].drop_duplicates(), earlier)
    written.unlink(missing_ok=True)


def join(partial: Path) -> None:
    """Put the curves that were set aside before those that were written since."""
    written, earlier = _files(partial)
    if earlier.exists():
        parts = [pd.read_csv(path) for path in (earlier, written) if path.exists() and path.stat().st_size]
        _write(pd.concat(parts), written)
        earlier.unlink()


def _files(partial: Path) -> tuple[Path, Path]:
    return partial / FOLDER / "metrics.csv", partial / FOLDER / "earlier.csv"


def _write(rows: pd.DataFrame, path: Path) -> None:
    rows.to_csv(path.with_suffix(".aside"), index=False)
    os.replace(path.with_suffix(".aside"), path)
