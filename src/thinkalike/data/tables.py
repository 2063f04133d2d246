"""Users' own stimuli in tables: .csv, .tsv, .parquet. Rows are counted from 1, below the header.

An empty cell or NaN says that a feature does not apply.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from thinkalike.data.stimuli import Kinds, Stimuli, duplicates
from thinkalike.errors import DataError, nearest

Names = Sequence[str] | None  # None: all that there are
Span = tuple[int, int]

ROLES = ("text", "word", "start", "stop", "id")


def read_table(
    path: str | Path,
    *,
    features: Names = None,
    kinds: Kinds | None = None,
    columns: Mapping[str, str | None] | None = None,
) -> Stimuli:
    """Stimuli of a table: in each row a word of a text, or a whole text, and its features.

    Args:
        features: columns; none given: all that have no role.
        kinds: see `Stimuli`.
        columns: the column of a role that is called otherwise; None: there is none. Roles are `text`; `word`, which is
            looked for in the text, or `start` and `stop`, its characters from 0; `id`, which stands in for a text.

    Raises:
        DataError: the file cannot be read, a column is not there, a word is not in its text or is there twice, or a
            feature has one level.
    """
    frame = _frame(Path(path))
    roles = _roles(path, frame, columns or {})
    cells = {role: ["" if pd.isna(cell) else str(cell) for cell in frame[name]] for role, name in roles.items()}
    ids = cells.get("id", [str(row) for row in range(1, len(frame) + 1)])
    texts = cells.get("text", ids)
    spans = [
        _span(f"{path} row {row + 1}", text, {role: column[row] for role, column in cells.items()})
        for row, text in enumerate(texts)
    ]
    words = [text[start:stop] for text, (start, stop) in zip(texts, spans, strict=True)]
    sentence, distinct = pd.factorize(np.array(texts, dtype=object))
    names = chosen(path, features, [name for name in frame.columns if name not in roles.values()])
    table = frame[names].apply(_values, path=path)
    return varied(Stimuli(list(distinct), sentence, spans, words, table, kinds or {}, ids, str(path)))


def _frame(path: Path) -> pd.DataFrame:
    frame = read_with(path, {".csv": _separated, ".tsv": _separated, ".parquet": pd.read_parquet})
    if frame.empty:
        raise DataError(f"{path} is empty: it has no rows below a header")
    return frame


def read_with(path: Path, readers: Mapping[str, Callable[[Path], Any]]) -> Any:
    """What the reader of a file's ending makes of it.

    Raises:
        DataError: there is no reader for its ending, or it cannot be read.
    """
    if path.suffix not in readers:
        raise DataError(f"{path} is none of {', '.join(readers)}")
    try:
        return readers[path.suffix](path)
    except DataError:
        raise
    except Exception as error:  # missing, damaged, in another encoding: each library has errors of its own
        reason = next(iter(str(error).splitlines()), "")
        raise DataError(f"cannot read {path}: {type(error).__name__}: {reason}") from error


def _separated(path: Path) -> pd.DataFrame:
    """All cells as they are written: pandas' own reader takes words such as `null` and `NA` for missing."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = [row for row in csv.reader(file, delimiter="\t" if path.suffix == ".tsv" else ",", strict=True) if row]
    header, rows = (rows or [[]])[0], rows[1:]
    if twice := duplicates(header):
        raise DataError(f"{path}: the column {twice[0]} is there more than once; rename one")
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise DataError(f"{path} row {number} has {len(row)} cells, the header {len(header)}; quote all commas")
    return pd.DataFrame(rows, columns=header, dtype=object)


def _roles(path: str | Path, frame: pd.DataFrame, columns: Mapping[str, str | None]) -> dict[str, str]:
    there = list(map(str, frame.columns))
    for role, name in {"text": "text", **columns}.items():
        if role not in ROLES:
            raise DataError(f"columns has no role {role}; {nearest(role, ROLES)}")
        if name is not None and name not in there:
            raise DataError(f"{path} has no column {name}; {nearest(name, there)}; or columns={{'{role}': None}}")
    found = {role: name for role in ROLES if (name := columns.get(role, role)) in there}
    if "text" not in found:
        found = {role: name for role, name in found.items() if role == "id"}
    if ("start" in found) != ("stop" in found):
        raise DataError(f"{path} has only one of the columns start and stop; a span needs both")
    return found


def _span(place: str, text: str, cells: dict[str, str]) -> Span:
    word = cells.get("word")
    if "start" in cells:
        try:
            start, stop = (int(cells[end].removesuffix(".0")) for end in ("start", "stop"))
        except ValueError:
            raise DataError(f"{place}: start={cells['start']}, stop={cells['stop']} are not whole numbers") from None
        if word and text[start:stop] != word:
            raise DataError(f"{place}: at {start}-{stop} is {text[start:stop]!r}, not {word!r}; correct one of them")
        return start, stop
    if word is None:
        return 0, len(text)
    literal = re.escape(word)
    found = list(re.finditer(rf"(?<!\w){literal}(?!\w)", text)) or list(re.finditer(literal, text))
    if not word or len(found) != 1:
        times = len(found) if word else 0
        raise DataError(f"{place}: the word {word!r} is {times} times in {text[:80]!r}; add columns start and stop")
    return found[0].span()


def _values(column: pd.Series, path: str | Path) -> pd.Series:
    """Missing cells as NaN, and written numbers as numbers."""
    if column.map(pd.api.types.is_list_like).any():
        raise DataError(f"{path}: {column.name} holds lists; leave it out of features")
    if isinstance(column.dtype, pd.CategoricalDtype):
        return column
    values = column.mask(column.isin(["", "NaN", "nan"]))
    numbers = pd.to_numeric(values, errors="coerce")
    written = all(isinstance(value, str) for value in values.dropna())
    return numbers if written and numbers.notna().equals(values.notna()) else values


def chosen(path: str | Path, features: Names, there: list[str]) -> list[str]:
    for name in features or []:
        if name not in there:
            raise DataError(f"{path} has no feature {name}; {nearest(name, there)}")
    return there if features is None else list(features)


def varied(stimuli: Stimuli) -> Stimuli:
    for name, column in stimuli.features.items():
        if column.nunique(dropna=False) < 2:
            raise DataError(f"{stimuli.source}: {name} has one level only, {column.iloc[0]}; leave it out of features")
    return stimuli
