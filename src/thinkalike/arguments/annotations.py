"""Arguments as people have them: an annotation says which tensor a function wants, and whatever comes is made into it.

    @takes_arrays
    def cka(X: Float[Tensor, "n d"], Y: Float[Tensor, "m e"]) -> Float[Tensor, ""]: ...

    cka(states, pd.read_csv("brain.csv"))

A tensor of the right kind stays the very same object, so that gradients, device and memory are those of the caller;
other arrays go to the device of the first tensor. What comes back is always a tensor.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from jaxtyping import AbstractArray, Shaped
from torch import Tensor

from thinkalike.arguments.rows import check_rows
from thinkalike.arguments.values import tensor_of
from thinkalike.errors import nearest

F = TypeVar("F", bound=Callable[..., Any])
NAMES = ("groups", "labels")  # whole numbers that stand for names, which may be given themselves


def takes_arrays(function: F) -> F:
    """Let a function or a method take arrays of any sort where its annotations want tensors, or sequences of them.

    Raises of that function:
        TypeError: an argument is missing, or there is none of its name.
        ValueError: an argument cannot be made into its tensor, see `tensor_of`, or has another shape than its
            annotation; the message names the argument. Tables have their rows in another order, see `check_rows`.
    """
    signature = inspect.signature(function)

    @functools.cache  # annotations are text until the module is complete
    def wanted() -> dict[str, Wanted]:
        hints = typing.get_type_hints(function, include_extras=True)
        found = {name: Wanted.of(hint) for name, hint in hints.items() if name != "return"}
        return {name: each for name, each in found.items() if each.array or each.items or each.is_list}

    @functools.wraps(function)
    def taking(*args: Any, **kwargs: Any) -> Any:
        given = _bound(signature, function.__qualname__, args, kwargs)
        check_rows(given.arguments.items())
        reader = _Reader(_device_of(given.arguments.values()))
        for name, each in wanted().items():
            if name in given.arguments:
                given.arguments[name] = reader.read(given.arguments[name], each, name)
        return function(*given.args, **given.kwargs)

    return taking  # type: ignore[return-value]


def _bound(signature: inspect.Signature, called: str, args: Any, kwargs: Any) -> inspect.BoundArguments:
    """Return the arguments of a call by their names; an error of Python names neither function nor parameters."""
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        names = [name for name in signature.parameters if name != "self"]
        wrong = next((f"; {nearest(name, names)}" for name in kwargs if name not in names), "")
        raise TypeError(f"{called}: {error}{wrong}") from None


@dataclass(frozen=True)
class Wanted:
    """What an annotation wants.

    Attributes:
        array: a tensor: its type, with its kind of numbers and its shape if it names them.
        items: what the items of a sequence are, if they are tensors, too.
        is_list: whether it is a sequence of something else, such as names.
        is_named: whether the items may be a mapping, by their names.
        others: further types, which are taken as they are.
    """

    array: Any = None
    items: Wanted | None = None
    is_list: bool = False
    is_named: bool = False
    others: tuple[type, ...] = ()

    @classmethod
    def of(cls, annotation: Any) -> Wanted:
        """Return what an annotation wants."""
        is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
        parts = typing.get_args(annotation) if is_union else (annotation,)
        arrays = [part for part in parts if inspect.isclass(part) and issubclass(part, Tensor | AbstractArray)]
        others = tuple(part for part in parts if inspect.isclass(part) and part not in arrays)
        several = [part for part in parts if typing.get_origin(part) in (Sequence, Mapping)]
        inside = [cls.of(typing.get_args(part)[-1]) for part in several]
        layers = [each for each in inside if each.array]
        is_named = any(typing.get_origin(part) is Mapping for part in several)
        array = arrays[0] if arrays else None
        return cls(array, layers[0] if layers else None, bool(inside) and not layers, is_named, others)


class _Reader:
    """Reads the arguments of one call, which share a device, and in whose shapes one letter stands for one size."""

    def __init__(self, device: torch.device | None):
        self.device, self.sizes = device, dict[str, int]()
        self.known: dict[tuple[int, Wanted], tuple[Any, Any]] = {}  # given and read, so that one object stays one

    def read(self, value: Any, wanted: Wanted, name: str) -> Any:
        """Return an argument as its annotation wants it."""
        key = id(value), wanted
        if key not in self.known:  # what was given is kept, or another object could take its place and its id
            self.known[key] = value, self._read(value, wanted, name)
        return self.known[key][1]

    def _read(self, value: Any, wanted: Wanted, name: str) -> Any:
        if wanted.is_list:
            return value.tolist() if hasattr(value, "tolist") else value
        if isinstance(value, wanted.others) and not isinstance(value, Tensor):
            return value
        if wanted.items and isinstance(value, Mapping) and not wanted.is_named:
            raise ValueError(f"{name} is a {type(value).__name__}: give a list, such as list({name}.values())")
        if wanted.items and isinstance(value, list | tuple | Mapping):
            return self._layers(value, wanted.items, name)
        tensor = self._tensor(value, wanted.array, name)
        if wanted.items and tensor.ndim < 3:
            raise ValueError(f"{name} is one array of shape {_written(tensor.shape)}: give a list of them, as layers")
        if wanted.array is None:
            return self._layers(list(tensor), wanted.items, name)  # type: ignore[arg-type]
        self._check_shape(tensor, getattr(wanted.array, "dim_str", "..."), name)
        return tensor

    def _tensor(self, value: Any, array: Any, name: str) -> Tensor:
        tensor = tensor_of(value, getattr(array, "dtype", Shaped), name, name in NAMES)
        return tensor if self.device is None or isinstance(value, Tensor) else tensor.to(self.device)

    def _layers(self, layers: Any, wanted: Wanted, name: str) -> Any:
        if isinstance(layers, Mapping):
            return {place: self.read(layer, wanted, f"{name}[{place}]") for place, layer in layers.items()}
        found = [self.read(layer, wanted, f"{name}[{place}]") for place, layer in enumerate(layers)]
        return layers if all(new is old for new, old in zip(found, layers, strict=True)) else found

    def _check_shape(self, tensor: Tensor, dims: str, name: str) -> None:
        """Refuse a tensor of another shape than this, or of other sizes than those that its letters stand for."""
        letters, sizes = dims.split(), list(tensor.shape)
        spread = next((place for place, letter in enumerate(letters) if letter[0] in "*."), None)
        if spread is not None:  # stands for any number of axes
            letters[spread : spread + 1] = ["_"] * max(len(sizes) - len(letters) + 1, 0)
        found = dict(self.sizes)
        named = [pair for pair in zip(letters, sizes, strict=False) if pair[0].isalpha()]
        if len(letters) != len(sizes) or any(found.setdefault(letter, size) != size for letter, size in named):
            there = ", ".join(f"{letter} = {size}" for letter, size in self.sizes.items() if letter in letters)
            where = f" with {there}" if there else ""
            raise ValueError(f"{name} has shape {_written(sizes)}, not ({', '.join(dims.split())}){where}")
        self.sizes = found


def _device_of(arguments: Iterable[Any]) -> torch.device | None:
    """Return the device of the first tensor among arguments, or inside a list of them."""
    for value in arguments:
        if isinstance(value, Tensor):
            return value.device
        if isinstance(value, list | tuple) and (device := _device_of(value[:1])):
            return device
    return None


def _written(shape: Iterable[int]) -> str:
    return f"({', '.join(map(str, shape))})"
