"""A user's measures of layer pairs: a function, a class or a `MeasurePlugin`.

They are in a file, FILE.py:NAME, or in memory.

python analyze.py measure=mine.py:my_measure model=gelu-3l-mini model@target=solu-3l-mini
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, make_dataclass
from functools import cache
from typing import TypeGuard, cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike import plugins
from thinkalike.config import MEASURES, MeasureConfig
from thinkalike.errors import PluginError, one_line, short
from thinkalike.instruments.layer_pairs.by_measure import (
    LayerMeasureConfig,
    StatesByMeasure,
    facts_for_settings,
    measure_of_result,
    measure_with_settings,
    parts_of_measure,
    settings_of_parameters,
)
from thinkalike.measures.contract import AnyMeasure, LayerMeasure, ModelPairs, Pair
from thinkalike.plugins import MeasurePlugin, name_in_memory
from thinkalike.store import Result
from thinkalike.store.record import LARGEST_NUMBER

VERSION = 12
"""The version of the results of all measures of users."""


@dataclass(frozen=True, eq=False)
class OfFunction(LayerMeasure[Tensor]):
    """A similarity that a user's function computes from two layers; 1 is the best.

    Attributes:
        kind: What errors call the function.
        function: Takes the rows of both layers, and returns a number.
    """

    kind: str
    function: Callable[[Tensor, Tensor], object]

    fewest = 2
    is_symmetric = False

    def prepare(self, layer: Float[Tensor, "n d"], name: str) -> Float[Tensor, "n d"]:
        """Return the states of a layer in at least float32, which a user's function gets."""
        return layer.to(torch.promote_types(layer.dtype, torch.float32))

    def compare(
        self, first: Float[Tensor, "n d"], second: Float[Tensor, "n e"]
    ) -> Float[Tensor, ""]:
        """Call the function with the states of two layers, and return its value in float64.

        The function gets copies, because it may change them in place.

        Raises:
            PluginError: The function raises an exception, or does not return one number.
        """
        with plugins.blaming(f"measure {self.kind}"):
            value = self.function(first.clone(), second.clone())
        return numbers_of_user(value, self.kind).to(torch.float64)


def numbers_of_user(value: object, kind: str, shape: tuple[int, ...] = ()) -> Tensor:
    """Return what a user's measure gives as a tensor of real numbers.

    They may be NaN or infinite; masked entries of a NumPy array become NaN. A tensor keeps its
    dtype and its gradient.

    Args:
        value: What the measure gives.
        kind: What errors call the measure.
        shape: The shape that it must have; (): one number.

    Raises:
        PluginError: It does not have real numbers of at most 1e300, or not in this shape.
    """
    wanted = f"real numbers of the shape {shape}" if shape else "one real number"
    value = _with_nan_for_masked(value)
    try:
        if isinstance(value, Tensor):
            is_complex = value.is_complex()
        else:
            is_complex = np.iscomplexobj(np.asarray(value))
        if is_complex:  # PyTorch would take the real part
            raise TypeError("it is complex")
        if isinstance(value, Tensor) and value.is_floating_point():
            numbers = value
        else:
            numbers = torch.as_tensor(value, dtype=torch.float64)
        if shape and numbers.shape != shape:  # a single number may have any number of axes
            raise TypeError(f"it has the shape {tuple(numbers.shape)}")
        numbers = numbers.reshape(shape)
        if numbers.is_meta:
            raise TypeError("it is on the device meta, without a value")
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        reason = one_line(error)
        raise PluginError(f"measure {kind} must give {wanted}: {reason}") from None
    sizes = numbers.detach().abs()
    too_large = numbers.detach()[(sizes > LARGEST_NUMBER) & (sizes < math.inf)]
    if len(too_large):
        raise PluginError(
            f"measure {kind} gives {float(too_large[0]):g}, and {LARGEST_NUMBER:g} is the "
            "largest number"
        )
    return numbers


