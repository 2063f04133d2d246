"""Sparse autoencoders of residual states, one or many in one module, and their loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from thinkalike.measures.seeds import seeded

DEAD_LATENT_WEIGHT = 1 / 32  # of the loss that revives dead latents, as in Gao et al. 2024


class SparseAutoencoder(nn.Module):
    """z = σ(h W_enc + b_enc), ĥ = z W_dec + b_dec: a state h as a sparse sum of f directions.

    With k, σ keeps the positive ones of the k largest entries (TopK; Gao et al. 2024, arXiv
    2406.04093). Without k it keeps all positive entries (ReLU; Bricken et al. 2023). b_dec is not
    subtracted from h.

    Weights with a leading axis s are s independent autoencoders. They read the same states (n, d),
    or one set each, (s, n, d), and compute the same bits as each alone.

    Args:
        W_enc: The weights of the encoder, (d, f).
        b_enc: Its bias, (f).
        W_dec: The weights of the decoder, (f, d), one direction a row.
        b_dec: Its bias, (d).
        k: How many latents are active at most, in 1..f; None: any number.
    """

    def __init__(
        self, W_enc: Tensor, b_enc: Tensor, W_dec: Tensor, b_dec: Tensor, k: int | None = None
    ):
        """Make parameters of the weights of an autoencoder, or of a stack of s autoencoders.

        The shapes are (d, f), (f), (f, d) and (d) for states of width d and f latents. The weights
        of a stack have a further, first axis s. If k is given, only the k largest latents of a
        state are active (TopK); if it is None, all positive ones are (ReLU).
        """
        super().__init__()
        self.d, self.f = W_enc.shape[-2:]
        self.k = k
        self.W_enc = nn.Parameter(W_enc)
        self.b_enc = nn.Parameter(b_enc)
        self.W_dec = nn.Parameter(W_dec)
        self.b_dec = nn.Parameter(b_dec)

    @classmethod
    def random(cls, d: int, f: int, k: int | None = None, seed: int = 0) -> SparseAutoencoder:
        """Return an autoencoder with random directions of norm 1, W_enc = W_decᵀ, and zero biases.

        Args:
            d: The width of the states.
            f: How many latents there are.
            k: How many latents are active at most (TopK); None: all that are above 0 (ReLU).
            seed: The seed of the directions.
        """
        directions = torch.randn(f, d, generator=seeded(seed))
        W_dec = nn.functional.normalize(directions, dim=-1)
        return cls(W_dec.T.clone(), torch.zeros(f), W_dec, torch.zeros(d), k)

    @classmethod
    def stacked(cls, saes: Sequence[SparseAutoencoder]) -> SparseAutoencoder:
        """Return several autoencoders of one shape as one module, whose weights are stacked.

        Raises:
            ValueError: The autoencoders differ in k, the number of active latents.
        """
        ks = {sae.k for sae in saes}
        if len(ks) > 1:
            listed = ", ".join(sorted(str(k) for k in ks))
            raise ValueError(f"autoencoders of one stack must have the same k, not {listed}")
        return cls(
            torch.stack([sae.W_enc for sae in saes]),
            torch.stack([sae.b_enc for sae in saes]),
            torch.stack([sae.W_dec for sae in saes]),
            torch.stack([sae.b_dec for sae in saes]),
            saes[0].k,
        )

    def unstacked(self) -> list[SparseAutoencoder]:
        """Return the autoencoders of a stack as separate modules, with copies of the weights."""
        weights = zip(self.W_enc, self.b_enc, self.W_dec, self.b_dec, strict=True)
        saes = []
        for W_enc, b_enc, W_dec, b_dec in weights:
            copies = [weight.detach().clone() for weight in (W_enc, b_enc, W_dec, b_dec)]
            saes.append(SparseAutoencoder(copies[0], copies[1], copies[2], copies[3], self.k))
        return saes

    def pre_activations(self, states: Float[Tensor, "*b n d"]) -> Float[Tensor, "*c n f"]:
        """Return h W_enc + b_enc, the latents before σ."""
        return states.to(self.W_enc.dtype) @ self.W_enc + self.b_enc.unsqueeze(-2)

    def activate(self, pre_activations: Float[Tensor, "*c n f"]) -> Float[Tensor, "*c n f"]:
        """Return the latents: the pre-activations with all but some positive entries set to 0.

        If `k` is None (ReLU), all positive entries are kept. Otherwise (TopK) only the k largest
        entries of each state are kept, and of those only positive ones.
        """
        if self.k is None:
            return pre_activations.relu()
        largest_values, indices = pre_activations.topk(self.k, sorted=False)
        latents = torch.zeros_like(pre_activations)
        return latents.scatter(-1, indices, largest_values.relu())

    def encode(self, states: Float[Tensor, "*b n d"]) -> Float[Tensor, "*c n f"]:
        """Return the latents z of each state, at least 0."""
        return self.activate(self.pre_activations(states))

    def decode(self, latents: Float[Tensor, "*c n f"]) -> Float[Tensor, "*c n d"]:
        """Return the states ĥ that these latents stand for."""
        return latents @ self.W_dec + self.b_dec.unsqueeze(-2)

    def forward(self, states: Float[Tensor, "*b n d"]) -> Float[Tensor, "*c n d"]:
        """Return the reconstructions of some states."""
        return self.decode(self.encode(states))


class DeadCandidates(NamedTuple):
    """m latents of each autoencoder that may be dead: they were not active for long.

    Attributes:
        latents: The indices of these latents.
        is_dead: Which of them count as dead.
    """

    latents: Int[Tensor, "*s m"]
    is_dead: Bool[Tensor, "*s m"]


class SAELoss(NamedTuple):
    """The loss of each autoencoder of a stack, and statistics of the same states.

    Attributes:
        loss: The loss, which is the only part with a gradient.
        errors: ‖h - ĥ‖² of each state.
        active: How many states each latent is active for.
    """

    loss: Float[Tensor, "*s"]
    errors: Float[Tensor, "*s n"]
    active: Int[Tensor, "*s f"]


def sae_loss(
    sae: SparseAutoencoder,
    states: Float[Tensor, "*b n d"],
    sparsity: float = 0.0,
    dead: DeadCandidates | None = None,
) -> SAELoss:
    """Return the mean of (h - ĥ)², plus a term that keeps latents sparse or alive.

    h are the states of width d, ĥ their reconstructions, and z the latents, each of which has a
    direction, a row of the decoder. A ReLU autoencoder adds sparsity times the mean over states of
    Σ z ‖direction‖ / d. That penalty, unlike Σ z alone, is the same for any scale of the
    directions, so they need no constraint (Conerly et al. 2024).

    A TopK autoencoder adds `DEAD_LATENT_WEIGHT` times the mean squared error that remains if dead
    latents reconstruct h - ĥ. Otherwise a latent that is never among the k largest would never get
    a gradient again (Gao et al. 2024, section 2.4).

    Args:
        sae: One autoencoder or a stack.
        states: The states h.
        sparsity: For ReLU: the weight of the penalty.
        dead: For TopK: the latents that may be dead; None: no term is added for them.
    """
    pre_activations = sae.pre_activations(states)
    latents = sae.activate(pre_activations)
    residual = states - sae.decode(latents)
    loss = residual.square().mean((-2, -1))
    if sae.k is None:
        # `latents @ norms` would be shorter, but on some processors its bits differ between one
        # autoencoder and a stack.
        latents_by_norm = latents * sae.W_dec.norm(dim=-1).unsqueeze(-2)  # z ‖direction‖
        loss = loss + sparsity / sae.d * latents_by_norm.sum(-1).mean(-1)
    elif dead is not None:
        loss = loss + DEAD_LATENT_WEIGHT * _dead_latent_loss(
            sae, pre_activations, residual.detach(), dead
        )
    squared_errors = residual.detach().square().sum(-1)
    n_active_states = latents.detach().count_nonzero(-2)  # of each latent
    return SAELoss(loss, squared_errors, n_active_states)


def _dead_latent_loss(
    sae: SparseAutoencoder,
    pre_activations: Float[Tensor, "*c n f"],
    residual: Float[Tensor, "*c n d"],
    dead: DeadCandidates,
) -> Float[Tensor, "*s"]:
    """Return the mean squared error that remains if only dead latents reconstruct the residual.

    Dead latents have not been active for a long time. Here they are active wherever they are
    positive, so that they get a gradient. The error is 0 for an autoencoder without dead latents.
    A stack of autoencoders has axes *s. States have the same axes, or axes of length 1 in their
    place where all autoencoders of the stack read the same states (*c).

    Args:
        sae: One autoencoder or a stack.
        pre_activations: All latents of each state h before the activation function.
        residual: h - ĥ, what the autoencoder did not reconstruct of each state.
        dead: The latents that may be dead, and which of them are.
    """
    # The indices of these latents, (*s, candidates), are expanded for `gather`: once for each
    # state, to pick their pre-activations, and once for each dimension, to pick their directions.
    n_candidates = dead.latents.shape[-1]
    index_by_state = dead.latents.unsqueeze(-2).expand(*pre_activations.shape[:-1], n_candidates)
    index_by_dimension = dead.latents.unsqueeze(-1).expand(*dead.latents.shape, sae.d)

    latents = pre_activations.gather(-1, index_by_state).relu()
    dead_latents = latents * dead.is_dead.unsqueeze(-2)  # 0 for those that are alive
    directions = sae.W_dec.gather(-2, index_by_dimension)
    error = (dead_latents @ directions - residual).square().mean((-2, -1))
    return error * dead.is_dead.any(-1)
