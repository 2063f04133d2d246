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
    """Return an order of rows in which whole documents changed places, at random.

    If two models have nothing in common, documents are exchangeable and their rows are not, so
    documents are permuted as blocks (Winkler et al. 2015), and the rows of a document keep their
    order. The documents are laid end to end in an order that depends on nothing but their numbers
    and the seed. Documents of equal length are permuted exactly; where lengths differ, a document
    may extend over the places of two documents. The rows of a single document are rotated by a
    random number.

    Args:
        documents: The number of the document of each row.
        seed: The seed of the permutation.
    """
    home = documents.argsort(stable=True)  # rows document by document
    codes = random_codes(documents, seed)
    moved = codes.argsort(stable=True)
    if (documents == documents[0]).all():
        moved = home.roll(int(codes[0]) % len(home))
    order = torch.empty_like(home)
    order[home] = moved
    return order


def permuted_within(
    documents: Int[Tensor, " kept"], groups: RowGroups, seed: int
) -> Int[Tensor, " kept"]:
    """Return an order of rows in which documents changed places within each group.

    Entry i is the row, in the order of `groups`, that comes to place i.

    Args:
        documents: The number of the document of each row, for rows in the order of `groups`.
        groups: The groups of rows, such as those of one token.
        seed: The seed of the permutation, the same for all groups.
    """
    row_numbers = torch.arange(len(documents))
    numbers_by_size = groups.blocks(row_numbers)
    documents_by_size = groups.blocks(documents.cpu())
    orders = []
    for numbers, owners in zip(numbers_by_size, documents_by_size, strict=True):  # (g, s) each
        for numbers_of_group, owners_of_group in zip(numbers, owners, strict=True):
            orders.append(numbers_of_group[permuted_rows(owners_of_group, seed)])
    return torch.cat(orders)


def balanced_rows(documents: Int[Tensor, " n"]) -> Int[Tensor, "d m"]:
    """Return the first m rows of each document that has m rows, so that all are of equal length.

    Of all m that leave d >= 8 documents, the one with the most rows d m is taken. Fewer than 8
    documents all remain.

    Args:
        documents: The number of the document of each row.
    """
    _, labels, counts = documents.unique(return_inverse=True, return_counts=True)

    # How many rows remain if the d longest documents are cut to the length of the shortest of
    # them, for each d; 0 for a d that is too small.
    sizes = counts.sort(descending=True).values
    rows_remaining = torch.arange(1, len(sizes) + 1, device=sizes.device) * sizes
    fewest = min(FEWEST_GROUPS, len(sizes))
    rows_remaining[: fewest - 1] = 0
    rows_per_document = int(sizes[rows_remaining.argmax()])

    order = labels.argsort(stable=True)  # rows document by document
    first_row = counts.cumsum(0) - counts  # of each document in `order`
    rank = torch.arange(len(order), device=order.device) - first_row[labels[order]]
    is_long_enough = counts[labels[order]] >= rows_per_document
    rows: Tensor = order[is_long_enough & (rank < rows_per_document)]
    return rows.view(-1, rows_per_document)
