"""Measures of layer pairs that plugins add: each becomes an instrument like those of `declared`.

python analyze.py plugins=[mine.py] measure=my_measure model=gelu-3l-mini model@target=solu-3l-mini
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thinkalike import plugins
from thinkalike.errors import PluginError
from thinkalike.instruments.layer_pairs.declared import Declared, WithNull, declare
from thinkalike.job import Instrument
from thinkalike.measures import LayerMeasure
from thinkalike.measures.calibration.contract import each_pair, rows_in_order
from thinkalike.plugins import MeasurePlugin


def instrument_of(kind: str) -> Instrument:
    """Return the instrument of a measure that a plugin of the job adds."""
    CONFIGS[kind]
    return Instrument.known[f"{__name__}:{kind}"]()


class _Schemas:
    """The settings of these measures by kind, made when they are asked for, and anew when the plugin has changed."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[MeasurePlugin, type]] = {}

    def __getitem__(self, kind: str) -> type:
        plugin: MeasurePlugin = plugins.active("measure")[kind]
        if kind not in self._made or self._made[kind][0] is not plugin:
            self._made[kind] = plugin, declare({kind: _declared(kind, plugin)}, __name__)[kind]
        return self._made[kind][1]


CONFIGS = _Schemas()


def _declared(kind: str, plugin: MeasurePlugin) -> Declared:
    settings = dataclasses.make_dataclass(f"{kind}_settings", _fields(kind, plugin), bases=(WithNull,))

    def measure(chosen: Any) -> LayerMeasure:
        made = plugin.measure(chosen) if plugin.settings else plugin.measure
        return made if isinstance(made, LayerMeasure) else _of_function(kind, made, plugin.is_distance)

    low, high = plugin.scale
    return Declared(plugin.title, measure, (low, high), plugin.is_distance, settings)


def _fields(kind: str, plugin: MeasurePlugin) -> list[tuple[str, type, Any]]:
    """Return the settings of a measure as fields of a dataclass.

    Raises:
        PluginError: one is a setting of all measures, or has no default of a plain type.
    """
    common = {item.name for item in dataclasses.fields(WithNull)}
    found = []
    for name, given in plugin.settings.items():
        item = given if isinstance(given, dataclasses.Field) else dataclasses.field(default=given)
        if name in common or not isinstance(item.default, bool | int | float | str):
            raise PluginError(
                f"measure {kind}: the setting {name} needs a name of its own, and a number or text as default"
            )
        found.append((name, type(item.default), item))
    return found


def _of_function(kind: str, compare: Callable[[Tensor, Tensor], Any], is_distance: bool) -> LayerMeasure:
    """Return the measure that a function of two layers makes: 1 is the best likeness, 0 the best distance."""

    def value(source: Tensor, target: Tensor) -> Tensor:
        given = compare(source, target)
        try:
            found = torch.as_tensor(given, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError):
            raise PluginError(f"measure {kind} gives a {type(given).__name__}: give one number") from None
        if found.numel() != 1:
            raise PluginError(f"measure {kind} gives a tensor of shape {tuple(found.shape)}: give one number")
        return found.reshape(())

    best = 0.0 if is_distance else 1.0
    return LayerMeasure(_wide, each_pair(value, is_symmetric=False), rows_in_order, 2, best, not is_distance)


def _wide(rows: Tensor, _: str) -> Tensor:
    return rows.to(torch.promote_types(rows.dtype, torch.float32))
