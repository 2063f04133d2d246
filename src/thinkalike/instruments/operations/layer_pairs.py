"""Operations of measures of layer pairs: what one batch of n tokens takes, from the widths d of all layers.

Sorting, norms and elementwise work are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thinkalike.config import AnalyzeConfig
from thinkalike.job import Phase, Shapes, forward_passes

STRIP = 64  # rows of the Gram matrices that are computed at once: those on the diagonal go beyond it

Widths = Sequence[int]  # of every layer that is compared


def of_grams(n: int, source: Widths, target: Widths | None) -> float:
    """Return n (n + 64) (Σ d + l² + l m + m²): half of every Gram matrix, and products of every two of them.

    Args:
        source, target: of both models; target None: a model is compared with itself.
    """
    mine, theirs = len(source), len(target or ())
    products = mine**2 + mine * theirs + theirs**2
    return float(n * (n + STRIP) * (sum(source) + sum(target or ()) + products))


def of_neighbours(n: int, source: Widths, target: Widths | None) -> float:
    """Return 2 n² (Σ d + (l + m)²): the similarities of tokens in every layer, and the neighbours that two share."""
    layers = len(source) + len(target or ())
    return 2.0 * n * n * (sum(source) + sum(target or ()) + layers**2)


def of_prediction(n: int, source: Widths, target: Widths | None) -> tuple[float, float]:
    """Return what a batch that fits takes, and one that judges: 2 n (2 Σ d² + Σ dᵢ dⱼ) and 4 n Σ dᵢ dⱼ, i ≤ j."""
    widths = [*source, *(target or ())]
    squares = sum(width**2 for width in widths)
    pairs = (sum(widths) ** 2 + squares) / 2
    return 2.0 * n * (2 * squares + pairs), 4.0 * n * pairs


def of_solutions(source: Widths, target: Widths | None) -> float:
    """Return d³ / 3 for each layer's normal equations, and 2 d² e for the maps from it to every other layer."""
    widths = [*source, *(target or ())]
    return float(sum(width**3 / 3 + 2 * width**2 * sum(widths) for width in widths))


def phases_of(
    config: AnalyzeConfig, shapes: Shapes, comparing: Callable[..., float], fit_batches: int = 0
) -> list[Phase]:
    """Return the passes of both models over all batches, and the comparing.

    Args:
        comparing: takes the settings, the widths of the source and those of the target or None, returns operations.
        fit_batches: that are read besides those that are compared.
    """
    measure: Any = config.measure
    if "model" not in shapes:
        return []
    source, target = shapes["model"], shapes.get("target", shapes["model"])
    tokens = float((measure.batches + fit_batches) * measure.tokens_per_batch)
    row = config.data.context or min(source.context, target.context)
    sides = [[shape.width] * (shape.layers + measure.embed) for shape in (source, target)]
    own = comparing(measure, sides[0], None if config.model == config.target else sides[1])
    return [*forward_passes((source, target), tokens, row), Phase("comparing", own)]


def bytes_of_states(config: AnalyzeConfig, shapes: Shapes) -> float:
    """Return the bytes of the states of a batch in all layers of each different model, with a copy in float32."""
    measure: Any = config.measure
    different = {shape.name: shape for shape in shapes.values()}.values()
    numbers = [measure.tokens_per_batch * (shape.layers + measure.embed) * shape.width for shape in different]
    sizes = [shape.bytes / shape.parameters + 4 for shape in different]
    return float(sum(count * size for count, size in zip(numbers, sizes, strict=True)))
