"""Operations of a stitching job: training, what stands beside it, and the report."""

from __future__ import annotations

from thinkalike.config import StitchConfig, TrainConfig, pairs_of_layers
from thinkalike.job import Phase, Shapes
from thinkalike.models import Shape
from thinkalike.training import Place, momenta, stitching_step

STATISTICS = 2.0**18  # tokens, at most, of closed forms and of the means of tokens
LIKENESS = 2.0**17  # fit tokens, at most, of what the states share
REPORTED = 262144  # tokens of the report where the data say nothing


def phases_of(config: TrainConfig, shapes: Shapes) -> list[Phase]:
    """Return the phases of both directions, if both are asked for."""
    if not {"model", "target"} <= set(shapes):
        return []
    source, target = shapes["model"], shapes["target"]
    pairs = pairs_of_layers(config.layers, source.layers, target.layers)
    is_own = config.model == config.target
    ways = [_of_direction(config, source, target, pairs, is_own)]
    if config.stitch.both:
        ways.append(_of_direction(config, target, source, [(depth, layer) for layer, depth in pairs], is_own))
    return [phase for way in ways for phase in way]


def map_weights(config: StitchConfig, d: int, e: int) -> float:
    """Return the weights of a φ's linear maps from width d to width e."""
    if config.kind == "identity":
        return 0.0
    return float(config.rank * (d + e) if config.kind == "low_rank" else d * e)


def _of_direction(
    config: TrainConfig, source: Shape, target: Shape, pairs: list[tuple[int, int]], is_own: bool
) -> list[Phase]:
    stitch, row = config.stitch, config.data.context or min(source.context, target.context)
    report = float(config.data.report_tokens or REPORTED)
    needed = stitch.steps * stitch.tokens_per_step if stitch.steps else report
    fit = float(min(config.data.fit_tokens or needed, needed))
    both = {source.name: 1.0, target.name: 1.0}
    statistics = 0.0 if not _has_statistics(stitch) else min(fit, fit if _is_closed(stitch) else STATISTICS)
    alike = min(fit, LIKENESS) + report
    phases = [
        Phase("training", _training(stitch, source, target, pairs, row, is_own), dict.fromkeys(both, _seen(stitch))),
        Phase("closed forms", of_statistics(source, target, pairs, statistics, row), dict.fromkeys(both, statistics)),
        Phase("likeness", _of_likeness(source, target, pairs, alike, report, row), dict.fromkeys(both, alike)),
        Phase("report", _of_report(stitch, source, target, pairs, report, row, is_own), dict.fromkeys(both, report)),
    ]
    return [phase for phase in phases if phase.operations]


def _is_closed(config: StitchConfig) -> bool:
    return not config.trained and config.kind != "identity"


def _has_statistics(config: StitchConfig) -> bool:
    return _is_closed(config) or config.controls or config.init != "identity"


def _seen(config: StitchConfig) -> float:
    return float(config.steps * config.tokens_per_step * config.seeds) if config.trained else 0.0


def _training(
    config: StitchConfig, source: Shape, target: Shape, pairs: list[tuple[int, int]], row: int, is_own: bool
) -> float:
    """Return the operations of all steps of all seeds; rates, floor and control are beside the first seed alone."""
    if not config.trained:
        return 0.0
    alone = [Place(is_own, *pair) for pair in pairs]
    beside = alone * (1 + len(config.rates))
    depths = {depth for layer, depth in pairs if not (is_own and layer == depth)}
    floors = [Place(True, depth, depth) for depth in sorted(depths)] if config.floor else []
    tokens = config.tokens_per_step // row * row or config.tokens_per_step
    weights = map_weights(config, source.width, target.width)

    def step(places: list[Place]) -> float:
        return stitching_step(source.operations, target.operations, places, weights, config.loss, tokens, row)

    twins = [Place(False, *pair) for pair in pairs] if config.controls else []
    first = step(beside + twins + floors)
    if twins:
        first += tokens * source.operations.forward(0, max(layer for layer, _ in pairs) + 1, row)
    return config.steps * (first + (config.seeds - 1) * step(alone))


def _products(source: Shape, target: Shape, pairs: list[tuple[int, int]]) -> float:
    """Return Σ d² + Σ e² over the layers that are read, and Σ d e over their pairs."""
    d, e = source.width, target.width
    layers, depths = (len({pair[side] for pair in pairs}) for side in (0, 1))
    return float(layers * d**2 + depths * e**2 + len(pairs) * d * e)


def of_statistics(source: Shape, target: Shape, pairs: list[tuple[int, int]], tokens: float, row: int) -> float:
    """Return the passes of both models, and the products of their states."""
    return source.forward(tokens, row) + target.forward(tokens, row) + 2 * tokens * _products(source, target, pairs)


def _of_likeness(
    source: Shape, target: Shape, pairs: list[tuple[int, int]], tokens: float, report: float, row: int
) -> float:
    """Return passes with the target's output, and linear maps both ways, plain and given the token."""
    passes = source.forward(tokens, row) + target.forward(tokens, row, full=True)
    judged = 2 * 4 * report * len(pairs) * source.width * target.width
    return passes + 2 * 2 * tokens * _products(source, target, pairs) + judged


def _of_report(
    config: StitchConfig, source: Shape, target: Shape, pairs: list[tuple[int, int]], tokens: float, row: int, own: bool
) -> float:
    """Return full passes of both models, and for each map of each layer pair φ, the tail and the unembedding."""
    maps = _maps(config, source.width == target.width, own)
    last, weights = target.layers, map_weights(config, source.width, target.width)
    tails = sum(target.operations.forward(depth + 1, last, row) + target.operations.output for _, depth in pairs)
    whole = source.forward(tokens, row, full=True) * (not own) + target.forward(tokens, row, full=True)
    means = min(float(config.steps * config.tokens_per_step) or tokens, STATISTICS)
    return whole + maps * tokens * (tails + 2 * len(pairs) * weights) + target.forward(means, row)


def _maps(config: StitchConfig, equal_widths: bool, is_own: bool) -> int:
    """Return how many maps of each layer pair are reported: φ, what it began with, further ones, and controls."""
    count = 1 + 2 + equal_widths  # φ, the means of tokens and of bigrams, and the identity
    if config.trained:
        count += (config.init != "identity") + 1 + len(config.rates) + config.seeds - 1 + (config.floor and not is_own)
    return count + (3 + 2 * equal_widths if config.controls else 0)


def bytes_of_maps(config: TrainConfig, shapes: Shapes) -> float:
    """Return the bytes of the weights of all φ that are trained together, of their gradients and momenta, float32."""
    if not {"model", "target"} <= set(shapes) or not config.stitch.trained:
        return 0.0
    source, target, stitch = shapes["model"], shapes["target"], config.stitch
    pairs = pairs_of_layers(config.layers, source.layers, target.layers)
    fits = len(pairs) * (1 + len(stitch.rates) + stitch.controls) + stitch.floor * len({depth for _, depth in pairs})
    return 4.0 * map_weights(stitch, source.width, target.width) * fits * (2 + momenta(stitch))
