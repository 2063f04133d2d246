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
    """Return the intraclass correlation of documents that follow each other in a source.

    Each document is the mean random code of its tokens, less that of all, times the root of their
    number. The correlation is Σ x'y / Σ x'x over neighbours x and y. It is returned as 0 if it is
    below `LEAST_CORRELATION`, or if one of `RANDOM_ORDERS` random orders of the same documents has
    as high a correlation.

    Args:
        tokens: The token ids.
        documents: The number of the document of each token, rising in the order of the source.
    """
    numbers, owners = documents.flatten().unique(return_inverse=True)
    document_count = len(numbers)
    if document_count < FEWEST_DOCUMENTS:
        return 0.0

    generator = seeded(0)
    token_ids = tokens.flatten().long()
    codes = torch.randn(int(token_ids.max()) + 1, CODE_WIDTH, generator=generator)[token_ids]
    counts = owners.bincount(minlength=document_count)[:, None]
    sums = torch.zeros(document_count, CODE_WIDTH).index_add_(0, owners, codes - codes.mean(0))
    means = sums / counts.sqrt()

    orders = [torch.arange(document_count)]
    for _ in range(RANDOM_ORDERS):
        orders.append(torch.randperm(document_count, generator=generator))
    products = [(means[order[1:]] * means[order[:-1]]).sum() for order in orders]
    correlations = torch.stack(products) / means.square().sum()
    if correlations[0] > max(correlations[1:].max(), LEAST_CORRELATION):
        return float(correlations[0])
    return 0.0
