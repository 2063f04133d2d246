"""Copies of prepared layers, which the code of a user may change.

Each prepared layer has one working copy. It is given to every pair with this layer, so that a
cache by its identity or by the address of its memory stays valid; what a pair changed in it is
undone before the next one.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from copy import deepcopy
from numbers import Number
from types import FunctionType
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from thinkalike.code_text import content_of
from thinkalike.errors import one_line

Prepared = TypeVar("Prepared")  # what a measure makes of a layer

# The integers that take as many bytes as a number.
INTEGERS_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class WorkingCopy(Generic[Prepared]):
    """The copy of one prepared layer that all pairs with this layer are given.

    Args:
        original: The prepared layer, which stays as it is.
        measure_name: What errors call the measure.

    Raises:
        ValueError: The layer cannot be copied.
    """

    def __init__(self, original: Prepared, measure_name: str):
        self.original = original
        self.measure_name = measure_name
        self.copy, self._arrays = self._new_copy()
        # Whether comparing a copy with the original tells that the copy was changed. It does not
        # if even a new copy seems to differ, as where an object cannot be taken apart.
        self._shows_changes = is_same(original, self.copy)
        # Copies that could not be restored are kept alive. A new object could otherwise get the
        # `id` of one of them, by which code of the user may have cached something.
        self._spoilt: list[Prepared] = []
        self._twin: WorkingCopy[Prepared] | None = None

    @property
    def twin(self) -> WorkingCopy[Prepared]:
        """A second working copy, for the pair of the layer with itself."""
        if self._twin is None:
            self._twin = WorkingCopy(self.original, self.measure_name)
        return self._twin

    def restore(self) -> bool:
        """Undo all changes of the copy, and return whether there may have been any.

        Tensors and arrays remain the same objects where their values can be written back. If that
        does not undo all changes, or if changes cannot be told, a new copy takes the place of the
        changed one.
        """
        if not self._shows_changes:
            self.copy, self._arrays = self._new_copy()
            return True
        if is_same(self.original, self.copy):
            return False
        changed_copy = self.copy
        if all(_write_back(*pair) for pair in self._arrays):
            # The tensors and arrays are as they were, but the objects that hold them, such as a
            # list, may have been changed, too. They are copied again, around the same tensors and
            # arrays.
            copies = {id(original): copy for original, copy in self._arrays}
            self.copy = copied_layer(self.original, self.measure_name, copies)
            # The values that were written back need no comparison.
            if is_same(self.original, self.copy, known=self._arrays):
                return True
        self._spoilt.append(changed_copy)
        self.copy, self._arrays = self._new_copy()
        return True

    def _new_copy(self) -> tuple[Prepared, list[tuple[Any, Any]]]:
        """Return a new copy, and each tensor or array of the original with the copy of it."""
        # The memo of `deepcopy`: each copy stands under the `id` of its original. Besides, a list
        # of all originals stands under the `id` of the memo, so that none of them is freed.
        copies: dict[int, Any] = {}
        copy = copied_layer(self.original, self.measure_name, copies)
        arrays = []
        for original in copies.get(id(copies), []):
            if isinstance(original, Tensor | np.ndarray) and id(original) in copies:
                arrays.append((original, copies[id(original)]))
        return copy, arrays


def copied_layer(
    original: Prepared, measure_name: str, copies: dict[int, Any] | None = None
) -> Prepared:
    """Return a copy of a prepared layer.

    Args:
        original: The prepared layer.
        measure_name: What errors call the measure.
        copies: By the `id` of a part of the layer, what its copy is to be; those that are made are
            added. It is the memo of `deepcopy`.

    Raises:
        ValueError: It cannot be copied.
    """
    if copies is None:
        copies = {}
    try:
        with _GradientsPassCopies():
            copy = deepcopy(original, copies)
        # `deepcopy` keeps all that it copied in a list, under the `id` of the dictionary.
        for part in [original, *copies.get(id(copies), [])]:
            for held in [part, *gc.get_referents(part)]:
                if isinstance(held, FunctionType) and _holds_values(held, set()):
                    raise TypeError(f"the function {held.__qualname__} holds values")
    except Exception as error:  # an object may raise any when it is copied
        raise ValueError(
            f"what {measure_name}.prepare returns cannot be copied for each pair "
            f"({one_line(error)}): return tensors or arrays, or if nothing changes it, an "
            "object whose __deepcopy__ returns itself"
        ) from error
    return copy


class _GradientsPassCopies(TorchFunctionMode):
    """Lets `deepcopy` clone tensors with a gradient, which it refuses or would detach."""

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func is Tensor.__deepcopy__ and args[0].requires_grad:
            tensor, copies = args
            if id(tensor) not in copies:
                copies[id(tensor)] = tensor.clone()
            return copies[id(tensor)]
        return func(*args, **(kwargs or {}))


def _holds_values(function: FunctionType, seen: set[int]) -> bool:
    """Return whether a function, which `deepcopy` does not copy, holds values that may change.

    They are in the variables of its closure and in its defaults, and in those of functions there.

    Args:
        function: The function.
        seen: The `id` of each function that was looked at before.
    """
    seen.add(id(function))
    variables = [content_of(cell) for cell in function.__closure__ or ()]
    variables += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for variable in variables:
        if isinstance(variable, FunctionType):
            if id(variable) not in seen and _holds_values(variable, seen):
                return True
        elif deepcopy(variable) is not variable:
            return True
    return False


def is_same(original: object, copy: object, known: Sequence[tuple[Any, Any]] = ()) -> bool:
    """Return whether a copy is known to be as its original is, to the bit.

    Both are taken apart as `deepcopy` does.

    Args:
        original, copy: The objects.
        known: Pairs of a part of the original and its copy that are taken to be the same, without
            a comparison.
    """
    compared = {(id(first), id(second)): (first, second) for first, second in known}
    try:
        return _has_same_parts(original, copy, compared)
    except Exception:  # an object may raise any when it is taken apart
        return False


def _has_same_parts(first: Any, second: Any, compared: dict[tuple[int, int], Any]) -> bool:
    """Return whether two objects are the same, part by part.

    Args:
        first, second: The objects.
        compared: By their `id`, the two objects of each comparison so far: an object may contain
            itself. The objects are held, so that no other object gets their `id`.
    """
    if first is second:
        return True
    if type(first) is not type(second):
        return False
    if (id(first), id(second)) in compared:
        return True
    compared[id(first), id(second)] = (first, second)

    if isinstance(first, Tensor | np.ndarray):
        if isinstance(first, Tensor):
            has_same_values = _has_same_bits(first, second)
        else:
            has_same_values = _has_same_elements(first, second)
        attributes = getattr(first, "__dict__", None), getattr(second, "__dict__", None)
        return has_same_values and _has_same_parts(*attributes, compared)
    if isinstance(first, Number | str | bytes | bytearray):
        return bool(first == second)
    if type(first) is dict:
        return _has_same_parts([*first.items()], [*second.items()], compared)
    if type(first) in (list, tuple):
        return len(first) == len(second) and all(
            _has_same_parts(part, other, compared)
            for part, other in zip(first, second, strict=True)
        )
    return _has_same_parts(_parts_of(first), _parts_of(second), compared)


def _parts_of(value: object) -> list[object]:
    """Return what `deepcopy` makes the copy of an object from: its class, state, and items."""
    reduced = value.__reduce_ex__(4)
    if isinstance(reduced, str):  # the name of a global object, of which there is one
        raise TypeError(f"{reduced} has no parts")
    # The fourth and the fifth are iterators over the items of a list and of a dictionary.
    return [*reduced[:3], *(None if items is None else [*items] for items in reduced[3:5])]


def _has_same_bits(first: Tensor, second: Tensor) -> bool:
    """Return whether two tensors have the same shape, dtype and device, and the same bits."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if first.device != second.device or first.requires_grad != second.requires_grad:
        return False
    integers = _as_integers(first), _as_integers(second)
    if first.is_cpu:
        return _has_same_elements(integers[0].numpy(), integers[1].numpy())  # faster than of torch
    return torch.equal(*integers)


