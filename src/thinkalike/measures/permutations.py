"""Permutations of whole documents: the rows of a document stay together."""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Int
from torch import Tensor

from thinkalike.arguments import Seed, Within
from thinkalike.measures.row_groups import RowGroups
from thinkalike.measures.sample_size import FEWEST_GROUPS
from thinkalike.measures.splitmix import random_codes


def permuted_rows(
    documents: Annotated[Int[Tensor, " n"], Within(fewest=1)], seed: Seed
) -> Int[Tensor, " n"]:
    """Return an order of rows in which whole documents change places at random.

    Row i of the new order is the former row order[i]. The rows of a document depend on each other,
    so they move together and keep their order (Winkler et al. 2015). All documents are laid end to
    end in random order, and fill the places of the former documents one after another. So
    documents of equal length exchange places, and if lengths differ, a document may extend over
    the places of two. If there is a single document, its rows are rotated by a random number.

    Args:
        documents: The number of the document of each row.
        seed: The seed. The order of the documents depends on it and on their numbers alone.
    """
    places = documents.argsort(stable=True)  # the indices of rows, document by document
    # The random code of each row's document. Sorted by it, documents are in random order, and the
    # rows of each stay together.
    code_of_document = random_codes(documents, seed)
    rows = code_of_document.argsort(stable=True)
    if (documents == documents[0]).all():
        rows = places.roll(int(code_of_document[0]) % len(places))
    order = torch.empty_like(places)
    order[places] = rows  # row rows[i] goes to the place places[i]
    return order


def permuted_within(
    documents: Int[Tensor, " kept"], groups: RowGroups, seed: int
) -> Int[Tensor, " kept"]:
    """Return an order of rows that permutes documents at random within each group.

    `permuted_rows` permutes the rows of one group, of which those of one document move together.
    Rows are counted in the order of `groups`, in which groups of one size follow each other, small
    ones first. Row i of the new order is the former row order[i].

    Args:
        documents: The number of the document of each row, for rows in the order of `groups`.
        groups: The groups of rows, such as those of one token.
        seed: The seed of the permutation. It is the same for all groups, so that groups with the
            same documents are permuted alike.
    """
    rows_by_size = groups.split_by_size(torch.arange(len(documents)))
    documents_by_size = groups.split_by_size(documents.cpu())
    orders = []
    # For each size s of groups: the rows, and their documents, of its g groups, (g, s) each.
    for rows, documents_of_rows in zip(rows_by_size, documents_by_size, strict=True):
        for rows_of_group, documents_of_group in zip(rows, documents_of_rows, strict=True):
            orders.append(rows_of_group[permuted_rows(documents_of_group, seed)])
    return torch.cat(orders)


def balanced_rows(documents: Int[Tensor, " n"]) -> Int[Tensor, "d m"]:
    """Return the indices of the first m rows of each document that has at least m rows, (d, m).

    The d documents are then of equal length, and so exchangeable. At least `FEWEST_GROUPS` = 8
    documents must remain, or all if there are fewer. Of all lengths m for which this is so, the
    one is chosen that leaves the most rows, d m.

    Args:
        documents: The number of the document of each row.
    """
    # The index of each row's document among the different ones, and the rows of each document.
    _, document_of_row, counts = documents.unique(return_inverse=True, return_counts=True)

    # For each d, how many rows remain if the d longest documents are cut to the length of the
    # shortest of them; 0 for a d that is too small.
    sizes = counts.sort(descending=True).values
    rows_remaining = torch.arange(1, len(sizes) + 1, device=sizes.device) * sizes
    fewest_documents = min(FEWEST_GROUPS, len(sizes))
    rows_remaining[: fewest_documents - 1] = 0  # entry i is of d = i + 1
    rows_per_document = int(sizes[rows_remaining.argmax()])  # m

    order = document_of_row.argsort(stable=True)  # rows document by document
    document_in_order = document_of_row[order]
    first_place = counts.cumsum(0) - counts  # of each document in `order`
    place = torch.arange(len(order), device=order.device)
    row_in_document = place - first_place[document_in_order]
    is_long_enough = counts[document_in_order] >= rows_per_document
    rows: Tensor = order[is_long_enough & (row_in_document < rows_per_document)]
    return rows.view(-1, rows_per_document)
