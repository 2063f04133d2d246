"""Whether documents that follow each other in a source are alike, and so dependent."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from thinkalike.measures.seeds import seeded

# Fewer documents do not tell whether neighbours are alike.
FEWEST_DOCUMENTS = 20

# Each token has a random code of this many numbers.
CODE_WIDTH = 64

# The correlation of neighbours is compared with that of this many random orders.
RANDOM_ORDERS = 200

# At this correlation of neighbours, four documents of one source widen intervals by a tenth.
LEAST_CORRELATION = 0.05


def neighbour_correlation(tokens: Int[Tensor, "*n"], documents: Int[Tensor, "*n"]) -> float:
    """Return the correlation of documents that follow each other in a source; 0 for random order.

    Each token id has a random code. A document with n tokens is described by the vector
    √n (c - c̄), with c the mean of the codes of its tokens and c̄ that of all tokens. The
    correlation is Σ x'y over neighbouring documents x and y, divided by Σ x'x over all documents.
    0 is returned for fewer than `FEWEST_DOCUMENTS` documents, for a correlation of at most
    `LEAST_CORRELATION`, or if one of `RANDOM_ORDERS` random orders of the same documents has as
    high a correlation.

    Args:
        tokens: The token ids.
        documents: The number of the document of each token, rising in the order of the source.
    """
    numbers, document_of_token = documents.flatten().unique(return_inverse=True)
    document_count = len(numbers)
    if document_count < FEWEST_DOCUMENTS:
        return 0.0

    generator = seeded(0)
    token_ids = tokens.flatten().long()
    codes = torch.randn(int(token_ids.max()) + 1, CODE_WIDTH, generator=generator)[token_ids]
    token_counts = document_of_token.bincount(minlength=document_count)[:, None]
    sums = torch.zeros(document_count, CODE_WIDTH)
    sums.index_add_(0, document_of_token, codes - codes.mean(0))
    vectors = sums / token_counts.sqrt()  # √n (c - c̄) of each document

    orders = [torch.arange(document_count)]  # the order of the source comes first
    for _ in range(RANDOM_ORDERS):
        orders.append(torch.randperm(document_count, generator=generator))
    products = [(vectors[order[1:]] * vectors[order[:-1]]).sum() for order in orders]
    correlations = torch.stack(products) / vectors.square().sum()
    if correlations[0] > max(correlations[1:].max(), LEAST_CORRELATION):
        return float(correlations[0])
    return 0.0