def _with_nan_for_masked(value: object) -> object:
    """Return a value with NaN in place of masked entries of NumPy arrays, as nested lists.

    PyTorch would read the numbers behind the mask. Lists and tuples are searched for such arrays;
    any other value is returned as it is.
    """
    if isinstance(value, np.ma.MaskedArray):
        numbers = value.astype(np.result_type(value.dtype, np.float64))  # an integer has no NaN
        return np.ma.filled(numbers, np.nan).tolist()
    if isinstance(value, list | tuple):
        return [_with_nan_for_masked(part) for part in value]
    return value


def with_errors_that_name_it(measure: AnyMeasure, kind: str) -> AnyMeasure:
    """Return a copy of a user's measure whose errors name it in one line.

    The class of the copy is a subclass of the user's class. It overrides the methods that run the
    user's code, which `READ_RESULT` lists with a function that checks what each of them returns. A
    ValueError is raised unchanged, as a measure raises it to refuse rows.

    Args:
        measure: An instance of a class of the user's.
        kind: What errors call the measure.
    """
    user_class = type(measure)

    class NamedInErrors(user_class):  # type: ignore[misc,valid-type]
        pass

    def overridden(name: str) -> Callable[..., object]:
        """Return a method that calls the user's method `name`, and checks what it returns."""

        def method(self: object, *arguments: object) -> object:
            with _blaming_unless_value_error(kind):
                value = getattr(super(NamedInErrors, self), name)(*arguments)
            return READ_RESULT[name](value, kind, *arguments)

        return method

    # Methods are set after the class was made: a class that defines `compare` in its body loses
    # the faster methods of its parent, such as `compare_all`, when it is made.
    for name in READ_RESULT:
        setattr(NamedInErrors, name, overridden(name))

    # The new class has the name of the user's class, as texts and hashes contain the name.
    NamedInErrors.__name__ = user_class.__name__
    NamedInErrors.__qualname__ = user_class.__qualname__
    NamedInErrors.__module__ = user_class.__module__
    copy_of_measure = copy(measure)
    # A plain assignment fails if the measure is a frozen dataclass.
    object.__setattr__(copy_of_measure, "__class__", NamedInErrors)
    return copy_of_measure


def _anything(value: object, kind: str, *arguments: object) -> object:
    """Return what a method of a user's measure gave, unchecked: only the measure reads it.

    Args:
        value: What the method gave.
        kind, arguments: The name of the measure, and what the method was called with. They are
            not needed, but all functions of `READ_RESULT` are called with them.
    """
    return value


def _one_number(value: object, kind: str, *arguments: object) -> Float[Tensor, ""]:
    """Return the one number that a method of a user's measure gave for some layers.

    Args:
        value: What the method gave.
        kind: What errors call the measure.
        arguments: What the method was called with. It is not needed, but all functions of
            `READ_RESULT` are called with it.

    Raises:
        PluginError: It is not one real number.
    """
    return numbers_of_user(value, kind)


def _as_many_numbers(value: object, kind: str, numerators: Tensor) -> Tensor:
    """Return the ratios that a user's measure gave, a number for each numerator.

    Args:
        value: What the measure gave.
        kind: What errors call the measure.
        numerators: What the measure was called with.

    Raises:
        PluginError: They are no real numbers of the shape of the numerators.
    """
    return numbers_of_user(value, kind, tuple(numerators.shape))


def _matrices(
    value: object,
    kind: str,
    layers: Sequence[object],
    model_pairs: ModelPairs,
    sizes: Sequence[int] | None = None,
) -> dict[Pair, Tensor]:
    """Return the matrix that a user's measure gave for each pair of models, layer by layer.

    Args:
        value: What the measure gave.
        kind: What errors call the measure.
        layers: The layers that the measure was called with. They are not needed, but all functions
            of `READ_RESULT` are called with what the measure was called with.
        model_pairs: Which of these layers each model has, and which models are compared.
        sizes: The number of rows in each part, for a measure that leaves out one part of the rows
            at a time. Then there are 1 + len(sizes) matrices for each pair: of all rows, and
            without each part. None: there is one.

    Raises:
        PluginError: A matrix is missing, or does not have real numbers of the right shape.
    """
    matrices = {}
    for pair in model_pairs.pairs:
        if not isinstance(value, Mapping) or pair not in value:
            raise PluginError(
                f"measure {kind} must give a dictionary with a matrix for each pair of models, "
                f"and has none for {pair}"
            )
        shape = tuple(len(model_pairs.layers_of_model[model]) for model in pair)
        if sizes is not None:
            shape = (1 + len(sizes), *shape)
        matrices[pair] = numbers_of_user(value[pair], kind, shape)
    return matrices


