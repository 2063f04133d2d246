"""Tables of features as users have them: the kind of each column, and its numbers.

Tables are files, DataFrames, arrays, tensors, lists of lists and text; MLEM looks at nothing but
tensors elsewhere.

| column | kind |
|---|---|
| text, truth values, categories without an order, mixed values | nominal |
| categories with an order | ordinal |
| numbers, ten different ones or more, some of them fractions or beyond 2^53 | continuous |
| other numbers | numeric |

Whole numbers are never taken for continuous, as they may be codes, counts or identities. An array
or a tensor does not say what the numbers of a column mean, so in it all numbers that are not
continuous are nominal.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple, cast

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
NUMBER_KINDS = ("numeric", "continuous")
# treebanks have up to 200, and each takes a column, a distance and a permutation
MOST_FEATURES = 1000
FEWEST_CONTINUOUS = 10  # different values of a continuous feature
# Fractions are compared to so many digits, so that 0.1 + 0.2 is 0.3.
SIGNIFICANT_DIGITS = 12
# Of large numbers, such as times in seconds, so many digits after the point count in any case.
DIGITS_AFTER_POINT = 6

Level = str | bool | int | float
Kind = str | Sequence[Level]  # "auto", one of KINDS, or the levels of an ordinal feature in order
Kinds = Kind | Sequence[Kind] | Mapping[str, Kind] | Mapping[int, Kind]
EXACT_NUMBERS = (Decimal, Fraction)
DIGITS_OF_FLOATS = 400  # more than any float has before the point, or zeros behind it
# What pandas calls the values of a column of objects that are all numbers.
NUMBERS_AS_OBJECTS = ("integer", "floating", "mixed-integer-float", "decimal")
EMPTY = ("", "nan", "NaN")  # missing values in an array of text
TEXT_OR_BYTES = (str, bytes, bytearray, memoryview)  # sequences that are no list of values


def plain_column(column: pd.Series, name: str) -> pd.Series:
    """Return a column whose cells are numbers that NumPy and pandas know, names, or missing.

    A column that has only such cells is returned itself.

    Args:
        column: The column.
        name: What errors call it.

    Raises:
        ValueError: Float64 would make one number of two.
    """
    if isinstance(column.dtype, pd.ArrowDtype):
        import pyarrow

        arrow_type = column.dtype.pyarrow_dtype
        if pyarrow.types.is_float16(arrow_type):
            return column.astype(np.float32 if column.notna().all() else "float[pyarrow]")
        if not pyarrow.types.is_decimal(arrow_type):
            return column
        column = column.astype(object)
    if column.dtype == np.longdouble:
        return column.astype(np.float64)
    if column.dtype != object:
        return column

    cells = []
    exact_of_float: dict[float, object] = {}
    for cell in column:
        plain = plain_cell(cell)
        cells.append(plain)
        if not isinstance(cell, EXACT_NUMBERS) or not isinstance(plain, float):
            continue
        if exact_of_float.setdefault(plain, cell) != cell:
            raise ValueError(
                f"{name} has numbers of more than 16 digits, which float64 cannot tell apart: "
                "give them as text"
            )
    if all(plain is cell for plain, cell in zip(cells, column, strict=True)):
        return column
    return pd.Series(cells, index=column.index, name=column.name, dtype=object)


def plain_cell(cell: object) -> object:
    """Return a cell of a table in a form that pandas and NumPy know as a number or as missing.

    An array or tensor without axes becomes the value that it holds; a `Decimal` or `Fraction` an
    int if it is whole, else a float; NaT, a Decimal that is NaN, and a masked value None. All
    other cells, such as text, None and NaN, are returned as they are.
    """
    if isinstance(cell, np.ndarray | Tensor) and cell.ndim == 0:
        if cell is np.ma.masked:
            return None
        cell = cell.item() if isinstance(cell, Tensor) else cell[()]
    if cell is pd.NaT or (isinstance(cell, Decimal) and cell.is_nan()):
        return None
    if isinstance(cell, np.longdouble):
        return float(cell)
    if isinstance(cell, EXACT_NUMBERS):
        return _int_or_float(cell)
    return cell


def _int_or_float(number: Decimal | Fraction) -> int | float:
    """Return an exact number as an int if it is whole, else as the nearest float.

    Numbers beyond the range of floats become ±∞ unless they are whole; so do whole Decimals of
    more than `DIGITS_OF_FLOATS` digits.
    """
    if isinstance(number, Decimal):
        # Otherwise a whole number such as 10^(10^9) would become an int of as many digits.
        if not number.is_finite() or abs(number.adjusted()) > DIGITS_OF_FLOATS:
            return float(number)
        number = Fraction(number)
    if number.denominator == 1:
        return number.numerator
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def kind_of(column: pd.Series) -> str:
    """Return the kind of feature that the type and the values of a column imply.

    - Columns of numbers, also as objects of Python, are "continuous" if they have at least
      `FEWEST_CONTINUOUS` distinct values, one or more of which has a fraction or is beyond 2^53.
      Otherwise they are "numeric".
    - Ordered categories are "ordinal".
    - All other columns are "nominal".

    Missing and infinite values do not count.
    """
    if isinstance(column.dtype, pd.CategoricalDtype):
        if column.cat.ordered:
            return "ordinal"
        return "nominal"
    if not _holds_numbers(column):
        return "nominal"

    values = _as_floats(column.dropna())
    distinct = np.unique(_rounded_fractions(values[np.isfinite(values)]))
    # A number with a fraction is a measurement and no count. Beyond 2^53 no float has a fraction,
    # but numbers of that size are hardly counts.
    is_measurement = (distinct != np.round(distinct)) | (np.abs(distinct) > EXACT)
    if len(distinct) >= FEWEST_CONTINUOUS and is_measurement.any():
        return "continuous"
    return "numeric"


def _as_floats(column: pd.Series) -> np.ndarray:
    """Return numbers as float64; those beyond its range become infinite, as in NumPy."""
    try:
        return column.to_numpy(float)
    except OverflowError:  # a whole number of Python, which may have any number of digits
        values = []
        for number in column:
            is_beyond = isinstance(number, int) and abs(number) > sys.float_info.max
            values.append(np.inf if is_beyond else float(number))
        return np.array(values)


def _holds_numbers(column: pd.Series) -> bool:
    """Return whether all values of a column that are not missing are numbers, not truth values."""
    if column.dtype == object:
        return pd.api.types.infer_dtype(column, skipna=True) in NUMBERS_AS_OBJECTS
    is_bool = pd.api.types.is_bool_dtype(column)
    return pd.api.types.is_numeric_dtype(column) and not is_bool


class FeatureColumns(NamedTuple):
    """The features of a table, by which later tables are read.

    Attributes:
        names: The names of the features; empty for a table without names.
        kinds: One of `KINDS` for each feature.
        levels: For each feature, its levels: level k is read as the number k. None: numbers are
            read as they are.
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    levels: tuple[tuple[Level, ...] | None, ...]  # of each feature

    @classmethod
    @in_plain_lines()
    def of(cls, X: object, kinds: Kinds = "auto") -> FeatureColumns:
        """Return the names, kinds and levels of the features of a table.

        A warning names the features that are taken for continuous because of their values,
        although `kinds` does not say so.

        Args:
            X: The table, (stimuli, features): a DataFrame, an array, a tensor or a list of lists.
            kinds: The kind of all features, a list with that of each, or a mapping from the name
                or the number of some to theirs. A kind is one of `KINDS`; a list of levels in
                order, for an ordinal feature; or "auto", for the kind that the type and the values
                of a feature imply. Features that a mapping lacks are "auto".

        Raises:
            ValueError: X is no table of features, or a kind does not fit it.
        """
        frame, has_types = _frame(X)
        _check_columns(frame)
        names = _names(frame)
        labels = names or tuple(map(str, range(frame.shape[1])))

        final_kinds = []
        levels_of_features = []
        inferred_continuous = []  # labels of features for which nobody asked for this kind
        for position, kind in enumerate(_kind_of_each(kinds, labels)):
            column = frame.iloc[:, position]
            label = labels[position]
            final_kind, levels = _kind_and_levels(column, kind, label, has_types)
            final_kinds.append(final_kind)
            levels_of_features.append(levels)
            if final_kind == "continuous" and kind != "continuous":
                inferred_continuous.append(label)
        if inferred_continuous:
            warnings.warn(
                "taken for continuous, for their many values with fractions: "
                f"features {', '.join(inferred_continuous)}: Δ is their distance over its range; "
                "kinds= says otherwise",
                stacklevel=4,
            )
        return cls(names, tuple(final_kinds), tuple(levels_of_features))

    def label(self, feature: int) -> str:
        """Return what messages call a feature: its name, or its number if there are no names."""
        if self.names:
            return plain_line(self.names[feature])
        return str(feature)

    def index_of(self, feature: int | str, argument: str) -> int:
        """Return the index of a feature in the table.

        Args:
            feature: Its index or its name.
            argument: What an error calls the argument in which the feature was given.

        Raises:
            ValueError: There is no such feature.
        """
        if feature in self.names:
            return self.names.index(str(feature))
        if feature not in range(len(self.kinds)):
            features = ", ".join(self.names) or f"0..{len(self.kinds) - 1}"
            raise ValueError(f"{argument}: feature {shown(feature)} is not one of {features}")
        return int(feature)

    def read(
        self, X: object, device: torch.device | None = None
    ) -> tuple[Float[Tensor, "n f"], list[list[Level] | None]]:
        """Return the values of a table as numbers, and what the numbers of each feature stand for.

        Args:
            X: A table with the same features.
            device: Where the numbers go; None: where X is if it is a tensor, else to the CPU.

        Returns:
            The numbers in float64, NaN where a value is missing; and for each feature its levels,
            where number k stands for level k, or None if the numbers are the values themselves.
            Levels that this description does not have come last.

        Raises:
            ValueError: X has other features, or a value that is not of its feature's kind or is
                infinite.
        """
        frame, _ = _frame(X)
        self._check_same_features(frame)
        columns = []
        all_levels: list[list[Level] | None] = []
        for feature, (known_levels, kind) in enumerate(zip(self.levels, self.kinds, strict=True)):
            column = frame.iloc[:, feature]
            if known_levels is None:
                columns.append(_read_numbers(column, kind, self.label(feature)))
                all_levels.append(None)
            else:
                codes, levels = _read_levels(column, known_levels)
                columns.append(codes)
                all_levels.append(levels)

        if device is None and isinstance(X, Tensor):
            device = X.device
        values = torch.stack(columns, 1).to(device)
        infinite = values.isinf().any(0).nonzero().flatten().tolist()
        if infinite:
            raise ValueError(f"feature {self.label(infinite[0])} has an infinite value")
        return values, all_levels

    def _check_same_features(self, frame: pd.DataFrame) -> None:
        """Raise a ValueError unless a table has the features that this object describes.

        The table must have as many features, and if both have names, the same names in the same
        order. If only this object has names, a warning says that the order of the table is
        trusted.
        """
        names = _names(frame)
        are_renamed = bool(names) and bool(self.names) and names != self.names
        if frame.shape[1] != len(self.kinds) or are_renamed:
            columns = ", ".join(names) or frame.shape[1]
            expected = ", ".join(self.names) or len(self.kinds)
            raise ValueError(f"X has the features {columns}, and the fit had {expected}")
        if self.names and not names:
            warnings.warn(
                "X has no names of features, but the fit had: their order is trusted",
                stacklevel=6,
            )


