"""Sums over all pairs of stimuli: what a least-squares fit of squared neural distances on feature differences needs.

One table of sums holds terms against terms, then terms against layers: (s, t, t + l) for s sets of stimuli. The first
set is all of them, set 1 + c all but cell c. Nothing in the first t columns depends on the layers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.measures.distances.neural import NeuralDistances
from thinkalike.measures.mlem.features import Features
from thinkalike.measures.mlem.sums.by_level import sums_by_level
from thinkalike.measures.mlem.sums.by_level_pair import sums_of_level_pairs
from thinkalike.measures.mlem.sums.by_pair import sums_by_pair
from thinkalike.measures.mlem.sums.by_position import add_positions, is_scaled
from thinkalike.measures.mlem.terms import Term


def normal_equations(
    features: Features, layers: Sequence[NeuralDistances], terms: Sequence[Term], cells: Int[Tensor, " n"]
) -> Float[Tensor, "s t u"]:
    """Return sums of products over the pairs i < j of each set of stimuli.

    No pair is ever formed where all is made of indicators, pairs of levels, Δ² of scaled features, and squared
    Euclidean distances; else pairs come in chunks.

    Args:
        cells: The cell of each stimulus, from 0. A set leaves out one cell, and a single cell means no such set.
    """
    products = any(features.scaled[f] or features.scaled[g] for f, g in (term for term in terms if _is_product(term)))
    if products or not all(layer.exact for layer in layers):
        return sums_by_pair(features, layers, terms, cells)
    plain = [place for place, term in enumerate(terms) if not is_scaled(features, term)]
    of_levels = sums_of_level_pairs if any(features.known) else sums_by_level
    part = of_levels(features, layers, [terms[place] for place in plain], cells)
    if len(plain) == len(terms):
        return part
    sums = part.new_zeros(len(part), len(terms), len(terms) + len(layers))
    sums[:, torch.tensor(plain)[:, None], [*plain, *range(len(terms), sums.shape[2])]] = part
    add_positions(sums, features, layers, terms, cells)
    return sums


def _is_product(term: Term) -> bool:
    return len(term) == 2 and term[0] != term[1]


def centred(sums: Float[Tensor, "s t u"]) -> Float[Tensor, "s r v"]:
    """Return the sums about the means, which eliminates the intercept: r = t - 1."""
    return sums[:, 1:, 1:] - sums[:, 1:, :1] * sums[:, :1, 1:] / sums[:, :1, :1]
