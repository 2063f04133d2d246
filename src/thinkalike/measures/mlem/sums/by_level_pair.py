"""The sums of `normal_equations` for weights of pairs of levels, without any pair of stimuli.

With N_a the number, S_a the sum and Q_a the sum of the squared norms of the stimuli of level a, and M_ac the number of
those that have c, too, the pairs of stimuli of the levels a ≠ b of one feature

| are | N_a N_b |
|---|---|
| and of the levels c ≠ d of any feature | M_ac M_bd + M_ad M_bc |
| and differ in a feature that is not ignored | (Σ_c M_ac) (Σ_c M_bc) - Σ_c M_ac M_bc |
| and their squared distances sum to | N_a Q_b + N_b Q_a - 2 S_a · S_b |
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from thinkalike.measures.distances.neural import NeuralDistances
from thinkalike.measures.mlem.features import Features
from thinkalike.measures.mlem.sums.by_level import of_sets, sums_by_level
from thinkalike.measures.mlem.terms import Term


def sums_of_level_pairs(
    features: Features, layers: Sequence[NeuralDistances], terms: Sequence[Term], cells: Int[Tensor, " n"]
) -> Float[Tensor, "s t u"]:
    """Return the table of `normal_equations`, for indicators, pairs of levels and squared Euclidean distances."""
    single = [place for place, term in enumerate(terms) if len(term) < 3]
    plain = sums_by_level(features, layers, [terms[place] for place in single], cells)
    sums = plain.new_zeros(len(plain), len(terms), len(terms) + len(layers))
    sums[:, torch.tensor(single)[:, None], [*single, *range(len(terms), sums.shape[2])]] = plain
    held, left, right, places = _stacked(features, terms)
    members = [(cells == cell).nonzero()[:, 0] for cell in range(int(cells.max()) + 1)]

    def both(other: Float[Tensor, "n m"]) -> Float[Tensor, "s c m"]:
        return of_sets(torch.stack([held[rows].T @ other[rows] for rows in members]))

    shared = both(held)
    count = shared.diagonal(dim1=1, dim2=2)
    sums[:, places, 0] = sums[:, 0, places] = count[:, left] * count[:, right]
    straight = shared[:, left[:, None], left] * shared[:, right[:, None], right]
    sums[:, places[:, None], places] = straight + shared[:, left[:, None], right] * shared[:, right[:, None], left]
    for place in single[1:]:
        levels = features.levels[:, terms[place][0]]
        sums[:, places, place] = sums[:, place, places] = _differing(both(_hot(levels)), left, right)
    for place, layer in enumerate(layers, len(terms)):
        norms = both(layer.states.square().sum(1, keepdim=True))[..., 0]
        total = both(layer.states)
        product = (total @ total.mT)[:, left, right]
        sums[:, places, place] = count[:, left] * norms[:, right] + count[:, right] * norms[:, left] - 2 * product
    return sums


def _stacked(features: Features, terms: Sequence[Term]) -> tuple[Float[Tensor, "n c"], Tensor, Tensor, Tensor]:
    """Return which of the levels of all features each stimulus has, then the two levels and the place of each term.

    Terms of levels that training did not have are left out: no pair has them.
    """
    known, start, offsets, held = features.known, 0, [], []
    for feature, size in enumerate(known):
        offsets.append(start)
        if size:
            held.append(_hot(features.levels[:, feature], size))
            start += size
    pairs = [(place, term) for place, term in enumerate(terms) if len(term) == 3 and term[1] < known[term[0]]]
    ends = [[offsets[term[0]] + term[side] for _, term in pairs] for side in (1, 2)]
    left, right, places = (torch.tensor(x, device=held[0].device) for x in (*ends, [place for place, _ in pairs]))
    return torch.cat(held, 1), left, right, places


def _hot(levels: Int[Tensor, " n"], size: int | None = None) -> Float[Tensor, "n c"]:
    """Return one column per level from 0; a stimulus of a negative level is in none."""
    number = (int(levels.max()) if size is None else size - 1) + 2
    return one_hot(levels.clamp(min=-1).long() + 1, number)[:, 1:].double()


def _differing(shared: Float[Tensor, "s c g"], left: Int[Tensor, " r"], right: Int[Tensor, " r"]) -> Tensor:
    """Return how many pairs of the levels `left` and `right` differ in another feature."""
    present = shared.sum(2)
    alike = (shared @ shared.mT)[:, left, right]
    return present[:, left] * present[:, right] - alike
