"""Operations of sparse autoencoders: d wide, f latents. What a start costs before any training, and each token after it.

A source that has been trained before costs nothing; what carries it over does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thinkalike.config import SAEConfig, TrainConfig
from thinkalike.job import Phase, Shapes
from thinkalike.models import Operations

EIGEN = 9.0  # d³ for the eigenvalues and vectors of a symmetric matrix (Golub & Van Loan, section 8.3)


def of_passes(model: Operations, layer: int, tokens: float, context: int) -> float:
    """Return the operations of reading so many tokens up to the site: 2 per weight and token, and attention."""
    return tokens * model.forward(0, layer + 1, context)


def of_training(tokens: float, d: int, f: int) -> float:
    """Return 10 n d f: two products forward, and the gradients of both maps and of the latents; states get none."""
    return 10.0 * tokens * d * f


def of_encoding(tokens: float, d: int, f: int) -> float:
    """Return 4 n d f: latents, and the states that they stand for."""
    return 4.0 * tokens * d * f


def of_maps(tokens: float, d: int, e: int) -> float:
    """Return what maps in both directions between widths d and e take, products of states and solutions."""
    return 2.0 * tokens * (d * d + d * e + e * e) + of_solution(d, e) + of_solution(e, d)


def of_carrying(d: int, e: int, f: int) -> float:
    """Return 4 d e f + 2 d f + 2 d e: both weights, and both biases, through maps from width d to width e and back."""
    return 4.0 * d * e * f + 2.0 * d * f + 2.0 * d * e


def of_decoder(tokens: float, d: int, f: int) -> float:
    """Return what the decoder of least squares takes: latents, products with the states, and the solution."""
    return 2.0 * tokens * (d * f + f * f + f * d + d * d) + of_solution(f, d)


def of_solution(d: int, e: int) -> float:
    """Return what the map of least squares from width d to width e takes: eigenvectors, and two products with them."""
    return EIGEN * d**3 + 4.0 * e * d * d + 2.0 * d * e


def before_training(start: str, config: SAEConfig, model: Any, source: Any = None, *, fitted: bool = True) -> float:
    """Return the operations of a start, with the passes that gather the states for it.

    Args:
        model, source: have `operations`, `width` and `context`, as shapes have; the source is that of `transferred`.
        fitted: whether maps are fitted; else they are those of a stitch that is there, and cost nothing more.
    """
    tokens = float(config.map_tokens)
    if start == "random":
        return 0.0
    own = of_passes(model.operations, config.layer, tokens, model.context)
    if start == "least_squares":
        return own + of_decoder(tokens, model.width, config.width)
    layer = config.layer if config.source_layer is None else config.source_layer
    carrying = of_carrying(source.width, model.width, config.width)
    if not fitted:
        return carrying
    read = own + of_passes(source.operations, layer, tokens, model.context)
    return read + of_maps(tokens, source.width, model.width) + carrying


def each_token(config: SAEConfig, model: Any) -> float:
    """Return the operations of one token of training: the frozen model up to the site, and a step's share."""
    seen = 1 - config.skip_first_tokens / model.context
    return of_passes(model.operations, config.layer, 1.0, model.context) + of_training(seen, model.width, config.width)


def phases_of(config: TrainConfig, shapes: Shapes) -> list[Phase]:
    """Return the phases of a job; an SAE of the source that is not there yet is a job of its own."""
    if "model" not in shapes:
        return []
    sae, model, source = config.sae, shapes["model"], shapes.get("source")
    known = [start for start in sae.starts if start != "transferred" or source]
    fits = len(sae.starts) * (1 + len(sae.rates)) * sae.seeds
    tokens, report = float(sae.steps // sae.steps_per_buffer * sae.buffer), float(config.data.report_tokens or 0)
    looks = fits * of_encoding(14.0 * min(sae.curve_tokens, report), model.width, sae.width) * bool(tokens)
    training = of_passes(model.operations, sae.layer, tokens, model.context)
    training += fits * of_training(tokens, model.width, sae.width) + looks
    starts = sae.seeds * sum(before_training(start, sae, model, source, fitted=not sae.stitch) for start in known)
    spliced = (1 + len(sae.starts) * sae.seeds) * model.forward(report, full=True)
    found: list[tuple[str, float, Mapping[str, float]]] = [
        ("starts", starts, {each.name: float(sae.map_tokens) for each in (model, source) if each}),
        ("training", training, {model.name: tokens}),
        ("report", spliced, {model.name: report}),
    ]
    return [Phase(name, taken, read) for name, taken, read in found if taken]