def level_of(value: float, levels: Sequence[Level] | None) -> Level | None:
    """Return the value of a table that a number stands for; None for NaN, a missing value.

    Tables are read as numbers, in which a feature's levels, such as words, are numbered from 0.

    Args:
        value: The number, as `FeatureColumns.read` returned it.
        levels: The levels of its feature, where number k stands for `levels[k]`; None: the number
            is the value itself.
    """
    if np.isnan(value):
        return None
    if levels is None:
        return value
    return levels[int(value)]


def cell_numbers(values: object, name: str) -> Int[Tensor, " n"]:
    """Number the different rows of a table, or values of a list: equal rows get equal numbers.

    Numbers count from 0 in the order in which different rows first occur. Missing values are equal
    to each other.

    Args:
        values: A DataFrame, an array or tensor of one or two axes, or a list.
        name: What errors call the argument.

    Raises:
        ValueError: It is none of these, or is empty.
    """
    if isinstance(values, Tensor):
        values = tensor_of(values.detach(), Shaped, name)
    is_list = isinstance(values, Sequence) and not isinstance(values, TEXT_OR_BYTES)
    if not is_list and not hasattr(values, "__array__"):
        raise ValueError(f"{name} is {type(values).__name__}: give a table, an array or a list")
    dimensions = getattr(values, "ndim", 1)
    if dimensions not in (1, 2) or len(values) == 0:  # type: ignore[arg-type]
        raise ValueError(
            f"{name} has no rows, or is no table: give a list or a table of one row or more"
        )
    refuse_huge(values, name)
    refuse_masked(values, name)

    try:
        frame = _frame_of_values(values)
        codes_of_columns = []
        for position in range(frame.shape[1]):
            codes, _ = pd.factorize(frame.iloc[:, position], use_na_sentinel=False)
            codes_of_columns.append(codes)
    except UNREADABLE as error:
        raise ValueError(f"{name} holds lists, sets or the like: give text or numbers") from error
    if not codes_of_columns:
        raise ValueError(f"{name} has no columns: give text or numbers")
    codes_of_rows, _ = pd.factorize(pd.MultiIndex.from_arrays(codes_of_columns))
    return torch.from_numpy(codes_of_rows.astype(np.int64))


