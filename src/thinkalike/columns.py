"""Tables of results, the only reader of their files: what a cell means is decided here, for Python and for a page.

They are read without pandas: a page of a store reads thousands of small tables, and pandas takes milliseconds for each
step with one.
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thinkalike.files import ForeignFileError, open_regular

if TYPE_CHECKING:
    import pandas as pd  # which takes half a second to import

MOST_COLUMNS = 5000  # of a table; large jobs have some hundred
MOST_OF_HEADER = 2**22  # bytes of its first line
MOST_DIGITS = 18  # of an integer of 64 bits; a longer one would lose digits, and is read as text
INTEGER = re.compile(r"[+-]?[0-9]+")
FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(inf|infinity)", re.IGNORECASE)
LEADING_ZERO = re.compile(r"[+-]?0[0-9]")  # how a label such as 007 begins, and no number that a program writes
MOST_EXACT = 2**53  # up to it a float holds every integer
BLANK = {  # what programs write for a missing number
    "", "NA", "NaN", "nan", "null", "NULL", "None", "N/A", "n/a", "<NA>", "#N/A", "#N/A N/A", "#NA", "-NaN", "-nan",
    "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN",
}  # fmt: skip
TRUTHS = {"True": True, "False": False}


@dataclass(frozen=True)
class Columns:
    """A table of a file, or some rows of it.

    Attributes:
        values: those of each column by its name, as many in each; None is a blank.
        kinds: of each column: "number", "float" (a number with a fraction or a blank), "truth" or "text".
    """

    values: Mapping[str, Sequence[Any]]
    kinds: Mapping[str, str]

    @classmethod
    def read(cls, path: Path, most_bytes: int, most_columns: int = MOST_COLUMNS) -> Columns:
        """Return the table of a .csv file; a ForeignFileError says that it is too large or no table."""
        with open_regular(path, follow=False) as file:
            size = os.fstat(file.fileno()).st_size
            if size > most_bytes:
                raise ForeignFileError(f"it has {size:,} bytes, and a table has {most_bytes:,} at most")
            header = file.readline(MOST_OF_HEADER)
            if header.count(b",") >= most_columns:  # before a text is made of each
                raise ForeignFileError(f"it has more than {most_columns:,} columns")
            file.seek(0)
            return cls._of_lines(io.TextIOWrapper(file, encoding="utf-8-sig", newline=""))

    @classmethod
    def parsed(cls, text: str) -> Columns:
        """Return the table that a text in the form of .csv holds."""
        return cls._of_lines(io.StringIO(text, newline=""))

    @classmethod
    def _of_lines(cls, lines: Iterable[str]) -> Columns:
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
        values: dict[str, Sequence[Any]] = {}
        kinds: dict[str, str] = {}
        for position, name in enumerate(names):
            kinds[name], values[name] = _read_column([row[position] for row in rows])
        return cls(values, kinds)

    def frame(self) -> pd.DataFrame:
        """Return the table for pandas, in which a blank is NaN."""
        import pandas as pd

        columns = {}
        for name, values in self.values.items():
            dtype = {"number": "int64", "float": "float64"}.get(self.kinds[name])
            columns[name] = pd.Series([math.nan if value is None else value for value in values], dtype=dtype)
        return pd.DataFrame(columns)

    @property
    def names(self) -> list[str]:
        """The names of the columns, in order."""
        return list(self.values)

    def __len__(self) -> int:
        return len(next(iter(self.values.values()), ()))

    def has(self, *names: str) -> bool:
        """Return whether there are columns of all these names."""
        return all(name in self.values for name in names)

    def rows(self, most: int | None = None) -> list[tuple[Any, ...]]:
        """Return the first rows, or all."""
        return list(islice(zip(*self.values.values(), strict=True), most))

    def keys(self, names: Sequence[str]) -> list[tuple[Any, ...]]:
        """Return for each row its values in these columns."""
        return list(zip(*(self.values[name] for name in names), strict=True)) if names else [()] * len(self)

    def at(self, places: Sequence[int]) -> Columns:
        """Return the rows of these numbers, in this order."""
        return Columns({name: [column[i] for i in places] for name, column in self.values.items()}, self.kinds)

    def groups(self, names: Sequence[str]) -> dict[tuple[Any, ...], Columns]:
        """Return the rows by their values in these columns, in the order in which these first come."""
        places: dict[tuple[Any, ...], list[int]] = {}
        for place, key in enumerate(self.keys(names)):
            places.setdefault(key, []).append(place)
        if len(places) == 1:
            return dict.fromkeys(places, self)
        return {key: self.at(rows) for key, rows in places.items()}

    def with_column(self, name: str, kind: str, values: Sequence[Any]) -> Columns:
        """Return the table with one more column, or with another one in its place."""
        return Columns({**self.values, name: values}, {**self.kinds, name: kind})

    def without(self, names: Sequence[str]) -> Columns:
        """Return the table without these columns."""
        left = [name for name in self.values if name not in names]
        return Columns({name: self.values[name] for name in left}, self.kinds)


def _read_column(cells: list[str]) -> tuple[str, list[Any]]:
    """Return the kind of a column and its values.

    Words for a missing number, such as NA, are texts among texts: they may be tokens. There an empty cell alone is
    blank, as those who write results leave it. So do labels stay texts that would lose digits as numbers.
    """
    filled = [cell for cell in cells if cell not in BLANK]
    is_label = any(map(LEADING_ZERO.match, filled)) and all(map(FLOAT.fullmatch, filled))
    if not is_label and filled and len(filled) == len(cells) and all(map(INTEGER.fullmatch, filled)):
        if any(len(cell.lstrip("+-")) > MOST_DIGITS for cell in filled):
            return "text", cells
        return "number", [int(cell) for cell in cells]
    if not is_label and all(map(FLOAT.fullmatch, filled)) and not any(map(_is_beyond_floats, filled)):
        return "float", [None if cell in BLANK else float(cell) for cell in cells]
    if all(cell in TRUTHS for cell in filled):
        return "truth", [TRUTHS.get(cell) for cell in cells]
    return "text", [cell or None for cell in cells]


def _is_beyond_floats(cell: str) -> bool:
    """Return whether a cell is an integer that a float rounds."""
    return len(cell) > 15 and bool(INTEGER.fullmatch(cell)) and (len(cell) > 30 or abs(int(cell)) > MOST_EXACT)
