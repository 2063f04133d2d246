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

from thinkalike.arguments import seeded
from thinkalike.measures.closed_forms import RIDGE, AffineMap, PairMoments, least_squares_of


class SparseAutoencoder(nn.Module):
    """z = σ(h W_enc + b_enc), ĥ = z W_dec + b_dec: a state h of width d as a sparse sum of f directions.

    With k, σ keeps the k largest entries, those of them that are positive (TopK; Gao et al. 2024, arXiv 2406.04093);
    without it, all that are positive (ReLU; Bricken et al. 2023). b_dec is not subtracted from h.

    Weights with a leading axis s are as many independent autoencoders. They read the same states (n, d), or each its
    own (s, n, d), and each has the bits that it has alone.

    Attributes:
        W_enc: (d, f).
        b_enc: (f).
        W_dec: (f, d), one direction a row.
        b_dec: (d).
        k: How many latents are active at most; None: a ReLU.

    Raises:
        ValueError: k is not in 1..f.
    """

    def __init__(self, W_enc: Tensor, b_enc: Tensor, W_dec: Tensor, b_dec: Tensor, k: int | None = None):
        super().__init__()
        if k is not None and not 1 <= k <= W_enc.shape[-1]:
            raise ValueError(f"k={k} is not in 1..{W_enc.shape[-1]}, the number of latents")
        self.k = k
        self.W_enc, self.b_enc = nn.Parameter(W_enc), nn.Parameter(b_enc)
        self.W_dec, self.b_dec = nn.Parameter(W_dec), nn.Parameter(b_dec)

    @classmethod
    def random(cls, d: int, f: int, k: int | None = None, seed: int = 0) -> SparseAutoencoder:
        """Return one with random directions of norm 1 that reads what it writes: W_enc = W_dec', no biases."""
        directions = torch.randn(f, d, generator=seeded(seed))
        W_dec = nn.functional.normalize(directions, dim=-1)
        return cls(W_dec.T.clone(), torch.zeros(f), W_dec, torch.zeros(d), k)

    @classmethod
    def stacked(cls, several: Sequence[SparseAutoencoder]) -> SparseAutoencoder:
        """Return several autoencoders of one shape as one module, with a leading axis.

        Raises:
            ValueError: There is none, or they differ in their shape or in k.
        """
        parts = ("W_enc", "b_enc", "W_dec", "b_dec")
        kinds = {(each.d, each.f, each.k) for each in several}
        if len(kinds) != 1:
            raise ValueError(
                f"autoencoders of one stack have one width, number of latents and k, not {sorted(kinds, key=str)}"
            )
        stacked = {part: torch.stack([getattr(each, part).detach() for each in several]) for part in parts}
        return cls(**stacked, k=several[0].k)

    def unstacked(self) -> list[SparseAutoencoder]:
        """Return each autoencoder of a stack by itself."""
        stack = (part.detach().clone() for part in (self.W_enc, self.b_enc, self.W_dec, self.b_dec))
        return [SparseAutoencoder(E, e, W, w, self.k) for E, e, W, w in zip(*stack, strict=True)]

    @property
    def d(self) -> int:
        """The width of the states."""
        return self.W_enc.shape[-2]

    @property
    def f(self) -> int:
        """The number of latents."""
        return self.W_enc.shape[-1]

    def before(self, states: Float[Tensor, "*b n d"]) -> Float[Tensor, "*c n f"]:
        """Return what σ is applied to."""
        return states.to(self.W_enc.dtype) @ self.W_enc + self.b_enc.unsqueeze(-2)

    def activate(self, before: Float[Tensor, "*c n f"]) -> Float[Tensor, "*c n f"]:
        """Return σ of what `before` gives."""
        if self.k is None:
            return before.relu()
        values, places = before.topk(self.k, sorted=False)
        return torch.zeros_like(before).scatter(-1, places, values.relu())

    def encode(self, states: Float[Tensor, "*b n d"]) -> Float[Tensor, "*c n f"]:
        """Return the latents z of each state, at least 0."""
        return self.activate(self.before(states))

    def decode(self, latents: Float[Tensor, "*c n f"]) -> Float[Tensor, "*c n d"]:
        """Return the states ĥ that latents stand for."""
        return latents @ self.W_dec + self.b_dec.unsqueeze(-2)

    def forward(self, states: Float[Tensor, "*b n d"]) -> Float[Tensor, "*c n d"]:
        """Return ĥ of each state."""
        return self.decode(self.encode(states))

    def extra_repr(self) -> str:
        stack = f"{len(self.W_enc)} of " if self.W_enc.dim() == 3 else ""
        return f"{stack}{self.d} to {self.f}, " + ("ReLU" if self.k is None else f"Top{self.k}")


# --------------------------------------------------------------------------------------------------------------- losses

