"""What sparse autoencoders lose, what they explain, and which of their latents are dead."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

from thinkalike.measures.sae.autoencoder import SparseAutoencoder


def sae_loss(
    sae: SparseAutoencoder, states: Float[Tensor, "*b n d"], sparsity: float = 0.0
) -> tuple[Float[Tensor, "*s"], Float[Tensor, "*s n"]]:
    """Return the loss, and of each state the squared error ‖h - ĥ‖².

    The loss is the mean over states and dimensions of (h - ĥ)², plus, for a ReLU, sparsity times the mean over states
    of Σ z ‖direction‖ / d. That penalty, unlike Σ z alone, is the same for any scale of the directions, so that these
    need no constraint (Conerly et al. 2024). TopK needs none to be sparse, and has none.

    Returns:
        The loss of each autoencoder of a stack, to add up and differentiate; the errors, without a gradient.
    """
    latents = sae.encode(states)
    errors = (sae.decode(latents) - states).square().sum(-1)
    loss = errors.mean(-1)
    if sae.k is None:
        loss = loss + sparsity * (latents @ sae.W_dec.norm(dim=-1).unsqueeze(-1)).squeeze(-1).mean(-1)
    return loss / sae.d, errors.detach()


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
