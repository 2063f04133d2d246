"""budget=1min: layers and batches of a measure of layer pairs that take about this long on this machine."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from thinkalike.config import AnalyzeConfig, completed
from thinkalike.errors import ConfigError
from thinkalike.instruments import instrument_of
from thinkalike.instruments.layer_pairs.frame import LayerPairs, layers_compared
from thinkalike.models.families import label

log = logging.getLogger(__name__)
SECONDS = {"s": 1, "min": 60, "h": 3600}
REACHED = 0.5  # of the speed of one large product, by passes and by comparisons
STEPS = [(None, 64), (None, 32), (None, 16), (None, 8), (12, 8), (8, 8), (8, 4), (6, 4), (6, 2), (5, 2), (5, 1)]


def speed(seconds: float = 0.3) -> float:
    """Return how many operations per second a product of large float32 matrices reaches on this machine."""
    import torch

    from thinkalike.models.places import pick_device

    place, n, done = pick_device("auto"), 1024, 0
    matrix = torch.randn(n, n, device=place)
    float((matrix @ matrix)[0, 0])  # the first product waits for the device
    began = time.perf_counter()
    while (took := time.perf_counter() - began) < seconds:
        float((matrix @ matrix)[0, 0])
        done += 1
    return 2 * n**3 * done / took


def within_budget(config: AnalyzeConfig) -> AnalyzeConfig:
    """Return the configuration with as many layers, evenly spread, and batches as its budget allows.

    What the command line chose itself stays. A budget never gives more than the defaults.

    Raises:
        ConfigError: the job is no measure of layer pairs, or the shape of a model is not known.
    """
    if config.budget is None:
        return config
    kind = instrument_of(config)
    if not isinstance(kind, LayerPairs) or config.activations or config.models:
        raise ConfigError("budget= is for a measure of all layers of two models, such as measure=cka")
    whole = completed(config)
    shapes = kind.shapes_of(whole)
    if unknown := [label(model) for part, model in kind.models_of(whole).items() if shapes[part] is None]:
        raise ConfigError(f"budget={config.budget}: the sizes of {', '.join(unknown)} are not known; leave budget= out")
    allowed, rate = _seconds(config.budget), REACHED * speed()
    for chosen in _choices(config, kind):
        if (takes := _flops(kind, chosen, shapes) / rate) <= allowed:
            break
    layers = "all layers" if chosen.layers == "same" else f"layers={chosen.layers}".replace(" ", "")
    log.info(
        f"budget={config.budget}: {layers}, measure.batches={chosen.measure.batches}; about {takes:.0f} s on this "
        "machine, beside loading; a larger budget compares more"
    )
    return chosen


def _flops(kind: LayerPairs, config: Any, shapes: Any) -> float:
    """Return the FLOPs of the passes, and n² (Σ d + l²) of each batch: Gram matrices, and products of every two."""
    passes, layers = kind.passes(config, shapes), layers_compared(config, shapes)
    compared = sum(count * each.width for each, count in layers.items()) + sum(layers.values()) ** 2
    return float(sum(each.flops for each in passes) + passes[0].tokens * config.measure.tokens_per_batch * compared)


def _seconds(budget: str) -> float:
    unit = next(unit for unit in ("min", "s", "h") if budget.endswith(unit))
    return float(budget.removesuffix(unit)) * SECONDS[unit]


def _choices(config: AnalyzeConfig, kind: LayerPairs) -> Iterator[Any]:
    """Yield configurations of less and less work."""
    measure: Any = config.measure
    whole = completed(config)
    depths = [shape.layers for shape in kind.shapes_of(whole).values() if shape is not None]
    for layers, batches in STEPS:
        fewer: dict[str, int] = {}
        for name in ("batches", "fit_batches"):
            if getattr(measure, name, 0) is None:
                fewer[name] = min(getattr(whole.measure, name), batches)
        changed = replace(whole, measure=replace(whole.measure, **fewer))
        if layers and config.layers is None and max(depths) > layers:
            changed = replace(changed, layers=evenly(depths[0], depths[-1], layers))
        yield changed


def evenly(source: int, target: int, count: int) -> list[list[int]]:
    """Return at most `count` pairs of layers of two models, evenly spread, with the first and the last of both."""
    places = [place / (count - 1) for place in range(count)]
    return [list(pair) for pair in dict.fromkeys((round(p * (source - 1)), round(p * (target - 1))) for p in places)]
