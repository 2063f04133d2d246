"""Measures of layer pairs of a user: a function, a class or a `MeasurePlugin`, in a file or in memory.

python analyze.py measure=mine.py:my_measure model=gelu-3l-mini model@target=solu-3l-mini
ta.compare("gelu-3l-mini", "solu-3l-mini", measure=my_measure)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, make_dataclass
from functools import cache
from typing import Any, TypeGuard

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike import plugins
from thinkalike.config import MEASURES, MeasureConfig
from thinkalike.errors import PluginError
from thinkalike.instruments.layer_pairs.by_measure import (
    ComparedAgain,
    StatesByMeasure,
    made_of,
    parameters_of,
    parts_read,
)
from thinkalike.measures.contract import AnyMeasure, LayerMeasure
from thinkalike.plugins import MeasurePlugin

VERSION = 12  # of the results of all measures of users


@dataclass(frozen=True, eq=False)
class OfFunction(LayerMeasure[Tensor]):
    """The likeness that a user's function of two layers is; 1 is the best.

    Attributes:
        kind: What errors call the function.
    """

    kind: str
    function: Callable[[Tensor, Tensor], Any]

    fewest = 2
    is_symmetric = False

    def prepare(self, layer: Float[Tensor, "n d"], name: str) -> Float[Tensor, "n d"]:
        return layer.to(torch.promote_types(layer.dtype, torch.float32))

    def compare(self, first: Float[Tensor, "n d"], second: Float[Tensor, "n e"]) -> Float[Tensor, ""]:
        with plugins.blaming(f"measure {self.kind}"):
            value = self.function(first, second)
        try:
            return torch.as_tensor(value, dtype=torch.float64).reshape(())
        except (TypeError, ValueError, RuntimeError) as error:
            raise PluginError(f"measure {self.kind} must give one number: {error}") from None


@dataclass(frozen=True, eq=False)
class OfDistanceFunction(OfFunction):
    """The distance that a user's function of two layers is; 0 is the best."""

    best = 0.0
    higher_is_closer = False


class StatesByUser(StatesByMeasure):
    """Compares states by a measure of the user's.

    Args:
        measure: A function, a class of measures, a measure, or a `MeasurePlugin`.
        kind: The kind of the results.
        name: FILE.py:NAME, by which configurations name it; None: it is an object in memory.
    """

    def __init__(self, measure: object, kind: str, name: str | None = None):
        self.kind = kind
        if self.kind in MEASURES:
            raise PluginError(f"{name or kind} has the name of a measure of the package; choose another name")
        self.plugin = measure if isinstance(measure, MeasurePlugin) else MeasurePlugin(measure)
        low, high = self.plugin.scale
        self.scale = (float(low), float(high))
        self.is_distance = self.plugin.is_distance
        self.reads = parts_read(self.parts, self.is_distance)
        self.version = VERSION
        self._settings = self._schema(name)

    @property
    def name(self) -> str:
        return self.plugin.title or self.kind.replace("_", " ")

    @property
    def settings(self) -> type[MeasureConfig]:
        return self._settings

    def measure_of(self, settings: MeasureConfig) -> AnyMeasure:
        measure: Any = self.plugin.measure
        with plugins.blaming(f"measure {self.kind}"):
            if is_measure_class(measure):
                measure = made_of(measure, settings)
            elif self.plugin.settings:
                measure = measure(settings)
        if isinstance(measure, LayerMeasure):
            return measure
        of_function = OfDistanceFunction if self.is_distance else OfFunction
        return of_function(self.kind, measure)

    def _schema(self, name: str | None) -> type[MeasureConfig]:
        """Return the settings of the measure, which are those of all measures and its own."""
        common = {item.name for item in dataclasses.fields(ComparedAgain)}
        of_plugin = dict(self.plugin.settings)
        content: dict[str, Any] = {"__doc__": f"The settings of {self.name}."}
        if is_measure_class(self.plugin.measure):
            of_plugin |= parameters_of(self.plugin.measure)
            content["measure_class"] = self.plugin.measure
            content["compares_within_groups"] = self.plugin.measure.compares_within_groups is True
        if name is None:
            content["instrument_in_memory"] = self
        fields: list[tuple[str, Any, Any]] = [("kind", str, name or self.kind)]
        for parameter_name, default in of_plugin.items():
            item: Any = default if isinstance(default, dataclasses.Field) else dataclasses.field(default=default)
            if parameter_name in common or not isinstance(item.default, bool | int | float | str):
                raise PluginError(
                    f"measure {self.kind}: {parameter_name} needs a name of its own, and a number or text as default"
                )
            fields.append((parameter_name, type(item.default), item))
        return make_dataclass(f"{self.kind}_config", fields, bases=(ComparedAgain,), namespace=content)


def is_measure_class(measure: object) -> TypeGuard[type[AnyMeasure]]:
    """Return whether a user gives a class of measures, whose parameters are settings."""
    return isinstance(measure, type) and issubclass(measure, LayerMeasure)


def user_instrument(name: str) -> StatesByUser:
    """Return the instrument of a measure FILE.py:NAME, whose results are of the kind NAME."""
    plugins.check_trusted(name)  # also where its file was run before
    return _user_instrument(name, plugins.digest(name))


@cache
def _user_instrument(name: str, digest: str) -> StatesByUser:
    return StatesByUser(plugins.load(name), name.rpartition(":")[2], name)


def instrument_in_memory(measure: object) -> StatesByUser:
    """Return the instrument of a measure that is an object in memory, such as a function."""
    return StatesByUser(measure, kind_of(measure))


def kind_of(measure: object) -> str:
    """Return what results call a measure in memory: the name of its function or class."""
    if isinstance(measure, MeasurePlugin):
        measure = measure.measure
    name = str(getattr(measure, "__name__", type(measure).__name__))
    return name if name.isidentifier() else "own"  # such as <lambda>
