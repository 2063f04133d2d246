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
    """Return how many operations it takes to compute second moments of states X and Y.

    The states of n tokens have the widths d and e. The products XᵀX, XᵀY and YᵀY take
    2 n (d² + d e + e²) operations.
    """
    return 2.0 * n_tokens * float(d**2 + e**2 + d * e)


def operations_of_least_squares(d: int, e: int) -> float:
    """Return the operations to solve for a least-squares map of width d to width e.

    Given the second moments, the solution takes an eigendecomposition of a d x d matrix, of
    `EIGEN` d³ operations, and two products of its eigenvectors with a d x e matrix, of 2 d² e
    operations each.
    """
    return EIGEN * d**3 + 2 * (2.0 * d * d * e)


def operations_of_start(
    start: str,
    config: SAEConfig,
    share_read: float,
    target: SiteCost,
    source: SiteCost | None = None,
) -> float:
    """Return how many operations it takes to make the first weights of an autoencoder.

    Random weights take none. Of "least_squares", the decoder is fitted to states of the model.
    For "transferred", maps between the states of two models are fitted, in both directions, and
    applied to the weights of the source model's autoencoder.

    Args:
        start: How the first weights are made: "random", "least_squares" or "transferred".
        config: The settings, which decide the number of tokens and latents.
        share_read: The share of tokens whose states are used.
        target: The site whose states are reconstructed.
        source: The site of the source's autoencoder; None: there is no source.
    """
    n_tokens = float(config.map_tokens)
    n_states = share_read * n_tokens
    d = target.width
    f = config.width
    if start == "least_squares":
        model = n_tokens * target.model_operations
        encoder = 2.0 * n_states * d * f
        moments = operations_of_moments(n_states, f, d)
        return model + encoder + moments + operations_of_least_squares(f, d)
    if start == "random" or source is None:
        return 0.0
    e = source.width
    models = n_tokens * (target.model_operations + source.model_operations)
    moments = operations_of_moments(n_states, e, d)
    # The maps are multiplied with the encoder and the decoder (2 d e f each), and with the biases.
    mapped_weights = 4.0 * d * e * f + 2.0 * e * (d + f)
    return (
        models
        + moments
        + operations_of_least_squares(e, d)
        + operations_of_least_squares(d, e)
        + mapped_weights
    )


def operations_per_token(config: SAEConfig, share_read: float, target: SiteCost) -> float:
    """Return the operations of training on one token, for the frozen model and the autoencoder.

    For states of width d, an autoencoder with f latents takes 10 d f operations: five matrix
    products of 2 d f each. Two are of the forward pass, and three are for the gradients of
    encoder, decoder and latents. TopK may also give a gradient to latents that may be dead (long
    inactive). Each of these takes 6 d more, for a further use of its direction in the decoder: one
    product forward, and two for gradients.

    Args:
        config: The settings of training, with the number of latents (`width`).
        share_read: The share of tokens whose states the autoencoder reads.
        target: The width d of the states, and the model's operations to compute them.
    """
    n_revived = 0
    if config.dead_after and config.activation == "topk":  # else dead latents get no gradient
        n_revived = config.revived
    operations_per_dimension = 10.0 * config.width + 6.0 * n_revived
    return target.model_operations + share_read * target.width * operations_per_dimension
