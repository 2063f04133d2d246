"""Arguments as people have them: arrays, tables and lists become tensors at the edge, in the public functions.

    cka = takes_arrays(cka)                  # as `thinkalike.measures` does with every function that it exports
    cka(states, pd.read_csv("brain.csv"))

The annotation of an argument says which tensor a function wants. A tensor of that kind stays the very same object, so
that gradients, device and memory are the caller's; other arrays go to the device of the first tensor.

It also says which numbers: `k: Count` takes neither 5.0 nor True, and a `Level` is between 0 and 1. Python would take
True for 1, and torch ends in an error of its own that names no argument. Of an array `Annotated[Float[Tensor, "n"],
Within(least=0, fewest=1)]` says which values it holds, and at least how many; without `Within` it may hold NaN. An
annotation that names classes alone, such as `str`, `RowGroups | None` or a `Callable`, takes nothing else.

All this is checked at the public door alone. Code inside calls the functions of the modules themselves.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import math
import numbers
import operator
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, ParamSpec, TypeVar

import jaxtyping
import numpy as np
import torch
from jaxtyping import AbstractArray, Float, Int, Shaped
from torch import Tensor
from torch.utils._pytree import tree_leaves

from thinkalike.errors import listed, plain_line
from thinkalike.memory import CPU, available_bytes, out_of_memory_error, readable
from thinkalike.ranges import EXACT
from thinkalike.ranges import Within as Within

P = ParamSpec("P")
R = TypeVar("R")
NAMES = ("groups", "labels")  # whole numbers that stand for names, which may be given themselves
NUMBERS = "give real numbers, as a tensor, an array, a DataFrame or a list"
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)  # of which torch can compute next to nothing
UNREADABLE = (ValueError, TypeError, RuntimeError, OverflowError)  # what NumPy and torch say of what is no array
LONG = 4096  # bits of a whole number that a message writes out; Python refuses to write much longer ones
DEPTH = 64  # axes that an array of NumPy has at most, and so lists in lists
ALWAYS_THERE = 2**28  # bytes that any machine has, so that nobody needs to ask what is left
WHOLE = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, *UNSIGNED)


MOST_REPETITIONS = 10**6  # each repeats the whole computation, and p-values of a million draws have four digits
Count = Annotated[int, Within(least=1, below=2**63)]
Size = Annotated[int, Within(least=0, most=10**7)]  # of an array that a function makes
Repetitions = Annotated[int, Within(least=1, most=MOST_REPETITIONS)]  # random repetitions, such as permutations
RepetitionsOrNone = Annotated[int, Within(least=0, most=MOST_REPETITIONS)]  # 0 leaves them out
Seed = Annotated[int, Within(least=0, below=2**63)]
BatchNumber = Annotated[int | None, Within(least=0, below=2**63)]  # None: the next one
Level = Annotated[float, Within(above=0, below=1)]  # a probability, such as 0.95 for 95 %


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raise a ValueError unless a value is one of the choices."""
    if not isinstance(value, str) or value not in choices:  # an array would compare its items
        raise ValueError(f"{name}={shown(value)} is unknown: choose {', '.join(choices)}")


@contextlib.contextmanager
def in_plain_lines() -> Iterator[None]:
    """Let errors have no control characters and no line breaks, which a name that was given may have."""
    try:
        yield
    except ValueError as error:
        if type(error) is ValueError:
            error.args = (plain_line(str(error)),)
        raise


