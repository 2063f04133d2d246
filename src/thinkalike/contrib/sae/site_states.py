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
    """How well each of s autoencoders reconstructs some states h.

    Attributes:
        errors: Σ‖h - ĥ‖² by document, for the reconstructions ĥ.
        active: How many latents are active for a state, on average.
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
        ablated: The losses with the mean state in place of every state of the site.
        spliced: The losses with the reconstruction by each of s autoencoders in place of every
            state.
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
    """Return the states of tokens after a block, one state a row, in float32.

    Args:
        model: The model that computes them.
        layer: The number of the block, from 0.
        tokens: Rows of tokens.
        skip: How many tokens at the beginning of each row are left out.
    """
    rows_at_once = max(TOKENS_AT_ONCE // tokens.shape[1], 1)
    states = []
    for batch in tokens.long().split(rows_at_once):
        states_of_rows = model.head(batch, layer)  # runs the blocks up to it: (rows, tokens, d)
        states.append(states_of_rows[:, skip:].flatten(0, 1).float())
    return torch.cat(states)


def spread_by_document(site: SiteStates, n_documents: int) -> Float[Tensor, " documents"]:
    """Return Σ‖h - μ‖² over the states h of each document, where μ is the mean of all states."""
    squared_distances = (site.states - site.states.mean(0)).square().sum(-1)
    return sum_by_document(squared_distances.cpu(), site.documents, n_documents)


@torch.no_grad()
def reconstruction_by_document(
    saes: SparseAutoencoder, site: SiteStates, n_documents: int
) -> Reconstruction:
    """Return how well each autoencoder of a stack reconstructs some states.

    The result has the squared errors by document, how many latents are active for a state on
    average, and the share of latents that are never active.

    Args:
        saes: A stack of s autoencoders.
        site: The states, and the number of the document of each.
        n_documents: How many documents there are.
    """
    n_saes, n_latents = saes.b_enc.shape
    errors_by_document = torch.zeros(n_saes, n_documents, dtype=torch.float64)
    n_active_states = torch.zeros(n_saes, n_latents, dtype=torch.long)  # of each latent
    states_at_once = max(LATENTS_AT_ONCE // saes.b_enc.numel(), 1)
    batches = zip(
        site.states.split(states_at_once), site.documents.split(states_at_once), strict=True
    )
    for states, documents in batches:
        latents = saes.encode(states)  # (s, states, latents)
        errors = (saes.decode(latents) - states).square().sum(-1)  # (s, states)
        errors_by_document += sum_by_document(errors.cpu(), documents, n_documents)
        n_active_states += latents.count_nonzero(-2).cpu()
    active = n_active_states.sum(-1) / len(site.states)  # latents per state
    dead = (n_active_states == 0).double().mean(-1)  # the share of latents
    return Reconstruction(errors_by_document, active, dead)


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
        saes: Autoencoders of states in the model's own units.
        mean: The state that replaces every state in the ablation.
        rows: The text, with the documents that losses are summed by.
        skip: How many tokens at the beginning of each row keep their states.
    """

    def from_token_skip_on(replace: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """Return a function of states (b, t, d) that replaces all but the first `skip` tokens."""

        def replace_later(states: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
            unchanged = states[:, :skip].float()
            return torch.cat([unchanged, replace(states[:, skip:].float())], 1)

        return replace_later

    # The losses are those of the model stitched into itself, with these functions in between.
    replacements = {"ablated": [from_token_skip_on(mean.float().expand_as)]}
    for number, sae in enumerate(saes):
        replacements[str(number)] = [from_token_skip_on(sae)]
    layer_pairs = [(layer, layer)]
    rows_at_once = max(TOKENS_AT_ONCE // rows.context, 1)
    sums = document_sums(model, model, layer_pairs, replacements, rows, rows_at_once)
    return SplicedLosses(
        clean=sums["target"],
        ablated=sums["ablated"][0],  # the first axis is the layer pair
        spliced=torch.cat([sums[str(number)] for number in range(len(saes))]),
        tokens=sums["tokens"],
    )
