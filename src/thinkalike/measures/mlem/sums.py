"""Sums over all pairs of stimuli for a least-squares fit of squared neural distances on features.

The model of the fit has t terms, each with a regressor: a number for each pair of stimuli, such as
1 if they differ in a feature. The fit needs sums of products over pairs, as a table (t, t + l):
the regressor of each term times that of each term, and then times the squared distance in each of
l layers. In other words it is [X'X, X'D], with a row for each pair in X (regressors) and in D
(squared distances).

There is a table for each of s sets of stimuli, (s, t, t + l). The first set is all stimuli, and
set 1 + c is all but those of fold c. Most sums over pairs are computed from sums over stimuli, so
that no pair is formed.

**Indicators.** With E_T = 1[equal on all features of T], a product of indicators over U is
Σ_{T ⊆ U} (-1)^|T| E_T; and over the pairs within a block of n stimuli, Σ 1 = n (n - 1) / 2 and
Σ ‖x - y‖² = n Σ ‖x‖² - ‖Σ x‖².

**Scaled features and pairs of levels.** Every regressor, and the squared distance of states, is
z_i' C z_j of some columns z of each stimulus, with ' for the transpose. With p = 1 where a feature
has a value x, counted from its mean, and q = 1 where it lacks one that is not ignored (x = 0
there),

| term | z | z_i' C z_j |
|---|---|---|
| Δ² of a scaled feature | p, x, x², q | x_i² p_j + p_i x_j² - 2 x_i x_j + p_i q_j + q_i p_j |
| an indicator | g = 1 unless ignored, h_c = 1[level c] | g_i g_j - Σ_c h_c,i h_c,j |
| the levels a ≠ b | h_a, h_b | h_a,i h_b,j + h_b,i h_a,j |
| a squared distance | 1, ‖v‖², v | ‖v_i‖² + ‖v_j‖² - 2 v_i · v_j |

Let a term be z_i' C z_j, and another one y_i' D y_j with columns y of its own. With the sum over
stimuli M = Σ_i z_i y_i', their product sums to tr(C P) / 2 over the pairs i < j, with P = M D' M'.
It is halved because the trace has each pair in both orders; for i = j the product is 0. If the
first term is of the levels a ≠ b, C is 1 at (a, b) and at (b, a), so the sum is entry (a, b) of P.
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

# The matrix C by which z_i' C z_j is Δ², the squared difference of the stimuli i and j in a scaled
# feature. z has the columns p, x, x² and q of the table above. C is symmetric.
SQUARED_DIFFERENCE_FORM = ((0, 0, 1, 1), (0, -2, 0, 0), (1, 0, 0, 0), (1, 0, 0, 0))

# Pairs whose regressors are in memory at once, with up to this many terms; more terms mean fewer
# pairs.
PAIRS_AT_ONCE = 2**20
TERMS_AT_ONCE = 64

# Some features, as their indices in rising order.
FeatureIndices = tuple[int, ...]


def normal_equations(
    features: Features,
    layers: Sequence[NeuralDistances],
    terms: Sequence[Term],
    fold_of: Int[Tensor, " n"],
) -> Float[Tensor, "s t u"]:
    """Return the sums of a least-squares fit over all pairs of stimuli, in each of s sets.

    Entry (s, a, b) sums the regressor of term a times that of term b over the pairs of set s. From
    b = t on it is the regressor of term a times the squared distance in a layer: u = t + l.

    Indicators, pairs of levels, Δ² of scaled features, and squared Euclidean distances have a
    closed form that needs no pairs. Products of scaled features, and distances of further kinds,
    are summed over chunks of pairs.

    Args:
        features: The features of the stimuli.
        layers: Their distances in each of l layers.
        terms: The t terms, the intercept first.
        fold_of: The fold of each stimulus, from 0. The first of the s sets is all stimuli; where
            there are several folds, set 1 + c is all stimuli but those of fold c.
    """
    crossed = [term for term in terms if len(term) == 2 and term[0] != term[1]]
    has_scaled_product = any(features.scaled[feature] for term in crossed for feature in term)
    all_euclidean = all(layer.is_euclidean for layer in layers)
    if has_scaled_product or not all_euclidean:
        return sums_by_pair(features, layers, terms, fold_of)

    indicators = []  # the indices of terms that are products of indicators
    for index, term in enumerate(terms):
        if not is_level_pair(term) and not _is_scaled(features, term):
            indicators.append(index)
    sums_of_indicators = sums_by_level(
        features, layers, [terms[index] for index in indicators], fold_of
    )
    if len(indicators) == len(terms):
        return sums_of_indicators

    width = len(terms) + len(layers)
    sums = sums_of_indicators.new_zeros(len(sums_of_indicators), len(terms), width)
    rows = torch.tensor(indicators)[:, None]
    sums[:, rows, [*indicators, *range(len(terms), width)]] = sums_of_indicators
    add_forms(sums, features, layers, terms, fold_of)
    return sums


def _is_scaled(features: Features, term: Term) -> bool:
    """Return whether a term (f, f) is Δ² of a scaled feature f, and no product of indicators."""
    return len(term) == 2 and term[0] == term[1] and features.scaled[term[0]]


def about_means(sums: Float[Tensor, "s t u"]) -> Float[Tensor, "s r v"]:
    """Return sums of products of deviations from the means: Σ x y - Σ x Σ y / Σ 1.

    This eliminates the intercept. It is term 0, which is 1 in all pairs, so that row and column 0
    hold the sums Σ x, and entry (0, 0) the number of pairs.

    Args:
        sums: Sums of products Σ x y over the pairs of stimuli of each of s sets. A row x is a term
            of the model; a column y is a term or, after all t terms, the squared distance in a
            layer.

    Returns:
        The sums without row and column 0: r = t - 1 and v = u - 1.
    """
    row_sums = sums[:, 1:, :1]  # Σ x
    column_sums = sums[:, :1, 1:]  # Σ y
    pair_count = sums[:, :1, :1]  # Σ 1
    return sums[:, 1:, 1:] - row_sums * column_sums / pair_count


def sums_by_level(
    features: Features,
    layers: Sequence[NeuralDistances],
    terms: Sequence[Term],
    fold_of: Int[Tensor, " n"],
) -> Float[Tensor, "s t u"]:
    """Return the sums of a least-squares fit of squared distances on products of indicators.

    The indicator Δ_f is 1 for a pair of stimuli that differ in feature f, else 0. No pairs are
    formed: the sums come from sums over the stimuli that agree on some features.

    Args:
        features: The features of the stimuli.
        layers: Their squared Euclidean distances in each of l layers.
        terms: The t terms, each a product of indicators Δ_f of features.
        fold_of: The fold of each stimulus.

    Returns:
        Sums (s, t, t + l) of products over the pairs of stimuli of each of s sets: each term times
        each term, and then each term times the squared distance in each layer. The sets are all
        stimuli and, if there are several folds, all but those of each fold.
    """
    sums_of_agreeing = _SumsOfAgreeing(features.levels, fold_of)

    @cache
    def count_of_differing(features_of_terms: FeatureIndices) -> Float[Tensor, " s"]:
        """Return how many pairs of stimuli differ in each of these features, in each set."""
        return sums_of_agreeing.over_differing(features_of_terms, sums_of_agreeing.pairs)

    products_with_terms = []
    for first in terms:
        # A product of indicators is 1 for pairs that differ in all features of both terms.
        counts = [count_of_differing(_distinct_features(first, second)) for second in terms]
        products_with_terms.append(torch.stack(counts, -1))  # (s, t)
    products_with_layers = []
    for layer in layers:
        squares_of_agreeing = sums_of_agreeing.squared_distance_sums(layer.states)
        sums_of_layer = []
        for term in terms:
            differing_features = _distinct_features(term)
            sums_of_layer.append(
                sums_of_agreeing.over_differing(differing_features, squares_of_agreeing)
            )
        products_with_layers.append(torch.stack(sums_of_layer, -1))  # (s, t)
    with_terms = torch.stack(products_with_terms, -2)  # (s, t, t)
    with_layers = torch.stack(products_with_layers, -1)  # (s, t, l)
    return torch.cat([with_terms, with_layers], -1)


def _distinct_features(*terms: Term) -> FeatureIndices:
    """Return each feature that occurs in some of these terms once, in rising order."""
    return tuple(sorted({feature for term in terms for feature in term}))


class _AgreeingStimuli(NamedTuple):
    """The classes of stimuli that agree on some features, within each fold.

    Attributes:
        stimuli: The stimuli that belong to a class; those with an ignored value belong to none.
        keys: The fold and the class of each of these, as one number: fold * class_count + class.
        class_count: How many classes a fold has; some may be empty.
    """

    stimuli: Int[Tensor, " k"]
    keys: Int[Tensor, " k"]
    class_count: int


class _SumsOfAgreeing:
    """Sums over the pairs of stimuli that agree on some features, for each set of stimuli.

    The sets are all stimuli and, if there are several folds, all stimuli but those of each fold.
    Methods take `agree`, the features whose levels are equal within a class of stimuli, and
    `needed`, the features whose values must not be ignored: stimuli with an ignored value of one
    of them are left out.

    Args:
        levels: The levels of each stimulus.
        fold_of: The fold of each stimulus.
    """

    def __init__(self, levels: Int[Tensor, "n f"], fold_of: Int[Tensor, " n"]):
        """Store what sums over the pairs of stimuli with equal levels of some features need.

        Levels count from 0; -1 is a missing value that is ignored.
        """
        self.levels = levels.long()
        self.fold_of = fold_of
        self.fold_count = int(fold_of.max()) + 1
        self.has_ignored = (levels < 0).any(0).tolist()  # for each feature
        # How many values a level can have: -1, 0, ..., the greatest level of the feature.
        self.level_counts = (levels.amax(0) + 2).tolist()
        # The same classes of stimuli, sizes of classes and numbers of pairs within classes are
        # asked for again and again, for different terms, so each is computed once.
        self.classes = cache(self._classes)
        self.counts = cache(self._counts)
        self.pairs = cache(self._pairs)

    def over_differing(
        self,
        features: FeatureIndices,
        sum_within: Callable[[FeatureIndices, FeatureIndices], Float[Tensor, " s"]],
    ) -> Float[Tensor, " s"]:
        """Return the sum over the pairs of stimuli that differ in every one of some features.

        It is computed for each of s sets of stimuli. By inclusion and exclusion, it is the sum
        over all subsets T of the features of (-1)^|T| times the sum over the pairs that agree on
        T. Stimuli whose value of one of the features is an ignored missing one differ from none,
        so they are left out of every term.

        Args:
            features: The indices of the features.
            sum_within: The quantity to sum, such as `pairs`, which counts pairs. It takes two
                tuples of features, `agree` and `needed`, and returns for each set the sum over the
                pairs that agree on the features of `agree` and have no ignored value in `needed`.
        """
        # Only features with ignored values can exclude a stimulus.
        needed = tuple(feature for feature in features if self.has_ignored[feature])
        signed_sums = []
        for size in range(len(features) + 1):
            for agree in combinations(features, size):
                signed_sums.append((-1) ** size * sum_within(agree, needed))
        return torch.stack(signed_sums).sum(0)

    def _classes(self, agree: FeatureIndices, needed: FeatureIndices) -> _AgreeingStimuli:
        """Number the classes of stimuli that have equal levels in all features of `agree`.

        Returns:
            The stimuli that belong to a class, the fold and the class of each in one number
            (fold * class_count + class), and the class count. Stimuli with an ignored missing
            value, level -1, of a feature of `needed` belong to no class.
        """
        class_of = torch.zeros_like(self.fold_of)  # of each stimulus
        class_count = 1
        # The class is a number with a digit for each feature, its level + 1, as levels are -1 or
        # more. The digits of a feature run from 0 to its `level_counts` - 1.
        for feature in agree:
            digit = self.levels[:, feature] + 1
            class_of = class_of * self.level_counts[feature] + digit
            class_count *= self.level_counts[feature]
            # Sums have an entry for each class, so if most classes are empty, the others are
            # renumbered without gaps.
            if class_count > 4 * len(class_of):
                _, class_of = torch.unique(class_of, return_inverse=True)
                class_count = int(class_of.max()) + 1
        has_needed_values = (self.levels[:, list(needed)] >= 0).all(1)
        stimuli = has_needed_values.nonzero()[:, 0]
        keys = self.fold_of * class_count + class_of
        return _AgreeingStimuli(stimuli, keys[stimuli], class_count)

    def _counts(self, agree: FeatureIndices, needed: FeatureIndices) -> Float[Tensor, "s c"]:
        """Return the number of stimuli in each of c classes, in each of s sets, in float64."""
        _, keys, class_count = self.classes(agree, needed)
        counts = torch.bincount(keys, minlength=self.fold_count * class_count)
        return sums_over_sets(counts.view(self.fold_count, class_count).double())

    def _pairs(self, agree: FeatureIndices, needed: FeatureIndices) -> Float[Tensor, " s"]:
        """Return how many pairs of stimuli are in one class, Σ n (n - 1) / 2, in each set."""
        counts = self.counts(agree, needed)
        return (counts * (counts - 1)).sum(-1) / 2

    def squared_distance_sums(
        self, states: Float[Tensor, "n d"]
    ) -> Callable[[FeatureIndices, FeatureIndices], Float[Tensor, " s"]]:
        """Return a function that sums squared distances over the pairs of stimuli of each class.

        The function takes two tuples of features, `agree` and `needed`. A class consists of the
        stimuli that have equal levels of all features in `agree`. A stimulus that lacks a value of
        a feature in `needed` is in no class, if missing values are to be ignored.

        The function returns the sum for each of s sets of stimuli: all of them and, if there are
        several folds, those outside of each fold. It is the sum over classes of n Σ ‖x‖² - ‖Σ x‖²,
        which is Σ ‖x - y‖² over the pairs of the n states x of a class. Results are cached.
        """
        # In panels, as the squares of all states at once would take the memory of the states.
        panels = states.split(ROWS_AT_ONCE)
        squared_norms = torch.cat([panel.square().sum(1, keepdim=True) for panel in panels])

        @cache
        def sum_within(agree: FeatureIndices, needed: FeatureIndices) -> Tensor:
            """Return the sum of squared distances over the pairs within classes, for each set."""
            stimuli, keys, class_count = self.classes(agree, needed)
            rows = states
            squared_norms_of_rows = squared_norms
            if len(stimuli) < len(states):  # else indexing would copy all states
                rows = states[stimuli]
                squared_norms_of_rows = squared_norms[stimuli]
            state_sums = self._sums_by_class(keys, rows, class_count)  # Σ x, (s, c, d)
            norm_sums = self._sums_by_class(keys, squared_norms_of_rows, class_count)[..., 0]
            weighted_norms = self.counts(agree, needed) * norm_sums  # n Σ ‖x‖², (s, c)
            return weighted_norms.sum(-1) - state_sums.square().sum((-2, -1))

        return sum_within

    def _sums_by_class(
        self, keys: Int[Tensor, " n"], rows: Float[Tensor, "n d"], class_count: int
    ) -> Float[Tensor, "s c d"]:
        """Return the sums of rows over each of c classes of stimuli, in each of s sets.

        The sets are all stimuli and, if there are several folds, all but those of each fold.

        Args:
            keys: The fold and the class of each row in one number: fold * class_count + class.
            rows: A row of numbers for each stimulus, such as its state.
            class_count: How many classes c a fold has.
        """
        sums = rows.new_zeros(self.fold_count * class_count, rows.shape[1])
        sums.scatter_add_(0, keys[:, None].expand_as(rows), rows)
        sums_of_folds = sums.view(self.fold_count, class_count, -1)
        return sums_over_sets(sums_of_folds)


def sums_over_sets(sums: Float[Tensor, " g *c"]) -> Float[Tensor, " s *c"]:
    """Return sums over all folds, and then, if there are several, without each fold in turn.

    Args:
        sums: The sums over each of g folds.

    Returns:
        The sums over s = 1 + g sets, or over 1 set if there is a single fold.
    """
    total = sums.sum(0, keepdim=True)
    if len(sums) == 1:
        return total
    return torch.cat([total, total - sums])


def level_counts(features: Features, fold_of: Int[Tensor, " n"]) -> list[Float[Tensor, "s _"]]:
    """Return for each feature how many stimuli have each of its levels, in each of s sets.

    The sets are all stimuli and, if there are several folds, all but those of each fold. Only
    features with a weight for each pair of levels have counts, (s, levels); for all other features
    the result is empty, (s, 0). Levels that are new to training count as the last one; ignored
    missing values are not counted.

    Args:
        features: The features of the stimuli.
        fold_of: The fold of each stimulus.
    """
    one_each = torch.ones(len(fold_of), 1, dtype=torch.float64, device=fold_of.device)
    counts = []
    # A feature without such weights has a `level_count` of 0.
    for levels, level_count in zip(features.levels.T, features.weighted_level_counts, strict=True):
        training_levels = levels.clamp(max=level_count - 1)
        # Sums of ones are counts.
        sums = _column_sums_by_level(training_levels, level_count, one_each, fold_of)
        counts.append(sums[..., 0])
    return counts


def members_of_folds(fold_of: Int[Tensor, " n"]) -> list[Int[Tensor, " _"]]:
    """Return the indices of the stimuli, or of the pairs, of each fold, in rising order."""
    return [(fold_of == fold).nonzero()[:, 0] for fold in range(int(fold_of.max()) + 1)]


class _FeatureForms(NamedTuple):
    """The k terms of one feature as bilinear forms z_i' C z_j of two stimuli i and j.

    z_i are c numbers that stimulus i has of the feature, the same for all terms, and C is a matrix
    (c, c) of each term.

    Attributes:
        term_indices: The indices of the terms among all terms.
        columns: z of each of n stimuli. For pairs of levels there is a column for each level,
            which is 1 for stimuli of this level, else 0. For a scaled feature they are p, x, x²
            and q, see `_of_scaled`.
        level_pairs: The two levels of each term; None for a scaled feature, which is one term.
    """

    term_indices: Int[Tensor, " k"]
    columns: Float[Tensor, "n c"]
    level_pairs: tuple[Tensor, Tensor] | None

    @classmethod
    def of(cls, features: Features, feature: int, weight_slice: slice) -> _FeatureForms:
        """Return the terms of one feature as bilinear forms z_i' C z_j of stimuli i and j.

        z are columns of numbers that a stimulus has of this feature. The feature is scaled, with a
        single term, or has a term for each pair of its levels.

        Args:
            features: The features of the stimuli.
            feature: The index of the feature.
            weight_slice: The slice of its weights among all weights, without the intercept.
        """
        # Term 0 is the intercept, so weight i is that of term i + 1, and the last weight, number
        # `stop` - 1, that of term `stop`.
        first_term = weight_slice.start + 1
        last_term = weight_slice.stop
        if features.weighted_level_counts[feature]:
            # The last term is left out: it is that of new levels, which no training stimulus has.
            return cls._of_level_pairs(features, feature, first_term, stop=last_term)
        return cls._of_scaled(features, feature, first_term)

    @classmethod
    def _of_level_pairs(
        cls, features: Features, feature: int, first_term: int, stop: int
    ) -> _FeatureForms:
        """Return the terms of a feature that has one for each pair of its levels.

        With a column h for each level, which is 1 for stimuli with this level, else 0, the term of
        the levels a and b is the bilinear form h_a,i h_b,j + h_b,i h_a,j of stimuli i and j.

        Args:
            features: The features of the stimuli.
            feature: The index of the feature.
            first_term: The index of its first term among all terms.
            stop: The index after its last term of two levels that are known from training.
        """
        device = features.levels.device
        level_count = features.weighted_level_counts[feature]
        first, second = torch.triu_indices(level_count, level_count, 1, device=device)
        # Negative levels, those of ignored missing values, become -1. `one_hot` takes levels + 1,
        # so they fall into column 0, which is dropped: they are 0 in all remaining columns.
        levels = features.levels[:, feature].clamp(min=-1).long()
        has_level = one_hot(levels + 1, level_count + 1)[:, 1:].double()
        terms = torch.arange(first_term, stop, device=device)
        return cls(terms, has_level, (first, second))

    @classmethod
    def _of_scaled(cls, features: Features, feature: int, term: int) -> _FeatureForms:
        """Return the term Δ² of a scaled feature as a bilinear form of two stimuli.

        Δ is how far apart the positions x of two stimuli on the feature are, divided by its range,
        or 1 if only one of them has a position. The form, `SQUARED_DIFFERENCE_FORM`, takes four
        columns: p, which is 1 for stimuli with a position, else 0; x and x²; and q, which is 1 for
        stimuli whose value is missing and not ignored. The mean of x, which cancels in Δ, is
        subtracted.

        Args:
            features: The features of the stimuli.
            feature: The index of the feature.
            term: The index of the term among all terms.
        """
        position = features.positions[:, feature] / features.ranges[feature]
        has_position = ~position.isnan()  # p
        x = torch.where(has_position, position - position.nanmean(), 0)
        is_ignored = features.levels[:, feature] < 0
        is_missing = ~has_position & ~is_ignored  # q
        columns = torch.stack([has_position.double(), x, x.square(), is_missing.double()], 1)
        return cls(torch.tensor([term], device=columns.device), columns, None)

    def sums_with(self, product: Float[Tensor, "s c c"]) -> Float[Tensor, "s k"]:
        """Return the sums over pairs of stimuli of each term of this feature times another term.

        A term is a number for each pair of stimuli i and j: z_i' C z_j for a term of this feature,
        with z_i its c columns, and y_i' D y_j for the other term, with columns y_i of its own. The
        sum of their product is tr(C P) / 2, with P as below. The trace sums over all ordered pairs
        (i, j), which are twice as many; those with i = j add 0, as the first term is 0 for them.

        Args:
            product: P = M D' M' for each of s sets of stimuli, where M is the sum of z_i y_i' over
                the stimuli i of the set, and ' stands for the transpose. P is symmetric.
        """
        if self.level_pairs is None:  # the feature is scaled, with one term
            form = product.new_tensor(SQUARED_DIFFERENCE_FORM)  # C
            # The sum of all entries of C times those of P is tr(C P), as C is symmetric.
            return (form * product).sum((1, 2))[:, None] / 2
        # C of the levels a and b is 1 at (a, b) and (b, a), else 0: tr(C P) / 2 is entry (a, b).
        first, second = self.level_pairs
        return product[:, first, second]

    def times(
        self, other: _FeatureForms, shared: Float[Tensor, "s c d"]
    ) -> Float[Tensor, "s k m"]:
        """Return the sums over pairs of stimuli of these k terms times the m of another feature.

        A feature has a term for each pair of its levels, `level_pairs`, or, if it is scaled and
        `level_pairs` is None, the single term Δ².

        Args:
            other: The terms of the other feature.
            shared: M for each of s sets of stimuli: the sums over stimuli of the c columns of this
                feature times the d columns of the other one.
        """
        if other.level_pairs is None:
            form = shared.new_tensor(SQUARED_DIFFERENCE_FORM)  # D of the other feature; D' = D
            product = shared @ form @ shared.mT  # M D' M'
            return self.sums_with(product)[..., None]
        if self.level_pairs is None:  # only this feature is scaled: exchange the two
            return other.times(self, shared.mT).mT
        # A term of this feature is 1 if one stimulus has level a and the other b, a term of the
        # other feature likewise for its levels c and d. Both are 1 if the stimuli have (a, c) and
        # (b, d), or (a, d) and (b, c).
        a = self.level_pairs[0][:, None]
        b = self.level_pairs[1][:, None]
        c, d = other.level_pairs
        return shared[:, a, c] * shared[:, b, d] + shared[:, a, d] * shared[:, b, c]


def add_forms(
    sums: Float[Tensor, "s t u"],
    features: Features,
    layers: Sequence[NeuralDistances],
    terms: Sequence[Term],
    fold_of: Int[Tensor, " n"],
) -> None:
    """Write the sums of scaled features and of pairs of levels into a table, in place.

    They are 0 for levels that are new to training.

    Args:
        sums: The table of `normal_equations`, which has the sums of indicators already.
        features: The features of the stimuli.
        layers: Their distances, all of them squared Euclidean.
        terms: All terms, in the order of the table.
        fold_of: The fold of each stimulus.
    """
    forms = []
    for term, weight_slice in weight_slices(terms):
        if is_all_level_pairs(term) or _is_scaled(features, term):
            forms.append(_FeatureForms.of(features, term[0], weight_slice))
    columns = torch.cat([form.columns for form in forms], 1)
    widths = [form.columns.shape[1] for form in forms]
    stimuli = members_of_folds(fold_of)

    def shared_with(other_columns: Float[Tensor, "n m"]) -> Sequence[Float[Tensor, "s c m"]]:
        """Return for each feature M, the sums over stimuli of its c columns times m other ones.

        There is an M for each of s sets of stimuli.
        """
        products_of_folds = [columns[rows].T @ other_columns[rows] for rows in stimuli]
        products = sums_over_sets(torch.stack(products_of_folds))  # (s, all columns, m)
        products_of_forms: Sequence[Tensor] = products.split(widths, 1)
        return products_of_forms

    def write(column: int, products: Iterable[Tensor]) -> None:
        """Write the sums of the terms of each feature times the term or layer of one column.

        If the column is a term, they are also written into its row.

        Args:
            column: The index of the column: a term, or, after all terms, a layer.
            products: For each feature the `product` that `_FeatureForms.sums_with` takes, where
                the other term is the term or the squared distance of the column.
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
            by_level = _column_sums_by_level(levels, int(levels.max()) + 1, columns, fold_of)
            products = []
            for sums_of_form in by_level.split(widths, 2):  # (s, levels, c)
                total = sums_of_form.sum(1)
                product_of_totals = total[:, :, None] * total[:, None]
                products.append(product_of_totals - sums_of_form.mT @ sums_of_form)
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


