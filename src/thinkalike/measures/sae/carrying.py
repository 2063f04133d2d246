"""Sparse autoencoders of one stream as those of another, through affine maps in both directions.

Of an autoencoder of states h and maps g ↦ D g + v to them and h ↦ U h + u from them,

    z = σ((D g + v) W_enc + b_enc),    ĝ = U ĥ(z) + u

is an autoencoder of states g, without any training (Chen et al. 2025, arXiv 2506.06609).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.measures.sae.autoencoder import SparseAutoencoder
from thinkalike.measures.stitching.closed_forms import AffineMap, least_squares_of
from thinkalike.measures.stitching.moments import RIDGE, PairMoments


@torch.no_grad()
def carried(sae: SparseAutoencoder, up: AffineMap, down: AffineMap) -> SparseAutoencoder:
    """Return an autoencoder of the states that `down` leads from and `up` leads to, with the same latents.

    Products are of float64. The norms of the directions are what `up` makes of them: to scale each to 1, and its latent
    with it, would change which latents are the k largest, so it is not done. ψ = φ⁻¹ is no choice for `down`: see
    `both_directions`.

    Args:
        up: From the states of `sae` to others.
        down: From these back to the states of `sae`, fitted by itself.

    Raises:
        ValueError: The widths of the maps do not fit.
    """
    if {up.weight.shape[1], down.weight.shape[0]} != {sae.d} or up.weight.shape[0] != down.weight.shape[1]:
        shapes = f"{tuple(up.weight.shape)} up and {tuple(down.weight.shape)} down"
        raise ValueError(f"maps of shapes {shapes} do not carry an autoencoder of width {sae.d}")
    W_enc, b_enc, W_dec, b_dec = (part.double() for part in (sae.W_enc, sae.b_enc, sae.W_dec, sae.b_dec))
    U, u, D, v = (part.to(W_enc) for part in (up.weight, up.bias, down.weight, down.bias))
    carried_over = SparseAutoencoder(D.T @ W_enc, b_enc + v @ W_enc, W_dec @ U.T, b_dec @ U.T + u, sae.k)
    return carried_over.to(sae.W_enc.dtype)


def standardised(sae: SparseAutoencoder, mean: Float[Tensor, " d"], scale: float) -> SparseAutoencoder:
    """Return an autoencoder of (h - mean) / scale with the latents that `sae` has of h."""
    there, back = _scaling(mean, scale)
    return carried(sae, there, back)


def in_own_units(sae: SparseAutoencoder, mean: Float[Tensor, " d"], scale: float) -> SparseAutoencoder:
    """Return an autoencoder of h with the latents that `sae` has of (h - mean) / scale; undoes `standardised`."""
    there, back = _scaling(mean, scale)
    return carried(sae, back, there)


def _scaling(mean: Tensor, scale: float) -> tuple[AffineMap, AffineMap]:
    """Return h ↦ (h - mean) / scale, and the map back."""
    one = torch.eye(len(mean), dtype=torch.float64, device=mean.device)
    return AffineMap(one / scale, -mean.double() / scale), AffineMap(one * scale, mean.double())


@torch.no_grad()
def with_fitted_decoder(
    sae: SparseAutoencoder, states: Float[Tensor, "n d"], ridge: float = RIDGE
) -> SparseAutoencoder:
    """Return an autoencoder with the encoder of `sae` and the decoder of least squares on these states.

    Args:
        ridge: In units of the mean variance of the latents.
    """
    moments = PairMoments()
    moments.update(sae.encode(states), states)
    found = moments.statistics
    decoder = least_squares_of(found, ridge * float(found.xx.diagonal().mean()))
    W_dec, b_dec = (part.to(sae.W_dec) for part in (decoder.weight.T, decoder.bias))
    return SparseAutoencoder(sae.W_enc.detach(), sae.b_enc.detach(), W_dec, b_dec, sae.k)