REVIVAL = 1 / 32  # the weight that Gao et al. have


class Dead(NamedTuple):
    """Latents that may have died: m of each autoencoder by number, and which of them have."""

    places: Int[Tensor, "*s m"]
    are: Bool[Tensor, "*s m"]


class SAELoss(NamedTuple):
    """What training makes small, and what comes with it; only the first has a gradient.

    Attributes:
        loss: Of each autoencoder of a stack, to add up and differentiate.
        errors: ‖h - ĥ‖² of each state.
        active: How many states each latent is active for.
    """

    loss: Float[Tensor, "*s"]
    errors: Float[Tensor, "*s n"]
    active: Int[Tensor, "*s f"]


def sae_loss(
    sae: SparseAutoencoder, states: Float[Tensor, "*b n d"], sparsity: float = 0.0, dead: Dead | None = None
) -> SAELoss:
    """Return the mean over states and dimensions of (h - ĥ)², and what keeps latents few and alive.

    A ReLU adds sparsity times the mean over states of Σ z ‖direction‖ / d. That penalty, unlike Σ z alone, is the same
    for any scale of the directions, so that these need no constraint (Conerly et al. 2024). TopK is sparse anyway.

    TopK adds `REVIVAL` times the mean square of what dead latents, were they active, would leave of h - ĥ: otherwise a
    latent that never is among the k largest gets no gradient again (Gao et al. 2024, section 2.4).
    """
    before = sae.before(states)
    latents = sae.activate(before)
    missed = states - sae.decode(latents)
    loss = missed.square().mean((-2, -1))
    if sae.k is None:
        loss = loss + sparsity / sae.d * (latents @ sae.W_dec.norm(dim=-1).unsqueeze(-1)).squeeze(-1).mean(-1)
    elif dead is not None:
        loss = loss + REVIVAL * _left_by_dead(sae, before, missed.detach(), dead)
    return SAELoss(loss, missed.detach().square().sum(-1), latents.detach().count_nonzero(-2))


def _left_by_dead(
    sae: SparseAutoencoder, before: Float[Tensor, "*s n f"], missed: Float[Tensor, "*s n d"], dead: Dead
) -> Float[Tensor, "*s"]:
    """Return the mean of (e - ê)² of errors e, with ê what dead latents that are positive stand for; 0 without any."""
    shape = (*before.shape[:-1], dead.places.shape[-1])
    values = before.gather(-1, dead.places.unsqueeze(-2).expand(shape)).relu() * dead.are.unsqueeze(-2)
    directions = sae.W_dec.gather(-2, dead.places.unsqueeze(-1).expand(*dead.places.shape, sae.d))
    return (values @ directions - missed).square().mean((-2, -1)) * dead.are.any(-1)


def explained_variance(errors: Float[Tensor, "*s n"], spread: Float[Tensor, " n"]) -> Float[Tensor, "*s"]:
    """Return 1 - Σ‖h - ĥ‖² / Σ‖h - μ‖², at most 1; 0 is what the mean alone reaches, and less is worse than it.

    Args:
        errors: ‖h - ĥ‖² of each state, or sums of them.
        spread: ‖h - μ‖² of each state with μ the mean of all, or sums of the same states.
    """
    return 1 - errors.sum(-1) / spread.sum(-1)


def spread_of(states: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    """Return ‖h - μ‖² of each state, with μ the mean of all."""
    return (states - states.mean(0)).square().sum(-1)


def loss_recovered(
    clean: Float[Tensor, "..."], ablated: Float[Tensor, "..."], spliced: Float[Tensor, "..."]
) -> Float[Tensor, "..."]:
    """Return (ablated - spliced) / (ablated - clean), at most about 1; 0 is what the ablation alone reaches.

    Args:
        clean: The model's own loss.
        ablated: Its loss where every state of the site is the mean of all.
        spliced: Its loss where every state of the site is ĥ.
    """
    return (ablated - spliced) / (ablated - clean)


def dead_latents(latents: Float[Tensor, "*s n f"]) -> Bool[Tensor, "*s f"]:
    """Return which latents are active for none of these states."""
    return (latents <= 0).all(-2)


# ------------------------------------------------------------------------------------------------- carried autoencoders


@torch.no_grad()
def carried(sae: SparseAutoencoder, up: AffineMap, down: AffineMap) -> SparseAutoencoder:
    """Return an autoencoder of the states that `down` leads from and `up` leads to, with the same latents.

    Products are of float64. The norms of the directions are what `up` makes of them: to scale each to 1, and its latent
    with it, would change which latents are the k largest, so it is not done. ψ = φ⁻¹ is no choice for `down`: see
    `both_directions`.

    Args:
        up: From the states of `sae` to others.
        down: From these back to the states of `sae`, fitted by itself.
    """
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
