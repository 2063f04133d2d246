"""Steering vectors: the difference that a feature makes to mean states, and its effect.

With φ(h) = U h + u from model A to model B, a vector s that is added to states of A becomes U s in
B (Chen, Merullo, Stolfo & Pavlick 2025, arXiv 2506.06609).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.measures.accuracy import Jackknifed, sums_without_each_part
from thinkalike.measures.sample_size import effective_number


def held_out_differences(
    before: Float[Tensor, "n d"], after: Float[Tensor, "n d"], fold_of: Int[Tensor, " n"]
) -> Float[Tensor, "n d"]:
    """Return for each pair of states the mean of after - before over the pairs of other folds.

    So the result for a pair does not depend on the pair itself. The mean is in float64, and NaN if
    there is only one fold.
    """
    difference = after.double() - before.double()
    vectors = torch.empty(before.shape, dtype=torch.float64)
    for fold in fold_of.unique():
        vectors[fold_of == fold] = difference[fold_of != fold].mean(0)
    return vectors


def with_norms_of(
    vectors: Float[Tensor, "*n d"], others: Float[Tensor, "n e"]
) -> Float[Tensor, "*n d"]:
    """Rescale vectors to the norms of other vectors; zero vectors stay zero."""
    directions = torch.nn.functional.normalize(vectors, dim=-1)
    return directions * others.norm(dim=-1, keepdim=True)


def random_directions(
    draws: int, vectors: Float[Tensor, "n d"], generator: torch.Generator
) -> Float[Tensor, "draws n d"]:
    """Return random directions that are rescaled to the norms of n given vectors.

    A drawn direction is the same for all n vectors; only its norm differs.

    Args:
        draws: How many directions are drawn.
        vectors: The n vectors with the norms.
        generator: The random generator of the directions.
    """
    n_vectors, width = vectors.shape
    directions = torch.randn(draws, 1, width, dtype=vectors.dtype, generator=generator)
    return with_norms_of(directions.expand(-1, n_vectors, -1), vectors)


def effects_of(
    steered: Float[Tensor, "c n"], natural: Float[Tensor, " n"], groups: Int[Tensor, " n"]
) -> tuple[Jackknifed, Jackknifed]:
    """Return the mean effects of c conditions over texts, and the mean natural effect.

    An effect is the change of a text's gap, log P(up) - log P(down) of the next token, in nats.
    The natural effect is that of replacing the text by its counterpart. Both are jackknifed over
    groups, such as the texts of one word.

    Args:
        steered: The effect of each condition on each of n texts.
        natural: The natural effect on each text.
        groups: The group of each text.
    """
    # The sums of the row of ones are the numbers of texts.
    ones = torch.ones(1, len(natural), dtype=torch.float64)
    rows = torch.cat([steered.double(), natural.double()[None], ones])
    sums = sums_without_each_part(rows, groups)  # column 0: all texts; others: without each part
    counts = sums[-1]
    means = sums[:-1] / counts
    part_sizes = counts[0] - counts[1:]
    # As many parts of equal size would be as informative.
    effective_parts = effective_number(part_sizes)
    # The last row is the natural effect.
    return (
        Jackknifed(means[:-1, 0], means[:-1, 1:], effective_parts),
        Jackknifed(means[-1, 0], means[-1, 1:], effective_parts),
    )
