"""Permutations of rows for a null: what depends on each other moves together.

Rows of one document depend on each other, in either model. Under the hypothesis that two models have nothing in common,
documents are exchangeable and their rows are not, so documents are permuted as blocks (Winkler et al. 2015,
"Multi-level block permutation"). Rows that are shuffled one by one make chance look smaller than it is, and two models
that have nothing in common look alike.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from thinkalike.arguments import seeded
from thinkalike.measures.kernels.rows import rows_of

FEW_DOCUMENTS = 8  # fewer of them have few orders, and too often stand in their own place
AT_HOME = 0.05  # share of rows in their own place up to which a permutation shows chance alone


class Permutations(NamedTuple):
    """Orders of the rows of a batch, (p, n), and which of them leave next to no row where it was, (p,)."""

    orders: Int[Tensor, "p n"]
    away: Bool[Tensor, " p"]


def permutations_of(documents: Int[Tensor, " n"], count: int, seed: int) -> Permutations:
    """Return so many permutations of documents, see `permuted_rows`, on the CPU."""
    generator = seeded(seed)
    orders = torch.stack([permuted_rows(documents, generator) for _ in range(count)]).cpu()
    home = (orders == torch.arange(len(documents))).double().mean(1)
    return Permutations(orders, home <= home.min().clamp(min=AT_HOME))


def documents_of_rows(
    states: Shaped[Tensor, " ..."], mask: Shaped[Tensor, " ..."] | None, documents: Int[Tensor, " ..."] | None
) -> Int[Tensor, " n"]:
    """Return the document of each row of a batch, on the CPU; each is one of its own where none are given.

    Raises:
        ValueError: There is not one document for each state.
    """
    if documents is None:
        documents = torch.arange(states[..., 0].numel()).view(states.shape[:-1])
    if documents.shape != states.shape[:-1]:
        raise ValueError(
            f"documents of shape {tuple(documents.shape)} do not fit states of shape {tuple(states.shape)}"
        )
    return rows_of(documents[..., None].cpu(), "token", None if mask is None else mask.cpu()).squeeze(1)


def count_documents(documents: Int[Tensor, " n"]) -> int:
    """Return how many different documents rows belong to."""
    return len(documents.unique())


def permuted_rows(documents: Int[Tensor, " n"], generator: torch.Generator) -> Int[Tensor, " n"]:
    """Return an order of rows in which whole documents changed places, at random; rows of one keep their order.

    Rows are taken document by document, documents in a random order, and laid end to end. Documents of one length are
    so permuted exactly; others come to lie across two places, as far as their lengths differ. Rows of a single document
    are shifted round by a random number, which keeps neighbours. Where each row is a document of its own this is a
    plain permutation.

    Args:
        documents: The document of each row, any number.
    """
    labels = documents.unique(return_inverse=True)[1].cpu()
    home = labels.argsort(stable=True)  # rows document by document
    count = int(labels.max()) + 1
    if count == 1:
        moved = home.roll(int(torch.randint(len(home), (1,), generator=generator)))
    else:
        ranks = torch.randperm(count, generator=generator)
        moved = ranks[labels].argsort(stable=True)
    order = torch.empty_like(home)
    order[home] = moved
    return order.to(documents.device)
