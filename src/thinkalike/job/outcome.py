"""The numbers that a job computed, and the check that all of them are finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from thinkalike.advice import named_setting
from thinkalike.errors import ResultError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

# The most characters by which a message says in which row of a table a number stands.
LONGEST_PLACE = 200


def _draw_nothing(folder: Path) -> None:
    """Draw no figure beside those that the instrument draws."""


@dataclass
class Outcome:
    """The numbers that a job computed.

    Attributes:
        table: The tidy table of the result.
        scalars: Headline numbers by name.
        arrays: Arrays by name.
        tables: Further tables by name, beside `table`.
        models: The provenance of each model, which has at least its `name`.
        facts: The provenance of the data.
        draw: Draws figures into a folder, beside those that the instrument draws.
        blank: The columns and arrays that may have empty cells.
    """

    table: pd.DataFrame
    scalars: dict[str, float]
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    models: Sequence[Mapping[str, object]] = ()
    facts: Mapping[str, object] = field(default_factory=dict)
    draw: Callable[[Path], object] = _draw_nothing
    blank: Sequence[str] = ()

    @property
    def model_names(self) -> list[str]:
        """What tables call the models that the job ran."""
        return [str(model["name"]) for model in self.models]

    @property
    def why_intervals_say_little(self) -> str:
        """A warning for users that there are too few documents for good intervals, or "".

        The effective sample size is how many documents of equal length the documents are worth.
        Below `FEWEST_GROUPS` no intervals are computed, and the warning says so. From there up to
        `FEW_GROUPS` it says that the intervals are wide. It is "" for more documents, and if the
        table has no intervals for another reason. Stimuli have groups, such as sentences, in the
        place of documents.
        """
        from thinkalike.measures.sample_size import FEW_GROUPS, FEWEST_GROUPS  # imports torch

        effective = self.scalars.get("effective_sample_size", math.inf)
        if effective >= FEW_GROUPS:
            return ""
        has_intervals = self._has_intervals()
        lacks_intervals = not has_intervals and effective < FEWEST_GROUPS
        if not has_intervals and not lacks_intervals:  # there are none for another reason
            return ""
        unit = "documents"
        remedy = "read more tokens, or give more text"
        if "stimuli" in self.facts:
            unit = "groups of stimuli"
            remedy = "give more stimuli"
        if not has_intervals:
            return (
                f"{self.scalars['documents']:.0f} {unit} (effective sample size {effective:.1f}) "
                f"are too few for intervals, which need {FEWEST_GROUPS}; {remedy}"
            )
        return (
            f"the intervals rest on {self.scalars['documents']:.0f} {unit} (effective sample size "
            f"{effective:.1f}): they are wide, hide small differences, and hold for {unit} like "
            f"these alone; {remedy}"
        )

    def _has_intervals(self) -> bool:
        """Return whether the table has a bounded interval.

        Columns called "low" or "..._low" hold the lower ends of intervals; an end that is infinite
        or NaN does not count.
        """
        is_bounded = False
        for column in self.table.select_dtypes("number"):
            if column == "low" or str(column).endswith("_low"):
                is_bounded |= bool(self.table[column].abs().lt(math.inf).any())
        return is_bounded

    def checked_for_storing(self) -> Outcome:
        """Return this outcome with NaN for both ends of each unbounded interval.

        NaN becomes an empty cell in a stored table.

        Raises:
            ResultError: A number is not finite; the message says which.
        """
        self._check_is_finite()
        tables = {
            name: _with_unbounded_ends(table, math.nan) for name, table in self.tables.items()
        }
        return replace(self, table=_with_unbounded_ends(self.table, math.nan), tables=tables)

    def _check_is_finite(self) -> None:
        """Raise a ResultError if a headline number, a column or an array is not finite.

        Two exceptions are allowed: intervals in tables from minus infinity to infinity, and NaN in
        the columns and arrays whose names are in `blank`.
        """
        for name, value in self.scalars.items():
            self._check_values(f"the headline number {name}", value)

        for table in (self.table, *self.tables.values()):
            # Both ends of unbounded intervals are set to 0, which passes the check.
            numbers = _with_unbounded_ends(table, 0.0).select_dtypes("number")
            for column in numbers:
                self._check_values(str(column), numbers[column].to_numpy(), table)

        for name, array in self.arrays.items():
            if array.dtype.kind == "f":
                self._check_values(name, array)

    def _check_values(
        self, name: str, values: float | np.ndarray, table: pd.DataFrame | None = None
    ) -> None:
        """Raise a ResultError if a value is infinite, or if it is NaN and may not be.

        NaN is allowed in the columns and arrays that `self.blank` names.

        Args:
            name: The name of the number, the column or the array.
            values: Its value or values.
            table: The table that has the column; None for a number or an array.
        """
        import numpy as np

        array = np.asarray(values)
        may_be_nan = name in self.blank
        is_wrong = np.isinf(array) if may_be_nan else ~np.isfinite(array)
        if not is_wrong.any():
            return

        position = tuple(int(index) for index in np.argwhere(is_wrong)[0])
        written_position = str(list(position)) if position else ""  # a single number has none
        row = "" if table is None else _row_in_words(table, position[0])
        raise ResultError(
            f"{name}{written_position}{row} came out as {array[position]}, so nothing is stored; "
            "check the weights or arrays that are compared, and the measure if it is your own; "
            "of a text take more, and "
            f"{named_setting('model.dtype', 'float32')}"
        )


def _row_in_words(table: pd.DataFrame, position: int) -> str:
    """Return what tells a row of a table from others, such as " (model=gpt2, layer=3)".

    These are all its cells but floats; "" if there are none.

    Args:
        table: The table.
        position: The index of the row, from 0.
    """
    labels = table.iloc[[position]].select_dtypes(exclude="float").iloc[0]
    if labels.empty:
        return ""
    words = ", ".join(f"{column}={cell}" for column, cell in labels.items())
    return f" ({words[:LONGEST_PLACE]})"


def _with_unbounded_ends(table: pd.DataFrame, end: float) -> pd.DataFrame:
    """Return a table in which `end` replaces both ends of each unbounded interval.

    An interval is two columns whose names end in "low" and "high", such as cka_low and cka_high.
    It is unbounded in a row if it goes from minus infinity to infinity there.
    """
    changed = {}
    for column in map(str, table):
        if not column.endswith("low"):
            continue
        low = column
        high = column.removesuffix("low") + "high"
        if high not in table:
            continue
        is_unbounded = (table[low] == -math.inf) & (table[high] == math.inf)
        changed[low] = table[low].mask(is_unbounded, end)
        changed[high] = table[high].mask(is_unbounded, end)
    return table.assign(**changed)
