"""One argument becomes a tensor of real numbers, whole numbers or truth values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.arguments.huge_arrays import refuse_huge
from thinkalike.arguments.messages import REAL_NUMBERS, shown
from thinkalike.ranges import EXACT, Within

NAMES = ("groups", "labels")  # whole numbers that stand for names, which may be given themselves
# torch can compute next to nothing of these
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
WHOLE = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    *UNSIGNED,
)
# what NumPy and torch say of what is no array
UNREADABLE = (ValueError, TypeError, RuntimeError, OverflowError)
DEEPEST = 64  # axes that an array of NumPy has at most, and so lists in lists
LARGEST_INT64 = np.iinfo(np.int64).max
BYTES_OF_INT32 = 4


def tensor_of(value: object, kind: object, name: str) -> Tensor:
    """Return a value as a tensor; one that is a tensor of this kind is returned itself.

    Whole numbers where real ones are wanted become float64, halves of an array float32, and short
    whole numbers int64.

    Args:
        value: A tensor, or whatever NumPy makes an array of.
        kind: Float, Int, Bool of jaxtyping, or Shaped, which is any of them.
        name: The name of the value in errors. For `NAMES` names may be given, which are numbered
            as they appear.

    Raises:
        ValueError: It is no array, holds text, complex numbers or dates, lacks a value, has a
            fraction where whole numbers are wanted, or a whole number that float64 does not have
            where real ones are; or it is a tensor without values at hand: sparse, quantised,
            nested or on the device meta. There is too little memory for it.
    """
    if _is_list_of_tensors(value):
        value = _stacked(value, name)  # type: ignore[arg-type]
    if isinstance(value, Tensor):
        tensor = _dense(value, name)
    else:
        array = _array_of(value, name)
        if name in NAMES and not _fits_int64(array):
            return torch.from_numpy(_numbers_of_names(value, array, name))
        tensor = torch.from_numpy(_numeric(array, name))
    return _of_kind(tensor, kind, name)


def _of_kind(tensor: Tensor, kind: object, name: str) -> Tensor:
    """Return a tensor of real or whole numbers, if that kind is wanted."""
    if kind is Float and not tensor.is_floating_point():
        _refuse_inexact(tensor, name)
        return tensor.double()
    if kind is Int and tensor.is_floating_point():
        _refuse_fractions(tensor, name)
        return tensor.long()
    if kind is Int and tensor.dtype.itemsize < BYTES_OF_INT32:  # short numbers index nothing
        return tensor.long()
    return tensor


def _refuse_inexact(tensor: Tensor, name: str) -> None:
    if tensor.dtype == torch.bool or not tensor.numel():
        return
    largest = max(-int(tensor.min()), int(tensor.max()))
    if largest > EXACT:
        raise ValueError(
            f"{name} holds whole numbers beyond 2^53, which float64 cannot tell apart: divide them"
        )


def _refuse_fractions(tensor: Tensor, name: str) -> None:
    refuse_nan(tensor, name)
    if (tensor != tensor.round()).any():
        raise ValueError(f"{name} holds fractions: give whole numbers")
    if not (tensor.abs() < 2**63).all():
        raise ValueError(
            f"{name} holds numbers beyond 2^63, or infinity: give smaller whole numbers"
        )


# ---- tensors


def _is_list_of_tensors(value: object) -> bool:
    if not isinstance(value, list | tuple) or not value:
        return False
    return all(isinstance(item, Tensor) for item in value)


def _stacked(tensors: Sequence[Tensor], name: str) -> Tensor:
    """Return tensors of one shape in one, which keeps gradients."""
    for position, tensor in enumerate(tensors):
        refuse_odd(tensor, f"{name}[{position}]")
    if len({tensor.shape for tensor in tensors}) > 1:
        raise ValueError(f"{name} has rows of unequal lengths: {REAL_NUMBERS}")
    return torch.stack(list(tensors))


def _dense(tensor: Tensor, name: str) -> Tensor:
    """Return a tensor whose numbers are at hand, of a type that torch can compute with."""
    refuse_odd(tensor, name)
    refuse_huge(tensor, name)
    tensor = tensor.resolve_neg()  # NumPy cannot read a view whose sign is still to be changed
    if tensor.dtype in UNSIGNED:
        array = _numeric(tensor.cpu().numpy(), name)
        return torch.from_numpy(array).to(tensor.device)
    return tensor


def refuse_odd(tensor: Tensor, name: str) -> None:
    """Raise a ValueError for a tensor that has no real numbers at hand.

    torch would say so in its own words, without the name.
    """
    is_nested = tensor.is_nested
    if tensor.is_floating_point():
        is_short = tensor.dtype.itemsize < 2
    else:
        is_short = tensor.dtype not in WHOLE
    odd = {
        "complex": tensor.is_complex(),
        "quantised": is_short and not tensor.is_complex(),
        "nested": is_nested,
        "sparse": not is_nested and tensor.layout != torch.strided,
        "on the device meta, without values,": tensor.device.type == "meta",
    }
    for word, is_so in odd.items():
        if is_so:
            raise ValueError(
                f"{name} is a tensor that is {word} and not of real numbers: "
                "give a dense tensor of these"
            )


def refuse_beyond(tensor: Tensor, within: Within, name: str) -> None:
    """Raise a ValueError if a tensor has too few values, or one that is not in a range."""
    if tensor.numel() < within.fewest:
        shape = tuple(tensor.shape)
        raise ValueError(f"{name} has shape {shape}: give {within.fewest} values or more")
    may_be_beyond = within.has_ends or tensor.is_floating_point()
    if not tensor.numel() or tensor.dtype == torch.bool or not may_be_beyond:
        return
    for end in tensor.detach().aminmax():
        number = float(end)
        if number not in within:
            kind = "numbers" if within.allows_infinity else "finite numbers"
            wanted = f"{kind}, {within}".rstrip(", ")
            raise ValueError(f"{name} holds {number:g}: its values must be {wanted}")


def refuse_nan(values: Tensor, name: str) -> None:
    """Raise a ValueError if a tensor holds NaN.

    `tensor_of` leaves tensors as they are, since looking takes time.
    """
    if values.isnan().any():
        _refuse_missing(values.isnan().cpu().numpy(), name)


# ---- arrays of NumPy


def _array_of(value: object, name: str) -> np.ndarray:
    """Return the array that NumPy makes of a value."""
    refuse_huge(value, name)
    refuse_masked(value, name)
    try:
        array = np.asanyarray(value)  # which lets an object give a masked array
    except MemoryError as error:
        raise ValueError(
            f"{name} takes more memory than there is: give fewer rows or columns"
        ) from error
    except UNREADABLE as error:  # lists of lists of unequal lengths
        raise ValueError(
            f"{name} has rows of unequal lengths, or is no array: {REAL_NUMBERS}"
        ) from error
    refuse_masked(array, name)
    return np.asarray(array)


def _fits_int64(array: np.ndarray) -> bool:
    """Return whether an array is of whole numbers that PyTorch has."""
    if array.dtype.kind not in "biu":
        return False
    return array.dtype != np.uint64 or not array.size or int(array.max()) <= LARGEST_INT64


def _numeric(array: np.ndarray, name: str) -> np.ndarray:
    """Return an array of numbers that PyTorch can take over.

    It shares memory where it can be written to.
    """
    if array.dtype.kind == "O":
        array = _numbers_of_objects(array, name)
    kind = array.dtype.kind
    if kind in "US" and array.size:
        raise ValueError(f"{name} holds text, such as {shown(str(array.flat[0]))}: {REAL_NUMBERS}")
    if kind not in "biuf":
        raise ValueError(f"{name} holds {array.dtype}: {REAL_NUMBERS}")
    if kind == "u" and array.size and int(array.max()) > LARGEST_INT64:
        raise ValueError(f"{name} holds whole numbers beyond 2^63: {REAL_NUMBERS}")
    if kind == "f":
        _refuse_missing(np.asarray(np.isnan(array)), name)

    dtype = array.dtype.newbyteorder("=")
    if kind == "u":
        dtype = np.dtype(np.int64)
    elif kind == "f":
        dtype = np.dtype(np.float64 if array.dtype.itemsize > 4 else np.float32)
    return np.require(array, dtype, ["C", "W"])


def _numbers_of_objects(array: np.ndarray, name: str) -> np.ndarray:
    """Return the numbers of an array of objects, as NumPy reads the numbers themselves."""
    import pandas as pd

    _refuse_missing(np.asarray(pd.isna(array)), name)
    try:
        return np.array(array.tolist())
    except UNREADABLE as error:
        raise ValueError(f"{name} holds {array.dtype}: {REAL_NUMBERS}") from error


def _numbers_of_names(value: object, array: np.ndarray, name: str) -> np.ndarray:
    """Return numbers of names in the order in which they appear.

    Args:
        value: The names.
        array: What NumPy makes of them.
    """
    import pandas as pd

    if array.ndim == 0:
        raise ValueError(
            f"{name} is {type(value).__name__}: "
            "give a list, an array or a column of names or whole numbers"
        )
    if isinstance(value, list | tuple) and array.dtype.kind in "USf":
        # NumPy makes the text "nan" of NaN, one text of 1 and "1", and one float of 2^64 - 1 and
        # 2^64 - 2.
        array = np.array(value, dtype=object)
    if array.dtype.kind != "O":
        native = array.astype(array.dtype.newbyteorder("="))  # pandas takes no foreign byte order
        numbers = pd.factorize(native.ravel())[0].reshape(array.shape)
        _refuse_missing(numbers < 0, name)
        return numbers

    _refuse_missing(np.asarray(pd.isna(array)), name)
    number_of: dict[object, int] = {}  # pandas would merge whole numbers beyond 64 bits
    try:
        numbered = [number_of.setdefault(item, len(number_of)) for item in array.ravel()]
    except TypeError as error:
        raise ValueError(
            f"{name} holds lists, sets or the like: give text or whole numbers"
        ) from error
    return np.array(numbered, dtype=np.int64).reshape(array.shape)


def refuse_masked(value: object, name: str, depth: int = 0) -> None:
    """Raise a ValueError if a masked array, also one in a list, has masked values.

    NumPy would read them all the same. A list of millions of numbers is not looked through: its
    first item says whether there are arrays inside.
    """
    if isinstance(value, list | tuple):
        if depth > DEEPEST:
            argument = name.partition("[")[0]
            raise ValueError(f"{argument} contains itself, or is nested too deep: {REAL_NUMBERS}")
        if value and isinstance(value[0], np.ndarray | list | tuple | type(np.ma.masked)):
            for position, item in enumerate(value):
                refuse_masked(item, f"{name}[{position}]", depth + 1)
    elif np.ma.is_masked(value):
        _refuse_missing(np.ma.getmaskarray(np.ma.asanyarray(value)), name)


def _refuse_missing(missing: np.ndarray, name: str) -> None:
    if missing.ndim == 0 and missing:  # it has no rows, one of which could be left out
        raise ValueError(f"{name} is a single missing value, such as None or NaN: {REAL_NUMBERS}")
    if missing.any():
        indices = ", ".join(str(index) for index in np.argwhere(missing)[0].tolist())
        raise ValueError(f"{name} lacks a value at [{indices}]: leave its row out, or fill it in")
