"""States of one site of a model, and how well autoencoders reconstruct them by document.

The first tokens of a row can be left out: their states are the same in every row, or so large that
they decide every sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.contrib.sae.autoencoder import SparseAutoencoder
from thinkalike.data.rows import TokenRows
from thinkalike.evaluation.stitched_losses import document_sums
from thinkalike.measures.bootstrap import sum_by_document
from thinkalike.models.frozen import FrozenModel

TOKENS_AT_ONCE = 4096  # that a model reads
LATENTS_AT_ONCE = 2**20  # in memory: more leave the cache of a CPU


class SiteStates(NamedTuple):
    """The states of one site of a model, one row each, and the number of each row's document."""

    states: Float[Tensor, "n d"]
    documents: Int[Tensor, " n"]


class Reconstruction(NamedTuple):
    """How well each of s autoencoders reconstructs some states.

    Attributes:
        errors: Σ‖h - ĥ‖² by document.
        active: How many latents are active on average.
        dead: The share of latents that are active for no state.
    """

    errors: Float[Tensor, "s documents"]
    active: Float[Tensor, " s"]
    dead: Float[Tensor, " s"]


class SplicedLosses(NamedTuple):
    """Losses of the next token in nats, summed by document.

    The first tokens of a row may keep their states, see `spliced_losses`.

    Attributes:
        clean: The losses of the model itself.
        ablated: Those with the mean state in place of every state of the site.
        spliced: Those with ĥ of each of s autoencoders in place of every state.
        tokens: How many tokens of the document are predicted.
    """

    clean: Float[Tensor, " documents"]
    ablated: Float[Tensor, " documents"]
    spliced: Float[Tensor, "s documents"]
    tokens: Float[Tensor, " documents"]


@torch.no_grad()
def states_after(
    model: FrozenModel, layer: int, tokens: Int[Tensor, "b t"], skip: int
) -> Float[Tensor, "n d"]:
    """Return the states after a block, flattened over rows of tokens, in float32.

    Args:
        model: The model.
        layer: The number of the block, from 0.
        tokens: Rows of tokens.
        skip: How many tokens at the beginning of each row are left out.
    """
    rows_at_once = max(TOKENS_AT_ONCE // tokens.shape[1], 1)
    states = []
    for batch in tokens.long().split(rows_at_once):
        states.append(model.head(batch, layer)[:, skip:].flatten(0, 1).float())
    return torch.cat(states)


def spread_by_document(site: SiteStates, n_documents: int) -> Float[Tensor, " documents"]:
    """Return Σ‖h - μ‖² by document, where μ is the mean of all states."""
    spread = (site.states - site.states.mean(0)).square().sum(-1)
    return sum_by_document(spread.cpu(), site.documents, n_documents)


@torch.no_grad()
def reconstruction_by_document(
    saes: SparseAutoencoder, site: SiteStates, n_documents: int
) -> Reconstruction:
    """Return how well each autoencoder of a stack reconstructs the states.

    It has the squared errors by document, how many latents are active on average, and the share of
    latents that are never active.
    """
    n_saes, n_latents = saes.b_enc.shape
    errors = torch.zeros(n_saes, n_documents, dtype=torch.float64)
    n_uses = torch.zeros(n_saes, n_latents, dtype=torch.long)
    states_at_once = max(LATENTS_AT_ONCE // saes.b_enc.numel(), 1)
    batches = zip(
        site.states.split(states_at_once), site.documents.split(states_at_once), strict=True
    )
    for states, documents in batches:
        latents = saes.encode(states)
        error = (saes.decode(latents) - states).square().sum(-1)
        errors += sum_by_document(error.cpu(), documents, n_documents)
        n_uses += latents.count_nonzero(-2).cpu()
    active = n_uses.sum(-1) / len(site.states)
    dead = (n_uses == 0).double().mean(-1)
    return Reconstruction(errors, active, dead)


@torch.no_grad()
def spliced_losses(
    model: FrozenModel,
    layer: int,
    saes: Sequence[SparseAutoencoder],
    mean: Float[Tensor, " d"],
    rows: TokenRows,
    skip: int,
) -> SplicedLosses:
    """Return the losses of a model whose states after a block are replaced by reconstructions.

    The losses are also computed without replacement, and with the mean state in place of every
    state (the ablation).

    Args:
        model: The model.
        layer: The number of the block whose states are replaced, from 0.
        saes: Autoencoders in the model's own units.
        mean: The state that replaces every state in the ablation.
        rows: The text, whose documents the losses are summed by.
        skip: How many tokens at the beginning of each row keep their states.
    """

    def spliced(reconstruct: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """Return a function that replaces all states but those of the first tokens."""

        def replace_states(state: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
            """Return the states with reconstructions from token `skip` on."""
            unchanged = state[:, :skip].float()
            return torch.cat([unchanged, reconstruct(state[:, skip:].float())], 1)

        return replace_states

    replacements = {"ablated": [spliced(mean.float().expand_as)]}
    for number, sae in enumerate(saes):
        replacements[str(number)] = [spliced(sae)]
    rows_at_once = max(TOKENS_AT_ONCE // rows.context, 1)
    sums = document_sums(model, model, [(layer, layer)], replacements, rows, rows_at_once)
    losses_of_saes = torch.cat([sums[str(number)] for number in range(len(saes))])
    return SplicedLosses(sums["target"], sums["ablated"][0], losses_of_saes, sums["tokens"])
