"""Tables of features as users have them: the kind of each column by one rule, and tables read as numbers.

Tables are files, DataFrames, arrays, tensors, lists of lists and text; MLEM looks at nothing but tensors elsewhere.

| column | kind |
|---|---|
| text, truth values, categories without an order, mixed values | nominal |
| categories with an order | ordinal |
| numbers, ten different ones or more, of which some are no whole numbers or beyond 2^53 | continuous |
| other numbers | numeric |

Whole numbers are never taken for continuous, as they may be codes, counts or identities. An array or a tensor says of
no column what its numbers stand for: there, other numbers than continuous ones are nominal.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from thinkalike.arguments import check_choice, shown, tensor_of
from thinkalike.arguments.huge_arrays import refuse_huge
from thinkalike.arguments.messages import in_plain_lines
from thinkalike.arguments.tensors import UNREADABLE, refuse_masked
from thinkalike.errors import one_line, plain_line
from thinkalike.ranges import EXACT

KINDS = ("nominal", "ordinal", "numeric", "continuous")
NUMBERS = KINDS[2:]
MOST_FEATURES = 1000  # treebanks have up to 200, and each takes a column, a distance and a permutation
MANY = 10  # different values of a continuous feature, at least


def kind_of(column: pd.Series) -> str:
    """Return the kind that the type and the values of a column imply, see the table above."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        return "ordinal" if column.cat.ordered else "nominal"
    if not pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column):
        return "nominal"
    values = column.dropna().to_numpy(float)
    different = np.unique(_digits(values[np.isfinite(values)]))
    # Beyond 2^53 no float has a fraction, so that nothing says whether it counts or measures; counts are smaller.
    is_no_count = (different != np.round(different)) | (np.abs(different) > EXACT)
    return "continuous" if len(different) >= MANY and is_no_count.any() else "numeric"


# ---- tables read as numbers

Level = str | bool | int | float
Kind = str | Sequence[Level]  # "auto", one of KINDS, or the levels of an ordinal feature in order
Kinds = Kind | Sequence[Kind] | Mapping[Any, Kind]
EMPTY = ("", "nan", "NaN")  # missing values in an array of text
TEXT_OR_BYTES = (str, bytes, bytearray, memoryview)  # sequences that are no list of values


class Columns(NamedTuple):
    """The names, kinds and levels of the f features of a table, by which later tables are read."""

    names: tuple[str, ...]  # empty for a table without names
    kinds: tuple[str, ...]
    levels: tuple[tuple[Level, ...] | None, ...]  # level k is read as the number k; None: numbers are read as they are

    @classmethod
    @in_plain_lines()
    def of(cls, X: Any, kinds: Kinds = "auto") -> Columns:
        """Describe a table as `MLEM.fit` takes it, with a warning of features that are taken for continuous.

        `kinds` are of all features, of each, or of some by name or number; the others, and "auto", have the kind that
        their type and values imply. A list of levels is an ordinal feature.
        """
        frame, typed = _frame(X)
        if repeated := frame.columns[frame.columns.duplicated()].tolist():
            raise ValueError(f"X has two columns of the name {repeated[0]!r}: rename or leave out one")
        if not 0 < frame.shape[1] <= MOST_FEATURES:
            raise ValueError(f"X has {frame.shape[1]:,} features: give 1 to {MOST_FEATURES:,}, those that matter")
        names, columns = _names(frame), [frame.iloc[:, place] for place in range(frame.shape[1])]
        labels = names or tuple(map(str, range(len(columns))))
        each = list(zip(columns, _each(kinds, labels), labels, strict=True))
        found, levels = zip(*(_settled(column, kind, label, typed) for column, kind, label in each), strict=True)
        kinds_of = zip(each, found, strict=True)
        if inferred := [label for (_, kind, label), own in kinds_of if own == "continuous" != kind]:
            message = f"taken for continuous, for their many values with fractions: features {', '.join(inferred)}"
            warnings.warn(f"{message}: Δ is their distance over its range; kinds= says otherwise", stacklevel=4)
        return cls(names, found, levels)

    def label(self, feature: int) -> str:
        """Return what messages call a feature."""
        return plain_line(self.names[feature]) if self.names else str(feature)

    def place(self, feature: int | str, argument: str) -> int:
        """Return the number of a feature given by number or name; an error has the name of the argument."""
        if feature in self.names:
            return self.names.index(str(feature))
        if feature not in range(len(self.kinds)):
            there = ", ".join(self.names) or f"0..{len(self.kinds) - 1}"
            raise ValueError(f"{argument}: feature {shown(feature)} is not one of {there}")
        return int(feature)

    def read(self, X: Any, device: torch.device | None = None) -> tuple[Float[Tensor, "n f"], list[list[Level] | None]]:
        """Return a table as numbers, NaN where a value is missing, and the levels with new ones at the end."""
        frame, _ = _frame(X)
        names = _names(frame)
        if frame.shape[1] != len(self.kinds) or (names and self.names and names != self.names):
            columns = ", ".join(names) or frame.shape[1]
            raise ValueError(
                f"X has the features {columns}, and the fit had {', '.join(self.names) or len(self.kinds)}"
            )
        if self.names and not names:
            warnings.warn("X has no names of features, but the fit had: their order is trusted", stacklevel=5)
        levels = [None if own is None else list(own) for own in self.levels]
        described = enumerate(zip(levels, self.kinds, strict=True))
        read = [_read(frame.iloc[:, place], own, kind, self.label(place)) for place, (own, kind) in described]
        values = torch.stack(read, 1).to(device or (X.device if isinstance(X, Tensor) else None))
        if values.isinf().any():
            raise ValueError(f"feature {self.label(int(values.isinf().any(0).nonzero()[0]))} has an infinite value")
        return values, levels