def takes_arrays(function: Callable[P, R]) -> Callable[..., R]:
    """Let a function or a method take arrays of any sort where its annotations want tensors, or sequences of them.

    Raises of that function:
        ValueError: An argument cannot be made into its tensor, see `tensor_of`, or has another shape than its
            annotation; the message names the argument. Tables have their rows in another order, see `check_rows`.
            States have no units, as an array of shape (n, 0), or a list is nested without end. There is too little
            memory for an array, or for what the function makes of it.
    """
    signature = inspect.signature(function)

    @functools.cache  # annotations are text until the module is complete
    def wanted() -> dict[str, _Wanted]:
        hints = typing.get_type_hints(function, include_extras=True)
        return {name: _Wanted.of(hint) for name, hint in hints.items() if name != "return"}

    @functools.wraps(function)
    def taking(*args: Any, **kwargs: Any) -> R:
        given = signature.bind(*args, **kwargs)
        try:
            with in_plain_lines():
                return _called(given)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory_error(error):
                raise
            name = function.__qualname__.removesuffix(".__init__")
            raise ValueError(f"{name} needs more memory than there is for {_sizes(given.arguments)}") from error

    def _called(given: inspect.BoundArguments) -> R:
        given.arguments.update(checked_numbers(function, given.arguments))
        check_rows(given.arguments.items(), wanted())
        tensors = (each for each in _leaves(given.arguments) if isinstance(each, Tensor))
        devices = (each.device for each in tensors)
        device = next((each for each in devices if each.type != "meta"), None)  # where an array would lose its values
        with jaxtyping.jaxtyped("context"):  # in which each letter of a shape stands for one size
            for name, each in wanted().items():
                if name in given.arguments:
                    given.arguments[name] = each.read(given.arguments[name], name, device)
        return function(*given.args, **given.kwargs)

    return taking


def _sizes(arguments: Mapping[str, Any]) -> str:
    """Return the shapes of all arrays among arguments, and the whole numbers, as a message has them."""
    sizes = []
    for name, value in arguments.items():
        if type(value) is int:
            sizes.append(f"{name}={shown(value)}")
        layers = value if isinstance(value, list | tuple) else [value]
        for place, layer in enumerate(layers):
            if hasattr(layer, "shape") and hasattr(layer, "ndim"):
                place_in_list = "" if layer is value else f"[{place}]"
                sizes.append(f"{name}{place_in_list} of shape {tuple(layer.shape)}")
    return listed(sizes)


