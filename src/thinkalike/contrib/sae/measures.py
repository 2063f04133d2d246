"""Sparse autoencoders of residual states, one or many in one module: their losses, and how to carry them.

An autoencoder of states h, and maps g ↦ D g + v to them and h ↦ U h + u from them, give an autoencoder of states g
without any training (Chen et al. 2025, arXiv 2506.06609):

    z = σ((D g + v) W_enc + b_enc),    ĝ = U ĥ(z) + u
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from thinkalike.measures.closed_forms import AffineMap, least_squares_of
from thinkalike.measures.moments import Moments
from thinkalike.measures.round_trips import RIDGE
from thinkalike.measures.seeds import seeded


class SparseAutoencoder(nn.Module):
    """z = σ(h W_enc + b_enc), ĥ = z W_dec + b_dec: a state h of width d as a sparse sum of f directions.

    With k, σ keeps the k largest entries, those of them that are positive (TopK; Gao et al. 2024, arXiv 2406.04093);
    without it, all that are positive (ReLU; Bricken et al. 2023). b_dec is not subtracted from h.

    Weights with a leading axis s are s independent autoencoders. They read the same states (n, d), or each its own
    (s, n, d), and give the same bits as each alone.

    W_enc is (d, f), b_enc (f), W_dec (f, d), one direction a row, and b_dec (d); k is in 1..f.
    """

    def __init__(self, W_enc: Tensor, b_enc: Tensor, W_dec: Tensor, b_dec: Tensor, k: int | None = None):
        super().__init__()
        (self.d, self.f), self.k = W_enc.shape[-2:], k
        self.W_enc, self.b_enc = nn.Parameter(W_enc), nn.Parameter(b_enc)
        self.W_dec, self.b_dec = nn.Parameter(W_dec), nn.Parameter(b_dec)

    @classmethod
    def random(cls, d: int, f: int, k: int | None = None, seed: int = 0) -> SparseAutoencoder:
        """Return an autoencoder with random directions of norm 1, W_enc = W_dec', and no biases."""
        directions = torch.randn(f, d, generator=seeded(seed))
        W_dec = nn.functional.normalize(directions, dim=-1)
        return cls(W_dec.T.clone(), torch.zeros(f), W_dec, torch.zeros(d), k)

    @classmethod
    def stacked(cls, several: Sequence[SparseAutoencoder]) -> SparseAutoencoder:
        """Return several autoencoders of one shape and one k as one module, with a leading axis."""
        if len(ks := {each.k for each in several}) > 1:
            raise ValueError(f"autoencoders of one stack must have the same k, not {', '.join(sorted(map(str, ks)))}")
        W_enc, b_enc, W_dec, b_dec = map(torch.stack, zip(*(each.parameters() for each in several), strict=True))
        return cls(W_enc, b_enc, W_dec, b_dec, several[0].k)

    def unstacked(self) -> list[SparseAutoencoder]:
        each = zip(*(part.detach().clone() for part in self.parameters()), strict=True)
        return [SparseAutoencoder(W_enc, b_enc, W_dec, b_dec, self.k) for W_enc, b_enc, W_dec, b_dec in each]

    def before(self, states: Float[Tensor, "*b n d"]) -> Float[Tensor, "*c n f"]:
        """Return h W_enc + b_enc, the latents before σ."""
        return states.to(self.W_enc.dtype) @ self.W_enc + self.b_enc.unsqueeze(-2)

    def activate(self, before: Float[Tensor, "*c n f"]) -> Float[Tensor, "*c n f"]:
        """Return σ of the latents that `before` gives."""
        if self.k is None:
            return before.relu()
        values, places = before.topk(self.k, sorted=False)
        return torch.zeros_like(before).scatter(-1, places, values.relu())

    def encode(self, states: Float[Tensor, "*b n d"]) -> Float[Tensor, "*c n f"]:
        """Return the latents z of each state, at least 0."""
        return self.activate(self.before(states))

    def decode(self, latents: Float[Tensor, "*c n f"]) -> Float[Tensor, "*c n d"]:
        """Return the states ĥ that these latents stand for."""
        return latents @ self.W_dec + self.b_dec.unsqueeze(-2)

    def forward(self, states: Float[Tensor, "*b n d"]) -> Float[Tensor, "*c n d"]:
        return self.decode(self.encode(states))


REVIVAL = 1 / 32  # as Gao et al. have it


class Dead(NamedTuple):
    """The numbers of m latents of each autoencoder that may have died, and which of them have."""

    places: Int[Tensor, "*s m"]
    are: Bool[Tensor, "*s m"]


