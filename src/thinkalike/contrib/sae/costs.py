"""The FLOPs of a start, and of each token of its training.

That of training a source beforehand is not counted.
"""

from __future__ import annotations

from typing import NamedTuple

from thinkalike.contrib.sae.config import SAEConfig

# Operations, over d³, for eigenvalues and eigenvectors of a symmetric matrix (Golub & Van Loan
# 2013, section 8.3).
EIGEN = 9.0


class SiteCost(NamedTuple):
    """The width of a site, and the operations of one token of the frozen model up to it."""

    width: int
    model_operations: float


def of_moments(n_tokens: float, source: int, target: int) -> float:
    """Return 2 n (d² + d e + e²), for the products of the states of n tokens of widths d and e."""
    return 2.0 * n_tokens * float(source**2 + target**2 + source * target)


def of_solution(d: int, e: int) -> float:
    """Return what the map of least squares from width d to width e takes, given its moments."""
    return EIGEN * d**3 + 4.0 * d * d * e


def of_start(
    start: str,
    config: SAEConfig,
    share_read: float,
    target: SiteCost,
    source: SiteCost | None = None,
) -> float:
    """Return the operations of a start before any training.

    Args:
        start: The name of the start; a random one takes none.
        config: The settings, which decide the number of tokens and latents.
        share_read: The share of tokens whose states are used.
        target: The site that autoencoders are trained for.
        source: The site that a transferred start is carried from.
    """
    tokens = float(config.map_tokens)
    d = target.width
    f = config.width
    if start == "least_squares":
        model = tokens * target.model_operations
        encoder = 2.0 * share_read * tokens * d * f
        return model + encoder + of_moments(share_read * tokens, f, d) + of_solution(f, d)
    if start == "random" or source is None:
        return 0.0
    e = source.width
    models = tokens * (target.model_operations + source.model_operations)
    moments = of_moments(share_read * tokens, e, d)
    # Through maps to the other width and back: weights and biases.
    carrying = 4.0 * d * e * f + 2.0 * e * (d + f)
    return models + moments + of_solution(e, d) + of_solution(d, e) + carrying


def of_token(config: SAEConfig, share_read: float, target: SiteCost) -> float:
    """Return the operations of one token of training: the frozen model's and the autoencoder's.

    The latter are 10 d f: two products forward, and gradients of both maps and of the latents. A
    latent that is looked after because it may be dead takes 6 d.

    Args:
        config: The settings, which decide the number of latents.
        share_read: The share of tokens whose states are used, and which the autoencoder reads.
        target: The site that autoencoders are trained for.
    """
    n_revived = 0
    if config.dead_after and config.activation == "topk":
        n_revived = config.revived
    per_dimension = 10.0 * config.width + 6.0 * n_revived
    return target.model_operations + share_read * target.width * per_dimension
