"""What a job computed, before it is stored, and the guard that lets no number through that is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
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

    def guarded(self) -> Outcome:
        """Return this outcome, in which every number is finite; an interval without ends becomes two blank cells.

        Raises:
            ResultError: a number is not finite; the message names where it stands.
        """
        for name, value in self.scalars.items():
            if not np.isfinite(value):
                raise _not_finite(value, f"the headline number {name}")
        for table in (self.table, *self.tables.values()):
            for column in table.select_dtypes("number"):
                values = table[column].mask(_without_ends(table, str(column)), 0.0).to_numpy()
                if (row := self._wrong(str(column), values)) is not None:
                    raise _not_finite(values[row], f"{column}, row {row} ({_label(table, row)})")
        for name, values in self.arrays.items():
            if values.dtype.kind == "f" and (place := self._wrong(name, values.ravel())) is not None:
                raise _not_finite(values.flat[place], f"{name}, {np.unravel_index(place, values.shape)}")
        return replace(self, table=_marked(self.table), tables={k: _marked(table) for k, table in self.tables.items()})

    def _wrong(self, name: str, values: np.ndarray) -> int | None:
        """Return the place of the first number that is none, or None."""
        wrong = np.isinf(values) if name in self.blank else ~np.isfinite(values)
        return int(np.argmax(wrong)) if wrong.any() else None


def _without_ends(table: pd.DataFrame, column: str) -> pd.Series:
    """Return in which rows this column is an end of an interval that reaches from minus to plus infinity."""
    for end in ("low", "high"):
        stem = column.removesuffix(end)
        if column.endswith(end) and {f"{stem}low", f"{stem}high"} <= set(table):
            return (table[f"{stem}low"] == -np.inf) & (table[f"{stem}high"] == np.inf)
    return pd.Series(False, index=table.index)


def _marked(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with blank cells for the ends of intervals that have none."""
    columns = [str(column) for column in table.select_dtypes("number")]
    return table.assign(**{column: table[column].mask(_without_ends(table, column)) for column in columns})


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
