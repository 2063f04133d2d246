"""Sums over all pairs of stimuli that a least-squares fit of squared neural distances on feature differences needs.

One table of sums holds terms against terms, then terms against layers: (s, t, t + l) for s sets of stimuli. The first
set is all of them, set 1 + c all but cell c. Nothing in the first t columns depends on the layers. Most sums over pairs
follow from sums over stimuli, so that no pair is formed.

**Indicators.** With E_T = 1[equal on all features of T], a product of indicators over U is Σ_{T ⊆ U} (-1)^|T| E_T; and
over the pairs within a block of n stimuli, Σ 1 = n (n - 1) / 2 and Σ ‖x - y‖² = n Σ ‖x‖² - ‖Σ x‖².

**Pairs of levels.** With N_a the number, S_a the sum and Q_a the sum of the squared norms of the stimuli of level a,
and M_ac the number of those that also have c, the pairs of stimuli of the levels a ≠ b of one feature

| are | N_a N_b |
|---|---|
| and of the levels c ≠ d of any feature | M_ac M_bd + M_ad M_bc |
| and differ in a feature that is not ignored | (Σ_c M_ac) (Σ_c M_bc) - Σ_c M_ac M_bc |
| and their squared distances sum to | N_a Q_b + N_b Q_a - 2 S_a · S_b |

**Scaled features.** Every regressor, and the squared distance of states, is z_i' C z_j of some columns z of each
stimulus. With p = 1 where a feature has a value x, counted from its mean, and q = 1 where it lacks one that is not
ignored (x = 0 there),

| term | z | z_i' C z_j |
|---|---|---|
| Δ² of a scaled feature | p, x, x², q | x_i² p_j + p_i x_j² - 2 x_i x_j + p_i q_j + q_i p_j |
| an indicator | g = 1 unless ignored, h_c = 1[level c] | g_i g_j - Σ_c h_c,i h_c,j |
| the levels a ≠ b | h_a, h_b | h_a,i h_b,j + h_b,i h_a,j |
| a squared distance | 1, ‖v‖², v | ‖v_i‖² + ‖v_j‖² - 2 v_i · v_j |

So a product of two sums to tr(C M C' M') / 2 over the pairs i < j, with M = Σ_i z_i z'_i of the columns of both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate, combinations, combinations_with_replacement

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from thinkalike.measures.distances.neural import PANEL, NeuralDistances
from thinkalike.measures.mlem.features import Features
from thinkalike.measures.mlem.terms import Term, regressors


def normal_equations(
    features: Features, layers: Sequence[NeuralDistances], terms: Sequence[Term], cells: Int[Tensor, " n"]
) -> Float[Tensor, "s t u"]:
    """Return sums of products over the pairs i < j of each set of stimuli.

    Indicators, pairs of levels, Δ² of scaled features, and squared Euclidean distances have a closed form that needs no
    pairs; products of scaled features and other distances are summed over chunks of pairs.

    Args:
        cells: The cell of each stimulus, from 0. Each set but the first leaves out one cell, if there are several.
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


# ---- Indicators


def sums_by_level(
    features: Features, layers: Sequence[NeuralDistances], terms: Sequence[Term], cells: Int[Tensor, " n"]
) -> Float[Tensor, "s t u"]:
    """Return the table of `normal_equations`, for indicators and squared Euclidean distances."""
    blocks = _Blocks(features.levels, cells)
    pairs = cache(lambda union: blocks.differing(union, blocks.pairs))
    left = [torch.stack([pairs(_union(a, b)) for b in terms], -1) for a in terms]
    squares = [blocks.squares_of(layer.states) for layer in layers]
    right = [torch.stack([blocks.differing(_union(term), each) for term in terms], -1) for each in squares]
    return torch.cat([torch.stack(left, -2), torch.stack(right, -1)], -1)


def _union(*terms: Term) -> Term:
    return tuple(sorted({feature for term in terms for feature in term}))


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
        """Return the number of pairs that agree."""
        counts = self.counts(agree, needed)
        return (counts * (counts - 1)).sum(-1) / 2

    def squares_of(self, states: Float[Tensor, "n d"]) -> Callable[[Term, Term], Float[Tensor, " s"]]:
        """Return a function that sums the squared distances of the pairs that agree."""
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


def _members(cells: Int[Tensor, " n"]) -> list[Int[Tensor, " _"]]:
    return [(cells == cell).nonzero()[:, 0] for cell in range(int(cells.max()) + 1)]


def _products_of(
    left: Float[Tensor, "n c"], right: Float[Tensor, "n m"], cells: Int[Tensor, " n"]
) -> Float[Tensor, "s c m"]:
    """Return left' right over the stimuli of each set."""
    return of_sets(torch.stack([left[rows].T @ right[rows] for rows in _members(cells)]))