def _frame_of_values(values: object) -> pd.DataFrame:
    """Return a DataFrame of a table, an array, a tensor, a list, a tuple or a range.

    A list of single values, or an array with one axis, becomes one column.
    """
    if isinstance(values, Tensor):
        if values.dtype == torch.bfloat16:  # which NumPy lacks
            values = values.float()
        values = values.cpu().numpy()
    if isinstance(values, np.ndarray):
        # pandas takes no foreign byte order
        values = values.astype(values.dtype.newbyteorder("="), copy=False)
    if isinstance(values, range | tuple):
        values = list(values)
    return pd.DataFrame(values)  # type: ignore[call-overload, no-any-return]


def _frame(X: object) -> tuple[pd.DataFrame, bool]:
    """Return a table as a DataFrame, and whether the types of its columns say what values mean.

    The second result is True for a DataFrame. It is False for an array, a tensor or a list of
    lists that holds numbers alone, in which a number may be the code of a category; its columns
    become float64. With text beside numbers it is True. In an array of text, columns that are all
    numbers are read as numbers, and empty text and "nan" as missing values.

    Raises:
        ValueError: X is no table of two axes, is masked or huge, or has numbers that float64
            cannot hold.
    """
    if hasattr(X, "iloc") and hasattr(X, "columns"):
        table = _plain_table(cast(pd.DataFrame, X))
        _refuse_inexact_numbers(table)
        return table, True
    if isinstance(X, Tensor):
        X = _array_of_tensor(X)
    refuse_huge(X, "X")
    refuse_masked(X, "X")
    # Anything but an array, such as a list of lists, becomes an array of Python objects.
    try:
        array = X
        if not isinstance(array, np.ndarray):
            array = np.asarray(X, dtype=object)
    except UNREADABLE as error:
        raise ValueError(
            f"X is {type(X).__name__}, of which NumPy makes no table: {one_line(error)}"
        ) from error
    if array.ndim != 2:
        raise ValueError(f"X has shape {array.shape}, not (stimuli, features)")

    if array.dtype.kind in "US":  # text or bytes: numbers beside text have become text
        texts = pd.DataFrame(array.astype(str), dtype=object)
        return texts.mask(texts.isin(EMPTY)).apply(_as_numbers_if_possible), True
    frame = _plain_table(pd.DataFrame(array)).infer_objects()
    _refuse_inexact_numbers(frame)
    is_numeric = all(map(pd.api.types.is_numeric_dtype, frame.dtypes))
    if is_numeric:
        return frame.astype(float), False
    return frame, True