def _column_sums_by_level(
    levels: Int[Tensor, " n"],
    level_count: int,
    columns: Float[Tensor, "n m"],
    fold_of: Int[Tensor, " n"],
) -> Float[Tensor, "s c m"]:
    """Return the sums of m columns over the stimuli of each of c levels, in each of s sets.

    The sets are all stimuli and, if there are several folds, all but those of each fold. Stimuli
    with a negative level, an ignored missing value, are left out.

    Args:
        levels: The level of each stimulus.
        level_count: How many levels there are, from 0.
        columns: The columns that are summed.
        fold_of: The fold of each stimulus.
    """
    fold_count = int(fold_of.max()) + 1
    size = level_count + 1  # with the ignored level -1, which comes first and is dropped
    level_from_0 = levels.clamp(min=-1) + 1
    keys = fold_of * size + level_from_0  # a number for each fold and level
    sums = columns.new_zeros(fold_count * size, columns.shape[1]).index_add_(0, keys, columns)
    sums_of_sets = sums_over_sets(sums.view(fold_count, size, -1))
    return sums_of_sets[:, 1:]


def sums_by_pair(
    features: Features,
    layers: Sequence[NeuralDistances],
    terms: Sequence[Term],
    fold_of: Int[Tensor, " n"],
) -> Float[Tensor, "s t u"]:
    """Return the sums of a least-squares fit over all pairs of stimuli, computed chunk by chunk.

    This works for any terms and distances. The sum without a fold is the sum over all pairs minus
    that over the pairs with a stimulus of the fold.

    Args:
        features: The features of the n stimuli.
        layers: Their distances in each of l layers.
        terms: The t terms, the intercept first.
        fold_of: The fold of each stimulus.

    Returns:
        Sums (s, t, t + l) of products over pairs of stimuli: each term times each term, and then
        each term times the squared distance in each layer. The first set is all pairs; if there
        are several folds, the pairs without each fold follow.
    """
    stimuli = members_of_folds(fold_of)
    fold_count = len(stimuli)
    # Entry (a, b), for folds a ≤ b, sums over the pairs with one stimulus in each.
    between = torch.zeros(
        fold_count,
        fold_count,
        len(terms),
        len(terms) + len(layers),
        dtype=torch.float64,
        device=fold_of.device,
    )
    pairs_at_once = _pairs_at_once(terms)
    feature_numbers = range(len(features.scaled))
    for a, b in combinations_with_replacement(range(fold_count), 2):
        columns = stimuli[b]
        for rows in stimuli[a].split(max(1, pairs_at_once // len(columns))):
            is_pair = (rows[:, None] < columns) | (a != b)  # within a fold, each pair once
            differences = [features.difference(f, rows, columns) for f in feature_numbers]
            term_values = [regressor[is_pair] for regressor in regressors(differences, terms)]
            squared_distances = [layer.block(rows, columns)[is_pair] for layer in layers]
            between[a, b] += _products(term_values, squared_distances)
    total = between.sum((0, 1))
    if fold_count == 1:
        return total[None]
    with_fold = between.sum(0) + between.sum(1) - between.diagonal().movedim(-1, 0)
    return torch.cat([total[None], total - with_fold])


def _pairs_at_once(terms: Sequence[Term]) -> int:
    """Return how many pairs of stimuli are processed at a time.

    Each pair has a number in memory for each term (its regressors), so with more terms there are
    fewer pairs. Up to `TERMS_AT_ONCE` terms, there are `PAIRS_AT_ONCE` pairs. Up to twice as many
    terms, there are half as many pairs; up to three times as many terms, a third; and so on.
    """
    divisor = -(-len(terms) // TERMS_AT_ONCE)  # rounded up
    return PAIRS_AT_ONCE // divisor


def sums_of_given_pairs(
    differences: Sequence[Tensor],
    squared_distances: Float[Tensor, "l p"],
    terms: Sequence[Term],
    fold_of: Int[Tensor, " p"],
) -> Float[Tensor, "s t u"]:
    """Return the sums of a least-squares fit over p given pairs of stimuli.

    The fit predicts the squared distance of a pair in each layer from the pair's regressors, one
    for each term. The sums are [X'X, X'D], where X has the regressors of each pair in a row, and D
    its squared distances.

    They are computed for s sets of pairs: first all of them and then, if there are several folds,
    all but the pairs of each fold in turn.

    Args:
        differences: For each feature, the difference of the two stimuli of each pair.
        squared_distances: The squared distance of each pair in each of l layers.
        terms: The t terms, the intercept first.
        fold_of: The fold of each pair, from 0.

    Returns:
        [X'X, X'D] for each set, with u = t + l columns.
    """
    column_count = len(terms) + len(squared_distances)
    sums_of_folds = []
    for pairs_of_fold in members_of_folds(fold_of):
        sums = torch.zeros(len(terms), column_count, dtype=torch.float64, device=fold_of.device)
        for pairs in pairs_of_fold.split(_pairs_at_once(terms)):
            differences_of_pairs = [column[pairs] for column in differences]
            term_values = regressors(differences_of_pairs, terms)
            sums += _products(term_values, list(squared_distances[:, pairs]))
        sums_of_folds.append(sums)
    return sums_over_sets(torch.stack(sums_of_folds))


def _products(term_values: list[Tensor], squared_distances: list[Tensor]) -> Float[Tensor, "t u"]:
    """Return [X'X, X'D], (t, t + l): sums over some pairs of stimuli for a least-squares fit.

    X has a row for each pair, with the regressor of each term; D has its squared distance in each
    layer.

    Args:
        term_values: The regressor of each of t terms at the pairs.
        squared_distances: The squared distances of the pairs in each of l layers; u = t + l.
    """
    term_rows = torch.stack(term_values)  # (t, pairs)
    columns = torch.cat([term_rows, torch.stack(squared_distances)])  # (u, pairs)
    return term_rows @ columns.T