# ---- Pairs of levels


def sums_of_level_pairs(
    features: Features, layers: Sequence[NeuralDistances], terms: Sequence[Term], cells: Int[Tensor, " n"]
) -> Float[Tensor, "s t u"]:
    """Return the table of `normal_equations`, for indicators, pairs of levels and squared Euclidean distances."""
    single = [place for place, term in enumerate(terms) if len(term) < 3]
    plain = sums_by_level(features, layers, [terms[place] for place in single], cells)
    sums = plain.new_zeros(len(plain), len(terms), len(terms) + len(layers))
    sums[:, torch.tensor(single)[:, None], [*single, *range(len(terms), sums.shape[2])]] = plain
    held, left, right, places = _stacked(features, terms)
    shared = _products_of(held, held, cells)
    count = shared.diagonal(dim1=1, dim2=2)
    sums[:, places, 0] = sums[:, 0, places] = count[:, left] * count[:, right]
    straight = shared[:, left[:, None], left] * shared[:, right[:, None], right]
    sums[:, places[:, None], places] = straight + shared[:, left[:, None], right] * shared[:, right[:, None], left]
    for place in single[1:]:
        both = _products_of(held, _hot(features.levels[:, terms[place][0]]), cells)
        present, alike = both.sum(2), (both @ both.mT)[:, left, right]
        sums[:, places, place] = sums[:, place, places] = present[:, left] * present[:, right] - alike
    for place, layer in enumerate(layers, len(terms)):
        norms = _products_of(held, layer.states.square().sum(1, keepdim=True), cells)[..., 0]
        total = _products_of(held, layer.states, cells)
        product = (total @ total.mT)[:, left, right]
        sums[:, places, place] = count[:, left] * norms[:, right] + count[:, right] * norms[:, left] - 2 * product
    return sums


def _stacked(features: Features, terms: Sequence[Term]) -> tuple[Float[Tensor, "n c"], Tensor, Tensor, Tensor]:
    """Return indicators of the levels of all features, and the two levels and the place of each term of known ones."""
    known, offsets = features.known, [0, *accumulate(features.known)]
    held = [_hot(features.levels[:, feature], size) for feature, size in enumerate(known) if size]
    pairs = [(place, term) for place, term in enumerate(terms) if len(term) == 3 and term[1] < known[term[0]]]
    ends = [[offsets[term[0]] + term[side] for _, term in pairs] for side in (1, 2)]
    left, right, places = (torch.tensor(x, device=held[0].device) for x in (*ends, [place for place, _ in pairs]))
    return torch.cat(held, 1), left, right, places


def _hot(levels: Int[Tensor, " n"], size: int | None = None) -> Float[Tensor, "n c"]:
    """Return one column per level from 0; a stimulus of a negative level is in none."""
    number = (int(levels.max()) if size is None else size - 1) + 2
    return one_hot(levels.clamp(min=-1).long() + 1, number)[:, 1:].double()


# ---- Scaled features

FORM = ((0, 0, 1, 1), (0, -2, 0, 0), (1, 0, 0, 0), (1, 0, 0, 0))  # C of p, x, x², q


def is_scaled(features: Features, term: Term) -> bool:
    """Return whether a term is Δ_f² of a scaled feature."""
    return len(term) == 2 and term[0] == term[1] and features.scaled[term[0]]


def add_positions(
    sums: Float[Tensor, "s t u"],
    features: Features,
    layers: Sequence[NeuralDistances],
    terms: Sequence[Term],
    cells: Int[Tensor, " n"],
) -> None:
    """Write the rows and columns of scaled features into the table of `normal_equations`."""
    places = [place for place, term in enumerate(terms) if is_scaled(features, term)]
    columns = torch.cat([_columns(features, terms[place][0]) for place in places], 1)
    form = columns.new_tensor(FORM)

    def both(right: Float[Tensor, "n m"]) -> Float[Tensor, "s f 4 m"]:
        return _products_of(columns, right, cells).unflatten(1, (len(places), 4))

    alone = both(torch.ones_like(columns[:, :1]))
    sums[:, places, 0] = sums[:, 0, places] = _halved(form @ alone, alone)
    shared = both(columns).view(len(alone), len(places), 4, len(places), 4).movedim(2, 3)
    where = torch.tensor(places)
    sums[:, where[:, None], where] = _halved(form @ shared @ form, shared)
    for place, layer in enumerate(layers, len(terms)):
        ends = both(layer.states.square().sum(1, keepdim=True))
        total = both(layer.states)
        sums[:, places, place] = 2 * _halved(form @ ends, alone) - 2 * _halved(form @ total, total)
    for feature in sorted({term[0] for term in terms[1:] if not is_scaled(features, term)}):
        known = features.known[feature]
        held = _by_level(features.levels[:, feature], known, columns, cells)
        _add_levels(sums, feature, known, held.unflatten(2, (len(places), 4)).movedim(1, 3), places, terms)


