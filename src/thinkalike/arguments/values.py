"""Values as people have them, in arrays, tables and lists, as tensors of real or whole numbers, or of truth values."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor


class HasArray(Protocol):
    """Whatever NumPy makes an array of: its own arrays, DataFrames, Series, and those of other libraries."""

    def __array__(self) -> Any: ...


if TYPE_CHECKING:
    Array = Tensor | HasArray | list[Any] | tuple[Any, ...]  # what a user may give
else:
    Array = Tensor  # what a function gets

NUMBERS = "give real numbers, as a tensor, an array, a DataFrame or a list"


def tensor_of(value: Any, kind: Any, name: str, named: bool = False) -> Tensor:
    """Return a value as a tensor; one that is a tensor of this kind is returned itself.

    Whole numbers where real ones are wanted become float64, halves of an array float32, and short whole numbers int64.

    Args:
        value: a tensor, or whatever NumPy makes an array of.
        kind: of jaxtyping: Float, Int, Bool, or Shaped, which is any of them.
        name: what an error calls the value.
        named: whether whole numbers stand for names, which may be given themselves; they are numbered as they appear.

    Raises:
        ValueError: it is no array, a sparse tensor, holds text, complex numbers or dates, lacks a value, or has a
            fraction where whole numbers are wanted.
    """
    if isinstance(value, Tensor):
        if value.is_complex():
            raise ValueError(f"{name} holds complex numbers: {NUMBERS}")
        if value.layout is not torch.strided:
            raise ValueError(f"{name} is a sparse tensor: give {name}.to_dense()")
        return _converted(value, kind, name, named)
    if stacked := _stacked(value):
        return _converted(torch.stack(stacked), kind, name, named)
    array = _array(value, name)
    if named and array.dtype.kind not in "biu":
        return _numbered(array, name)
    return _converted(torch.from_numpy(_numeric(array, name)), kind, name, named)


def refuse_nan(values: Tensor, name: str) -> None:
    """Raise a ValueError if a tensor holds NaN; `tensor_of` leaves tensors as they are, since looking takes time."""
    if values.isnan().any():
        _refuse_missing(values.isnan().cpu().numpy(), name)


def seeded(seed: int) -> torch.Generator:
    """Return a generator of random numbers; the seed may be a whole number of NumPy's, too."""
    return torch.Generator().manual_seed(int(seed))


def _stacked(value: Any) -> list[Tensor]:
    """Return the tensors of a list of nothing else, which keep their gradients."""
    is_list = isinstance(value, list | tuple) and bool(value)
    alike = is_list and all(isinstance(each, Tensor) and each.shape == value[0].shape for each in value)
    return list(value) if alike else []


def _converted(values: Tensor, kind: Any, name: str, named: bool) -> Tensor:
    if kind is Float and not values.is_floating_point():
        return values.double()
    if kind is Int and values.dtype.itemsize < 4 and not values.is_floating_point():
        return values.long()  # truth values, and short numbers that index nothing
    if kind is Int and values.is_floating_point():
        if named:
            return _numbered(values.detach().cpu().numpy(), name)
        if (values != values.round()).any():
            wrong = values[values != values.round()].flatten()[0].item()
            raise ValueError(f"{name} holds {wrong:g}: give whole numbers")
        return values.long()
    return values


def _array(value: Any, name: str) -> np.ndarray:
    """Return a value as an array, whatever it holds; a masked one has None where it is masked."""
    if isinstance(value, str | bytes | dict | set) or callable(value):
        raise ValueError(f"{name} is a {type(value).__name__}: {NUMBERS}")
    if isinstance(value, np.ma.MaskedArray):
        return np.where(np.ma.getmaskarray(value), np.array(None, dtype=object), value.data.astype(object))
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{name} is no array, {_reason(error)}: {NUMBERS}") from None
    if array.dtype == object and array.ndim == 0:
        raise ValueError(f"{name} is {'None' if value is None else f'a {type(value).__name__}'}: {NUMBERS}")
    return array


def _reason(error: Exception) -> str:
    return "as its rows differ in length" if "inhomogeneous" in str(error) else str(error).splitlines()[0]


def _numeric(array: np.ndarray, name: str) -> np.ndarray:
    """Return an array of numbers that PyTorch can take over; it shares memory where it can be written to."""
    if array.dtype.kind == "O":
        array = _from_objects(array, name)
    if array.dtype.kind not in "biuf":
        what = {"U": "text", "S": "text", "c": "complex numbers"}.get(array.dtype.kind, f"values of type {array.dtype}")
        raise ValueError(f"{name} holds {what}{_shown(array)}: {NUMBERS}")
    if array.dtype.kind == "f":
        _refuse_missing(np.isnan(array), name)
        array = array.astype(np.promote_types(array.dtype, np.float32), copy=False)
        array = array.astype(np.float64) if array.dtype.itemsize > 8 else array
    if array.dtype.kind == "u":
        array = array.astype(np.int64)
    array = np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")
    return array if array.flags.writeable else array.copy()


def _from_objects(array: np.ndarray, name: str) -> np.ndarray:
    """Return the numbers of an array of objects."""
    flat = array.ravel().tolist()
    _refuse_missing(np.array([_is_missing(each) for each in flat], dtype=bool).reshape(array.shape), name)
    for each in flat:
        if isinstance(each, str | bytes) or not hasattr(type(each), "__float__"):
            raise ValueError(f"{name} holds {each!r:.40}: {NUMBERS}")
    whole = all(isinstance(each, int) for each in flat)
    return np.array([each if whole else float(each) for each in flat]).reshape(array.shape)


def _is_missing(value: Any) -> bool:
    """Return whether this is None, pd.NA, pd.NaT or NaN, which are not even equal to themselves."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or value != value


def _refuse_missing(missing: np.ndarray, name: str) -> None:
    if missing.any():
        place = ", ".join(map(str, np.argwhere(missing)[0].tolist()))
        raise ValueError(f"{name} lacks a value at [{place}]: leave its row out, or fill it in")


def _numbered(array: np.ndarray, name: str) -> Tensor:
    """Return the numbers from 0 of names, in the order in which they appear."""
    flat: list[Hashable] = array.ravel().tolist()
    _refuse_missing(np.array([_is_missing(each) for each in flat], dtype=bool).reshape(array.shape), name)
    numbers: dict[Hashable, int] = {}
    return torch.tensor([numbers.setdefault(each, len(numbers)) for each in flat]).view(array.shape)


def _shown(array: np.ndarray) -> str:
    return f" ({array.flat[0]!s:.40})" if array.size and array.dtype.kind in "US" else ""