def _measure(value: object, kind: str, *arguments: object) -> AnyMeasure:
    """Return what the method `within` of a user's measure returned, if it is a measure.

    `within` is called with a group for each row. It returns another measure, which compares rows
    only with rows of the same group. It is returned as a copy whose errors name it, too.

    Args:
        value: What `within` returned.
        kind: What errors call the user's measure.
        arguments: What `within` was called with. They are not used. `READ_RESULT` has a function
            like this one for each method of a measure, and all are called with the arguments.

    Raises:
        PluginError: The value is not a measure.
    """
    if not isinstance(value, LayerMeasure):
        raise PluginError(f"measure {kind} must give a measure of layers within groups of rows")
    return with_errors_that_name_it(value, kind)


READ_RESULT: Mapping[str, Callable[..., object]] = {
    "prepare": _anything,
    "prepare_all": _anything,
    "reordered": _anything,
    "similarities": _anything,
    "compare": _one_number,
    "leverage": _one_number,
    "compare_all": _matrices,
    "compare_leaving_out_parts": _matrices,
    "ratios": _as_many_numbers,
    "within": _measure,
}
"""The methods of a measure that run the user's code, and the functions that check their results.

A function is called with the result, the kind of the measure, and the arguments of the method."""


@contextlib.contextmanager
def _blaming_unless_value_error(kind: str) -> Iterator[None]:
    """Replace an error of the user's code by one that names the measure; a ValueError passes.

    Args:
        kind: What errors call the measure.
    """
    try:
        yield
    except ValueError:  # by which a measure refuses rows
        raise
    except (Exception, SystemExit):
        # Raised again inside `blaming`, the error becomes a PluginError with the measure's name.
        with plugins.blaming(f"measure {kind}"):
            raise


@dataclass(frozen=True, eq=False)
class OfDistanceFunction(OfFunction):
    """A distance that a user's function computes from two layers; 0 is the best."""

    best = 0.0
    higher_is_closer = False


