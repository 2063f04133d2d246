"""Tables of features as users have them, read as numbers: arrays, tensors, DataFrames, lists of lists, text."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.kinds import KINDS, NUMBERS, is_continuous, kind_of

Level = str | bool | int | float
Kind = str | Sequence[Level]  # "auto", one of KINDS, or the levels of an ordinal feature in order
Kinds = Kind | Sequence[Kind] | Mapping[Any, Kind]
EMPTY = ("", "nan", "NaN")  # what an array of text has where a value is missing


class Columns(NamedTuple):
    """What a table says of its f features, and later tables are read by."""

    names: tuple[str, ...]  # none where the table had no names
    kinds: tuple[str, ...]
    levels: tuple[tuple[Level, ...] | None, ...]  # level k is read as the number k; None: numbers are read as they are

    @classmethod
    def of(cls, X: Any, kinds: Kinds = "auto") -> Columns:
        """Return what a table says, with a warning that names the features which are taken for continuous.

        Args:
            X: See `MLEM.fit`.
            kinds: The kind of all features, of each, or of some by name or number; the others, and "auto", have the
                kind that their type and values imply, see `thinkalike.kinds`. A list of levels is an ordinal feature.

        Raises:
            ValueError: X is no table, a kind is unknown or does not fit its column, or there are too few kinds.
        """
        names, columns = _columns(X)
        labels = names or tuple(map(str, range(len(columns))))
        given = _each(kinds, names, len(columns))
        found = [_settled(column, kind, label) for column, kind, label in zip(columns, given, labels, strict=True)]
        inferred = [
            label
            for label, kind, (own, _) in zip(labels, given, found, strict=True)
            if kind == "auto" and own in NUMBERS[1:]
        ]
        if inferred:
            message = f"taken for continuous, for their many values with fractions: features {', '.join(inferred)}"
            warnings.warn(f"{message}: Δ is their distance over its range; kinds= says otherwise", stacklevel=4)
        return cls(names, tuple(kind for kind, _ in found), tuple(levels for _, levels in found))

    def label(self, feature: int) -> str:
        """Return the name of a feature, or its number."""
        return self.names[feature] if self.names else str(feature)

    def place(self, feature: int | str) -> int:
        """Return the number of a feature that is called by number or name.

        Raises:
            ValueError: There is no such feature.
        """
        if feature in self.names:
            return self.names.index(str(feature))
        if feature not in range(len(self.kinds)):
            there = ", ".join(self.names) or f"0..{len(self.kinds) - 1}"
            raise ValueError(f"feature {feature} is not one of {there}")
        return int(feature)

    def read(self, X: Any, device: torch.device | None = None) -> tuple[Float[Tensor, "n f"], list[list[Level] | None]]:
        """Return a table as numbers, NaN where a value is missing, and the levels with those that are new at the end.

        Raises:
            ValueError: X is no table, has other features or another order of them, or a value is no number where one
                is due, or infinite.
        """
        names, columns = _columns(X)
        if len(columns) != len(self.kinds):
            raise ValueError(f"{len(columns)} features, but the encoder was fitted on {len(self.kinds)}")
        self._check_names(names)
        levels = [None if own is None else list(own) for own in self.levels]
        read = [_read(column, own, self.label(f)) for f, (column, own) in enumerate(zip(columns, levels, strict=True))]
        values = torch.stack([each.to(device or each.device) for each in read], 1)
        if values.isinf().any():
            raise ValueError(f"feature {self.label(int(values.isinf().any(0).nonzero()[0]))} has an infinite value")
        return values, levels

    def _check_names(self, names: tuple[str, ...]) -> None:
        if names and self.names and names != self.names:
            place = next(place for place, (a, b) in enumerate(zip(names, self.names, strict=True)) if a != b)
            raise ValueError(
                f"column {place} is {names[place]} where the fit had {self.names[place]}: give the same columns in the "
                "same order"
            )
        if self.names and not names:
            warnings.warn("X has no names of features, but the fit had: their order is trusted", stacklevel=6)


def joint_cells(values: Any) -> list[Any]:
    """Return what is equal for stimuli that are alike: the rows of a table, or the values of a list or a column."""
    if isinstance(values, pd.Series):
        values = values.to_frame()
    if getattr(values, "ndim", 0) == 1:
        return list(values.tolist())
    if not hasattr(values, "ndim") and not all(isinstance(row, list) for row in values):
        return list(values)
    rows = Columns.of(values, "nominal").read(values)[0].tolist()
    return [tuple(None if value != value else value for value in row) for row in rows]


def _columns(X: Any) -> tuple[tuple[str, ...], list[Tensor | pd.Series]]:
    """Return names, if all columns have one, and each column: numbers as a tensor, anything else as a Series."""
    frame = X if hasattr(X, "iloc") and hasattr(X, "columns") else None
    if frame is None and not isinstance(X, Tensor):
        X, frame = _array_or_frame(X)
    if frame is None:
        values = X if isinstance(X, Tensor) else torch.from_numpy(np.array(X, X.dtype.newbyteorder("="), order="C"))
        if values.dim() != 2 or not values.shape[1]:
            raise ValueError(f"X has shape {tuple(values.shape)}, not (stimuli, features)")
        if values.is_complex():
            raise ValueError("X has complex numbers: give their parts as features")
        return (), list(values.double().unbind(1))
    names = tuple(map(str, frame.columns)) if all(isinstance(name, str) for name in frame.columns) else ()
    if not len(frame.columns):
        raise ValueError(f"X has shape {frame.shape}, not (stimuli, features)")
    if len(set(names)) < len(names):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise ValueError(f"X has two columns {twice}: give each a name of its own")
    return names, [frame.iloc[:, place] for place in range(len(frame.columns))]


def _array_or_frame(X: Any) -> tuple[np.ndarray, pd.DataFrame | None]:
    """Return an array of numbers, or else a DataFrame whose columns have types of their own."""
    try:
        array = np.asarray(X)
    except ValueError:
        raise ValueError("X is no table: its rows have different numbers of features") from None
    if array.ndim != 2:
        raise ValueError(f"X has shape {array.shape}, not (stimuli, features)")
    if array.dtype.kind in "biufc":
        return array, None
    if array.dtype.kind in "US" and isinstance(X, np.ndarray):  # numbers beside text have become text
        frame = pd.DataFrame(array.astype(str), dtype=object)
        return array, frame.mask(frame.isin(EMPTY)).apply(_written_numbers)
    return array, pd.DataFrame([list(row) for row in X], dtype=object).infer_objects()


def _written_numbers(column: pd.Series) -> pd.Series:
    numbers = pd.to_numeric(column, errors="coerce")
    return numbers if numbers.notna().equals(column.notna()) else column


def _each(kinds: Kinds, names: tuple[str, ...], number: int) -> list[Kind]:
    """Return the kind that is asked for of each feature."""
    if isinstance(kinds, str):
        return [kinds] * number
    if not isinstance(kinds, Mapping):
        if len(kinds) != number:
            raise ValueError(f"{len(kinds)} kinds for {number} features")
        return list(kinds)  # type: ignore[arg-type]
    places = {place: place for place in range(number)} | {name: place for place, name in enumerate(names)}
    if unknown := [name for name in kinds if name not in places]:
        there = ", ".join(names) or f"0..{number - 1}"
        raise ValueError(f"kinds has {unknown[0]!r}, which is not one of the features {there}")
    asked = {places[name]: kind for name, kind in kinds.items()}
    return [asked.get(place, "auto") for place in range(number)]


def _settled(column: Tensor | pd.Series, kind: Kind, label: str) -> tuple[str, tuple[Level, ...] | None]:
    """Return the kind of a column, and its levels unless it is read as numbers."""
    if not isinstance(kind, str):
        levels = tuple(map(_plain, kind))
        values = column.tolist() if isinstance(column, Tensor) else _levels(column, label)
        if beyond := [value for value in values if value == value and value not in (None, *levels)]:
            raise ValueError(f"feature {label} has {beyond[0]!r}, which is not among its levels {list(levels)}: add it")
        return "ordinal", levels
    if kind != "auto" and kind not in KINDS:
        raise ValueError(f"kind {kind!r} is none of {', '.join(KINDS)}")
    if isinstance(column, Tensor):
        implied = "continuous" if kind == "auto" and is_continuous(column.cpu().numpy()) else "nominal"
        return implied if kind == "auto" else kind, None
    implied = kind_of(column)
    own = implied if kind == "auto" else kind
    if own in NUMBERS or implied in NUMBERS:
        return own, None
    if own == "ordinal" and implied != "ordinal":
        raise ValueError(f"feature {label} is ordinal: give its levels in order, such as kinds={{{label!r}: [...]}}")
    if hasattr(column, "cat"):
        return own, tuple(_named_categories(column.cat.categories))
    return own, tuple(sorted({level for level in _levels(column, label) if level is not None}, key=_order))


def _read(column: Tensor | pd.Series, levels: list[Level] | None, label: str) -> Float[Tensor, " n"]:
    """Return a column as numbers; values that are not among the levels are added to them."""
    if levels is None:
        return column if isinstance(column, Tensor) else torch.from_numpy(_numbers(column, label))
    values = column.tolist() if isinstance(column, Tensor) else _levels(column, label)
    places = {level: place for place, level in enumerate(levels)}
    codes = [
        torch.nan if value is None or value != value else float(places.setdefault(value, len(places)))
        for value in values
    ]
    levels[:] = list(places)
    return torch.tensor(codes, dtype=torch.float64)


def _numbers(column: pd.Series, label: str) -> np.ndarray:
    numbers = pd.to_numeric(column.astype(object).where(column.notna(), None), errors="coerce")
    if numbers.dtype.kind == "c":
        raise ValueError(f"feature {label} holds complex numbers: give real ones")
    wrong = (numbers.isna() & column.notna()).to_numpy()
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(
            f"feature {label} has {column.iloc[row]!r} in row {row}, which is no number: correct it, or leave it empty"
        )
    return numbers.to_numpy(dtype=float, na_value=np.nan)


def _levels(column: pd.Series, label: str) -> list[Level | None]:
    """Return the values of a column as plain text, numbers and truth values; None where one is missing."""
    found: list[Level | None] = []
    if hasattr(column, "cat"):
        names = [*_named_categories(column.cat.categories), None]
        return [names[code] for code in column.cat.codes]  # -1 where one is missing
    for row, (value, absent) in enumerate(zip(column, column.isna(), strict=True)):
        plain = None if absent else _plain(value)
        if not isinstance(plain, Level | None):
            raise ValueError(
                f"feature {label} has a {type(value).__name__} in row {row}: give text, numbers, truth values or "
                "categories"
            )
        found.append(plain)
    return found


def _named_categories(categories: pd.Index) -> list[Level]:
    """Return categories as they are, or as text where they are of another type, such as the intervals of `pd.cut`."""
    plain = [_plain(value) for value in categories]
    return plain if all(isinstance(value, Level) for value in plain) else [str(value) for value in plain]


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _order(level: Level) -> tuple[bool, Any]:
    return isinstance(level, str), level
