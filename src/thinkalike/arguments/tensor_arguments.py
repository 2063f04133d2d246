"""What the annotation of an argument wants of arrays, and the argument as it wants it."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeGuard

import numpy as np
import torch
from jaxtyping import AbstractArray, Shaped
from torch import Tensor

from thinkalike.arguments.huge_arrays import refuse_huge
from thinkalike.arguments.messages import REAL_NUMBERS, shown
from thinkalike.arguments.tensors import refuse_beyond, refuse_odd, tensor_of
from thinkalike.ranges import Within

NAMES_OF_CLASSES = {str: "text", Callable: "a function", type(None): "None"}


class TensorArgument(NamedTuple):
    """What an annotation wants: a tensor, tensors in a sequence, plain values, or other types.

    Attributes:
        array: The class of jaxtyping that a tensor is of, or Tensor; None: no tensor is wanted.
        items: What the items of a sequence are, if they are tensors.
        is_list: Whether it is a list of plain values.
        further_types: The classes that the annotation names beside tensors.
        by_number: Whether the tensors may be the values of a mapping.
        range: Of all values of a tensor, if these are checked.
        classes: The value is of one of them; empty where the annotation names more than classes.
    """

    array: type | None = None
    items: TensorArgument | None = None
    is_list: bool = False
    further_types: tuple[type, ...] = ()
    by_number: bool = False
    range: Within | None = None
    classes: tuple[type, ...] = ()

    @classmethod
    def of(cls, annotation: object) -> TensorArgument:
        """Return what an annotation wants."""
        if typing.get_origin(annotation) is Annotated:
            inner, *metadata = typing.get_args(annotation)
            ranges = [declared for declared in metadata if isinstance(declared, Within)]
            return cls.of(inner)._replace(range=ranges[0] if ranges else None)

        options: tuple[object, ...] = (annotation,)
        if typing.get_origin(annotation) in (typing.Union, types.UnionType):
            options = typing.get_args(annotation)
        arrays = [option for option in options if _is_array_class(option)]
        further_types = tuple(
            option for option in options if inspect.isclass(option) and option not in arrays
        )
        inside = []
        for option in options:
            if typing.get_origin(option) is Sequence:
                inside.append(cls.of(typing.get_args(option)[0]))
        items = next((item for item in inside if item.array), None)
        return cls(
            arrays[0] if arrays else None,
            items,
            bool(inside) and items is None,
            further_types,
            any(typing.get_origin(option) is Mapping for option in options),
            classes=_classes(options),
        )

    def names_of_axes(self, count: int) -> list[str]:
        """Return what the annotation calls each of so many axes; "" where it has no name for it.

        A name such as *b stands for several axes, which are numbered.
        """
        dims = []
        for dim in getattr(self.array, "dim_str", "").split():
            dims.append(dim.replace("#", "").replace("?", ""))
        several = [position for position, dim in enumerate(dims) if dim.startswith("*")]
        if several:
            position = several[0]
            missing = max(count - len(dims) + 1, 0)
            dims[position : position + 1] = [
                f"{dims[position]}[{axis}]" for axis in range(missing)
            ]
        if len(dims) != count:
            return [""] * count
        return ["" if dim.startswith("_") or dim.isdigit() else dim for dim in dims]

    def read(self, value: object, name: str, device: torch.device | None) -> object:
        """Return an argument as the annotation wants it.

        Args:
            device: Where arrays that are not tensors go.
        """
        if self.classes and not isinstance(value, self.classes):
            wanted = " or ".join(_name_of(option) for option in self.classes)
            raise ValueError(f"{name}={shown(value)} must be {wanted}")
        if self.is_list:
            return _plain_list(value, name)
        if isinstance(value, bool | np.bool_) and self.array is not None:
            raise ValueError(f"{name}={value} must be an array: {REAL_NUMBERS}")
        if isinstance(value, int) and float in self.further_types:
            return float(value)
        if self._takes_as_it_is(value):
            return value

        if self.items and isinstance(value, list | tuple):
            return self._layers(self.items, value, name, device)
        if self.items and self.by_number and isinstance(value, Mapping):
            layers = {}
            for key, layer in value.items():
                layers[key] = self.items.read(layer, f"{name}[{key}]", device)
            return layers
        return self._tensor(value, name, device)

    def _takes_as_it_is(self, value: object) -> bool:
        """Return whether a value is of a class that the annotation names beside tensors."""
        if not (self.array or self.items):
            return True
        return isinstance(value, self.further_types) and not isinstance(value, Tensor)

    def _tensor(self, value: object, name: str, device: torch.device | None) -> object:
        """Return an array as the tensor, or as the layers, that the annotation wants."""
        tensor = tensor_of(value, getattr(self.array, "dtype", Shaped), name)
        if device is not None and not isinstance(value, Tensor):
            tensor = tensor.to(device)
        shape = tuple(tensor.shape)
        if self.items and tensor.ndim < 3:
            raise ValueError(
                f"{name} is one array of shape {shape}: give a list of them, as layers"
            )
        if self.array is None:
            assert self.items is not None
            return self._layers(self.items, list(tensor), name, device)
        if not isinstance(tensor, self.array):
            dims = ", ".join(getattr(self.array, "dim_str", "").split())
            raise ValueError(
                f"{name} has shape {shape}, not ({dims}) in the sizes of other arguments"
            )
        if tensor.ndim > 1 and tensor.shape[-1] == 0:
            raise ValueError(f"{name} has shape {shape}, without columns: give one column or more")
        if self.range is not None:
            refuse_beyond(tensor, self.range, name)
        return tensor

    @staticmethod
    def _layers(
        item: TensorArgument, layers: Sequence[object], name: str, device: torch.device | None
    ) -> Sequence[object]:
        """Return layers as tensors; a list that has them already is returned itself."""
        tensors = []
        for number, layer in enumerate(layers):
            tensors.append(item.read(layer, f"{name}[{number}]", device))
        if all(tensor is layer for tensor, layer in zip(tensors, layers, strict=True)):
            return layers
        return tensors


def _is_array_class(option: object) -> TypeGuard[type]:
    return inspect.isclass(option) and issubclass(option, Tensor | AbstractArray)


def _plain_list(value: object, name: str) -> object:
    refuse_huge(value, name)
    if isinstance(value, Tensor):
        refuse_odd(value, name)
    to_list = getattr(value, "tolist", None)
    return value if to_list is None else to_list()


def _classes(options: Sequence[object]) -> tuple[type, ...]:
    """Return the classes that the options of an annotation name; () if it names more.

    Numbers and arrays are read elsewhere.
    """
    classes: list[Any] = []
    for option in options:
        plain = option
        origin = typing.get_origin(option)
        if origin is Callable:
            plain = Callable
        elif inspect.isclass(origin) and issubclass(origin, typing.Generic):
            plain = origin  # a class of ours with parameters, such as LayerMeasure[Tensor]
        is_nested = typing.get_origin(plain) is not None
        if is_nested or plain in (int, float, bool, Any, object):
            return ()
        if not inspect.isclass(plain) or issubclass(plain, Tensor | AbstractArray):
            return ()
        classes.append(plain)
    return tuple(classes)


def _name_of(wanted: type) -> str:
    return NAMES_OF_CLASSES.get(wanted, f"an object of the class {wanted.__name__}")