def level_of(value: float, levels: Sequence[Level] | None) -> Level | None:
    """Return the value in a table that is read as this number, see `Columns.read`; None where it is missing."""
    if value != value:
        return None
    return value if levels is None else levels[int(value)]


def cell_numbers(values: Any, name: str) -> Int[Tensor, " n"]:
    """Return numbers from 0 that are equal for equal rows of a table, or for equal values of a list.

    A ValueError names what is neither.
    """
    if isinstance(values, Tensor):
        values = tensor_of(values.detach(), Shaped, name)
    elif isinstance(values, TEXT_OR_BYTES) or not (isinstance(values, Sequence) or hasattr(values, "__array__")):
        raise ValueError(f"{name} is {type(values).__name__}: give a table, an array or a list")
    has_rows = values.ndim in (1, 2) if hasattr(values, "ndim") else True
    if not has_rows or not len(values):
        raise ValueError(f"{name} has no rows, or is no table: give a list or a table of one row or more")
    refuse_huge(values, name)
    refuse_masked(values, name)
    if isinstance(values, Tensor):
        values = values.float() if values.dtype == torch.bfloat16 else values  # which NumPy lacks
        values = values.cpu().numpy()
    if isinstance(values, np.ndarray):
        values = values.astype(values.dtype.newbyteorder("="), copy=False)  # pandas takes no foreign byte order
    try:
        frame = pd.DataFrame(list(values) if isinstance(values, range | tuple) else values)
        numbers = [pd.factorize(frame.iloc[:, place], use_na_sentinel=False)[0] for place in range(frame.shape[1])]
    except UNREADABLE as error:
        raise ValueError(f"{name} holds lists, sets or the like: give text or numbers") from error
    if not numbers:
        raise ValueError(f"{name} has no columns: give text or numbers")
    return torch.from_numpy(pd.factorize(pd.MultiIndex.from_arrays(numbers))[0].astype(np.int64))


def _frame(X: Any) -> tuple[pd.DataFrame, bool]:
    """Return a table as a DataFrame, and whether its columns have types of their own, unlike those of an array."""
    if hasattr(X, "iloc") and hasattr(X, "columns"):
        _refuse_inexact(X)
        return X, True
    if isinstance(X, Tensor):
        X = tensor_of(X.detach(), Shaped, "X").cpu()
        if X.dtype == torch.int64 and X.ndim == 2:
            _refuse_inexact(pd.DataFrame(X.numpy()))
        X = X.double().numpy()
    refuse_huge(X, "X")
    refuse_masked(X, "X")
    try:
        array = X if isinstance(X, np.ndarray) else np.asarray(X, dtype=object)
    except UNREADABLE as error:
        raise ValueError(f"X is {type(X).__name__}, of which NumPy makes no table: {one_line(error)}") from error
    if array.ndim != 2:
        raise ValueError(f"X has shape {array.shape}, not (stimuli, features)")
    if array.dtype.kind in "US":  # numbers beside text have become text
        frame = pd.DataFrame(array.astype(str), dtype=object)
        return frame.mask(frame.isin(EMPTY)).apply(_written_numbers), True
    frame = pd.DataFrame(array).infer_objects()
    _refuse_inexact(frame)
    typed = not all(map(pd.api.types.is_numeric_dtype, frame.dtypes))
    return frame if typed else frame.astype(float), typed


def _refuse_inexact(frame: pd.DataFrame) -> None:
    """Raise a ValueError of a column whose numbers float64 has not: complex ones, and whole ones beyond 2^53."""
    for label, column in frame.items():
        if pd.api.types.is_complex_dtype(column):
            raise ValueError(
                f"feature {label} has complex numbers: give their real and imaginary parts as two features"
            )
        if pd.api.types.is_integer_dtype(column):
            present = column.dropna()
            if len(present) and max(-int(present.min()), int(present.max())) > EXACT:
                raise ValueError(
                    f"feature {label} has whole numbers beyond 2^53, which float64 cannot tell apart: give them as text"
                )


