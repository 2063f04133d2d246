"""Autoencoders of other states, from those of some states and maps between the two.

An autoencoder of states h, with maps g ↦ D g + v to them and h ↦ U h + u from them, gives an
autoencoder of states g without any training (Chen et al. 2025, arXiv 2506.06609):

    z = σ((D g + v) W_enc + b_enc),    ĝ = U ĥ(z) + u
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.contrib.sae.autoencoder import SparseAutoencoder
from thinkalike.measures.closed_forms import AffineMap, least_squares_of
from thinkalike.measures.moments import Moments
from thinkalike.measures.round_trips import RIDGE

LAYER_PAIR = (0, 0)  # the only one of the moments here


@torch.no_grad()
def mapped_autoencoder(
    sae: SparseAutoencoder, to_new_states: AffineMap, from_new_states: AffineMap
) -> SparseAutoencoder:
    """Return an autoencoder of other states g, made of an autoencoder of states h and two maps.

    With the maps U h + u to the new states g and D g + v back from them, the new autoencoder is
    g ↦ U sae(D g + v) + u: its latents for g are those of `sae` for D g + v. The weights are
    multiplied in float64. Directions keep the norms that U gives them: scaling each to norm 1,
    and its latent accordingly, would change which latents are the k largest.

    Args:
        sae: The autoencoder of states h, which is not changed.
        to_new_states: The map from states h to states g.
        from_new_states: The map back. If maps are fitted, it is fitted separately: the inverse of
            `to_new_states` predicts worse.
    """
    W_enc, b_enc, W_dec, b_dec = (weight.double() for weight in sae.parameters())
    U = to_new_states.weight.to(W_enc)
    u = to_new_states.bias.to(W_enc)
    D = from_new_states.weight.to(W_enc)
    v = from_new_states.bias.to(W_enc)
    # States are rows here, so that (D g + v) W_enc = g (Dᵀ W_enc) + v W_enc, and so on.
    mapped = SparseAutoencoder(
        W_enc=D.T @ W_enc,
        b_enc=b_enc + v @ W_enc,
        W_dec=W_dec @ U.T,
        b_dec=b_dec @ U.T + u,
        k=sae.k,
    )
    return mapped.to(sae.W_enc.dtype)


def for_standardised_states(
    sae: SparseAutoencoder, mean: Float[Tensor, " d"], scale: float
) -> SparseAutoencoder:
    """Turn an autoencoder of states h into one of standardised states (h - mean) / scale.

    The latents of a state stay the same, and the reconstruction is standardised as well.
    """
    return mapped_autoencoder(
        sae,
        to_new_states=_standardising_map(mean, scale),
        from_new_states=_rescaling_map(mean, scale),
    )


def for_original_states(
    sae: SparseAutoencoder, mean: Float[Tensor, " d"], scale: float
) -> SparseAutoencoder:
    """Turn an autoencoder of standardised states (h - mean) / scale into one of the states h.

    The latents of a state stay the same: the encoder standardises what it reads, and the decoder
    turns what it writes back into the units of h.
    """
    return mapped_autoencoder(
        sae,
        to_new_states=_rescaling_map(mean, scale),
        from_new_states=_standardising_map(mean, scale),
    )


def _standardising_map(mean: Float[Tensor, " d"], scale: float) -> AffineMap:
    """Return the map of states h ↦ (h - mean) / scale."""
    identity = torch.eye(len(mean), dtype=torch.float64, device=mean.device)
    return AffineMap(identity / scale, -mean.double() / scale)


def _rescaling_map(mean: Float[Tensor, " d"], scale: float) -> AffineMap:
    """Return the map from standardised states x back to states, x ↦ x scale + mean."""
    identity = torch.eye(len(mean), dtype=torch.float64, device=mean.device)
    return AffineMap(identity * scale, mean.double())


@torch.no_grad()
def with_fitted_decoder(
    sae: SparseAutoencoder, states: Float[Tensor, "n d"], ridge: float = RIDGE
) -> SparseAutoencoder:
    """Return an autoencoder with the encoder of `sae` and a decoder fitted by ridge regression.

    Args:
        sae: The autoencoder whose encoder is used.
        states: The states that the decoder is fitted to reconstruct from their latents.
        ridge: The ridge penalty, as a share of the mean variance of the latents.
    """
    # Moments of one "pair of layers": latents, which predict, and states, which are predicted.
    moments = Moments([LAYER_PAIR])
    moments.update([sae.encode(states)], [states])
    latents_to_states = moments.of(LAYER_PAIR)
    latent_covariance = latents_to_states.xx
    mean_variance = float(latent_covariance.diagonal().mean())
    decoder = least_squares_of(latents_to_states, ridge * mean_variance)
    return SparseAutoencoder(
        W_enc=sae.W_enc.detach(),
        b_enc=sae.b_enc.detach(),
        W_dec=decoder.weight.T.to(sae.W_dec),
        b_dec=decoder.bias.to(sae.W_dec),
        k=sae.k,
    )