def _as_integers(tensor: Tensor) -> Tensor:
    """Return the bits of a tensor as integers, so that NaN equals itself and -0.0 is not 0.0."""
    values = tensor.detach()
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj())
    return values.view(INTEGERS_OF_SIZE[values.element_size()])


def _has_same_elements(first: np.ndarray, second: np.ndarray) -> bool:
    """Return whether two arrays of NumPy have the same shape, dtype and bits."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if first.dtype.hasobject:
        return is_same(first.tolist(), second.tolist())
    arrays = np.atleast_1d(np.asarray(first)), np.atleast_1d(np.asarray(second))
    if first.dtype.itemsize not in INTEGERS_OF_SIZE:
        return arrays[0].tobytes() == arrays[1].tobytes()
    integers = [array.view(f"i{first.dtype.itemsize}") for array in arrays]
    first_rows = [array[:1] for array in integers]  # most changes show there
    return all(np.array_equal(rows, others) for rows, others in (first_rows, integers))


def _write_back(original: Any, changed: Any) -> bool:
    """Write the values of an original into a changed copy; return whether that was possible."""
    if changed.shape != original.shape or changed.dtype != original.dtype:
        return False
    try:
        if isinstance(original, np.ndarray):
            changed[...] = original
            return not original.dtype.hasobject
        if changed.requires_grad:  # the gradient of a pair may still need the changed values
            return False
        with torch.no_grad():
            changed.copy_(original)
        changed.__dict__ = deepcopy(original.__dict__)
    except Exception:  # memory may be read-only, or shared by several entries
        return False
    return True
