"""What a stitching job takes, before anything is loaded: passes of its models, and the bytes of its stitches."""

from __future__ import annotations

from collections.abc import Sequence

from thinkalike.config import StitchConfig, TrainConfig, pairs_of_layers
from thinkalike.memory import AT_ONCE, Budget, check_memory
from thinkalike.models.shapes import Passes, Shape, Shapes, both_of

Pairs = Sequence[tuple[int, int]]  # of layers

REPORTED = 2**18  # tokens of the report where the data do not state it
STATISTICS = 2**16  # tokens, at most, of closed forms, and of the likeness of states
TRAINED = 2  # passes of a step through frozen weights: forward, and the gradients of states


def passes(config: TrainConfig, shapes: Shapes) -> list[Passes]:
    """Return the passes of a stitching job, of both directions if both are asked for."""
    source, target = both_of(shapes)
    pairs = pairs_of_layers(config.layers, source.layers, target.layers)
    found = _passes(config, source, target, pairs)
    return found + _passes(config, target, source, [pair[::-1] for pair in pairs]) if config.stitch.both else found


def _passes(config: TrainConfig, source: Shape, target: Shape, pairs: Pairs) -> list[Passes]:
    """Return the passes of one direction; each stitch runs the tail of the target."""
    stitch, row = config.stitch, config.data.context or min(source.context, target.context)
    report, steps = config.data.report_tokens or REPORTED, stitch.steps * stitch.tokens_per_step * stitch.trained
    fit = min(config.data.fit_tokens or steps or report, steps or report)
    read = (min(fit, STATISTICS) if stitch.trained or stitch.kind == "identity" else fit) + min(report, STATISTICS)
    whole = target.operations.full(row)
    tails = {m: (whole - target.operations.forward(0, m + 1, row)) / whole for _, m in pairs}
    all_tails = sum(tails[m] for _, m in pairs)
    fits = all_tails * (stitch.seeds + len(stitch.lr_multiples) + stitch.controls) + stitch.floor * sum(tails.values())
    maps = 3 + 5 * stitch.controls + (1 + len(stitch.lr_multiples) + stitch.seeds + stitch.floor) * stitch.trained
    own = stitch.seeds * (stitch.loss != "cross_entropy") or stitch.floor  # the target's own predictions or states
    found = [
        Passes("training", source, steps, row, stitch.seeds + stitch.controls, full=False),
        Passes("training", target, steps, row, own + TRAINED * fits),
        Passes("likeness", source, read, row, full=False),
        Passes("likeness", target, read, row),
        Passes("report", source, report, row, full=False),
        Passes("report", target, report, row, 1 + maps * all_tails),
    ]
    return [each for each in found if each.tokens]


def held(config: TrainConfig, shapes: Shapes) -> float:
    """Return the most bytes that stitches of one direction take: of training, or of the likeness of states.

    All φ that are trained together have gradients, momenta and means, in float32. States of a batch are held as
    `in_parts` says, up to `AT_ONCE` bytes, beside three sets of moments in float64 of all layer pairs.
    """
    from thinkalike.evaluation.likeness import GROUPED_TOKENS, SOURCE_BYTES, TARGET_BYTES
    from thinkalike.measures.losses import bytes_of_logits

    source, target = both_of(shapes)
    stitch, pairs = config.stitch, pairs_of_layers(config.layers, source.layers, target.layers)
    tokens = min(config.data.fit_tokens or stitch.steps * stitch.tokens_per_step, STATISTICS)
    layers, depths = (len(set(side)) for side in zip(*pairs, strict=True))
    each = layers * SOURCE_BYTES * source.width + depths * TARGET_BYTES * target.width
    states = min(each * tokens / max(tokens // GROUPED_TOKENS, 1), AT_ONCE)
    alike = states + 3 * _bytes_of_moments(source.width, target.width, pairs) + bytes_of_logits(target.vocabulary)
    trained = stitches_in(stitch, pairs) * _bytes_of_map(stitch, source.width, target.width) * (3 + _momenta(stitch))
    return max(stitch.trained * trained, alike)


def check_room(config: StitchConfig, d: int, e: int, pairs: Pairs, budget: Budget) -> None:
    """Check that stitches with gradients and momenta in float32, and closed forms in float64, fit into memory."""
    if config.trained:
        count = stitches_in(config, pairs)
        kept = _bytes_of_map(config, d, e) * (count * (3 + _momenta(config)) + len(pairs))
        check_memory(f"{count} stitches need", kept, budget, "choose fewer layers, or stitch=low_rank")
        tokens = 12.0 * config.tokens_per_step  # as they are read, and as they are given to the models
        check_memory(f"stitch.tokens_per_step={config.tokens_per_step} needs", kept + tokens, budget, "lower it")
    if config.controls or config.init != "identity" or not (config.trained or config.kind == "identity"):
        remedy = "choose fewer layers" + (", stitch.controls=false" if config.controls else "")
        closed = _bytes_of_moments(d, e, pairs, maps=3 if config.controls else 1)
        check_memory(f"closed forms of {len(pairs)} layer pairs need", closed, budget, remedy)


def stitches_in(config: StitchConfig, pairs: Pairs) -> int:
    """Return how many φ are trained together: of all pairs, rates and controls, and of the target into itself."""
    depths = {depth for _, depth in pairs}
    return len(pairs) * (1 + len(config.lr_multiples) + config.controls) + config.floor * len(depths)


def _momenta(config: StitchConfig) -> int:
    from thinkalike.training.optimizers import momenta

    return momenta(config)


def _bytes_of_map(config: StitchConfig, d: int, e: int) -> float:
    """Return the bytes of a φ's linear maps from width d to width e, in float32."""
    if config.kind == "identity":
        return 0.0
    return 4.0 * (config.rank * (d + e) if config.kind == "low_rank" else d * e)


def _bytes_of_moments(d: int, e: int, pairs: Pairs, maps: int = 0) -> float:
    """Return the bytes of Σ d² + Σ e² over the layers that are read and (1 + maps) Σ d e over their pairs."""
    layers, depths = (len(set(side)) for side in zip(*pairs, strict=True))
    return 8.0 * (layers * d**2 + depths * e**2 + (1 + maps) * len(pairs) * d * e)
