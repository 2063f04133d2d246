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


def operations_of_moments(n_tokens: float, d: int, e: int) -> float:
    """Return the operations of the second moments of states X and Y of n tokens.

    The widths of the states are d and e. The products XᵀX, XᵀY and YᵀY take 2 n (d² + d e + e²)
    operations.
    """
    return 2.0 * n_tokens * float(d**2 + e**2 + d * e)


def operations_of_least_squares(d: int, e: int) -> float:
    """Return the operations to solve for a least-squares map of width d to width e.

    Given the second moments, these are an eigendecomposition and two products with it.
    """
    return EIGEN * d**3 + 4.0 * d * d * e


def operations_of_start(
    start: str,
    config: SAEConfig,
    share_read: float,
    target: SiteCost,
    source: SiteCost | None = None,
) -> float:
    """Return the operations to prepare the first weights of an autoencoder, before training.

    A random start takes none. A least-squares start fits a decoder; a transferred start fits maps
    between the states of two models, and maps the weights of the source's autoencoder.

    Args:
        start: "random", "least_squares" or "transferred".
        config: The settings, which decide the number of tokens and latents.
        share_read: The share of tokens whose states are used.
        target: The site whose states are reconstructed.
        source: The site of the source's autoencoder; None: there is no source.
    """
    tokens = float(config.map_tokens)
    d = target.width
    f = config.width
    if start == "least_squares":
        model = tokens * target.model_operations
        encoder = 2.0 * share_read * tokens * d * f
        return (
            model
            + encoder
            + operations_of_moments(share_read * tokens, f, d)
            + operations_of_least_squares(f, d)
        )
    if start == "random" or source is None:
        return 0.0
    e = source.width
    models = tokens * (target.model_operations + source.model_operations)
    moments = operations_of_moments(share_read * tokens, e, d)
    # The products of the source's weights and biases with the two maps.
    mapping = 4.0 * d * e * f + 2.0 * e * (d + f)
    return (
        models
        + moments
        + operations_of_least_squares(e, d)
        + operations_of_least_squares(d, e)
        + mapping
    )


def operations_per_token(config: SAEConfig, share_read: float, target: SiteCost) -> float:
    """Return the operations of training on one token, for the frozen model and the autoencoder.

    An autoencoder of width d with f latents takes 10 d f operations: two products in the forward
    pass, and three for the gradients of encoder, decoder and latents, of 2 d f each. A latent that
    may be dead takes 6 d more.

    Args:
        config: The settings, which decide the number of latents.
        share_read: The share of tokens whose states the autoencoder reads.
        target: The site whose states are reconstructed.
    """
    n_revived = 0
    if config.dead_after and config.activation == "topk":
        n_revived = config.revived
    per_dimension = 10.0 * config.width + 6.0 * n_revived
    return target.model_operations + share_read * target.width * per_dimension
