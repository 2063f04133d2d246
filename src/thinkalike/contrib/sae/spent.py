"""The FLOPs that an autoencoder has cost at each point of its training, with what came before it."""

from __future__ import annotations

from typing import NamedTuple

from thinkalike.contrib.sae.config import SAEConfig
from thinkalike.models.shapes import Operations

EIGEN = 9.0  # d³ for eigenvalues and eigenvectors of a symmetric matrix (Golub & Van Loan 2013, section 8.3)


class Site(NamedTuple):
    """The width of a site, and the operations of one token of the frozen model up to it."""

    width: int
    passing: float

    @classmethod
    def of(cls, model: Operations, width: int, layer: int, context: int) -> Site:
        return cls(width, model.forward(0, layer + 1, context))


def of_maps(n: int | float, source: int, target: int) -> float:
    """Return 2 n (d² + d e + e²) for the products of the states of n tokens."""
    return 2.0 * n * float(source**2 + target**2 + source * target)


def of_solution(d: int, e: int) -> float:
    """Return what the map of least squares from width d to width e takes, given its moments."""
    return EIGEN * d**3 + 4.0 * d * d * e


def of_start(start: str, config: SAEConfig, seen: float, own: Site, source: Site | None = None) -> float:
    """Return the operations of a start before any training; training the source beforehand is not counted.

    Args:
        seen: the share of a row's tokens whose states are read.
        own, source: of the model that is trained on, and of the one that `transferred` comes from.
    """
    read, d, f = float(config.map_tokens), own.width, config.width
    if start == "least_squares":
        return read * own.passing + 2.0 * seen * read * d * f + of_maps(seen * read, f, d) + of_solution(f, d)
    if start == "random" or source is None:
        return 0.0
    e = source.width
    carrying = 4.0 * d * e * f + 2.0 * e * (d + f)  # through maps to the other width and back: weights and biases
    if config.stitch:
        return carrying
    gathering = read * (own.passing + source.passing) + of_maps(seen * read, e, d)
    return gathering + of_solution(e, d) + of_solution(d, e) + carrying


def of_token(config: SAEConfig, seen: float, own: Site) -> float:
    """Return the operations of one token of training: the frozen model's and the autoencoder's.

    The latter are 10 d f: two products forward, and gradients of both maps and of the latents. A latent that is looked
    after because it may be dead takes 6 d.
    """
    revived = config.revived if config.dead_after and config.activation == "topk" else 0
    return own.passing + seen * own.width * (10.0 * config.width + 6.0 * revived)
