"""Measures of layer pairs in files of users: each becomes an instrument like those of `declared`.

python analyze.py measure=mine.py:my_measure model=gelu-3l-mini model@target=solu-3l-mini
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from thinkalike import plugins
from thinkalike.config import MEASURES, MeasureConfig
from thinkalike.errors import PluginError
from thinkalike.instruments.layer_pairs.declared import ComparedAgain, Declared, declare
from thinkalike.job import Instrument
from thinkalike.measures.contract import LayerMeasure, each_pair, rows_in_order
from thinkalike.plugins import MeasurePlugin


def plugged(kind: str) -> tuple[type[Instrument], type[MeasureConfig]]:
    """Return the instrument of a measure FILE.py:NAME, whose results are of the kind NAME, and its settings."""
    return _made(kind, plugins.digest(kind))


@cache
def _made(kind: str, digest: str) -> tuple[type[Instrument], type[MeasureConfig]]:
    name = kind.rpartition(":")[2]
    if name in MEASURES:
        raise PluginError(f"{kind} has the name of a measure of the package; choose another name")
    given = plugins.load(kind)
    plugin = given if isinstance(given, MeasurePlugin) else MeasurePlugin(given)
    made, schema = declare({name: _declared(name, plugin)}, __name__)[name], MeasureConfig.schemas[name]
    own: type[MeasureConfig] = dataclasses.make_dataclass(schema.__name__, [("kind", str, kind)], bases=(schema,))
    return made, own


def _declared(kind: str, plugin: MeasurePlugin) -> Declared:
    settings = dataclasses.make_dataclass(f"{kind}_settings", _fields(kind, plugin), bases=(ComparedAgain,))

    def measure(chosen: Any) -> LayerMeasure:
        made = plugin.measure(chosen) if plugin.settings else plugin.measure
        return made if isinstance(made, LayerMeasure) else _of_function(kind, made, plugin.is_distance)

    low, high = plugin.scale
    title = plugin.title or kind.replace("_", " ")
    return Declared(title, measure, (float(low), float(high)), plugin.is_distance, settings)


def _fields(kind: str, plugin: MeasurePlugin) -> list[tuple[str, type, Any]]:
    """Return the settings of a measure as fields of a dataclass."""
    common = {item.name for item in dataclasses.fields(ComparedAgain)}
    found = []
    for name, given in plugin.settings.items():
        item = given if isinstance(given, dataclasses.Field) else dataclasses.field(default=given)
        if name in common or not isinstance(item.default, bool | int | float | str):
            raise PluginError(f"measure {kind}: {name} needs a name of its own, and a number or text as default")
        found.append((name, type(item.default), item))
    return found


def _of_function(kind: str, compare: Callable[[Tensor, Tensor], Any], is_distance: bool) -> LayerMeasure:
    """Return the measure that a function of two layers makes: 1 is the best likeness, 0 the best distance."""

    def value(source: Tensor, target: Tensor) -> Tensor:
        given = compare(source, target)
        try:
            return torch.as_tensor(given, dtype=torch.float64).reshape(())
        except (TypeError, ValueError, RuntimeError) as error:
            raise PluginError(f"measure {kind} must give one number: {error}") from None

    best = 0.0 if is_distance else 1.0
    return LayerMeasure(_wide, each_pair(value, is_symmetric=False), rows_in_order, 2, best, not is_distance)


def _wide(rows: Tensor, _: str) -> Tensor:
    return rows.to(torch.promote_types(rows.dtype, torch.float32))
