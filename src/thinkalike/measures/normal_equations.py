"""Sums over all pairs of stimuli: what a least-squares fit of squared neural distances on feature differences needs.

A term (f, g) is an entry of W with the regressor Δ_f Δ_g; the term () is the intercept. One table of sums holds terms
against terms, then terms against layers: (s, t, t + l) for s sets of stimuli. The first set is all of them, set 1 + c
all but cell c. Nothing in the first t columns depends on the layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import combinations, product

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.measures.distances import NeuralDistances
from thinkalike.measures.features import Features

Term = tuple[int, ...]
CHUNK = 2**20  # pairs that exist at the same time


def terms_of(features: int, interactions: bool) -> list[Term]:
    """The intercept, the diagonal of W, and with interactions its upper triangle."""
    diagonal = [(feature, feature) for feature in range(features)]
    return [(), *diagonal, *(combinations(range(features), 2) if interactions else ())]


def normal_equations(
    features: Features, layers: Sequence[NeuralDistances], terms: Sequence[Term], cells: Int[Tensor, " n"]
) -> Float[Tensor, "s t u"]:
    """Sums of products over the pairs i < j of each set of stimuli.

    Without any pair where all is made of indicators and squared Euclidean distances, else over chunks of pairs.

    Args:
        cells: of each stimulus, from 0; a set leaves out one of them, and one cell alone means no such set.
    """
    if any(features.scaled) or not all(layer.exact for layer in layers):
        return _from_pairs(features, layers, terms, cells)
    return _from_items(features, layers, terms, cells)


def centred(sums: Float[Tensor, "s t u"]) -> Float[Tensor, "s r v"]:
    """The same about the means: the intercept is eliminated, r = t - 1."""
    return sums[:, 1:, 1:] - sums[:, 1:, :1] * sums[:, :1, 1:] / sums[:, :1, :1]


# ------------------------------------------------------------------------------------------------- without any pairs


def _from_items(
    features: Features, layers: Sequence[NeuralDistances], terms: Sequence[Term], cells: Tensor
) -> Float[Tensor, "s t u"]:
    """From counts and sums of the stimuli of equal levels.

    With E_T = 1[equal on all features of T], a product of indicators over U is Σ_{T ⊆ U} (-1)^|T| E_T; and over the
    pairs within a block of n stimuli, Σ 1 = n (n - 1) / 2 and Σ ‖x - y‖² = n Σ ‖x‖² - ‖Σ x‖².
    """
    blocks = _Blocks(features.levels, cells)

    @cache
    def pairs(union: Term) -> Tensor:
        return _alternating(union, blocks.pairs)

    rows = [torch.stack([pairs(_union(a, b)) for b in terms], -1) for a in terms]
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
        self._pairs = cache(self._new_pairs)

    def _new_keys(self, agree: Term, needed: Term) -> tuple[Tensor, Tensor, int]:
        """Kept stimuli, their numbers of cell and block in one, and the number of blocks."""
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
        return self._sets(torch.bincount(keys, minlength=self.sets * number).view(self.sets, number).double())

    def _sets(self, sums: Float[Tensor, "g c *d"]) -> Float[Tensor, "s c *d"]:
        total = sums.sum(0, keepdim=True)
        return total if self.sets == 1 else torch.cat([total, total - sums])

    def _lacking(self, needed: Term) -> Term:
        return tuple(feature for feature in needed if self.lacking[feature])

    def pairs(self, agree: Term, needed: Term) -> Float[Tensor, " s"]:
        return self._pairs(agree, self._lacking(needed))

    def _new_pairs(self, agree: Term, needed: Term) -> Float[Tensor, " s"]:
        counts = self._counts(agree, needed)
        return (counts * (counts - 1)).sum(-1) / 2

    def squares_of(self, states: Float[Tensor, "n d"]) -> Callable[[Term, Term], Float[Tensor, " s"]]:
        norms = states.square().sum(1, keepdim=True)

        @cache
        def squares(agree: Term, lacking: Term) -> Tensor:
            kept, keys, number = self._keys(agree, lacking)
            rows, lengths = (states, norms) if len(kept) == len(states) else (states[kept], norms[kept])
            sums = [
                self._sets(_sum_by(keys, part, self.sets * number).view(self.sets, number, -1))
                for part in (rows, lengths)
            ]
            return (self._counts(agree, lacking) * sums[1][..., 0]).sum(-1) - sums[0].square().sum((-2, -1))

        return lambda agree, needed: squares(agree, self._lacking(needed))


def _sum_by(keys: Int[Tensor, " n"], rows: Float[Tensor, "n d"], number: int) -> Float[Tensor, "c d"]:
    return rows.new_zeros(number, rows.shape[1]).scatter_add_(0, keys[:, None].expand_as(rows), rows)


# ------------------------------------------------------------------------------------------------------ over all pairs


def _from_pairs(
    features: Features, layers: Sequence[NeuralDistances], terms: Sequence[Term], cells: Tensor
) -> Float[Tensor, "s t u"]:
    number = int(cells.max()) + 1
    members = [(cells == cell).nonzero()[:, 0] for cell in range(number)]
    between = torch.zeros(
        number, number, len(terms), len(terms) + len(layers), dtype=torch.float64, device=cells.device
    )
    for a, b in ((a, b) for a, b in product(range(number), repeat=2) if a <= b):
        for rows in members[a].split(max(1, CHUNK // len(members[b]))):
            kept = rows[:, None] < members[b] if a == b else None
            left = regressors([features.difference(f, rows, members[b]) for f in range(len(features.scaled))], terms)
            right = [layer.block(rows, members[b]) for layer in layers]
            between[a, b] += _products([_flat(part, kept) for part in left], [_flat(part, kept) for part in right])
    total = between.sum((0, 1))
    alone = between.sum(0) + between.sum(1) - between.diagonal().movedim(-1, 0)
    return total[None] if number == 1 else torch.cat([total[None], total - alone])


def _flat(block: Tensor, kept: Bool[Tensor, "a b"] | None) -> Tensor:
    return block.flatten() if kept is None else block[kept]


def _products(left: list[Tensor], right: list[Tensor]) -> Float[Tensor, "t u"]:
    x = torch.stack(left)
    return x @ torch.cat([x, torch.stack(right)]).T


def regressors(differences: Sequence[Tensor], terms: Sequence[Term]) -> list[Float[Tensor, "*p"]]:
    """The product of the differences of each term, float64."""
    made = []
    for term in terms:
        regressor = torch.ones_like(differences[0], dtype=torch.float64)
        for feature in term:
            regressor = regressor * differences[feature]
        made.append(regressor)
    return made


def of_pairs(
    differences: Sequence[Tensor], targets: Float[Tensor, "l p"], terms: Sequence[Term], cells: Int[Tensor, " p"]
) -> Float[Tensor, "s t u"]:
    """The sums of pairs that are given one by one, with cells of pairs instead of stimuli."""
    parts = []
    for cell in range(int(cells.max()) + 1):
        chosen = cells == cell
        parts.append(_products(regressors([column[chosen] for column in differences], terms), list(targets[:, chosen])))
    sums = torch.stack(parts)
    total = sums.sum(0, keepdim=True)
    return total if len(parts) == 1 else torch.cat([total, total - sums])
