"""Sums over all pairs of stimuli that a least-squares fit of squared neural distances on feature differences needs.

One table of sums holds terms against terms, then terms against layers: (s, t, t + l) for s sets of stimuli. The first
set is all of them, set 1 + c all but cell c. Most sums over pairs follow from sums over stimuli: no pair is formed.

**Indicators.** With E_T = 1[equal on all features of T], a product of indicators over U is Σ_{T ⊆ U} (-1)^|T| E_T; and
over the pairs within a block of n stimuli, Σ 1 = n (n - 1) / 2 and Σ ‖x - y‖² = n Σ ‖x‖² - ‖Σ x‖².

**Scaled features and pairs of levels.** Every regressor, and the squared distance of states, is z_i' C z_j of some
columns z of each stimulus. With p = 1 where a feature has a value x, counted from its mean, and q = 1 where it lacks
one that is not ignored (x = 0 there),

| term | z | z_i' C z_j |
|---|---|---|
| Δ² of a scaled feature | p, x, x², q | x_i² p_j + p_i x_j² - 2 x_i x_j + p_i q_j + q_i p_j |
| an indicator | g = 1 unless ignored, h_c = 1[level c] | g_i g_j - Σ_c h_c,i h_c,j |
| the levels a ≠ b | h_a, h_b | h_a,i h_b,j + h_b,i h_a,j |
| a squared distance | 1, ‖v‖², v | ‖v_i‖² + ‖v_j‖² - 2 v_i · v_j |

The product of two such terms sums to tr(C M D' M') / 2 over the pairs i < j, with D the form of the other term and
M = Σ_i z_i z'_i of the columns of both. If the first term is of the levels a ≠ b, this is the entry (a, b) of M D' M'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, cached_property
from itertools import combinations, combinations_with_replacement
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from thinkalike.measures.distances.neural import PANEL, NeuralDistances, upper
from thinkalike.measures.distances.ranks import spearman_of_patterns, unit_ranks
from thinkalike.measures.mlem.features import Features, Term, distinct, grouped, predict, regressors

SCALED = ((0, 0, 1, 1), (0, -2, 0, 0), (1, 0, 0, 0), (1, 0, 0, 0))  # C of p, x, x², q
CHUNK = 2**20  # pairs in memory, with up to
TERMS = 64  # terms; more terms mean fewer pairs


def normal_equations(
    features: Features, layers: Sequence[NeuralDistances], terms: Sequence[Term], cells: Int[Tensor, " n"]
) -> Float[Tensor, "s t u"]:
    """Return sums of products over the pairs i < j of each set of stimuli, from the cell of each stimulus, from 0.

    Indicators, pairs of levels, Δ² of scaled features, and squared Euclidean distances have a closed form that needs no
    pairs; products of scaled features and other distances are summed over chunks of pairs.
    """
    mixed = [feature for term in terms if len(term) == 2 and term[0] != term[1] for feature in term]
    if any(features.scaled[feature] for feature in mixed) or not all(layer.exact for layer in layers):
        return sums_by_pair(features, layers, terms, cells)
    plain = [place for place, term in enumerate(terms) if len(term) < 3 and not _is_scaled(features, term)]
    part = sums_by_level(features, layers, [terms[place] for place in plain], cells)
    if len(plain) == len(terms):
        return part
    sums = part.new_zeros(len(part), len(terms), len(terms) + len(layers))
    sums[:, torch.tensor(plain)[:, None], [*plain, *range(len(terms), sums.shape[2])]] = part
    add_forms(sums, features, layers, terms, cells)
    return sums


def _is_scaled(features: Features, term: Term) -> bool:
    return len(term) == 2 and term[0] == term[1] and features.scaled[term[0]]


def centred(sums: Float[Tensor, "s t u"]) -> Float[Tensor, "s r v"]:
    """Return the sums about the means, which eliminates the intercept: r = t - 1."""
    return sums[:, 1:, 1:] - sums[:, 1:, :1] * sums[:, :1, 1:] / sums[:, :1, :1]


def sums_by_level(
    features: Features, layers: Sequence[NeuralDistances], terms: Sequence[Term], cells: Int[Tensor, " n"]
) -> Float[Tensor, "s t u"]:
    """Return the table of `normal_equations`, for indicators and squared Euclidean distances."""

    def union(*several: Term) -> Term:
        return tuple(sorted({feature for term in several for feature in term}))

    blocks = _Blocks(features.levels, cells)
    pairs = cache(lambda features: blocks.differing(features, blocks.pairs))
    left = [torch.stack([pairs(union(a, b)) for b in terms], -1) for a in terms]
    squares = [blocks.squares_of(layer.states) for layer in layers]
    right = [torch.stack([blocks.differing(union(term), each) for term in terms], -1) for each in squares]
    return torch.cat([torch.stack(left, -2), torch.stack(right, -1)], -1)


class _Blocks:
    """Sums over pairs that agree on some features, without stimuli whose value of any of `needed` is ignored."""

    def __init__(self, levels: Int[Tensor, "n f"], cells: Int[Tensor, " n"]):
        self.levels, self.cells, self.sets = levels.long(), cells, int(cells.max()) + 1
        self.lacking = (levels < 0).any(0).tolist()
        self.sizes = (levels.amax(0) + 2).tolist()
        self.keys, self.counts, self.pairs = cache(self._keys), cache(self._counts), cache(self._pairs)

    def differing(self, union: Term, within: Callable[[Term, Term], Tensor]) -> Float[Tensor, " s"]:
        """Return the sum over pairs that differ in all these features, from the sums over those that agree on some."""
        needed = tuple(feature for feature in union if self.lacking[feature])
        subsets = (agree for size in range(len(union) + 1) for agree in combinations(union, size))
        return torch.stack([(-1) ** len(agree) * within(agree, needed) for agree in subsets]).sum(0)

    def _keys(self, agree: Term, needed: Term) -> tuple[Tensor, Tensor, int]:
        """Return the stimuli that count, the number of their cell and block, and how many blocks there are."""
        block, number = torch.zeros_like(self.cells), 1
        for feature in agree:
            block = block * self.sizes[feature] + self.levels[:, feature] + 1
            number *= self.sizes[feature]
            if number > 4 * len(block):
                block = torch.unique(block, return_inverse=True)[1]
                number = int(block.max()) + 1
        kept = (self.levels[:, list(needed)] >= 0).all(1).nonzero()[:, 0]
        return kept, (self.cells * number + block)[kept], number

    def _counts(self, agree: Term, needed: Term) -> Float[Tensor, "s c"]:
        _, keys, number = self.keys(agree, needed)
        return of_sets(torch.bincount(keys, minlength=self.sets * number).view(self.sets, number).double())

    def _pairs(self, agree: Term, needed: Term) -> Float[Tensor, " s"]:
        counts = self.counts(agree, needed)
        return (counts * (counts - 1)).sum(-1) / 2

    def squares_of(self, states: Float[Tensor, "n d"]) -> Callable[[Term, Term], Float[Tensor, " s"]]:
        norms = torch.cat([part.square().sum(1, keepdim=True) for part in states.split(PANEL)])

        @cache
        def squares(agree: Term, needed: Term) -> Tensor:
            kept, keys, number = self.keys(agree, needed)
            rows, lengths = (states, norms) if len(kept) == len(states) else (states[kept], norms[kept])
            total, length = (self._by_block(keys, part, number) for part in (rows, lengths))
            return (self.counts(agree, needed) * length[..., 0]).sum(-1) - total.square().sum((-2, -1))

        return squares

    def _by_block(self, keys: Int[Tensor, " n"], rows: Float[Tensor, "n d"], number: int) -> Float[Tensor, "s c d"]:
        sums = rows.new_zeros(self.sets * number, rows.shape[1])
        return of_sets(sums.scatter_add_(0, keys[:, None].expand_as(rows), rows).view(self.sets, number, -1))


def of_sets(sums: Float[Tensor, " g *c"]) -> Float[Tensor, " s *c"]:
    """Return the sums over all cells and, if there are several, over all but each, from those of g cells."""
    total = sums.sum(0, keepdim=True)
    return total if len(sums) == 1 else torch.cat([total, total - sums])


def level_counts(features: Features, cells: Int[Tensor, " n"]) -> list[Float[Tensor, "s _"]]:
    """Return the number of stimuli of each level of each feature in each set; (s, 0) of one with one weight."""
    ones = torch.ones(len(cells), 1, dtype=torch.float64, device=cells.device)
    columns = zip(features.levels.T, features.known, strict=True)
    return [_by_level(levels.clamp(max=known - 1), known, ones, cells)[..., 0] for levels, known in columns]


def _members(cells: Int[Tensor, " n"]) -> list[Int[Tensor, " _"]]:
    return [(cells == cell).nonzero()[:, 0] for cell in range(int(cells.max()) + 1)]


class _Forms(NamedTuple):
    """The terms of one feature as forms in some columns of each stimulus."""

    places: Int[Tensor, " k"]  # of the terms
    columns: Float[Tensor, "n c"]
    pairs: tuple[Tensor, Tensor] | None  # the two levels of each term; None for a scaled feature

    @classmethod
    def of(cls, features: Features, feature: int, places: slice) -> _Forms:
        device, known = features.levels.device, features.known[feature]
        if not known:
            place = features.positions[:, feature] / features.ranges[feature]
            there = ~place.isnan()
            x = torch.where(there, place - place.nanmean(), 0)
            lacks = ~there & (features.levels[:, feature] >= 0)
            columns = torch.stack([there.double(), x, x.square(), lacks.double()], 1)
            return cls(torch.tensor([places.start + 1], device=device), columns, None)
        left, right = torch.triu_indices(known, known, 1, device=device)
        held = one_hot(features.levels[:, feature].clamp(min=-1).long() + 1, known + 1)[:, 1:].double()
        return cls(torch.arange(places.start + 1, places.stop, device=device), held, (left, right))

    def read(self, product: Float[Tensor, "s c c"]) -> Float[Tensor, "s k"]:
        """Return the sums of these terms times another term, from its M D' M'."""
        if self.pairs is None:
            return (product.new_tensor(SCALED) * product).sum((1, 2))[:, None] / 2
        return product[:, self.pairs[0], self.pairs[1]]

    def times(self, other: _Forms, shared: Float[Tensor, "s c d"]) -> Float[Tensor, "s k m"]:
        """Return the sums of these terms times those of another feature, from M."""
        if other.pairs is None:
            return self.read(shared @ shared.new_tensor(SCALED) @ shared.mT)[..., None]
        if self.pairs is None:
            return other.times(self, shared.mT).mT
        (a, b), (c, d) = (part[:, None] for part in self.pairs), other.pairs
        return shared[:, a, c] * shared[:, b, d] + shared[:, a, d] * shared[:, b, c]


def add_forms(
    sums: Float[Tensor, "s t u"],
    features: Features,
    layers: Sequence[NeuralDistances],
    terms: Sequence[Term],
    cells: Int[Tensor, " n"],
) -> None:
    """Write the sums of scaled features and of pairs of levels, 0 for levels new to training, into the table."""
    formed = [
        _Forms.of(features, term[0], places)
        for term, places in grouped(terms)
        if len(term) == 1 or _is_scaled(features, term)
    ]
    columns, members = torch.cat([each.columns for each in formed], 1), _members(cells)

    def shared_with(right: Float[Tensor, "n m"]) -> Sequence[Float[Tensor, "s c m"]]:
        products = of_sets(torch.stack([columns[rows].T @ right[rows] for rows in members]))
        return products.split([each.columns.shape[1] for each in formed], 1)

    def write(place: int, products: Iterable[Float[Tensor, "s c c"]]) -> None:
        for each, product in zip(formed, products, strict=True):
            sums[:, each.places, place] = each.read(product)
            if place < len(terms):
                sums[:, place, each.places] = sums[:, each.places, place]

    total = shared_with(torch.ones_like(columns[:, :1]))
    write(0, (each @ each.mT for each in total))
    for place, term in enumerate(terms):
        if len(term) == 2 and not _is_scaled(features, term):
            levels = features.levels[:, term[0]]
            held = _by_level(levels, int(levels.max()) + 1, columns, cells).split([len(x[0]) for x in total], 2)
            write(place, (each.sum(1)[:, :, None] * each.sum(1)[:, None] - each.mT @ each for each in held))
    for place, layer in enumerate(layers, len(terms)):
        parts = total, shared_with(layer.states.square().sum(1, keepdim=True)), shared_with(layer.states)
        write(place, (m @ n.mT + n @ m.mT - 2 * v @ v.mT for m, n, v in zip(*parts, strict=True)))
    for other in formed:
        for each, shared in zip(formed, shared_with(other.columns), strict=True):
            sums[:, each.places[:, None], other.places] = each.times(other, shared)


def _by_level(
    levels: Int[Tensor, " n"], known: int, columns: Float[Tensor, "n m"], cells: Int[Tensor, " n"]
) -> Float[Tensor, "s c m"]:
    """Return the sums of the columns over the stimuli of each known level; a negative level is left out."""
    number, size = int(cells.max()) + 1, known + 1
    keys = cells * size + levels.clamp(min=-1) + 1
    found = columns.new_zeros(number * size, columns.shape[1]).index_add_(0, keys, columns)
    return of_sets(found.view(number, size, -1))[:, 1:]


def sums_by_pair(
    features: Features, layers: Sequence[NeuralDistances], terms: Sequence[Term], cells: Int[Tensor, " n"]
) -> Float[Tensor, "s t u"]:
    """Return the table of `normal_equations`, over chunks of pairs within and between cells."""
    members, chunk = _members(cells), CHUNK // -(-len(terms) // TERMS)
    number, width = len(members), len(terms) + len(layers)
    between = torch.zeros(number, number, len(terms), width, dtype=torch.float64, device=cells.device)
    for a, b in combinations_with_replacement(range(number), 2):
        for rows in members[a].split(max(1, chunk // len(members[b]))):
            kept = (rows[:, None] < members[b]) | (a != b)
            left = regressors([features.difference(f, rows, members[b]) for f in range(len(features.scaled))], terms)
            right = [layer.block(rows, members[b]) for layer in layers]
            between[a, b] += _products([part[kept] for part in left], [part[kept] for part in right])
    total = between.sum((0, 1))
    alone = between.sum(0) + between.sum(1) - between.diagonal().movedim(-1, 0)
    return total[None] if number == 1 else torch.cat([total[None], total - alone])


def sums_of_given_pairs(
    differences: Sequence[Tensor], targets: Float[Tensor, "l p"], terms: Sequence[Term], cells: Int[Tensor, " p"]
) -> Float[Tensor, "s t u"]:
    """Return the table of `normal_equations` of given pairs, which cells divide, from their Δ and squared distances."""
    parts, chunk = [], CHUNK // -(-len(terms) // TERMS)
    for member in _members(cells):
        part = torch.zeros(len(terms), len(terms) + len(targets), dtype=torch.float64, device=cells.device)
        for chosen in member.split(chunk):
            here = regressors([column[chosen] for column in differences], terms)
            part += _products(here, list(targets[:, chosen]))
        parts.append(part)
    return of_sets(torch.stack(parts))


def _products(left: list[Tensor], right: list[Tensor]) -> Float[Tensor, "t u"]:
    x = torch.stack(left)
    return x @ torch.cat([x, torch.stack(right)]).T


# ---- sets of pairs of stimuli

PREDICTIONS = 2**22  # in memory


class StimulusPairs:
    """Pairs of stimuli with their neural distances in every layer.

    They are all pairs i < j of the stimuli in the rows `index` of the feature table, and folds divide stimuli; or those
    at the flat indices `chosen`, which folds divide, with the squared distances `targets`, if known.
    """

    def __init__(
        self,
        layers: Sequence[NeuralDistances],
        index: Int[Tensor, " n"] | None = None,
        chosen: Int[Tensor, " p"] | None = None,
        targets: Float[Tensor, "l p"] | None = None,
    ):
        self.layers = layers
        self.index = torch.arange(len(layers[0]), device=layers[0].states.device) if index is None else index
        self.chosen = chosen
        self._targets = targets

    def __len__(self) -> int:
        return len(self.index) if self.chosen is None else len(self.chosen)

    def part(self, units: Int[Tensor, " k"]) -> StimulusPairs:
        if self.chosen is not None:
            return StimulusPairs(self.layers, self.index, self.chosen[units], self.targets()[:, units])
        return StimulusPairs([layer.take(units) for layer in self.layers], self.index[units])

    @cached_property
    def flat(self) -> Int[Tensor, " p"]:
        """The pairs, as indices into a flat matrix of all stimuli by all stimuli."""
        return upper(len(self.index), self.index.device) if self.chosen is None else self.chosen

    def targets(self) -> Float[Tensor, "l p"]:
        return torch.stack(list(self._squares()))

    def _squares(self) -> Iterable[Float[Tensor, " p"]]:
        if self._targets is not None:
            return self._targets
        return (layer.at(self.flat) for layer in self.layers)

    @cached_property
    def ranks(self) -> Float[Tensor, "l p"]:
        """Unit ranks of the distances; raises a ValueError if all distances of a layer are equal."""
        return unit_ranks(self._squares(), len(self.layers), "the distances of layer")

    def differences(self, features: Features) -> list[Tensor]:
        """Return Δ of the pairs, feature by feature, see `Features.difference`."""
        own = features.take(self.index)
        return [own.difference(feature).flatten()[self.flat] for feature in range(len(features.scaled))]

    def permuted(
        self, features: Features, differences: Sequence[Tensor], moved: Sequence[int], order: Int[Tensor, " k"]
    ) -> list[Tensor]:
        """Return the differences after each stimulus, or pair, took the features `moved` of that in `order`."""
        if self.chosen is not None:
            return [column[order] if feature in moved else column for feature, column in enumerate(differences)]
        own = features.take(self.index).permuted(moved, order)
        found = list(differences)
        for feature in moved:
            found[feature] = own.difference(feature).flatten()[self.flat]
        return found

    def sums(self, features: Features, terms: Sequence[Term], cells: Int[Tensor, " k"]) -> Float[Tensor, "s t u"]:
        """Return the sums of `normal_equations` of all pairs, and without each cell of stimuli or pairs."""
        if self.chosen is None:
            return normal_equations(features.take(self.index), self.layers, terms, cells)
        return sums_of_given_pairs(self.differences(features), self.targets(), terms, cells)

    def level_counts(self, features: Features, cells: Int[Tensor, " k"]) -> list[Float[Tensor, "s _"]]:
        """Return `level_counts` for each set of `sums`; with folds of pairs every set has all stimuli."""
        own = features.take(self.index)
        if self.chosen is None:
            return level_counts(own, cells)
        sets = 1 + (int(cells.max()) + 1) * bool(cells.any())
        return [counts.expand(sets, -1) for counts in level_counts(own, torch.zeros_like(self.index))]

    def score(
        self, variants: Sequence[Sequence[Tensor]], terms: Sequence[Term], weights: Float[Tensor, "*b l r"]
    ) -> Float[Tensor, "v *b l"]:
        """Return Spearman's ρ of Σ weight · Δ_f Δ_g and the distances, NaN of constants, for v variants of differences.

        Pairs of equal differences have one prediction, so only the different predictions are sorted.
        """
        found = []
        for patterns, code in map(distinct, variants):
            counts = torch.bincount(code).double()
            sums = self.ranks.new_zeros(len(self.ranks), len(counts)).index_add_(1, code, self.ranks)
            rows = weights.flatten(0, -2).split(max(1, PREDICTIONS // len(counts)))
            owners = torch.arange(weights.shape[:-1].numel(), device=code.device).split(len(rows[0]))
            found += [
                spearman_of_patterns(predict(patterns, terms, part), counts, sums[own % len(sums)])
                for part, own in zip(rows, owners, strict=True)
            ]
        return torch.cat(found).view(-1, *weights.shape[:-1])