def _add_levels(
    sums: Tensor, feature: int, known: int, held: Float[Tensor, "s f 4 c"], places: list[int], terms: Sequence[Term]
) -> None:
    """Write the products of scaled features with an indicator, or with the pairs of the levels of a feature."""
    form = held.new_tensor(FORM)
    if known:
        others = [place for place, term in enumerate(terms) if len(term) == 3 and term[0] == feature][:-1]
        left, right = torch.triu_indices(known, known, 1, device=held.device)
        found = (held.mT @ form @ held)[..., left, right]  # no stimulus has a level beyond the known ones
    else:
        others = [terms.index((feature, feature))]
        present = held.sum(-1, keepdim=True)
        found = (_halved(form @ present, present) - _halved(form @ held, held))[..., None]
    sums[:, torch.tensor(places)[:, None], others] = found
    sums[:, torch.tensor(others)[:, None], places] = found.mT


def _columns(features: Features, feature: int) -> Float[Tensor, "n 4"]:
    place = features.positions[:, feature] / features.ranges[feature]
    there = ~place.isnan()
    x = torch.where(there, place - place.nanmean(), 0)
    lacks = ~there & (features.levels[:, feature] >= 0)
    return torch.stack([there.double(), x, x.square(), lacks.double()], 1)


def _by_level(
    levels: Int[Tensor, " n"], known: int, columns: Float[Tensor, "n m"], cells: Int[Tensor, " n"]
) -> Float[Tensor, "s c m"]:
    """Return the sums of the columns over the stimuli of each level from 0; a negative level is left out."""
    number, size = int(cells.max()) + 1, max(int(levels.max()) + 1, known, 1) + 1
    keys = cells * size + levels.clamp(min=-1) + 1
    found = columns.new_zeros(number * size, columns.shape[1]).index_add_(0, keys, columns)
    return of_sets(found.view(number, size, -1))[:, 1:]


def _halved(left: Float[Tensor, "*b 4 m"], right: Float[Tensor, "*b 4 m"]) -> Float[Tensor, "*b"]:
    return (left * right).sum((-2, -1)) / 2


# ---- Explicit pairs

CHUNK = 2**20  # pairs in memory, with up to
TERMS = 64  # terms; more terms mean fewer pairs


def sums_by_pair(
    features: Features, layers: Sequence[NeuralDistances], terms: Sequence[Term], cells: Int[Tensor, " n"]
) -> Float[Tensor, "s t u"]:
    """Return the table of `normal_equations`, over chunks of pairs within and between cells."""
    members, chunk = _members(cells), CHUNK // -(-len(terms) // TERMS)
    number, width = len(members), len(terms) + len(layers)
    between = torch.zeros(number, number, len(terms), width, dtype=torch.float64, device=cells.device)
    for a, b in combinations_with_replacement(range(number), 2):
        for rows in members[a].split(max(1, chunk // len(members[b]))):
            kept = rows[:, None] < members[b] if a == b else None
            left = regressors([features.difference(f, rows, members[b]) for f in range(len(features.scaled))], terms)
            right = [layer.block(rows, members[b]) for layer in layers]
            between[a, b] += _products([_flat(part, kept) for part in left], [_flat(part, kept) for part in right])
    total = between.sum((0, 1))
    alone = between.sum(0) + between.sum(1) - between.diagonal().movedim(-1, 0)
    return total[None] if number == 1 else torch.cat([total[None], total - alone])


def sums_of_given_pairs(
    differences: Sequence[Tensor], targets: Float[Tensor, "l p"], terms: Sequence[Term], cells: Int[Tensor, " p"]
) -> Float[Tensor, "s t u"]:
    """Return the table of `normal_equations` of pairs that are given one by one, with cells of pairs, not of stimuli.

    Args:
        differences: Δ of the pairs, feature by feature.
        targets: The squared neural distances of the pairs.
    """
    parts, chunk = [], CHUNK // -(-len(terms) // TERMS)
    for member in _members(cells):
        part = torch.zeros(len(terms), len(terms) + len(targets), dtype=torch.float64, device=cells.device)
        for chosen in member.split(chunk):
            here = regressors([column[chosen] for column in differences], terms)
            part += _products(here, list(targets[:, chosen]))
        parts.append(part)
    return of_sets(torch.stack(parts))


def _flat(block: Tensor, kept: Bool[Tensor, "a b"] | None) -> Tensor:
    return block.flatten() if kept is None else block[kept]


def _products(left: list[Tensor], right: list[Tensor]) -> Float[Tensor, "t u"]:
    x = torch.stack(left)
    return x @ torch.cat([x, torch.stack(right)]).T
