"""Sums over all pairs of stimuli for a least-squares fit of squared neural distances on features.

One table of sums holds terms against terms, then terms against layers: (s, t, t + l) for s sets of
stimuli. The first set is all of them, set 1 + c all but cell c. Most sums over pairs follow from
sums over stimuli: no pair is formed.

**Indicators.** With E_T = 1[equal on all features of T], a product of indicators over U is
Σ_{T ⊆ U} (-1)^|T| E_T; and over the pairs within a block of n stimuli, Σ 1 = n (n - 1) / 2 and
Σ ‖x - y‖² = n Σ ‖x‖² - ‖Σ x‖².

**Scaled features and pairs of levels.** Every regressor, and the squared distance of states, is
z_i' C z_j of some columns z of each stimulus. With p = 1 where a feature has a value x, counted
from its mean, and q = 1 where it lacks one that is not ignored (x = 0 there),

| term | z | z_i' C z_j |
|---|---|---|
| Δ² of a scaled feature | p, x, x², q | x_i² p_j + p_i x_j² - 2 x_i x_j + p_i q_j + q_i p_j |
| an indicator | g = 1 unless ignored, h_c = 1[level c] | g_i g_j - Σ_c h_c,i h_c,j |
| the levels a ≠ b | h_a, h_b | h_a,i h_b,j + h_b,i h_a,j |
| a squared distance | 1, ‖v‖², v | ‖v_i‖² + ‖v_j‖² - 2 v_i · v_j |

The product of two such terms sums to tr(C M D' M') / 2 over the pairs i < j, with D the form of
the other term and M = Σ_i z_i z'_i of the columns of both. If the first term is of the levels
a ≠ b, this is the entry (a, b) of M D' M'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import combinations, combinations_with_replacement
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from thinkalike.measures.distances.neural import ROWS_AT_ONCE, NeuralDistances
from thinkalike.measures.mlem.features import (
    Features,
    Term,
    is_all_level_pairs,
    is_level_pair,
    regressors,
    weight_slices,
)

# The form C of Δ² of a scaled feature, in the columns p, x, x², q.
SCALED_FORM = ((0, 0, 1, 1), (0, -2, 0, 0), (1, 0, 0, 0), (1, 0, 0, 0))

# Pairs whose regressors are in memory at once, with up to this many terms; more terms mean fewer
# pairs.
PAIRS_AT_ONCE = 2**20
TERMS_AT_ONCE = 64


def normal_equations(
    features: Features,
    layers: Sequence[NeuralDistances],
    terms: Sequence[Term],
    cells: Int[Tensor, " n"],
) -> Float[Tensor, "s t u"]:
    """Return sums of products over the pairs i < j of each set of stimuli: (s, t, u = t + l).

    Entry (s, a, b) sums the regressor of term a times that of term b, or from b = t on times the
    squared distance of a layer.

    Indicators, pairs of levels, Δ² of scaled features, and squared Euclidean distances have a
    closed form that needs no pairs; products of scaled features and other distances are summed
    over chunks of pairs.

    Args:
        features: The features of the stimuli.
        layers: Their distances in each of l layers.
        terms: The t terms, the intercept first.
        cells: The cell of each stimulus, from 0. The first of the s sets is all stimuli; where
            there are several cells, set 1 + c is all stimuli but those of cell c.
    """
    crossed = [term for term in terms if len(term) == 2 and term[0] != term[1]]
    has_scaled_product = any(features.scaled[feature] for term in crossed for feature in term)
    all_euclidean = all(layer.exact for layer in layers)
    if has_scaled_product or not all_euclidean:
        return sums_by_pair(features, layers, terms, cells)

    indicators = []  # the indices of terms that are products of indicators
    for index, term in enumerate(terms):
        if not is_level_pair(term) and not _is_scaled(features, term):
            indicators.append(index)
    of_indicators = sums_by_level(features, layers, [terms[index] for index in indicators], cells)
    if len(indicators) == len(terms):
        return of_indicators

    width = len(terms) + len(layers)
    sums = of_indicators.new_zeros(len(of_indicators), len(terms), width)
    rows = torch.tensor(indicators)[:, None]
    sums[:, rows, [*indicators, *range(len(terms), width)]] = of_indicators
    add_forms(sums, features, layers, terms, cells)
    return sums


def _is_scaled(features: Features, term: Term) -> bool:
    """Return whether a term is Δ² of a scaled feature."""
    return len(term) == 2 and term[0] == term[1] and features.scaled[term[0]]


def about_means(sums: Float[Tensor, "s t u"]) -> Float[Tensor, "s r v"]:
    """Return the sums about the means, which eliminates the intercept: r = t - 1, v = u - 1.

    They are Σ x y - Σ x Σ y / Σ 1; the intercept, term 0, is 1 in all pairs, so that its column
    holds Σ x and its first entry the number of pairs.

    Args:
        sums: The `normal_equations`.
    """
    return sums[:, 1:, 1:] - sums[:, 1:, :1] * sums[:, :1, 1:] / sums[:, :1, :1]


def sums_by_level(
    features: Features,
    layers: Sequence[NeuralDistances],
    terms: Sequence[Term],
    cells: Int[Tensor, " n"],
) -> Float[Tensor, "s t u"]:
    """Return `normal_equations` for products of indicators and squared Euclidean distances.

    The sums come from sums over the stimuli that agree on some features, without forming pairs.
    """
    blocks = _Blocks(features.levels, cells)

    @cache
    def differing_pairs(union: Term) -> Float[Tensor, " s"]:
        """Return `blocks.differing` of all pairs, computed once for each union of terms."""
        return blocks.differing(union, blocks.pairs)

    with_terms = []
    for first in terms:
        products = [differing_pairs(_union(first, second)) for second in terms]
        with_terms.append(torch.stack(products, -1))
    with_layers = []
    for layer in layers:
        squares = blocks.squares_of(layer.states)
        products = [blocks.differing(_union(term), squares) for term in terms]
        with_layers.append(torch.stack(products, -1))
    return torch.cat([torch.stack(with_terms, -2), torch.stack(with_layers, -1)], -1)


def _union(*terms: Term) -> Term:
    """Return the different features of some terms, in rising order."""
    return tuple(sorted({feature for term in terms for feature in term}))


class _Keys(NamedTuple):
    """The blocks of stimuli that agree on some features, within each cell.

    Attributes:
        stimuli: The stimuli that belong to a block; those with an ignored value belong to none.
        keys: The cell and the block of each stimulus, as one number: cell * block_count + block.
        block_count: How many blocks a cell has.
    """

    stimuli: Int[Tensor, " k"]
    keys: Int[Tensor, " k"]
    block_count: int


class _Blocks:
    """Sums over the pairs of stimuli that agree on some features, for each set of stimuli.

    Methods take `agree`, the features that the stimuli of a block agree on, and `needed`, the
    features whose values must not be ignored: stimuli with an ignored value of one of them are
    left out. Each result is computed once.

    Args:
        levels: The levels of each stimulus.
        cells: The cell of each stimulus.
    """

    def __init__(self, levels: Int[Tensor, "n f"], cells: Int[Tensor, " n"]):
        self.levels = levels.long()
        self.cells = cells
        self.cell_count = int(cells.max()) + 1
        self.has_ignored = (levels < 0).any(0).tolist()
        self.level_counts = (levels.amax(0) + 2).tolist()
        self.keys = cache(self._keys)
        self.counts = cache(self._counts)
        self.pairs = cache(self._pairs)

    def differing(
        self, union: Term, sum_within: Callable[[Term, Term], Float[Tensor, " s"]]
    ) -> Float[Tensor, " s"]:
        """Return the sum over the pairs of stimuli that differ in every feature of `union`.

        By inclusion and exclusion, this is Σ_{T ⊆ union} (-1)^|T| times the sum over the pairs
        that agree on T.

        Args:
            union: The features.
            sum_within: Returns the sum over pairs that agree on some features, `agree`, and have
                no ignored value of others, `needed`.
        """
        needed = tuple(feature for feature in union if self.has_ignored[feature])
        signed_sums = []
        for size in range(len(union) + 1):
            for agree in combinations(union, size):
                signed_sums.append((-1) ** size * sum_within(agree, needed))
        return torch.stack(signed_sums).sum(0)

    def _keys(self, agree: Term, needed: Term) -> _Keys:
        """Return the blocks of stimuli that agree on all features of `agree`, within each cell.

        Stimuli with an ignored value of a feature of `needed` belong to no block.
        """
        block = torch.zeros_like(self.cells)
        block_count = 1
        # The block is a mixed-radix number, whose digits are the levels + 1, so that -1 is 0.
        for feature in agree:
            block = block * self.level_counts[feature] + self.levels[:, feature] + 1
            block_count *= self.level_counts[feature]
            if block_count > 4 * len(block):  # most are empty
                _, block = torch.unique(block, return_inverse=True)
                block_count = int(block.max()) + 1
        has_needed = (self.levels[:, list(needed)] >= 0).all(1)
        stimuli = has_needed.nonzero()[:, 0]
        return _Keys(stimuli, (self.cells * block_count + block)[stimuli], block_count)

    def _counts(self, agree: Term, needed: Term) -> Float[Tensor, "s c"]:
        """Return the number of stimuli of each of c blocks in each of s sets, in float64."""
        _, keys, block_count = self.keys(agree, needed)
        counts = torch.bincount(keys, minlength=self.cell_count * block_count)
        return of_sets(counts.view(self.cell_count, block_count).double())

    def _pairs(self, agree: Term, needed: Term) -> Float[Tensor, " s"]:
        """Return the number of pairs of stimuli of one block, Σ n (n - 1) / 2, in each set."""
        counts = self.counts(agree, needed)
        return (counts * (counts - 1)).sum(-1) / 2

    def squares_of(
        self, states: Float[Tensor, "n d"]
    ) -> Callable[[Term, Term], Float[Tensor, " s"]]:
        """Return a function that sums the squared distances of states over pairs within blocks.

        The function takes `agree` and `needed`, and returns Σ over blocks of n Σ ‖x‖² - ‖Σ x‖² in
        each set of stimuli. It keeps its results.
        """
        norms = torch.cat(
            [panel.square().sum(1, keepdim=True) for panel in states.split(ROWS_AT_ONCE)]
        )

        @cache
        def squares(agree: Term, needed: Term) -> Tensor:
            stimuli, keys, block_count = self.keys(agree, needed)
            rows = states
            row_norms = norms
            if len(stimuli) < len(states):
                rows = states[stimuli]
                row_norms = norms[stimuli]
            total = self._by_block(keys, rows, block_count)
            norm_total = self._by_block(keys, row_norms, block_count)[..., 0]
            weighted_norms = (self.counts(agree, needed) * norm_total).sum(-1)
            return weighted_norms - total.square().sum((-2, -1))

        return squares

    def _by_block(
        self, keys: Int[Tensor, " n"], rows: Float[Tensor, "n d"], block_count: int
    ) -> Float[Tensor, "s c d"]:
        """Return the sums of rows over each block in each set."""
        sums = rows.new_zeros(self.cell_count * block_count, rows.shape[1])
        sums.scatter_add_(0, keys[:, None].expand_as(rows), rows)
        return of_sets(sums.view(self.cell_count, block_count, -1))


def of_sets(sums: Float[Tensor, " g *c"]) -> Float[Tensor, " s *c"]:
    """Return sums over each of s sets: all cells and, if there are several, all cells but each.

    There are s = 1 + g sets of g > 1 cells, and 1 set of a single cell.

    Args:
        sums: The sums over each of g cells.
    """
    total = sums.sum(0, keepdim=True)
    if len(sums) == 1:
        return total
    return torch.cat([total, total - sums])


def level_counts(features: Features, cells: Int[Tensor, " n"]) -> list[Float[Tensor, "s _"]]:
    """Return for each feature the number of stimuli of each of its levels in each of s sets.

    It is (s, levels), and (s, 0) for a feature with one weight. Levels that are new to training
    count as the last.
    """
    one_each = torch.ones(len(cells), 1, dtype=torch.float64, device=cells.device)
    counts = []
    for levels, level_count in zip(features.levels.T, features.weighted_levels, strict=True):
        training_levels = levels.clamp(max=level_count - 1)
        counts.append(_by_level(training_levels, level_count, one_each, cells)[..., 0])
    return counts


def stimuli_of_cells(cells: Int[Tensor, " n"]) -> list[Int[Tensor, " _"]]:
    """Return the indices of the stimuli, or of the pairs, of each cell, in rising order."""
    return [(cells == cell).nonzero()[:, 0] for cell in range(int(cells.max()) + 1)]


class _FeatureForms(NamedTuple):
    """The k terms of one feature as quadratic forms z_i' C z_j in columns z of each stimulus.

    Attributes:
        term_indices: The indices of the terms among all terms.
        columns: The c columns z: h of each level for pairs of levels; p, x, x², q for a scaled
            feature.
        level_pairs: The two levels of each term; None for a scaled feature, which is one term.
    """

    term_indices: Int[Tensor, " k"]
    columns: Float[Tensor, "n c"]
    level_pairs: tuple[Tensor, Tensor] | None

    @classmethod
    def of(cls, features: Features, feature: int, weight_slice: slice) -> _FeatureForms:
        """Return the forms of a scaled feature, or of one whose pairs of levels have weights.

        Args:
            features: The features of the stimuli.
            feature: The index of the feature.
            weight_slice: The slice of its weights, which count from the term after the intercept.
        """
        first_term = weight_slice.start + 1  # after the intercept
        if features.weighted_levels[feature]:
            # The last term is that of new levels, which no training stimulus has.
            return cls._of_level_pairs(features, feature, first_term, weight_slice.stop)
        return cls._of_scaled(features, feature, first_term)

    @classmethod
    def _of_level_pairs(
        cls, features: Features, feature: int, first_term: int, stop: int
    ) -> _FeatureForms:
        """Return the forms of the pairs of levels of a feature, in the columns h of its levels."""
        device = features.levels.device
        level_count = features.weighted_levels[feature]
        first, second = torch.triu_indices(level_count, level_count, 1, device=device)
        levels = features.levels[:, feature].clamp(min=-1).long()  # -1: ignored
        has_level = one_hot(levels + 1, level_count + 1)[:, 1:].double()
        terms = torch.arange(first_term, stop, device=device)
        return cls(terms, has_level, (first, second))

    @classmethod
    def _of_scaled(cls, features: Features, feature: int, term: int) -> _FeatureForms:
        """Return the form of Δ² of a scaled feature, in the columns p, x, x² and q.

        p is 1 where the feature has a position x, and q where it lacks one that is not ignored. x
        counts from its mean, which cancels in Δ.
        """
        position = features.positions[:, feature] / features.ranges[feature]
        has_position = ~position.isnan()
        x = torch.where(has_position, position - position.nanmean(), 0)
        is_missing = ~has_position & (features.levels[:, feature] >= 0)
        columns = torch.stack([has_position.double(), x, x.square(), is_missing.double()], 1)
        return cls(torch.tensor([term], device=columns.device), columns, None)

    def sums_with(self, product: Float[Tensor, "s c c"]) -> Float[Tensor, "s k"]:
        """Return the sums over pairs of each of these k terms times another term.

        Args:
            product: M D' M', with D the form of the other term and M the sums over stimuli of the
                columns of this feature times those of the other term.
        """
        if self.level_pairs is None:
            form = product.new_tensor(SCALED_FORM)
            return (form * product).sum((1, 2))[:, None] / 2
        first, second = self.level_pairs
        return product[:, first, second]

    def times(
        self, other: _FeatureForms, shared: Float[Tensor, "s c d"]
    ) -> Float[Tensor, "s k m"]:
        """Return the sums over pairs of each of these k terms times each of m of another feature.

        Args:
            other: The terms of the other feature.
            shared: M, the sums over stimuli of the c columns of this feature times the d columns
                of the other one.
        """
        if other.level_pairs is None:
            product = shared @ shared.new_tensor(SCALED_FORM) @ shared.mT
            return self.sums_with(product)[..., None]
        if self.level_pairs is None:
            return other.times(self, shared.mT).mT
        # one stimulus has level a, the other b; and one has c, the other d
        a = self.level_pairs[0][:, None]
        b = self.level_pairs[1][:, None]
        c, d = other.level_pairs
        return shared[:, a, c] * shared[:, b, d] + shared[:, a, d] * shared[:, b, c]


def add_forms(
    sums: Float[Tensor, "s t u"],
    features: Features,
    layers: Sequence[NeuralDistances],
    terms: Sequence[Term],
    cells: Int[Tensor, " n"],
) -> None:
    """Write the sums of scaled features and of pairs of levels into a table, in place.

    They are 0 for levels that are new to training.

    Args:
        sums: The table of `normal_equations`, which has the sums of indicators already.
        features: The features of the stimuli.
        layers: Their distances, all of them squared Euclidean.
        terms: All terms, in the order of the table.
        cells: The cell of each stimulus.
    """
    forms = []
    for term, weight_slice in weight_slices(terms):
        if is_all_level_pairs(term) or _is_scaled(features, term):
            forms.append(_FeatureForms.of(features, term[0], weight_slice))
    columns = torch.cat([form.columns for form in forms], 1)
    widths = [form.columns.shape[1] for form in forms]
    stimuli = stimuli_of_cells(cells)

    def shared_with(other_columns: Float[Tensor, "n m"]) -> Sequence[Float[Tensor, "s c m"]]:
        """Return for each form M = Σ_i z_i z'_i, its columns z times other columns z', by set."""
        of_cells = [columns[rows].T @ other_columns[rows] for rows in stimuli]
        products: Sequence[Tensor] = of_sets(torch.stack(of_cells)).split(widths, 1)
        return products

    def write(column: int, products: Iterable[Tensor]) -> None:
        """Write the sums of each form times the term or layer of a column of the table.

        Args:
            column: The column.
            products: M D' M' of each form, (s, c, c) with the c columns of the form.
        """
        for form, product in zip(forms, products, strict=True):
            values = form.sums_with(product)
            sums[:, form.term_indices, column] = values
            if column < len(terms):
                sums[:, column, form.term_indices] = values

    # times the intercept
    totals = shared_with(torch.ones_like(columns[:, :1]))
    write(0, (total @ total.mT for total in totals))

    # times indicators: g_i g_j - Σ_c h_c,i h_c,j
    for index, term in enumerate(terms):
        if len(term) == 2 and not _is_scaled(features, term):
            levels = features.levels[:, term[0]]
            by_level = _by_level(levels, int(levels.max()) + 1, columns, cells)
            products = []
            for of_form in by_level.split(widths, 2):  # (s, levels, c)
                total = of_form.sum(1)
                products.append(total[:, :, None] * total[:, None] - of_form.mT @ of_form)
            write(index, products)

    # times squared distances: ‖v_i‖² + ‖v_j‖² - 2 v_i · v_j
    for index, layer in enumerate(layers, len(terms)):
        with_norms = shared_with(layer.states.square().sum(1, keepdim=True))
        with_states = shared_with(layer.states)
        products = []
        for total, norm, state in zip(totals, with_norms, with_states, strict=True):
            products.append(total @ norm.mT + norm @ total.mT - 2 * state @ state.mT)
        write(index, products)

    # times each other
    for second_form in forms:
        for form, shared in zip(forms, shared_with(second_form.columns), strict=True):
            products_of_forms = form.times(second_form, shared)
            sums[:, form.term_indices[:, None], second_form.term_indices] = products_of_forms


def _by_level(
    levels: Int[Tensor, " n"],
    level_count: int,
    columns: Float[Tensor, "n m"],
    cells: Int[Tensor, " n"],
) -> Float[Tensor, "s c m"]:
    """Return the sums of m columns over the stimuli of each level from 0, in each set.

    A negative level, which is an ignored value, is left out.
    """
    cell_count = int(cells.max()) + 1
    size = level_count + 1  # with the ignored level -1, which comes first and is dropped
    keys = cells * size + levels.clamp(min=-1) + 1
    sums = columns.new_zeros(cell_count * size, columns.shape[1]).index_add_(0, keys, columns)
    return of_sets(sums.view(cell_count, size, -1))[:, 1:]


def sums_by_pair(
    features: Features,
    layers: Sequence[NeuralDistances],
    terms: Sequence[Term],
    cells: Int[Tensor, " n"],
) -> Float[Tensor, "s t u"]:
    """Return `normal_equations`, summed over chunks of pairs within and between cells.

    This works for any terms and distances. The set without a cell is the sum over all pairs less
    that over the pairs with a stimulus of the cell.
    """
    stimuli = stimuli_of_cells(cells)
    cell_count = len(stimuli)
    # Entry (a, b), for cells a ≤ b, sums over the pairs with one stimulus in each.
    between = torch.zeros(
        cell_count,
        cell_count,
        len(terms),
        len(terms) + len(layers),
        dtype=torch.float64,
        device=cells.device,
    )
    pairs_at_once = _pairs_at_once(terms)
    feature_numbers = range(len(features.scaled))
    for a, b in combinations_with_replacement(range(cell_count), 2):
        columns = stimuli[b]
        for rows in stimuli[a].split(max(1, pairs_at_once // len(columns))):
            is_pair = (rows[:, None] < columns) | (a != b)  # within a cell, each pair once
            differences = [features.difference(f, rows, columns) for f in feature_numbers]
            of_terms = [regressor[is_pair] for regressor in regressors(differences, terms)]
            of_layers = [layer.block(rows, columns)[is_pair] for layer in layers]
            between[a, b] += _products(of_terms, of_layers)
    total = between.sum((0, 1))
    if cell_count == 1:
        return total[None]
    with_cell = between.sum(0) + between.sum(1) - between.diagonal().movedim(-1, 0)
    return torch.cat([total[None], total - with_cell])


def _pairs_at_once(terms: Sequence[Term]) -> int:
    """Return how many pairs are in memory at once, fewer where terms are many."""
    chunks_of_terms = -(-len(terms) // TERMS_AT_ONCE)  # rounded up
    return PAIRS_AT_ONCE // chunks_of_terms


def sums_of_given_pairs(
    differences: Sequence[Tensor],
    targets: Float[Tensor, "l p"],
    terms: Sequence[Term],
    cells: Int[Tensor, " p"],
) -> Float[Tensor, "s t u"]:
    """Return the sums of `normal_equations` over p given pairs, where cells divide the pairs.

    Args:
        differences: Δ of the pairs, feature by feature.
        targets: The squared distances of the pairs in each layer.
        terms: The terms.
        cells: The cell of each pair, from 0.
    """
    sums_of_cells = []
    for pairs_of_cell in stimuli_of_cells(cells):
        sums = torch.zeros(
            len(terms), len(terms) + len(targets), dtype=torch.float64, device=cells.device
        )
        for pairs in pairs_of_cell.split(_pairs_at_once(terms)):
            of_terms = regressors([column[pairs] for column in differences], terms)
            sums += _products(of_terms, list(targets[:, pairs]))
        sums_of_cells.append(sums)
    return of_sets(torch.stack(sums_of_cells))


def _products(of_terms: list[Tensor], of_layers: list[Tensor]) -> Float[Tensor, "t u"]:
    """Return the sums over some pairs of products of terms with terms and with layers.

    Args:
        of_terms: The regressor of each of t terms at the pairs.
        of_layers: The squared distances of the pairs in each of l layers; u = t + l.
    """
    regressors_of_terms = torch.stack(of_terms)  # (t, pairs)
    columns = torch.cat([regressors_of_terms, torch.stack(of_layers)])  # (u, pairs)
    return regressors_of_terms @ columns.T