def _names(frame: pd.DataFrame) -> tuple[str, ...]:
    return tuple(map(str, frame.columns)) if all(isinstance(name, str) for name in frame.columns) else ()


def _written_numbers(column: pd.Series) -> pd.Series:
    numbers = pd.to_numeric(column, errors="coerce")
    return numbers if numbers.notna().equals(column.notna()) else column


def _each(kinds: Kinds, labels: Sequence[str]) -> list[Kind]:
    if isinstance(kinds, str):
        return [kinds] * len(labels)
    if not isinstance(kinds, Mapping):
        if not isinstance(kinds, Sequence) or len(kinds) != len(labels):
            raise ValueError(
                f"kinds={shown(kinds)} must be one kind, one for each of the {len(labels)} features, or a mapping"
            )
        return list(kinds)  # type: ignore[arg-type]
    if unknown := [name for name in kinds if name not in (*labels, *range(len(labels)))]:
        raise ValueError(f"kinds has {shown(unknown[0])}, which is not one of the features {', '.join(labels)}")
    return [kinds.get(label, kinds.get(place, "auto")) for place, label in enumerate(labels)]


def check_levels(levels: Any, name: str) -> None:
    """Raise a ValueError unless these are the levels of an ordinal feature: a list without repetitions."""
    is_list = isinstance(levels, Sequence) and not isinstance(levels, str | bytes)
    if not is_list or not levels or len(set(map(str, levels))) < len(levels):
        raise ValueError(
            f"{name}={shown(levels)} must be one of {', '.join(KINDS)}, or a list of different levels in order"
        )


def _settled(column: pd.Series, kind: Kind, label: str, typed: bool) -> tuple[str, tuple[Level, ...] | None]:
    if not isinstance(kind, str):
        check_levels(kind, f"kinds of feature {label}")
        levels = tuple(map(_plain, kind))
        if beyond := [value for value in _values(column) if value not in (None, *levels)]:
            raise ValueError(
                f"feature {label} has {shown(beyond[0])}, which is not among its levels {shown(list(levels))}: add it"
            )
        return "ordinal", levels
    check_choice("kinds", kind, ("auto", *KINDS))
    implied = kind_of(column)
    own = kind if kind != "auto" else "nominal" if implied == "numeric" and not typed else implied
    if own == "numeric" and implied == "continuous" and column.dropna().is_unique:
        own = "continuous"  # no two rows are equal, so that whether they are says nothing
    if own in NUMBERS or implied in NUMBERS:
        return own, None
    if own == "ordinal" and implied != "ordinal":
        raise ValueError(f"feature {label} is ordinal: give its levels in order, as kinds={{{label!r}: [...]}}")
    if hasattr(column, "cat"):
        return own, tuple(map(_plain, column.cat.categories))
    present = {level for level in _values(column) if level is not None}
    return own, tuple(sorted(present, key=lambda level: (isinstance(level, str), level)))


def _digits(values: np.ndarray) -> np.ndarray:
    """Return fractions to 12 digits, so that 0.1 + 0.2 and 0.3 are one level."""
    exact = (values == np.round(values)) | ~np.isfinite(values)
    return np.where(exact, values, [float(f"{value:.12g}") for value in values])


def _read(column: pd.Series, levels: list[Level] | None, kind: str, label: str) -> Float[Tensor, " n"]:
    """Return a column as numbers; new values are added to the levels."""
    if levels is None:
        whole = [value for value in column if isinstance(value, int)] if column.dtype == object else []
        if any(abs(value) > EXACT for value in whole):
            raise ValueError(
                f"feature {label} has whole numbers beyond 2^53, which float64 cannot tell apart: give them as text"
            )
        try:
            numbers = pd.to_numeric(column.astype(object).where(column.notna(), None))
        except (ValueError, TypeError) as error:
            raise ValueError(f"feature {label} is of numbers, and holds something else: {one_line(error)}") from error
        values = numbers.to_numpy(dtype=float, na_value=np.nan)
        return torch.tensor(values if kind == "continuous" else _digits(values))
    places = {level: place for place, level in enumerate(levels)}
    codes = [torch.nan if value is None else float(places.setdefault(value, len(places))) for value in _values(column)]
    levels[:] = list(places)
    return torch.tensor(codes, dtype=torch.float64)


def _values(column: pd.Series) -> list[Level | None]:
    return [None if absent else _plain(value) for value, absent in zip(column, column.isna(), strict=True)]


def _plain(value: Any) -> Level:
    """Return a level as Python has it; dates, intervals and the like as text."""
    value = value.item() if isinstance(value, np.generic) else value
    return value if isinstance(value, Level) else str(value)