def _plain_table(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with each column in a form that NumPy and pandas know, by `plain_column`.

    That is, numbers of other types, such as `Decimal`, become ints or floats. A table that needs
    no change is returned itself.
    """
    columns = [column for _, column in table.items()]
    plain_columns = []
    for column in columns:
        plain_columns.append(plain_column(column, f"feature {column.name}"))
    if all(plain is column for plain, column in zip(plain_columns, columns, strict=True)):
        return table
    return pd.concat(plain_columns, axis=1)


def _array_of_tensor(X: Tensor) -> np.ndarray:
    """Return a tensor of features as an array of float64.

    Raises:
        ValueError: A table of int64 has numbers that float64 cannot hold, beyond 2^53.
    """
    values = tensor_of(X.detach(), Shaped, "X").cpu()
    if values.dtype == torch.int64 and values.ndim == 2:  # other shapes are refused later
        _refuse_inexact_numbers(pd.DataFrame(values.numpy()))
    return values.double().numpy()


def _check_columns(frame: pd.DataFrame) -> None:
    """Raise a ValueError if two columns have the same name, or if there are none or too many."""
    repeated = frame.columns[frame.columns.duplicated()].tolist()
    if repeated:
        raise ValueError(f"X has two columns of the name {repeated[0]!r}: rename or leave out one")
    if not 0 < frame.shape[1] <= MOST_FEATURES:
        raise ValueError(
            f"X has {frame.shape[1]:,} features: give 1 to {MOST_FEATURES:,}, those that matter"
        )


def _refuse_inexact_numbers(frame: pd.DataFrame) -> None:
    """Raise a ValueError for numbers that float64 cannot hold: complex, or integers beyond 2^53.

    Only columns whose type says that they hold such numbers are looked at, and not those of
    Python objects.
    """
    for label, column in frame.items():
        if pd.api.types.is_complex_dtype(column):
            raise ValueError(
                f"feature {label} has complex numbers: "
                "give their real and imaginary parts as two features"
            )
        if pd.api.types.is_integer_dtype(column):
            present = column.dropna()
            if len(present) and max(-int(present.min()), int(present.max())) > EXACT:
                raise _beyond_floats(str(label))


def _beyond_floats(label: str) -> ValueError:
    """Return the error for whole numbers that float64 cannot hold."""
    return ValueError(
        f"feature {label} has whole numbers beyond 2^53, which float64 cannot tell "
        "apart: give them as text"
    )


def _names(frame: pd.DataFrame) -> tuple[str, ...]:
    """Return the names of the columns; empty if the name of any is not text, such as a number."""
    if all(isinstance(name, str) for name in frame.columns):
        return tuple(map(str, frame.columns))
    return ()


def _as_numbers_if_possible(column: pd.Series) -> pd.Series:
    """Return a column of text as numbers if all its values, but missing ones, can be read as such.

    Otherwise the column is returned as it is.
    """
    numbers = pd.to_numeric(column, errors="coerce")
    if numbers.notna().equals(column.notna()):
        return numbers
    return column


def _kind_of_each(kinds: Kinds, labels: Sequence[str]) -> list[Kind]:
    """Return for each feature the kind that the user asked for, or "auto" if they said nothing.

    Args:
        kinds: One kind for all features, a list with one for each, or a mapping from the name or
            the index of a feature to its kind.
        labels: The name of each feature, or its index as text if features have no names.

    Raises:
        ValueError: A list is not as long as there are features, or a mapping has a key that is no
            feature.
    """
    if isinstance(kinds, str):
        return [kinds] * len(labels)
    if not isinstance(kinds, Mapping):
        if not isinstance(kinds, Sequence) or len(kinds) != len(labels):
            raise ValueError(
                f"kinds={shown(kinds)} must be one kind, one for each of the {len(labels)} "
                "features, or a mapping"
            )
        return list(kinds)  # type: ignore[arg-type]

    by_feature = cast(Mapping[str | int, Kind], kinds)
    for feature in by_feature:
        if feature not in labels and feature not in range(len(labels)):
            raise ValueError(
                f"kinds has {shown(feature)}, which is not one of the features {', '.join(labels)}"
            )
    kind_of_each = []
    for position, label in enumerate(labels):
        kind_by_position = by_feature.get(position, "auto")
        kind_of_each.append(by_feature.get(label, kind_by_position))  # a name goes first
    return kind_of_each


def check_levels(levels: object, name: str) -> None:
    """Raise a ValueError unless `levels` is a list of different levels, at least one.

    Levels that are written alike, such as 1 and "1", are not different. A user may give the name
    of a kind in place of levels; the caller has already handled these, so text is refused.

    Args:
        levels: The levels of an ordinal feature, in order.
        name: What the error calls them.
    """
    is_list = isinstance(levels, Sequence) and not isinstance(levels, str | bytes)
    if not is_list or not levels or len(set(map(str, levels))) < len(levels):  # type: ignore[arg-type, call-overload]
        raise ValueError(
            f"{name}={shown(levels)} must be one of {', '.join(KINDS)}, or a list of different "
            "levels in order"
        )


def _kind_and_levels(
    column: pd.Series, kind: Kind, label: str, has_types: bool
) -> tuple[str, tuple[Level, ...] | None]:
    """Return the kind of a feature, and its levels in order, or None if its values are numbers.

    The kind is the one that the user asked for, with two exceptions: "auto" is replaced by what
    the values imply, and "numeric" by "continuous" if the values imply this and are all different.

    Args:
        column: Its values.
        kind: What the user asked for: "auto", one of `KINDS`, or the levels of an ordinal feature.
        label: What errors call the feature.
        has_types: Whether the types of the table's columns say what values mean. If not, numbers
            may be codes of categories, and "auto" takes those that are not continuous for nominal.

    Raises:
        ValueError: The kind does not fit the values.
    """
    if not isinstance(kind, str):
        return "ordinal", _checked_levels(column, kind, label)
    check_choice("kinds", kind, ("auto", *KINDS))
    kind_of_values = kind_of(column)
    final_kind = kind
    if kind == "auto":
        final_kind = kind_of_values
        if kind_of_values == "numeric" and not has_types:
            final_kind = "nominal"
    if final_kind == "numeric" and kind_of_values == "continuous" and column.dropna().is_unique:
        # A numeric feature may only tell whether values are equal, and here none are.
        final_kind = "continuous"
    if final_kind in NUMBER_KINDS or kind_of_values in NUMBER_KINDS:
        return final_kind, None  # numbers, also those of a nominal feature, need no levels

    if final_kind == "ordinal" and kind_of_values != "ordinal":
        raise ValueError(
            f"feature {label} is ordinal: give its levels in order, as kinds={{{label!r}: [...]}}"
        )
    if isinstance(column.dtype, pd.CategoricalDtype):
        return final_kind, tuple(map(_plain_level, column.cat.categories))
    levels = {level for level in _levels_of_rows(column) if level is not None}
    # numbers in order, and then texts in order
    return final_kind, tuple(sorted(levels, key=lambda level: (isinstance(level, str), level)))


def _checked_levels(column: pd.Series, levels: Sequence[Level], label: str) -> tuple[Level, ...]:
    """Return the levels that the user gave for an ordinal feature, as text or numbers of Python.

    Args:
        column: The values of the feature.
        levels: Its levels in order.
        label: What errors call the feature.

    Raises:
        ValueError: `levels` is not a list of different levels, or lacks a value of the column.
    """
    check_levels(levels, f"kinds of feature {label}")
    plain_levels = tuple(map(_plain_level, levels))
    for value in _levels_of_rows(column):
        if value is not None and value not in plain_levels:
            raise ValueError(
                f"feature {label} has {shown(value)}, which is not among its levels "
                f"{shown(list(plain_levels))}: add it"
            )
    return plain_levels


def _rounded_fractions(values: np.ndarray) -> np.ndarray:
    """Return values with fractions rounded, so that 0.1 + 0.2 is 0.3.

    A value keeps `SIGNIFICANT_DIGITS` significant digits or `DIGITS_AFTER_POINT` digits after the
    point, whichever is more. So a large number keeps its fraction. Whole numbers, infinities and
    NaN stay as they are.
    """
    rounded = values.copy()
    has_fraction = np.isfinite(values) & (values != np.round(values))
    for row in has_fraction.nonzero()[0]:
        value = values[row]
        digits_before_point = math.floor(math.log10(abs(value))) + 1
        digits = max(SIGNIFICANT_DIGITS, digits_before_point + DIGITS_AFTER_POINT)
        # By way of text, as `np.round` counts digits after the point and not significant ones.
        rounded[row] = float(f"{value:.{digits}g}")
    return rounded


def _read_numbers(column: pd.Series, kind: str, label: str) -> Float[Tensor, " n"]:
    """Return a column of numbers in float64, NaN where a value is missing.

    Fractions are rounded by `_rounded_fractions` unless the kind is "continuous", so that values
    that differ by rounding count as equal.

    Args:
        column: The values, numbers or objects that can be read as numbers.
        kind: The kind of the feature, "numeric", "continuous" or another one.
        label: What errors call the feature.

    Raises:
        ValueError: A value is no number, or is a whole number that float64 cannot hold.
    """
    if column.dtype == object:
        for value in column:
            if isinstance(value, int) and abs(value) > EXACT:
                raise _beyond_floats(label)
    numbers = column
    if column.dtype not in (np.float64, np.int64):
        try:  # missing values of any kind, such as pd.NA, as None
            numbers = pd.to_numeric(column.astype(object).where(column.notna(), None))
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"feature {label} is of numbers, and holds something else: {one_line(error)}"
            ) from error
    values = numbers.to_numpy(dtype=float, na_value=np.nan)
    if kind != "continuous":
        values = _rounded_fractions(values)
    return torch.tensor(values)


def _read_levels(
    column: pd.Series, known_levels: Sequence[Level]
) -> tuple[Float[Tensor, " n"], list[Level]]:
    """Return each value as the index of its level, NaN where it is missing, and all levels.

    Args:
        column: The values of a feature.
        known_levels: The levels of an earlier table, which have the first indices. Other levels
            of the column follow, in the order in which they first occur.
    """
    number_of_level = {level: number for number, level in enumerate(known_levels)}
    codes = []
    for value in _levels_of_rows(column):
        if value is None:
            codes.append(torch.nan)
        else:
            code = number_of_level.setdefault(value, len(number_of_level))
            codes.append(float(code))
    return torch.tensor(codes, dtype=torch.float64), list(number_of_level)


def _levels_of_rows(column: pd.Series) -> list[Level | None]:
    """Return the value of each row as text, bool or number of Python; None if it is missing."""
    levels: list[Level | None] = []
    for value, is_missing in zip(column, column.isna(), strict=True):
        if is_missing:
            levels.append(None)
        else:
            levels.append(_plain_level(value))
    return levels


def _plain_level(value: object) -> Level:
    """Return a value as text, bool or number of Python; dates, intervals and the like as text."""
    value = plain_cell(value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Level):
        return value
    return str(value)
