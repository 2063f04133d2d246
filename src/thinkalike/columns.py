"""Tables of results, and the only reader of their files: here it is decided what a cell means.

They are read without pandas: a page of a store reads thousands of small tables, and pandas takes
milliseconds for each step with one.
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from thinkalike.files import ForeignFileError, open_regular
from thinkalike.former_columns import FormerColumns, by_present_names

if TYPE_CHECKING:
    import pandas as pd  # which takes half a second to import

Cell = int | float | bool | str | None  # None is a blank
Kind = Literal["number", "float", "truth", "text"]

MOST_COLUMNS = 5000  # of a table; large jobs have some hundred
MOST_OF_HEADER = 2**22  # bytes of its first line
MOST_DIGITS = 18  # of an integer of 64 bits; a longer one would lose digits, and is read as text
MOST_EXACT = 2**53  # up to it a float holds every integer
LARGEST_FLOAT = 1e300  # of a number with a fraction or an exponent
EXACT_DIGITS = 15  # an integer of no more digits is below MOST_EXACT
LONGEST_INTEGER = 30  # digits; one that has more is beyond MOST_EXACT, and is not worth reading
INTEGER = re.compile(r"[+-]?[0-9]+")
FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(inf|infinity)", re.IGNORECASE)
# how a label such as 007 begins, and no number that a program writes
LEADING_ZERO = re.compile(r"[+-]?0[0-9]")
BLANK = {  # what programs write for a missing number
    "",
    "NA",
    "NaN",
    "nan",
    "null",
    "NULL",
    "None",
    "N/A",
    "n/a",
    "<NA>",
    "#N/A",
    "#N/A N/A",
    "#NA",
    "-NaN",
    "-nan",
    "1.#IND",
    "-1.#IND",
    "1.#QNAN",
    "-1.#QNAN",
}
TRUTHS = {"True": True, "False": False}


@dataclass(frozen=True)
class Columns:
    """A table of a file, or some rows of it.

    Attributes:
        values: Those of each column by its name; all columns have as many.
        kinds: Of each column. "float" stands for numbers of which one has a fraction or is blank.
    """

    values: Mapping[str, Sequence[Cell]]
    kinds: Mapping[str, Kind]

    @classmethod
    def read(
        cls,
        path: Path,
        most_bytes: int,
        most_columns: int = MOST_COLUMNS,
        text_columns: Collection[str] = (),
    ) -> Columns:
        """Return the table of a .csv file.

        Args:
            path: The file.
            most_bytes, most_columns: A larger table is refused.
            text_columns: The names of columns that hold texts, whatever they look like. The kind of
                every other column is that of which all of its cells can be.

        Raises:
            ForeignFileError: It is too large or no table.
        """
        with open_regular(path, follow=False) as file:
            size = os.fstat(file.fileno()).st_size
            if size > most_bytes:
                raise ForeignFileError(f"it has {size:,} bytes, and a table has {most_bytes:,} at most")
            header = file.readline(MOST_OF_HEADER)
            if header.count(b",") >= most_columns:  # before a text is made of each
                raise ForeignFileError(f"it has more than {most_columns:,} columns")
            file.seek(0)
            lines = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
            return cls._of_lines(lines, text_columns)

    @classmethod
    def parsed(cls, text: str, text_columns: Collection[str] = ()) -> Columns:
        """Return the table that a text in the form of .csv holds, see `read`."""
        return cls._of_lines(io.StringIO(text, newline=""), text_columns)

    @classmethod
    def _of_lines(cls, lines: Iterable[str], text_columns: Collection[str]) -> Columns:
        reader = csv.reader(lines, strict=True)
        try:
            names = next(reader, [])
            rows = [row for row in reader if row]
        except csv.Error as error:
            raise ForeignFileError(f"it is no table: {error}") from error
        if not names or len(set(names)) < len(names):
            raise ForeignFileError(f"it has {len(names):,} columns, or two of one name")
        if any(len(row) != len(names) for row in rows):
            raise ForeignFileError("its rows are of different lengths")

        values: dict[str, Sequence[Cell]] = {}
        kinds: dict[str, Kind] = {}
        for position, name in enumerate(names):
            cells = [row[position] for row in rows]
            if name in text_columns:
                kinds[name] = "text"
                values[name] = _texts(cells)
            else:
                kinds[name], values[name] = _read_column(cells)
        return cls(values, kinds)

    def frame(self) -> pd.DataFrame:
        """Return the table for pandas, in which a blank is NaN."""
        import pandas as pd

        dtypes = {"number": "int64", "float": "float64"}
        columns = {}
        for name, values in self.values.items():
            filled = [math.nan if value is None else value for value in values]
            columns[name] = pd.Series(filled, dtype=dtypes.get(self.kinds[name]))
        return pd.DataFrame(columns)

    def renamed(self, former_columns: FormerColumns, table: str) -> Columns:
        """Return a stored table with the present names of its columns."""
        if not former_columns:
            return self
        values = by_present_names(self.values, former_columns, table)
        kinds = by_present_names(self.kinds, former_columns, table)
        if len(values) < len(self.values):
            raise ForeignFileError("it has a column twice, under its former and its present name")
        return Columns(values, kinds)

    @property
    def names(self) -> list[str]:
        """The names of the columns, in order."""
        return list(self.values)

    def __len__(self) -> int:
        first = next(iter(self.values.values()), ())
        return len(first)

    def has(self, *names: str) -> bool:
        """Return whether there are columns of all these names."""
        return all(name in self.values for name in names)

    def rows(self, most: int | None = None) -> list[tuple[Cell, ...]]:
        """Return the first rows, or all."""
        return list(islice(zip(*self.values.values(), strict=True), most))

    def keys(self, names: Sequence[str]) -> list[tuple[Cell, ...]]:
        """Return for each row its values in these columns."""
        if not names:
            return [()] * len(self)
        return list(zip(*(self.values[name] for name in names), strict=True))

    def at(self, rows: Sequence[int]) -> Columns:
        """Return the rows of these numbers, in this order."""
        values = {name: [column[row] for row in rows] for name, column in self.values.items()}
        return Columns(values, self.kinds)

    def groups(self, names: Sequence[str]) -> dict[tuple[Cell, ...], Columns]:
        """Return the rows by their values in these columns, in the order of first appearance."""
        rows_of_key: dict[tuple[Cell, ...], list[int]] = {}
        for row, key in enumerate(self.keys(names)):
            rows_of_key.setdefault(key, []).append(row)
        if len(rows_of_key) == 1:
            return dict.fromkeys(rows_of_key, self)
        return {key: self.at(rows) for key, rows in rows_of_key.items()}

    def with_column(self, name: str, kind: Kind, values: Sequence[Cell]) -> Columns:
        """Return the table with one more column, or with another one in its place."""
        return Columns({**self.values, name: values}, {**self.kinds, name: kind})

    def without(self, names: Sequence[str]) -> Columns:
        """Return the table without these columns."""
        remaining = [name for name in self.values if name not in names]
        values = {name: self.values[name] for name in remaining}
        kinds = {name: self.kinds[name] for name in remaining}
        return Columns(values, kinds)


def text_columns_of(table: pd.DataFrame) -> list[str]:
    """Return the names of the columns that hold texts, such as names of models.

    A file of the table does not tell them from numbers: two models may be called 1.10 and 1.1.
    """
    names = []
    for name, column in table.items():
        filled = column.dropna()
        if len(filled) and all(isinstance(value, str) for value in filled):
            names.append(str(name))
    return names


def _read_column(cells: list[str]) -> tuple[Kind, Sequence[Cell]]:
    """Return the kind of a column and its values.

    Words for a missing number, such as NA, are texts among texts: they may be tokens. There an
    empty cell alone is blank, as those who write results leave it. So do labels stay texts that
    would lose digits as numbers.
    """
    filled = [cell for cell in cells if cell not in BLANK]
    are_numbers = all(FLOAT.fullmatch(cell) for cell in filled)
    if are_numbers and any(LEADING_ZERO.match(cell) for cell in filled):
        return "text", _texts(cells)

    are_integers = bool(filled) and all(INTEGER.fullmatch(cell) for cell in filled)
    if are_integers and len(filled) == len(cells):
        if any(len(cell.lstrip("+-")) > MOST_DIGITS for cell in filled):
            return "text", cells
        return "number", [int(cell) for cell in cells]
    if are_numbers and not any(_is_beyond_floats(cell) for cell in filled):
        return "float", [None if cell in BLANK else _float_of(cell) for cell in cells]
    if all(cell in TRUTHS for cell in filled):
        return "truth", [TRUTHS.get(cell) for cell in cells]
    return "text", _texts(cells)


def _float_of(cell: str) -> float:
    """Return the number of a cell.

    Raises:
        ForeignFileError: it is finite, but differences of such numbers may not be.
    """
    number = float(cell)
    is_infinity = "inf" in cell.lower()
    if abs(number) >= LARGEST_FLOAT and not is_infinity:
        raise ForeignFileError(f"it has the number {cell}, and {LARGEST_FLOAT:g} is the largest")
    return number


def _texts(cells: Iterable[str]) -> list[Cell]:
    return [cell or None for cell in cells]


def _is_beyond_floats(cell: str) -> bool:
    """Return whether a cell is an integer that a float rounds."""
    if len(cell) <= EXACT_DIGITS or not INTEGER.fullmatch(cell):
        return False
    return len(cell) > LONGEST_INTEGER or abs(int(cell)) > MOST_EXACT
