"""Sums over all pairs of stimuli: what a least-squares fit of squared neural distances on feature differences needs.

One table of sums holds terms against terms, then terms against layers: (s, t, t + l) for s sets of stimuli. The first
set is all of them, set 1 + c all but cell c. Nothing in the first t columns depends on the layers.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.measures.distances.neural import NeuralDistances
from thinkalike.measures.mlem.features import Features
from thinkalike.measures.mlem.level_sums import sums_by_level
from thinkalike.measures.mlem.levels.sums import sums_of_level_pairs
from thinkalike.measures.mlem.pair_sums import sums_by_pair
from thinkalike.measures.mlem.terms import Term


def normal_equations(
    features: Features, layers: Sequence[NeuralDistances], terms: Sequence[Term], cells: Int[Tensor, " n"]
) -> Float[Tensor, "s t u"]:
    """Return sums of products over the pairs i < j of each set of stimuli.

    No pair is ever formed where all is made of indicators and squared Euclidean distances; else pairs come in chunks.

    Args:
        cells: The cell of each stimulus, from 0. A set leaves out one cell, and a single cell means no such set.
    """
    if any(features.scaled) or not all(layer.exact for layer in layers):
        return sums_by_pair(features, layers, terms, cells)
    if any(features.known):
        return sums_of_level_pairs(features, layers, terms, cells)
    return sums_by_level(features, layers, terms, cells)


def centred(sums: Float[Tensor, "s t u"]) -> Float[Tensor, "s r v"]:
    """Return the sums about the means, which eliminates the intercept: r = t - 1."""
    return sums[:, 1:, 1:] - sums[:, 1:, :1] * sums[:, :1, 1:] / sums[:, :1, :1]
