"""Means over tokens with intervals over documents."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.measures.bootstrap import bootstrap_interval, sum_by_document
from thinkalike.measures.estimates import Estimate, interval_around
from thinkalike.measures.sample_size import FEWEST_GROUPS


def mean_over_documents(
    values: Float[Tensor, "*b n"],
    documents: Int[Tensor, " n"],
    level: float = 0.95,
    *,
    together: bool = False,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> Estimate:
    """Return means over n tokens with bootstrap intervals over documents.

    The intervals are (-∞, ∞) for fewer than `FEWEST_GROUPS` documents.

    Args:
        values: The values of the tokens; axes before the last are for several quantities.
        documents: The document of each token; each number below the largest occurs.
        level: The coverage of the intervals.
        together: Whether the intervals hold for all means simultaneously.
        bounds: The least and the greatest value that a token can have; intervals end there.
    """
    document_count = int(documents.max()) + 1
    if document_count < FEWEST_GROUPS:
        return interval_around(values.double().mean(-1), math.inf)
    sums = sum_by_document(values, documents, document_count)
    token_counts = torch.bincount(documents).double()
    return bootstrap_interval(sums, token_counts, level=level, together=together, bounds=bounds)
