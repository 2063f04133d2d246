"""Operations of sparse autoencoders, d wide with f latents: what a start takes before training, and each token then.

A source that was trained before costs nothing; all that carries it over is counted, the passes that gather states too.
"""

from __future__ import annotations

from typing import NamedTuple

from thinkalike.config import SAEConfig, TrainConfig
from thinkalike.job import Phase, Shapes
from thinkalike.models import Operations

EIGEN = 9.0  # d³ for eigenvalues and eigenvectors of a symmetric matrix (Golub & Van Loan 2013, section 8.3)


class Site(NamedTuple):
    """The width of a site, and the operations of one token of the frozen model up to it."""

    width: int
    passing: float

    @classmethod
    def of(cls, model: Operations, width: int, layer: int, context: int) -> Site:
        return cls(width, model.forward(0, layer + 1, context))


def of_training(tokens: float, d: int, f: int, revived: int = 0) -> float:
    """Return 10 n d f: two products forward, and gradients of both maps and of the latents; states get none.

    Args:
        revived: latents that are looked after in case that they are dead, 6 n d for each.
    """
    return tokens * d * (10.0 * f + 6.0 * revived)


def revived_by(config: SAEConfig) -> int:
    """Return how many latents a step looks after in case that they are dead."""
    return config.revived if config.dead_after and config.activation == "topk" else 0


def of_rebuilding(tokens: float, d: int, f: int) -> float:
    """Return 4 n d f: latents, and the states that they stand for."""
    return 4.0 * tokens * d * f


def of_solution(d: int, e: int) -> float:
    """Return what the map of least squares from width d to width e takes, given its moments."""
    return EIGEN * d**3 + 4.0 * d * d * e


def of_moments(tokens: float, d: int, e: int) -> float:
    """Return what the products of states of widths d and e take."""
    return 2.0 * tokens * (d * d + d * e + e * e)


def of_carrying(d: int, e: int, f: int) -> float:
    """Return what an autoencoder of width d takes through maps to width e and back: both weights, both biases."""
    return 4.0 * d * e * f + 2.0 * d * (e + f)


def of_start(start: str, config: SAEConfig, seen: float, own: Site, source: Site | None = None) -> float:
    """Return the operations of a start before any training.

    Args:
        seen: the share of a row's tokens whose states are read.
        own, source: of the model that is trained on, and of the one that `transferred` comes from.
    """
    read, d, f = float(config.map_tokens), own.width, config.width
    if start == "least_squares":
        gathering = read * own.passing + 2.0 * seen * read * d * f
        return gathering + of_moments(seen * read, f, d) + of_solution(f, d)
    if start == "random" or source is None:
        return 0.0
    if config.stitch:
        return of_carrying(source.width, d, f)
    e = source.width
    gathering = read * (own.passing + source.passing) + of_moments(seen * read, e, d)
    return gathering + of_solution(e, d) + of_solution(d, e) + of_carrying(e, d, f)


def of_token(config: SAEConfig, seen: float, own: Site) -> float:
    """Return the operations of one token of training: the frozen model's, and the autoencoder's."""
    return own.passing + of_training(seen, own.width, config.width, revived_by(config))


def phases_of(config: TrainConfig, shapes: Shapes, source_layer: int) -> list[Phase]:
    """Return the phases of a job; autoencoders of a source that are not there yet are a job of their own.

    Args:
        shapes: of "model" and, if there is one, "source".
    """
    if "model" not in shapes:
        return []
    sae, model, source = config.sae, shapes["model"], shapes.get("source")
    row = config.data.context or min(shape.context for shape in shapes.values())
    seen = 1 - min(sae.skip_first_tokens / row, 1)
    own = Site.of(model.operations, model.width, sae.layer, row)
    other = Site.of(source.operations, source.width, source_layer, row) if source else None
    tokens, report = float(sae.steps * sae.tokens_per_step), float(config.data.report_tokens or 0)
    fits = len(sae.starts) * len(sae.factors) * sae.seeds
    starts = sae.seeds * sum(of_start(start, sae, seen, own, other) for start in sae.starts)
    looks = of_rebuilding(float(fits * len(sae.looks)) * min(sae.curve_tokens, report), own.width, sae.width)
    training = tokens * own.passing + fits * of_training(seen * tokens, own.width, sae.width, revived_by(sae)) + looks
    spliced = (2 + 2 * len(sae.starts) * sae.seeds) * model.forward(report, row, full=True)
    read = {each.name: float(sae.map_tokens) for each in (model, source) if each}
    phases = [
        Phase("starts", starts, read),
        Phase("training", training, {model.name: tokens}),
        Phase("report", spliced, {model.name: report}),
    ]
    return [phase for phase in phases if phase.operations]