class SAELoss(NamedTuple):
    """The loss of each autoencoder of a stack, the only part with a gradient, and statistics of the same states."""

    loss: Float[Tensor, "*s"]
    errors: Float[Tensor, "*s n"]  # ‖h - ĥ‖² of each state
    active: Int[Tensor, "*s f"]  # how many states each latent is active for


def sae_loss(
    sae: SparseAutoencoder, states: Float[Tensor, "*b n d"], sparsity: float = 0.0, dead: Dead | None = None
) -> SAELoss:
    """Return the mean over states and dimensions of (h - ĥ)², plus a term that keeps latents sparse or alive.

    A ReLU adds sparsity times the mean over states of Σ z ‖direction‖ / d. That penalty, unlike Σ z alone, is the same
    for any scale of the directions, so that they need no constraint (Conerly et al. 2024).

    TopK adds `REVIVAL` times the mean squared error that remains if dead latents reconstruct h - ĥ: otherwise a latent
    that is never among the k largest gets no gradient again (Gao et al. 2024, section 2.4).
    """
    before = sae.before(states)
    latents = sae.activate(before)
    missed = states - sae.decode(latents)
    loss = missed.square().mean((-2, -1))
    if sae.k is None:
        # not latents @ norms, whose bits differ between one autoencoder and a stack on some processors
        sizes = latents * sae.W_dec.norm(dim=-1).unsqueeze(-2)
        loss = loss + sparsity / sae.d * sizes.sum(-1).mean(-1)
    elif dead is not None:
        shape = (*before.shape[:-1], dead.places.shape[-1])
        values = before.gather(-1, dead.places.unsqueeze(-2).expand(shape)).relu() * dead.are.unsqueeze(-2)
        directions = sae.W_dec.gather(-2, dead.places.unsqueeze(-1).expand(*dead.places.shape, sae.d))
        left = (values @ directions - missed.detach()).square().mean((-2, -1)) * dead.are.any(-1)
        loss = loss + REVIVAL * left
    return SAELoss(loss, missed.detach().square().sum(-1), latents.detach().count_nonzero(-2))


@torch.no_grad()
def carried(sae: SparseAutoencoder, up: AffineMap, down: AffineMap) -> SparseAutoencoder:
    """Return an autoencoder of other states, with the latents of `sae`; products are of float64.

    `up` leads from the states of `sae` to the others, and `down` back; it is fitted separately, as φ⁻¹ would not do,
    see `both_directions`. Directions keep the norms that `up` gives them: scaling each to 1, and its latent with it,
    would change which latents are the k largest.
    """
    W_enc, b_enc, W_dec, b_dec = (part.double() for part in sae.parameters())
    U, u, D, v = (part.to(W_enc) for part in (up.weight, up.bias, down.weight, down.bias))
    carried_over = SparseAutoencoder(D.T @ W_enc, b_enc + v @ W_enc, W_dec @ U.T, b_dec @ U.T + u, sae.k)
    return carried_over.to(sae.W_enc.dtype)


def standardised(sae: SparseAutoencoder, mean: Float[Tensor, " d"], scale: float) -> SparseAutoencoder:
    """Return an autoencoder of (h - mean) / scale with the latents of `sae` for h."""
    return carried(sae, *_scaling(mean, scale))


def in_own_units(sae: SparseAutoencoder, mean: Float[Tensor, " d"], scale: float) -> SparseAutoencoder:
    """Return an autoencoder of h with the latents of `sae` for (h - mean) / scale; the inverse of `standardised`."""
    return carried(sae, *reversed(_scaling(mean, scale)))


def _scaling(mean: Tensor, scale: float) -> tuple[AffineMap, AffineMap]:
    """Return h ↦ (h - mean) / scale, and the map back."""
    one = torch.eye(len(mean), dtype=torch.float64, device=mean.device)
    return AffineMap(one / scale, -mean.double() / scale), AffineMap(one * scale, mean.double())


@torch.no_grad()
def with_fitted_decoder(
    sae: SparseAutoencoder, states: Float[Tensor, "n d"], ridge: float = RIDGE
) -> SparseAutoencoder:
    """Return an autoencoder with the encoder of `sae` and the decoder of least squares on these states.

    The ridge is in units of the mean variance of the latents.
    """
    moments = Moments([(0, 0)])
    moments.update([sae.encode(states)], [states])
    found = moments.of((0, 0))
    decoder = least_squares_of(found, ridge * float(found.xx.diagonal().mean()))
    W_dec, b_dec = (part.to(sae.W_dec) for part in (decoder.weight.T, decoder.bias))
    return SparseAutoencoder(sae.W_enc.detach(), sae.b_enc.detach(), W_dec, b_dec, sae.k)