class StatesByUser(StatesByMeasure):
    """Compares states by a measure of the user's.

    Args:
        measure: A function, a class of measures, a measure, or a `MeasurePlugin`.
        kind: The kind of the results.
        name: Where the measure is, FILE.py:NAME; None: it is an object in memory.
    """

    def __init__(self, measure: object, kind: str, name: str | None = None):
        """Read what the measure declares, and make the schema of its settings.

        Args:
            measure: The user's measure: a function, a `LayerMeasure` or its class, or a
                `MeasurePlugin`.
            kind: The name under which results store the measure.
            name: Where the measure is, FILE.py:NAME; None: it is an object in memory.

        Raises:
            PluginError: The kind is that of a measure of the package, or a setting is not valid.
        """
        self.kind = kind
        if kind in MEASURES:
            raise PluginError(
                f"{name or kind} has the name of a measure of the package; choose another name"
            )
        self.plugin = measure if isinstance(measure, MeasurePlugin) else MeasurePlugin(measure)
        low, high = self.plugin.scale
        self.scale = (float(low), float(high))
        self.is_distance = self.plugin.is_distance
        self.reads = parts_of_measure(self.parts, self.is_distance)
        self.version = VERSION
        self._settings = self._schema(name)

    @property
    def name(self) -> str:
        """What texts call the measure: its title, or its kind with spaces for underscores."""
        return self.plugin.title or self.kind.replace("_", " ")

    @property
    def settings(self) -> type[MeasureConfig]:
        """The schema of the plugin's settings."""
        return self._settings

    def meaning(self, result: Result) -> str:
        """Return in a sentence what a value of the user's measure is, with a result's settings.

        It is "" for a function, of which only the user knows what it computes.

        Raises:
            PluginError: The user's code raises an exception, or gives no text.
        """
        measure = self.plugin.measure
        with plugins.blaming(f"measure {self.kind}"):
            if is_measure_class(measure):
                measure = measure_of_result(measure, result)
            if not isinstance(measure, LayerMeasure):
                return ""
            meaning: object = measure.meaning
        if not isinstance(meaning, str):
            raise PluginError(f"measure {self.kind}: meaning={short(meaning)} must be a text")
        return meaning

    def layer_measure(self, settings: LayerMeasureConfig) -> AnyMeasure:
        """Return the user's measure with the values of its settings.

        A class of measures is instantiated with them. Anything else that declares settings is
        called with them, and returns the measure. A function of two layers is wrapped.

        Raises:
            PluginError: The user's code raises an exception.
        """
        measure = self.plugin.measure
        with plugins.blaming(f"measure {self.kind}"):
            if is_measure_class(measure):
                measure = measure_with_settings(measure, settings)
            elif self.plugin.settings:
                measure_of_settings = cast(Callable[[LayerMeasureConfig], object], measure)
                measure = measure_of_settings(settings)
        if isinstance(measure, LayerMeasure):
            return with_errors_that_name_it(measure, self.kind)
        # What is no function raises an error when it is called with two layers.
        function = cast(Callable[[Tensor, Tensor], object], measure)
        if self.is_distance:
            return OfDistanceFunction(self.kind, function)
        return OfFunction(self.kind, function)

    def _schema(self, name: str | None) -> type[MeasureConfig]:
        """Return a dataclass of the measure's settings: those of all measures, and its own.

        The type of an own setting is that of its default.

        Args:
            name: Where the measure is, FILE.py:NAME; None: it is an object in memory.

        Raises:
            PluginError: A setting has the name of one that all measures have, or its default is
                neither a number nor a text.
        """
        settings_of_plugin: dict[str, object] = dict(self.plugin.settings)
        namespace: dict[str, object] = {"__doc__": f"The settings of {self.name}."}
        measure = self.plugin.measure
        if is_measure_class(measure):
            settings_of_plugin |= settings_of_parameters(measure)
        if is_measure_class(measure) or isinstance(measure, LayerMeasure):
            namespace |= facts_for_settings(measure)

        common_names = {item.name for item in dataclasses.fields(LayerMeasureConfig)}
        if name is None:
            namespace["instrument_in_memory"] = self
        fields: list[tuple[str, object, object]] = [("kind", str, name or self.kind)]
        for setting_name, default in settings_of_plugin.items():
            field_of_setting = default
            if not isinstance(field_of_setting, dataclasses.Field):
                field_of_setting = cast(
                    "dataclasses.Field[object]", dataclasses.field(default=default)
                )
            has_plain_default = isinstance(field_of_setting.default, bool | int | float | str)
            if setting_name in common_names or not has_plain_default:
                raise PluginError(
                    f"measure {self.kind}: {setting_name} needs a name of its own, and a number "
                    "or text as default"
                )
            fields.append((setting_name, type(field_of_setting.default), field_of_setting))
        return make_dataclass(
            f"{self.kind}_config", fields, bases=(LayerMeasureConfig,), namespace=namespace
        )


def is_measure_class(measure: object) -> TypeGuard[type[AnyMeasure]]:
    """Return whether a user's measure is a class, a subclass of `LayerMeasure`.

    The parameters of its constructor are then settings.
    """
    return isinstance(measure, type) and issubclass(measure, LayerMeasure)


def user_instrument(name: str) -> StatesByUser:
    """Return the instrument of a measure FILE.py:NAME, whose results are of the kind NAME."""
    plugins.check_trusted(name)  # also where its file was run before
    return _user_instrument(name, plugins.digest(name))


@cache
def _user_instrument(name: str, digest: str) -> StatesByUser:
    """Return the instrument of a measure FILE.py:NAME, made anew when its digest changes."""
    return StatesByUser(plugins.load(name), name.rpartition(":")[2], name)


def instrument_in_memory(measure: object) -> StatesByUser:
    """Return the instrument of a measure that is an object in memory, such as a function."""
    return StatesByUser(measure, name_in_memory(measure))
