"""Operations of maps that are fitted between two models in both directions."""

from __future__ import annotations

from typing import Any

from thinkalike.config import AnalyzeConfig, pairs_of_layers
from thinkalike.instruments.operations.stitches import REPORTED, of_statistics
from thinkalike.job import Phase, Shapes
from thinkalike.models import Shape

EIGEN = 9  # times d³: all eigenvalues and eigenvectors of a symmetric matrix


def phases_of(config: AnalyzeConfig, shapes: Shapes) -> list[Phase]:
    """Return the fit of maps in both directions, and their report.

    The report runs both models once for the states, and each as the target of stitched models.
    """
    if not {"model", "target"} <= set(shapes):
        return []
    measure: Any = config.measure
    source, target = shapes["model"], shapes["target"]
    pairs = pairs_of_layers(config.layers, source.layers, target.layers)
    row = config.data.context or min(source.context, target.context)
    fit, report = float(config.data.fit_tokens or measure.fit_tokens), float(config.data.report_tokens or REPORTED)
    back = [(depth, layer) for layer, depth in pairs]
    states = of_statistics(source, target, pairs, fit, row) + of_solutions(source, target, pairs)
    judged = source.forward(report, row) + target.forward(report, row) + of_residuals(source, target, pairs, report)
    losses = _of_losses(source, target, pairs, report, row) + _of_losses(target, source, back, report, row)
    models = (source.name, target.name)
    return [
        Phase("closed forms", states, dict.fromkeys(models, fit)),
        Phase("report", judged + losses, dict.fromkeys(models, 2 * report)),
    ]


def of_solutions(source: Shape, target: Shape, pairs: list[tuple[int, int]]) -> float:
    """Return 8 d e (d + e) + 11 (d³ + e³) for each layer pair.

    Both maps and what they leave unexplained take 8 d e (d + e) + 2 (d³ + e³), and two eigendecompositions about
    9 d³ + 9 e³ (Golub & Van Loan 2013, section 8.3).
    """
    d, e = source.width, target.width
    return float(len(pairs) * (8 * d * e * (d + e) + (2 + EIGEN) * (d**3 + e**3)))


def of_residuals(source: Shape, target: Shape, pairs: list[tuple[int, int]], tokens: float) -> float:
    """Return 8 n d e for each layer pair: both maps, and each after the other."""
    return 8 * tokens * len(pairs) * source.width * target.width


def bytes_of_maps(config: AnalyzeConfig, shapes: Shapes) -> float:
    """Return the bytes of statistics and maps in float64."""
    if not {"model", "target"} <= set(shapes):
        return 0.0
    source, target = shapes["model"], shapes["target"]
    pairs = pairs_of_layers(config.layers, source.layers, target.layers)
    within = len({layer for layer, _ in pairs}) * source.width**2 + len({depth for _, depth in pairs}) * target.width**2
    return 8.0 * (within + 3 * len(pairs) * source.width * target.width)


def _of_losses(source: Shape, target: Shape, pairs: list[tuple[int, int]], tokens: float, row: int) -> float:
    """Return full passes of both models, and for each layer pair the map, the tail and the unembedding."""
    operations, last = target.operations, target.layers
    tails = sum(operations.forward(depth + 1, last, row) + operations.output for _, depth in pairs)
    maps = 2 * len(pairs) * source.width * target.width
    return source.forward(tokens, row, full=True) + target.forward(tokens, row, full=True) + tokens * (tails + maps)
