"""Operations of what is carried between two models: maps of widths d and e, and probes of n stimuli and k levels."""

from __future__ import annotations

from collections.abc import Sequence

from thinkalike.config import AnalyzeConfig
from thinkalike.job import Phase, forward_passes
from thinkalike.models import Operations, Shape

STEPS = 100  # of L-BFGS, about


def of_maps(n: int, source: int, target: int) -> float:
    """Return 2 n (d² + d e + e²) for the products of the states of n tokens; solving for the maps takes far less."""
    return 2.0 * n * (source**2 + source * target + target**2)


def of_probes(
    tasks: Sequence[tuple[int, int]], widths: Sequence[int], folds: int, alphas: int, inner_folds: int
) -> float:
    """Return what fitting takes: 4 n d k for each step, of every penalty on every inner fold, and of the one chosen.

    Args:
        tasks: n and k of each.
        widths: d of each kind of states that probes are fitted on.
    """
    steps = STEPS * ((alphas * (inner_folds - 1) if alphas > 1 else 0) + 1) * (folds - 1)
    return float(sum(4.0 * n * width * levels * steps for n, levels in tasks for width in widths))


def text_passes(shapes: Sequence[Shape], fit_tokens: int, config: AnalyzeConfig) -> list[Phase]:
    """Return the passes of both models over the text that maps are fitted on, and over that which judges them."""
    fitted = config.data.fit_tokens or fit_tokens
    tokens = float(fitted + min(config.data.report_tokens or 0, fitted))
    return forward_passes(shapes, tokens, config.data.context or min(shape.context for shape in shapes))


def of_steering(model: Operations, depths: Sequence[int], texts: int, length: int, passes: int) -> float:
    """Return what steered passes take: each depth's head once, and its tail and the unembedding for each vector.

    Args:
        depths: the layers after which vectors are added.
        texts: how many, of so many tokens each.
        passes: of every text from each depth on.
    """
    layers = len(model.blocks)
    heads = sum(model.forward(0, depth + 1, length) for depth in depths)
    tails = sum(model.forward(depth + 1, layers, length) * length + model.output for depth in depths)
    return texts * (heads * length + tails * passes)
