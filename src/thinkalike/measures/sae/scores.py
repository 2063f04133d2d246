"""What sparse autoencoders lose, what they explain, and which of their latents are dead."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.measures.sae.autoencoder import SparseAutoencoder

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
