"""What a job computed, before it is stored, and the guard that lets no number through that is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from thinkalike.errors import ResultError


@dataclass
class Outcome:
    """What a job computed.

    Attributes:
        table, tables: the tidy table of the result, and those beside it by name.
        scalars, arrays: headline numbers, and arrays by name.
        models, facts: what the provenance says of each model, and of data.
        draw: draws into a folder, beside the figures that its kind draws.
        blank: columns and arrays in which an empty cell says that there is nothing to compute.
    """

    table: pd.DataFrame
    scalars: dict[str, float]
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    models: Sequence[dict[str, Any]] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    draw: Callable[[Path], Any] = lambda folder: None
    blank: Sequence[str] = ()

    def check_finite(self) -> None:
        """Check that every number is finite, blank cells aside.

        Raises:
            ResultError: one is not; the message names where it stands.
        """
        for name, value in self.scalars.items():
            if not np.isfinite(value):
                raise _not_finite(value, f"the headline number {name}")
        for table in (self.table, *self.tables.values()):
            for column in table.select_dtypes("number"):
                if (row := self._wrong(str(column), table[column].to_numpy())) is not None:
                    raise _not_finite(table[column].iloc[row], f"{column}, row {row} ({_label(table, row)})")
        for name, values in self.arrays.items():
            if values.dtype.kind == "f" and (place := self._wrong(name, values.ravel())) is not None:
                raise _not_finite(values.flat[place], f"{name}, {np.unravel_index(place, values.shape)}")

    def _wrong(self, name: str, values: np.ndarray) -> int | None:
        """Return the place of the first number that is none, or None."""
        wrong = np.isinf(values) if name in self.blank else ~np.isfinite(values)
        return int(np.argmax(wrong)) if wrong.any() else None


def _label(table: pd.DataFrame, row: int) -> str:
    """Return the texts and whole numbers of a row, which say what it is of."""
    cells = table.iloc[row]
    kept = [f"{name}={cells[name]}" for name in table.columns if table[name].dtype.kind not in "f"]
    return ", ".join(kept)[:200]


def _not_finite(value: Any, place: str) -> ResultError:
    return ResultError(
        f"{place} came out as {value}, so nothing is stored; check the weights and the text, or take more of the text "
        f"and model.dtype=float32"
    )