def refuse_huge(value: Any, name: str) -> None:
    """Raise a ValueError if an array stands for more numbers than there is memory, in which it does not lie itself.

    Those are arrays that repeat a few numbers, as `torch.Tensor.expand` and `numpy.broadcast_to` make them, and files
    that are mapped. What computes with one has to lay it out.
    """
    if isinstance(value, Tensor):
        size, device = value.numel() * value.element_size(), value.device
        is_in_memory = size <= ALWAYS_THERE or size <= value.untyped_storage().nbytes()
    elif isinstance(value, np.ndarray):
        size, device = value.nbytes, CPU
        repeats = any(step == 0 and length > 1 for step, length in zip(value.strides, value.shape, strict=True))
        is_in_memory = size <= ALWAYS_THERE or not (repeats or isinstance(value, np.memmap))
    elif isinstance(value, range):
        size, device = 8 * (abs(value.stop - value.start) // abs(value.step)), CPU
        is_in_memory = size <= ALWAYS_THERE
    else:
        return
    if is_in_memory:
        return
    room = available_bytes(device)
    if size > room:
        shape = tuple(getattr(value, "shape", ())) or (size // 8,)
        raise ValueError(
            f"{name} has shape {shape}, which takes {readable(float(size))}, and there is {readable(float(room))} of "
            "memory: give fewer rows or columns"
        )


def _leaves(arguments: Mapping[str, Any]) -> Iterator[Any]:
    """Yield all values in lists and mappings; a ValueError names an argument whose list contains itself."""
    for name, value in arguments.items():
        try:
            leaves = tree_leaves(value)
        except RecursionError as error:
            raise ValueError(f"{name} contains itself: {NUMBERS}") from error
        yield from leaves


def checked_numbers(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return those arguments of a function whose annotations say that they are numbers or switches, once checked.

    Raises:
        ValueError: A number is text, True or not in its range, a switch is not True or False; the message names it.
    """
    wanted = _numbers_of(function)
    return {name: wanted[name].checked(name, value) for name, value in arguments.items() if name in wanted}


@functools.cache
def _numbers_of(function: Callable[..., Any]) -> dict[str, _Number]:
    hints = typing.get_type_hints(function, include_extras=True)
    return {name: number for name, hint in hints.items() if (number := _Number.of(hint)) and name != "return"}


class _Number(NamedTuple):
    """What an annotation says of numbers, truth values and text."""

    types: frozenset[type]  # of int, float, bool, str and None
    range: Within
    is_alone: bool  # whether the annotation has no other types

    @classmethod
    def of(cls, annotation: Any) -> _Number | None:
        """Return what an annotation says; None: it is not of numbers or switches."""
        options, within = [annotation], Within()
        while any(typing.get_origin(each) in (Annotated, typing.Union, types.UnionType) for each in options):
            inner: list[Any] = []
            for option in options:
                is_nested = typing.get_origin(option) in (Annotated, typing.Union, types.UnionType)
                ranges = [each for each in getattr(option, "__metadata__", ()) if isinstance(each, Within)]
                within = ranges[0] if ranges else within
                is_annotated = typing.get_origin(option) is Annotated
                inside = typing.get_args(option)[:1] if is_annotated else typing.get_args(option)
                inner += inside if is_nested else [option]
            options = inner
        plain = {option for option in options if option in (int, float, bool, str, type(None))}
        if not plain & {int, float, bool}:
            return None
        return cls(frozenset(plain), within, len(plain) == len(set(map(str, options))))

    def checked(self, name: str, value: Any) -> Any:
        """Return an argument as a number of Python, if it is one; a ValueError if it is nothing that is wanted."""
        if isinstance(value, bool | np.bool_):
            if bool in self.types:
                return bool(value)
        elif bool not in self.types or self.types & {int, float}:
            if (value is None or isinstance(value, str)) and type(value) in self.types:
                return value
            number = self.number(value)
            if number is not None and number in self.range:
                return number
            if not self.is_alone and not isinstance(value, numbers.Number | str | bytes):
                return value  # of one of its other types, which the function itself reads
        elif value is None and type(None) in self.types:
            return value
        raise ValueError(f"{name}={shown(value)} must be {self}")

    def number(self, value: Any) -> int | float | None:
        """Return a value as a number of Python, in any range; None if it is none."""
        if isinstance(value, Tensor) and (value.ndim or value.dtype == torch.bool or value.is_meta):
            return None
        try:
            whole = operator.index(value)
        except (TypeError, RuntimeError):
            if float not in self.types or not isinstance(value, numbers.Real):
                return None
            try:
                number = float(value)
            except OverflowError:  # of a Fraction
                return None
            return None if math.isnan(number) else number
        is_beyond_floats = float in self.types and abs(whole) > sys.float_info.max
        return None if is_beyond_floats else whole

    def __str__(self) -> str:
        words = {float: "a finite number", int: "a whole number", str: "text", bool: "True or False"}
        wanted = next(word for kind, word in words.items() if kind in self.types)
        described = f"{wanted}, {self.range}".rstrip(", ")
        may_be_text = str in self.types and wanted != words[str]
        return f"{described} or text" if may_be_text else described


def real_numbers(values: Any, within: Within) -> list[float]:
    """Return one number, or those of a list or an array; none if one of them is no real number in this range."""
    try:
        values = values.tolist() if hasattr(values, "tolist") else values
    except (RuntimeError, NotImplementedError):  # of a tensor that is sparse or on the device meta
        return []
    wanted = _Number(frozenset({float}), within, is_alone=True)
    numbers = []
    for value in values if isinstance(values, list | tuple) else [values]:
        number = None if isinstance(value, bool | np.bool_) else wanted.number(value)
        if number is None or number not in within:
            return []
        numbers.append(float(number))
    return numbers


def shown(value: Any) -> str:
    """Return a value as a message has it: in one line, shortened."""
    if isinstance(value, int) and value.bit_length() > LONG:
        return "-10^..." if value < 0 else f"10^{int(value.bit_length() * math.log10(2))}"
    try:
        text = " ".join(repr(value).split())
    except Exception:  # such as of a list of numbers that Python refuses to write
        text = f"<{type(value).__name__}>"
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= 60 else f"{text[:57]}..."


class _Wanted(NamedTuple):
    """What an annotation wants: a tensor, tensors in a sequence, a list of plain values, or other types."""

    array: Any = None
    items: _Wanted | None = None
    is_list: bool = False
    others: tuple[type, ...] = ()
    by_number: bool = False  # whether the tensors may be the values of a mapping
    range: Within | None = None  # of all values of a tensor, if these are checked
    classes: tuple[type, ...] = ()  # of one of which the value is; empty where the annotation names more than classes

    @classmethod
    def of(cls, annotation: Any) -> _Wanted:
        if typing.get_origin(annotation) is Annotated:
            tensor, *metadata = typing.get_args(annotation)
            ranges = [each for each in metadata if isinstance(each, Within)]
            return cls.of(tensor)._replace(range=ranges[0] if ranges else None)
        is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
        options = typing.get_args(annotation) if is_union else (annotation,)
        arrays = [each for each in options if inspect.isclass(each) and issubclass(each, Tensor | AbstractArray)]
        others = tuple(each for each in options if inspect.isclass(each) and each not in arrays)
        inside = [cls.of(typing.get_args(each)[0]) for each in options if typing.get_origin(each) is Sequence]
        layers = next((each for each in inside if each.array), None)
        by_number = any(typing.get_origin(each) is Mapping for each in options)
        return cls(
            arrays[0] if arrays else None,
            layers,
            bool(inside) and not layers,
            others,
            by_number,
            classes=_classes(options),
        )

    def names_of_axes(self, count: int) -> list[str]:
        """Return what the annotation of a tensor calls each axis of one with so many; "" where it has no name for it.

        A name such as *b stands for several axes, which are numbered.
        """
        dims = [dim.replace("#", "").replace("?", "") for dim in getattr(self.array, "dim_str", "").split()]
        several = next((place for place, dim in enumerate(dims) if dim.startswith("*")), None)
        if several is not None:
            missing = max(count - len(dims) + 1, 0)
            axes = [f"{dims[several]}[{number}]" for number in range(missing)]
            dims[several : several + 1] = axes
        if len(dims) != count:
            return [""] * count
        return ["" if dim.startswith("_") or dim.isdigit() else dim for dim in dims]

    def read(self, value: Any, name: str, device: torch.device | None) -> Any:
        """Return an argument as the annotation wants it."""
        if self.classes and not isinstance(value, self.classes):
            wanted = " or ".join(_name_of(each) for each in self.classes)
            raise ValueError(f"{name}={shown(value)} must be {wanted}")
        if self.is_list:
            refuse_huge(value, name)
            if isinstance(value, Tensor):
                _refuse_odd(value, name)
            return value.tolist() if hasattr(value, "tolist") else value
        if isinstance(value, bool | np.bool_) and self.array is not None:
            raise ValueError(f"{name}={value} must be an array: {NUMBERS}")
        if isinstance(value, int) and float in self.others:
            return float(value)
        if not (self.array or self.items) or (isinstance(value, self.others) and not isinstance(value, Tensor)):
            return value
        if self.items and isinstance(value, list | tuple):
            return self._layers(value, name, device)
        if self.items and self.by_number and isinstance(value, Mapping):
            return {place: self.items.read(each, f"{name}[{place}]", device) for place, each in value.items()}
        tensor = tensor_of(value, getattr(self.array, "dtype", Shaped), name)
        tensor = tensor if device is None or isinstance(value, Tensor) else tensor.to(device)
        if self.items and tensor.ndim < 3:
            raise ValueError(f"{name} is one array of shape {tuple(tensor.shape)}: give a list of them, as layers")
        if self.array is None:
            return self._layers(list(tensor), name, device)
        if not isinstance(tensor, self.array):
            dims = ", ".join(self.array.dim_str.split())
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, not ({dims}) in the sizes of other arguments")
        if tensor.ndim > 1 and tensor.shape[-1] == 0:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, without columns: give one column or more")
        if self.range is not None:
            _refuse_beyond(tensor, self.range, name)
        return tensor

    def _layers(self, layers: Sequence[Any], name: str, device: torch.device | None) -> Sequence[Any]:
        found = [self.items.read(layer, f"{name}[{place}]", device) for place, layer in enumerate(layers)]  # type: ignore[union-attr]
        return layers if all(new is old for new, old in zip(found, layers, strict=True)) else found


def _classes(options: Sequence[Any]) -> tuple[type, ...]:
    """Return the classes that the options of an annotation name, of which numbers and arrays are read elsewhere."""
    classes = []
    for option in options:
        plain = option
        origin = typing.get_origin(option)
        if origin is Callable:
            plain = Callable
        elif inspect.isclass(origin) and issubclass(origin, typing.Generic):  # type: ignore[arg-type]
            plain = origin  # a class of ours with parameters, such as LayerMeasure[Tensor]
        is_read_elsewhere = plain in (int, float, bool, Any, object) or typing.get_origin(plain) is not None
        if is_read_elsewhere or not inspect.isclass(plain) or issubclass(plain, Tensor | AbstractArray):
            return ()
        classes.append(plain)
    return tuple(classes)


def _name_of(wanted: type) -> str:
    names = {str: "text", Callable: "a function", type(None): "None"}
    return names.get(wanted, f"an object of the class {wanted.__name__}")


def tensor_of(value: Any, kind: Any, name: str) -> Tensor:
    """Return a value as a tensor; one that is a tensor of this kind is returned itself.

    Whole numbers where real ones are wanted become float64, halves of an array float32, and short whole numbers int64.

    Args:
        value: A tensor, or whatever NumPy makes an array of.
        kind: Float, Int, Bool of jaxtyping, or Shaped, which is any of them.
        name: The name of the value in errors. Of `NAMES` names may be given, which are numbered as they appear.

    Raises:
        ValueError: It is no array, holds text, complex numbers or dates, lacks a value, has a fraction where whole
            numbers are wanted, or a whole number that float64 does not have where real ones are; or it is a tensor
            without values at hand: sparse, quantised, nested or on the device meta. There is too little memory for it.
    """
    if isinstance(value, list | tuple) and value and all(isinstance(each, Tensor) for each in value):
        for place, each in enumerate(value):
            _refuse_odd(each, f"{name}[{place}]")
        if len({each.shape for each in value}) > 1:
            raise ValueError(f"{name} has rows of unequal lengths: {NUMBERS}")
        value = torch.stack(list(value))  # which keeps gradients
    if isinstance(value, Tensor):
        _refuse_odd(value, name)
        refuse_huge(value, name)
        value = value.resolve_neg()  # NumPy cannot read a view whose sign is still to be changed
        if value.dtype in UNSIGNED:
            value = torch.from_numpy(_numeric(value.cpu().numpy(), name)).to(value.device)
    else:
        refuse_huge(value, name)
        refuse_masked(value, name)
        try:
            array = np.asanyarray(value)  # which lets an object give a masked array
        except MemoryError as error:
            raise ValueError(f"{name} takes more memory than there is: give fewer rows or columns") from error
        except UNREADABLE as error:  # lists of lists of unequal lengths
            raise ValueError(f"{name} has rows of unequal lengths, or is no array: {NUMBERS}") from error
        refuse_masked(array, name)
        array = np.asarray(array)
        is_beyond_int64 = array.dtype == np.uint64 and array.size > 0 and int(array.max()) > np.iinfo(np.int64).max
        if name in NAMES and (array.dtype.kind not in "biu" or is_beyond_int64):
            return torch.from_numpy(_numbers_of_names(value, array, name))
        value = torch.from_numpy(_numeric(array, name))
    if kind is Float and not value.is_floating_point():
        if value.dtype != torch.bool and value.numel() and max(-int(value.min()), int(value.max())) > EXACT:
            raise ValueError(f"{name} holds whole numbers beyond 2^53, which float64 cannot tell apart: divide them")
        return value.double()
    if kind is Int and value.is_floating_point():
        refuse_nan(value, name)
        if (value != value.round()).any():
            raise ValueError(f"{name} holds fractions: give whole numbers")
        if not (value.abs() < 2**63).all():
            raise ValueError(f"{name} holds numbers beyond 2^63, or infinity: give smaller whole numbers")
        return value.long()
    return value.long() if kind is Int and value.dtype.itemsize < 4 else value  # short numbers index nothing


def _numbers_of_names(value: Any, array: np.ndarray, name: str) -> np.ndarray:
    """Return numbers of names in the order in which they appear, from a value and the array that NumPy makes of it."""
    import pandas as pd

    if array.ndim == 0:
        kind = type(value).__name__
        raise ValueError(f"{name} is {kind}: give a list, an array or a column of names or whole numbers")
    if isinstance(value, list | tuple) and array.dtype.kind in "USf":
        # NumPy makes the text "nan" of NaN, one text of 1 and "1", and one float of 2^64 - 1 and 2^64 - 2.
        array = np.array(value, dtype=object)
    if array.dtype.kind != "O":
        native = array.astype(array.dtype.newbyteorder("="))  # pandas takes no foreign byte order
        numbers = pd.factorize(native.ravel())[0].reshape(array.shape)
        _refuse_missing(numbers < 0, name)
        return numbers
    _refuse_missing(np.asarray(pd.isna(array)), name)
    places: dict[Any, int] = {}  # pandas would merge whole numbers beyond 64 bits
    try:
        numbers = np.array([places.setdefault(each, len(places)) for each in array.ravel()], dtype=np.int64)
    except TypeError as error:
        raise ValueError(f"{name} holds lists, sets or the like: give text or whole numbers") from error
    return numbers.reshape(array.shape)


def refuse_masked(value: Any, name: str, depth: int = 0) -> None:
    """Raise a ValueError if a masked array, also one in a list, has masked values, which NumPy would read all the same.

    A list of millions of numbers is not looked through: its first item says whether there are arrays inside.
    """
    if isinstance(value, list | tuple):
        if depth > DEPTH:
            raise ValueError(f"{name.partition('[')[0]} contains itself, or is nested too deep: {NUMBERS}")
        if value and isinstance(value[0], np.ndarray | list | tuple | type(np.ma.masked)):
            for place, each in enumerate(value):
                refuse_masked(each, f"{name}[{place}]", depth + 1)
    elif np.ma.is_masked(value):
        _refuse_missing(np.ma.getmaskarray(value), name)


def _refuse_odd(tensor: Tensor, name: str) -> None:
    """Raise a ValueError of a tensor that has no real numbers at hand, of which torch would say so in its own words."""
    is_nested = tensor.is_nested
    is_short = tensor.dtype.itemsize < 2 if tensor.is_floating_point() else tensor.dtype not in WHOLE
    odd = {
        "complex": tensor.is_complex(),
        "quantised": is_short and not tensor.is_complex(),
        "nested": is_nested,
        "sparse": not is_nested and tensor.layout != torch.strided,
        "on the device meta, without values,": tensor.device.type == "meta",
    }
    for word, is_so in odd.items():
        if is_so:
            raise ValueError(f"{name} is a tensor that is {word} and not of real numbers: give a dense tensor of these")


def _refuse_beyond(tensor: Tensor, within: Within, name: str) -> None:
    if tensor.numel() < within.fewest:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}: give {within.fewest} values or more")
    if not tensor.numel() or tensor.dtype == torch.bool or not (within.has_ends or tensor.is_floating_point()):
        return
    for end in map(float, tensor.detach().aminmax()):
        if end not in within:
            wanted = "finite numbers" if within.is_finite else "numbers"
            raise ValueError(f"{name} holds {end:g}: its values must be {wanted}, {within}".rstrip(", "))


def refuse_nan(values: Tensor, name: str) -> None:
    """Raise a ValueError if a tensor holds NaN; `tensor_of` leaves tensors as they are, since looking takes time."""
    if values.isnan().any():
        _refuse_missing(values.isnan().cpu().numpy(), name)


def _numeric(array: np.ndarray, name: str) -> np.ndarray:
    """Return an array of numbers that PyTorch can take over; it shares memory where it can be written to."""
    if array.dtype.kind == "O":
        import pandas as pd

        _refuse_missing(np.asarray(pd.isna(array)), name)
        try:
            array = np.array(array.tolist())  # as NumPy reads the numbers themselves
        except UNREADABLE as error:
            raise ValueError(f"{name} holds {array.dtype}: {NUMBERS}") from error
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} holds {array.dtype}: {NUMBERS}")
    if array.dtype.kind == "u" and array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise ValueError(f"{name} holds whole numbers beyond 2^63: {NUMBERS}")
    if array.dtype.kind == "f":
        _refuse_missing(np.asarray(np.isnan(array)), name)
    real = np.float64 if array.dtype.itemsize > 4 else np.float32
    dtype = {"f": real, "u": np.int64}.get(array.dtype.kind, array.dtype.newbyteorder("="))
    return np.require(array, dtype, ["C", "W"])


def _refuse_missing(missing: np.ndarray, name: str) -> None:
    if missing.any():
        place = ", ".join(map(str, np.argwhere(missing)[0].tolist()))
        raise ValueError(f"{name} lacks a value at [{place}]: leave its row out, or fill it in")


class _Axis(NamedTuple):
    """An axis of a table, with its labels."""

    table: str  # the name of the table in messages
    number: int  # 0 for rows, 1 for columns
    labels: Any  # an index of pandas
    names: Sequence[str]  # of all axes of the table in its annotation; "" for one without a name

    @property
    def word(self) -> str:
        return "columns" if self.number else "rows"

    @property
    def source(self) -> str:
        """The expression that gives the labels."""
        return f"{self.table}.columns" if self.number else f"{self.table}.index"

    def selected(self, labels: str) -> str:
        """Return the expression that gives the table in the order of the labels of another axis."""
        return f"{self.table}.loc[:, {labels}]" if self.number else f"{self.table}.loc[{labels}]"

    def is_paired_with(self, later: _Axis) -> bool:
        """Return whether the entries of two axes belong together: annotations name both alike.

        If the annotations of two tables name no axis alike, their rows belong together.
        """
        if (set(self.names) & set(later.names)) - {""}:
            return self.names[self.number] == later.names[later.number] != ""
        return self.number == later.number == 0


def check_rows(named: Iterable[tuple[str, Any]], wanted: Mapping[str, _Wanted] | None = None) -> None:
    """Check that tables, also those in lists and mappings, have in one order what is paired, as labels say.

    Rows are paired by their order, and so are columns where the annotations give both axes one name. Labels that are
    merely numbers say nothing about another table, unless that has the same numbers. A number and its text are one
    label, since headers of files are text.

    Args:
        wanted: What the annotations of the arguments want, by name.

    Raises:
        ValueError: A label that two axes have stands in different places, or a list contains itself.
    """
    for first, second in itertools.combinations(_axes(named, wanted or {}), 2):
        if not first.is_paired_with(second) or len(first.labels) != len(second.labels):
            continue
        if not first.labels.equals(second.labels) and _are_moved(first.labels, second.labels):
            if first.word == second.word == "rows":
                found = f"{first.table} and {second.table} have labels of rows in another order"
                found = f"{found}, and rows are paired by their order"
            else:
                found = f"the {first.word} of {first.table} and the {second.word} of {second.table} have labels in"
                found = f"{found} another order, and they are paired by their order"
            remedy = "both with the same labels in one order"
            if first.labels.isin(second.labels).all():
                remedy = second.selected(first.source)
            raise ValueError(f"{found}: give {remedy}, or arrays, which have no labels")


def _are_moved(known: Any, labels: Any) -> bool:
    """Return whether labels that two axes of one length have stand in different places."""
    first = [_label(label) for label in known]
    second = [_label(label) for label in labels]
    numbers = [str(place) for place in range(len(first))]
    numbered = first == numbers or second == numbers
    common = set(second)
    moved = any(one != other and one in common for one, other in zip(first, second, strict=True))
    return moved and (not numbered or common == set(first))


def _label(label: Any) -> Any:
    """Return a label, and of a whole number its text."""
    if isinstance(label, tuple):
        return tuple(_label(part) for part in label)
    if isinstance(label, bool) or not isinstance(label, int | float | np.number):
        return label
    return str(int(label)) if np.isreal(label) and math.isfinite(label) and label == int(label) else str(label)


def _axes(named: Iterable[tuple[str, Any]], wanted: Mapping[str, _Wanted]) -> Iterator[_Axis]:
    for name, value in named:
        yield from _axes_in(name, value, wanted.get(name), 0)


def _axes_in(name: str, value: Any, wanted: _Wanted | None, depth: int) -> Iterator[_Axis]:
    """Yield the axes of a table, or of all tables in a list or a mapping."""
    if depth > DEPTH:
        raise ValueError(f"{name.partition('[')[0]} contains itself, or is nested too deep: {NUMBERS}")
    inside = None if wanted is None else wanted.items
    if hasattr(value, "iloc"):
        axes = [value.index, value.columns] if value.ndim > 1 else [value.index]
        names = [""] * len(axes) if wanted is None else wanted.names_of_axes(len(axes))
        for number, labels in enumerate(axes):
            yield _Axis(name, number, labels, names)
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _axes_in(f"{name}[{key!r}]", entry, inside, depth + 1)
    elif isinstance(value, list | tuple) and value and not isinstance(value[0], int | float):
        for place, entry in enumerate(value):
            yield from _axes_in(f"{name}[{place}]", entry, inside, depth + 1)
