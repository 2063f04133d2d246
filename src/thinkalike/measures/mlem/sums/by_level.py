"""The sums of `normal_equations` without any pair: from counts and sums of the stimuli of equal levels.

With E_T = 1[equal on all features of T], a product of indicators over U is Σ_{T ⊆ U} (-1)^|T| E_T; and over the pairs
within a block of n stimuli, Σ 1 = n (n - 1) / 2 and Σ ‖x - y‖² = n Σ ‖x‖² - ‖Σ x‖².
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import combinations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.measures.distances.neural import PANEL, NeuralDistances
from thinkalike.measures.mlem.features import Features
from thinkalike.measures.mlem.terms import Term


def sums_by_level(
    features: Features, layers: Sequence[NeuralDistances], terms: Sequence[Term], cells: Int[Tensor, " n"]
) -> Float[Tensor, "s t u"]:
    """Return the table of `normal_equations`, for indicators and squared Euclidean distances."""
    blocks = _Blocks(features.levels, cells)

    @cache
    def pair_counts(union: Term) -> Tensor:
        return _alternating(union, blocks.pair_counts)

    rows = [torch.stack([pair_counts(_union(a, b)) for b in terms], -1) for a in terms]
    columns = []
    for layer in layers:
        squares = blocks.squares_of(layer.states)
        columns.append(torch.stack([_alternating(_union(term), squares) for term in terms], -1))
    return torch.cat([torch.stack(rows, -2), torch.stack(columns, -1)], -1)


def _union(*terms: Term) -> Term:
    return tuple(sorted({feature for term in terms for feature in term}))


def _alternating(union: Term, within: Callable[[Term, Term], Tensor]) -> Float[Tensor, " s"]:
    subsets = (term for size in range(len(union) + 1) for term in combinations(union, size))
    return torch.stack([(-1) ** len(term) * within(term, union) for term in subsets]).sum(0)


class _Blocks:
    """Sums over pairs that agree on some features; stimuli whose value of any of `needed` is ignored do not count."""

    def __init__(self, levels: Int[Tensor, "n f"], cells: Int[Tensor, " n"]):
        self.levels, self.cells, self.sets = levels.long(), cells, int(cells.max()) + 1
        self.lacking = (levels < 0).any(0).tolist()
        self.sizes = (levels.amax(0) + 2).tolist()
        self._keys = cache(self._new_keys)
        self._counts = cache(self._new_counts)
        self._pair_counts = cache(self._new_pair_counts)

    def _new_keys(self, agree: Term, needed: Term) -> tuple[Tensor, Tensor, int]:
        """Return the stimuli that count, their cell and block as one number, and how many blocks there are."""
        block, number = torch.zeros_like(self.cells), 1
        for feature in agree:
            block = block * self.sizes[feature] + self.levels[:, feature] + 1
            number *= self.sizes[feature]
            if number > 4 * len(block):
                block = torch.unique(block, return_inverse=True)[1]
                number = int(block.max()) + 1
        kept = (self.levels[:, list(needed)] >= 0).all(1).nonzero()[:, 0]
        return kept, (self.cells * number + block)[kept], number

    def _new_counts(self, agree: Term, needed: Term) -> Float[Tensor, "s c"]:
        _, keys, number = self._keys(agree, needed)
        return of_sets(torch.bincount(keys, minlength=self.sets * number).view(self.sets, number).double())

    def _lacking(self, needed: Term) -> Term:
        return tuple(feature for feature in needed if self.lacking[feature])

    def pair_counts(self, agree: Term, needed: Term) -> Float[Tensor, " s"]:
        """Return how many pairs agree."""
        return self._pair_counts(agree, self._lacking(needed))

    def _new_pair_counts(self, agree: Term, needed: Term) -> Float[Tensor, " s"]:
        counts = self._counts(agree, needed)
        return (counts * (counts - 1)).sum(-1) / 2

    def squares_of(self, states: Float[Tensor, "n d"]) -> Callable[[Term, Term], Float[Tensor, " s"]]:
        """Return a function that sums the squared distances of the pairs that agree."""
        norms = torch.cat([part.square().sum(1, keepdim=True) for part in states.split(PANEL)])

        @cache
        def squares(agree: Term, lacking: Term) -> Tensor:
            kept, keys, number = self._keys(agree, lacking)
            rows, lengths = (states, norms) if len(kept) == len(states) else (states[kept], norms[kept])
            sums = [
                of_sets(_sum_by(keys, part, self.sets * number).view(self.sets, number, -1)) for part in (rows, lengths)
            ]
            return (self._counts(agree, lacking) * sums[1][..., 0]).sum(-1) - sums[0].square().sum((-2, -1))

        return lambda agree, needed: squares(agree, self._lacking(needed))


def of_sets(sums: Float[Tensor, "g *c"]) -> Float[Tensor, "s *c"]:
    """Return the sums over all cells and, if there are several, over all but each, from those of g cells."""
    total = sums.sum(0, keepdim=True)
    return total if len(sums) == 1 else torch.cat([total, total - sums])


def _sum_by(keys: Int[Tensor, " n"], rows: Float[Tensor, "n d"], number: int) -> Float[Tensor, "c d"]:
    return rows.new_zeros(number, rows.shape[1]).scatter_add_(0, keys[:, None].expand_as(rows), rows)
