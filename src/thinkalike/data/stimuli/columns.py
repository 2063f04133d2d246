"""Columns of features: their kinds, and their values as categories or float64."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Int

from thinkalike.errors import DataError, nearest
from thinkalike.kinds import KINDS, NUMBERS, kind_of

Kind = str | Sequence[str]  # one of KINDS, or the levels of an ordinal feature in order
Kinds = Mapping[str, Kind]  # by feature


def typed(column: pd.Series, name: str, kind: Kind | None, source: str) -> pd.Series:
    """Return a column as categories, or as float64 if it is numeric or continuous.

    Args:
        kind: what it is declared to be; None leaves that to its type and values, see `thinkalike.kinds`.
        source: what the message of an error begins with.

    Raises:
        DataError: the kind is not known, or the values do not fit it.
    """
    kind = kind or kind_of(column)
    if kind in NUMBERS:
        return _numbers(column, name, source)
    if isinstance(kind, str) and kind not in KINDS:
        raise DataError(f"{source}: kinds.{name}={kind} is not known; {nearest(kind, KINDS)}")
    if _is_categories(column) and kind == kind_of(column):
        return column.cat.rename_categories(_level)
    texts = column.astype(object).map(_level, na_action="ignore")
    levels = _levels(column) if isinstance(kind, str) else list(dict.fromkeys(map(_level, kind)))
    if kind == "ordinal" and not pd.api.types.is_numeric_dtype(column):
        raise DataError(f"{source}: {name} is ordinal; give its levels in order: kinds.{name}={levels}")
    for row, level in enumerate(texts, 1):
        if pd.notna(level) and level not in levels:
            raise DataError(
                f"{source} row {row}: {name}={level} is not among its levels {levels}; correct it, or add it to them"
            )
    return pd.Series(pd.Categorical(texts, levels, ordered=kind != "nominal"))


def joint_codes(features: pd.DataFrame) -> Int[np.ndarray, " n"]:
    """Number the combinations of values that occur, and return the number of each row; NaN is a value of its own."""
    joint = np.zeros(len(features), dtype=int)
    for _, column in features.items():
        codes = pd.factorize(column)[0] + 1
        joint = pd.factorize(joint * (codes.max() + 1) + codes)[0]
    return joint


def natural_order(name: str) -> tuple[list[Any], str]:
    """Return the key of an order in which 2 comes before 10."""
    return [int(part) if odd % 2 else part for odd, part in enumerate(re.split(r"(\d+)", name))], name


def duplicates(names: Iterable[str]) -> list[str]:
    """Return the names that were there before."""
    index = pd.Index(names)
    return list(index[index.duplicated()])


def _numbers(column: pd.Series, name: str, source: str) -> pd.Series:
    values = pd.to_numeric(column.astype(object), errors="coerce").astype("float64")
    wrong = (values.isna() & column.notna()) | np.isinf(values)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise DataError(
            f"{source} row {row + 1}: {name}={column.iloc[row]} is no finite number; correct it, empty it if "
            f"the feature does not apply, or declare kinds.{name}=nominal"
        )
    return values


def _is_categories(column: pd.Series) -> bool:
    return isinstance(column.dtype, pd.CategoricalDtype)


def _level(value: Any) -> str:
    """Return the name of a level; a whole number loses its point."""
    return str(int(value)) if isinstance(value, float | np.floating) and value.is_integer() else str(value)


def _levels(column: pd.Series) -> list[str]:
    """Return the levels: numbers by size, names in natural order."""
    values = column.dropna().unique()
    if kind_of(column) in NUMBERS:
        return [_level(value) for value in sorted(values)]
    return sorted({_level(value) for value in values}, key=natural_order)
