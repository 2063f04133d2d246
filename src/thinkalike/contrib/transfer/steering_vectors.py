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
    """Return for each pair of states the mean difference of all pairs in other folds.

    So the result for a pair does not depend on the pair itself. The mean is in float64, and NaN if
    there is only one fold.

    Args:
        before: The first state of each pair.
        after: The second state of each pair; the difference is after - before.
        fold_of: The fold of each pair.
    """
    differences = after.double() - before.double()
    mean_differences = torch.empty(before.shape, dtype=torch.float64)
    for fold in fold_of.unique():
        is_in_fold = fold_of == fold
        mean_differences[is_in_fold] = differences[~is_in_fold].mean(0)
    return mean_differences


def with_norms_of(
    vectors: Float[Tensor, "*n d"], others: Float[Tensor, "n e"]
) -> Float[Tensor, "*n d"]:
    """Rescale vectors to the norms of other vectors; zero vectors stay zero."""
    directions = torch.nn.functional.normalize(vectors, dim=-1)
    return directions * others.norm(dim=-1, keepdim=True)


def random_directions(
    draws: int, vectors: Float[Tensor, "n d"], generator: torch.Generator
) -> Float[Tensor, "draws n d"]:
    """Return random vectors with the norms of n given vectors.

    Each of the `draws` random directions is used for all n vectors; only its norm differs.

    Args:
        draws: How many directions are drawn.
        vectors: The n vectors whose norms are used.
        generator: The random generator of the directions.
    """
    n_vectors, width = vectors.shape
    directions = torch.randn(draws, 1, width, dtype=vectors.dtype, generator=generator)
    return with_norms_of(directions.expand(-1, n_vectors, -1), vectors)


def jackknifed_mean_effects(
    steered: Float[Tensor, "c n"], natural: Float[Tensor, " n"], groups: Int[Tensor, " n"]
) -> tuple[Jackknifed, Jackknifed]:
    """Return the mean effect of each of c steering vectors, and the mean natural effect.

    An effect is the change of a text's gap, log P(up) - log P(down) of the next token, in nats.
    The natural effect is that of replacing the text by its counterpart. Means are over texts.
    Jackknife replicates leave out one part of the groups of texts at a time.

    Args:
        steered: The effect of each steering vector on each of n texts.
        natural: The natural effect on each text.
        groups: The group of each text, such as the number of its word.
    """
    # A row of ones is summed as well; its sums are the numbers of texts.
    ones = torch.ones(1, len(natural), dtype=torch.float64)
    rows = torch.cat([steered.double(), natural.double()[None], ones])
    sums = sums_without_each_part(rows, groups)  # column 0: all texts; others: without one part
    counts = sums[-1]
    means = sums[:-1] / counts
    part_sizes = counts[0] - counts[1:]
    # So many parts of equal size would be equally informative.
    effective_parts = effective_number(part_sizes)

    means_steered = means[:-1]
    means_natural = means[-1]
    return (
        Jackknifed(means_steered[:, 0], means_steered[:, 1:], effective_parts),
        Jackknifed(means_natural[0], means_natural[1:], effective_parts),
    )
