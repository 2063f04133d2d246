"""Errors of sparse autoencoders on a model's states, and its losses with them inside, summed by document.

The first tokens of a row can be left out: their states are the same in every row, or so large that they decide every
sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.contrib.sae.measures import SparseAutoencoder, spread_of
from thinkalike.data.corpus import TokenRows
from thinkalike.evaluation.language import DocumentSums, last_states, next_token_losses
from thinkalike.measures.estimates import sum_by_document
from thinkalike.models.frozen import FrozenModel

TOKENS = 4096  # that a model reads at once
LATENTS = 2**20  # that are in memory at once: more leave the cache of a CPU


class SiteStates(NamedTuple):
    """The states of one site of a model, in one row each, and the number of each token's document."""

    states: Float[Tensor, "n d"]
    documents: Int[Tensor, " n"]


class Kept(NamedTuple):
    """How well each of s autoencoders reconstructs some states."""

    errors: Float[Tensor, "s documents"]  # Σ‖h - ĥ‖²
    active: Float[Tensor, " s"]  # how many latents are active on average
    dead: Float[Tensor, " s"]  # the share of latents that are active for no state


class SplicedLosses(NamedTuple):
    """Losses of the next token in nats, summed by document."""

    clean: Float[Tensor, " documents"]  # of the model itself
    ablated: Float[Tensor, " documents"]  # with the mean state in place of every state of the site
    spliced: Float[Tensor, "s documents"]  # with ĥ of each of s autoencoders in place of every state
    tokens: Float[Tensor, " documents"]  # how many are predicted


@torch.no_grad()
def states_after(model: FrozenModel, layer: int, tokens: Int[Tensor, "b t"], skip: int) -> Float[Tensor, "n d"]:
    """Return the states after a block, in float32, one row each, without those of the first tokens of each row."""
    batches = tokens.long().split(max(TOKENS // tokens.shape[1], 1))
    return torch.cat([model.head(batch, layer)[:, skip:].flatten(0, 1).float() for batch in batches])


def site_states(model: FrozenModel, layer: int, rows: TokenRows, skip: int) -> SiteStates:
    """Return the states of all rows after a block, without those of the first tokens of each row."""
    return SiteStates(states_after(model, layer, rows.tokens, skip), rows.documents[:, skip:].flatten())


def spread_by_document(own: SiteStates, count: int) -> Float[Tensor, " documents"]:
    """Return Σ‖h - μ‖² by document, with μ the mean of all states."""
    return sum_by_document(spread_of(own.states).cpu(), own.documents, count)


@torch.no_grad()
def kept_by_document(saes: SparseAutoencoder, own: SiteStates, count: int) -> Kept:
    """Return how well each autoencoder of a stack reconstructs the states of `count` documents."""
    several, latents = saes.b_enc.shape
    errors, uses = torch.zeros(several, count, dtype=torch.float64), torch.zeros(several, latents, dtype=torch.long)
    batch = max(LATENTS // saes.b_enc.numel(), 1)
    for states, documents in zip(own.states.split(batch), own.documents.split(batch), strict=True):
        active = saes.encode(states)
        missed = (saes.decode(active) - states).square().sum(-1)
        errors += sum_by_document(missed.cpu(), documents, count)
        uses += active.count_nonzero(-2).cpu()
    return Kept(errors, uses.sum(-1) / len(own.states), (uses == 0).double().mean(-1))


@torch.no_grad()
def spliced_losses(
    model: FrozenModel,
    layer: int,
    saes: Sequence[SparseAutoencoder],
    mean: Float[Tensor, " d"],
    rows: TokenRows,
    skip: int,
) -> SplicedLosses:
    """Return a model's losses with an autoencoder at a site; the first tokens keep their states.

    Autoencoders are in the model's own units, and the mean replaces every state in the ablation.
    """
    sums, batch = DocumentSums(rows.documents), max(TOKENS // rows.context, 1)
    for tokens, documents in zip(rows.tokens.long().split(batch), rows.documents.split(batch), strict=True):
        state, last = model.residuals(tokens, [layer, model.n_layers - 1])
        rebuilt = [mean.expand_as(state[:, skip:]), *(sae(state[:, skip:].float()) for sae in saes)]
        wholes = (torch.cat([state[:, :skip].float(), each.float()], 1) for each in rebuilt)
        ends = [last_states(model, [(layer, whole)])[0] for whole in wholes]
        losses = torch.stack([next_token_losses(model, [end], tokens)[0] for end in (last, *ends)])
        sums.add(documents[:, 1:].flatten(), {"losses": losses.flatten(1), "tokens": torch.ones(losses[0].numel())})
    clean, ablated, *spliced = sums["losses"]
    return SplicedLosses(clean, ablated, torch.stack(spliced), sums["tokens"])
