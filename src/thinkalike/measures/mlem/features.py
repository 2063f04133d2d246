"""Feature tables, the differences Δ of their stimuli, and the terms of a model of these.

See Salle et al. (2024, appendix B). The term (f, g) is the entry W_fg, with the regressor Δ_f Δ_g;
the term (f, a, b) the weight of the levels a and b of feature f, with the regressor 1[one stimulus
has a, the other b]; the term () is the intercept. Terms of the levels of one feature are in the
order of their codes, see `pair_codes`; the last, (f, k, k), is any pair with a new level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, groupby

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from thinkalike.arguments import check_choice
from thinkalike.measures.kinds import NUMBER_KINDS, FeatureColumns, Kinds, Level, level_of

DIFFERENCES = ("indicator", "scaled", "levels")
MISSING = ("own_level", "ignore", "drop", "error")
Term = tuple[int, ...]

# Up to this many possible patterns of differences, all of them are counted instead of sorted.
MOST_COUNTED_PATTERNS = 2**16

# Codes of patterns are renumbered before they exceed this.
GREATEST_CODE = 2**62

# Pairs that are looked at to estimate how many patterns there are.
SAMPLED_PAIRS = 4096

# Weights of pairs of levels: a fit solves systems of that size hundreds of times.
MOST_LEVEL_PAIRS = 1000


@dataclass(frozen=True, eq=False)
class Features:
    """An encoded table of the f features of n stimuli.

    Δ_f(i, j) = 0 where the levels are equal, or where either is ignored (a negative level); else
    1, or for a scaled feature the distance of the two positions, or the code of two levels with a
    weight of their own, see `pair_codes`.

    Attributes:
        levels: The level of each feature.
        positions: The position of each scaled feature; NaN where there is none.
        ranges: How far apart positions of Δ = 1 are. They are divided by this last, so that equal
            Δ have equal bits.
        scaled: Which features are scaled.
        weighted_level_counts: For each feature, how many levels it has if each pair of them has a
            weight of its own; 0 for a feature with one weight.
        labels: The names of the features in messages; by default their numbers.
    """

    levels: Int[Tensor, "n f"]
    positions: Float[Tensor, "n f"]
    ranges: tuple[float, ...]
    scaled: tuple[bool, ...]
    weighted_level_counts: tuple[int, ...]
    labels: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.levels)

    def take(self, index: Int[Tensor, " k"]) -> Features:
        """Return the features of the stimuli with these indices, in this order."""
        return replace(self, levels=self.levels[index], positions=self.positions[index])

    def permuted(self, features: Sequence[int], order: Int[Tensor, " n"]) -> Features:
        """Return a table in which each stimulus has the values of another one in these features.

        Args:
            features: The indices of the features whose values move, all in the same way.
            order: For each stimulus, the index of the one whose values it takes.
        """
        device = self.levels.device
        order = order.to(device)
        is_permuted = torch.zeros(len(self.scaled), dtype=torch.bool)  # for each feature
        is_permuted[[*features]] = True
        is_permuted = is_permuted.to(device)
        levels = self.levels[order].where(is_permuted, self.levels)
        positions = self.positions[order].where(is_permuted, self.positions)
        return replace(self, levels=levels, positions=positions)

    def difference(
        self,
        feature: int,
        rows: Int[Tensor, " a"] | None = None,
        columns: Int[Tensor, " b"] | None = None,
    ) -> Bool[Tensor, "a b"] | Float[Tensor, "a b"] | Int[Tensor, "a b"]:
        """Return Δ, how two stimuli differ in a feature, for each of a stimuli with each of b.

        It is True or False for an indicator, which says whether the levels differ, and a distance
        in float64 for a scaled feature. If a model has a weight for each pair of levels of the
        feature, it is the number of the pair in int32, from 1 on, or 0 for equal levels. Δ to a
        missing value that is ignored is 0.

        Args:
            feature: The index of the feature.
            rows: The indices of the a stimuli, in the rows of the result; None: all stimuli.
            columns: The indices of the b stimuli, in its columns; None: all stimuli.
        """
        row_stimuli = self
        if rows is not None:
            row_stimuli = self.take(rows)
        column_stimuli = self
        if columns is not None:
            column_stimuli = self.take(columns)
        row_levels = row_stimuli.levels[:, feature, None]
        column_levels = column_stimuli.levels[:, feature]
        if self.weighted_level_counts[feature]:
            return pair_codes(row_levels, column_levels, self.weighted_level_counts[feature])
        is_different = _are_different(row_levels, column_levels)
        if not self.scaled[feature]:
            return is_different
        distance = _scaled_distance(
            row_stimuli.positions[:, feature, None],
            column_stimuli.positions[:, feature],
            self.ranges[feature],
        )
        return distance * is_different

    def differences(self, pairs: Int[Tensor, "2 p"]) -> Float[Tensor, "p f"]:
        """Return the differences Δ of all f features for p pairs of stimuli, in float64.

        For a feature with a weight for each pair of levels, Δ is 1 for any two different levels.

        Args:
            pairs: The indices of the two stimuli of each pair.
        """
        first = self.take(pairs[0])
        second = self.take(pairs[1])
        ranges = first.positions.new_tensor(self.ranges)
        distance = _scaled_distance(first.positions, second.positions, ranges)
        return distance * _are_different(first.levels, second.levels)


def _are_different(first: Int[Tensor, "*a"], second: Int[Tensor, "*b"]) -> Bool[Tensor, "*c"]:
    """Return whether two levels differ, element by element; False if one is negative.

    A negative level is a missing value that is ignored. The shapes are broadcast.
    """
    is_different = first != second
    first_is_ignored = first < 0
    second_is_ignored = second < 0
    if not first_is_ignored.any() and not second_is_ignored.any():
        return is_different
    return is_different & ~first_is_ignored & ~second_is_ignored


def _scaled_distance(
    first: Float[Tensor, "*a"],
    second: Float[Tensor, "*b"],
    ranges: float | Float[Tensor, " f"],
) -> Float[Tensor, "*c"]:
    """Return |first - second| / range of the positions of two stimuli on a feature.

    It is 1 where a position is NaN: a value is missing, or the feature only tells equal from
    different values. Two equal or ignored values get this 1, too, so callers multiply the result
    by whether the values differ.

    Args:
        first, second: The positions; the shapes are broadcast.
        ranges: How far apart the positions at distance 1 are, for all features or for each.
    """
    return ((first - second).abs() / ranges).nan_to_num(1.0)


@dataclass(frozen=True, eq=False)
class FeatureEncoder:
    """Encodes tables by the levels that each feature has in the training stimuli.

    A nominal feature has Δ = 1[f_i ≠ f_j], and in the paper every feature does
    (difference="indicator"); the indicator of a continuous feature would be constant, so Δ = |f_i
    - f_j| / range of it under any difference. With "scaled", a numeric feature has that Δ, too,
    and an ordinal one the same of the ranks of its levels; a value that is new to training lies
    between its neighbours' ranks, and Δ can exceed 1. With "levels", each pair of levels of a
    nominal feature has a Δ of its own; ordinal and numeric features have Δ = 1[f_i ≠ f_j].

    A missing value (NaN, None, pd.NA) is, with "own_level", equal to a missing one and at distance
    1 from any value; with "ignore", at distance 0 from everything; "drop" leaves the stimulus out,
    and "error" refuses it.

    Attributes:
        columns: Reads tables with the features of the training stimuli.
        difference: "indicator", "scaled" or "levels", see above.
        missing: "own_level", "ignore", "drop" or "error", see above.
        training_levels: The levels of each feature in the training stimuli, in rising order.
        has_missing: For each feature, whether some training stimulus lacks a value of it.
    """

    columns: FeatureColumns
    difference: str
    missing: str
    training_levels: tuple[Float[Tensor, " _"], ...]
    has_missing: tuple[bool, ...]

    @classmethod
    def fit(
        cls,
        X: object,
        kinds: Kinds = "auto",
        difference: str = "indicator",
        missing: str = "own_level",
    ) -> FeatureEncoder:
        """Return an encoder that knows the levels of these stimuli.

        Args:
            X: A table with the features of the stimuli.
            kinds: The kind of feature, such as "ordinal": one for all features, a list with that
                of each, or those of some by name or number. "auto": the kind that the type and
                the values of a feature imply.
            difference: How two values differ: "indicator" (0 or 1), "scaled" (their distance
                divided by the range of the feature), or "levels" (each pair of levels has a
                difference of its own).
            missing: What a missing value is: "own_level" (a level like others), "ignore" (equal to
                every value), "drop" (the stimulus must be dropped by the caller) or "error".
        """
        columns = FeatureColumns.of(X, kinds)
        values, _ = columns.read(X)
        return cls.of(values, columns, difference, missing)

    @classmethod
    def of(
        cls, values: Float[Tensor, "n f"], columns: FeatureColumns, difference: str, missing: str
    ) -> FeatureEncoder:
        """Return an encoder that knows the levels that these stimuli have.

        Args:
            values: The values of their features as numbers, NaN where one is missing, from
                `FeatureColumns.read`.
            columns: How tables with these features are read.
            difference: How two values differ: "indicator" (or not), "scaled" by the range of the
                feature, or "levels", where each pair of levels has a difference of its own.
            missing: What a missing value is: "own_level", "ignore", "drop" or "error".
        """
        check_choice("difference", difference, DIFFERENCES)
        check_choice("missing", missing, MISSING)
        training_levels = tuple(column[~column.isnan()].unique() for column in values.T)
        has_missing = tuple(values.isnan().any(0).tolist())
        return cls(columns, difference, missing, training_levels, has_missing)

    def encode(self, X: object) -> Features:
        """Return the features of the stimuli of a table, as levels and positions.

        A level is a number that is equal for equal values. A position is where a value lies on the
        scale of a feature whose Δ is a distance; other features have NaN.

        Args:
            X: A table with the same features as that of the training stimuli.

        Raises:
            ValueError: A value is missing under missing="error", or under "drop", where the
                caller should have dropped the stimulus.
        """
        values_as_numbers, _ = self.columns.read(X)
        return self.encode_values(values_as_numbers)

    def encode_values(self, values: Float[Tensor, "n f"]) -> Features:
        """Return the levels and positions of features whose values were read as numbers.

        Args:
            values: The values as numbers, NaN where one is missing, from `FeatureColumns.read`.

        Raises:
            ValueError: See `encode`.
        """
        is_missing = values.isnan()
        if self.missing in ("error", "drop") and is_missing.any():
            feature = int(is_missing.any(0).nonzero()[0])
            label = self.columns.label(feature)
            raise ValueError(f"feature {label} lacks a value: missing={self.missing!r}")

        feature_count = values.shape[1]
        indicator_kinds: tuple[str, ...] = ("nominal", "ordinal", "numeric")
        if self.difference == "scaled":
            indicator_kinds = ("nominal",)
        scaled = tuple(kind not in indicator_kinds for kind in self.columns.kinds)
        levels = []
        positions = []
        ranges = []
        for feature, column in enumerate(values.T):
            # Level 0 is kept for missing values, whose entries are set below.
            levels.append(self._levels(feature, column.nan_to_num(0.0)) + 1)
            positions_of_feature = torch.full_like(column, torch.nan)
            extent = 1.0
            if scaled[feature]:
                positions_of_feature, extent = self._positions(feature, column)
            positions.append(positions_of_feature)
            ranges.append(extent)
        weighted_level_counts = [
            self.weighted_level_count(feature) for feature in range(feature_count)
        ]
        level_of_missing = -1 if self.missing == "ignore" else 0
        return Features(
            levels=torch.stack(levels, 1).where(~is_missing, level_of_missing).int(),
            positions=torch.stack(positions, 1),
            ranges=tuple(ranges),
            scaled=scaled,
            weighted_level_counts=tuple(weighted_level_counts),
            labels=tuple(self.columns.label(feature) for feature in range(feature_count)),
        )

    def refuse_new(
        self, values: Float[Tensor, "n f"], levels: Sequence[Sequence[Level] | None]
    ) -> None:
        """Raise a ValueError if these stimuli have a level that was not known in training.

        If a feature has a list of levels, a new level is one that is not in the list; if it is
        nominal with numbers as values, one that no training stimulus has. Under
        missing="own_level" a missing value is new if no training stimulus lacks a value. New
        numbers of numeric and continuous features are accepted: they lie between or beyond the
        known ones.

        Args:
            values: The values of features as numbers, NaN where one is missing, from
                `FeatureColumns.read`.
            levels: For each feature the levels that these numbers are indices of, from the same
                call; None: the numbers are the values themselves.
        """
        for feature, column in enumerate(values.T):
            is_missing = column.isnan()
            known_levels = self.columns.levels[feature]
            if known_levels is not None:
                is_new = column >= len(known_levels)  # `read` numbers new levels after known ones
            elif self.columns.kinds[feature] == "nominal":
                is_new = ~torch.isin(column, self.training_levels[feature]) & ~is_missing
            else:
                is_new = torch.zeros_like(is_missing)
            if self.missing == "own_level" and not self.has_missing[feature]:
                is_new |= is_missing
            if is_new.any():
                value = level_of(column[is_new][0].item(), levels[feature])
                raise ValueError(
                    f"feature {self.columns.label(feature)} has {value!r} in {int(is_new.sum())} "
                    "stimuli, and in none of the fit: correct or leave out, or choose "
                    "unknown='new' for levels as far from others as the mean"
                )

    def weighted_level_count(self, feature: int) -> int:
        """Return how many levels a feature has if each pair of them has a weight, else 0.

        These are the levels of the training stimuli, and one for missing values.
        """
        if self.difference == "levels" and self.columns.kinds[feature] == "nominal":
            return 1 + len(self.training_levels[feature])
        return 0

    def _levels(self, feature: int, column: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
        """Return a level for each value of a feature: a number from 0, equal for equal values.

        If each pair of levels has a weight, a level must have the same number in each table: those
        of the training stimuli come first, in rising order, and new ones after them, where some
        numbers may be missing.

        Args:
            feature: The index of the feature.
            column: Its values, without NaN.
        """
        if not self.weighted_level_count(feature):
            level_in_column: Tensor = torch.unique(column, return_inverse=True)[1]
            return level_in_column
        training_levels = self.training_levels[feature]
        column = column.double().contiguous()
        _, level_in_column = torch.unique(column, return_inverse=True)
        known_level = torch.searchsorted(training_levels, column)
        is_known = torch.isin(column, training_levels)
        return torch.where(is_known, known_level, len(training_levels) + level_in_column)

    def _positions(
        self, feature: int, column: Float[Tensor, " n"]
    ) -> tuple[Float[Tensor, " n"], float]:
        """Return the position of each value of a scaled feature, and the range in training.

        Positions of numbers are the numbers themselves. Those of ordinal levels are their ranks,
        with a new level halfway between its neighbours. They are NaN where a value is missing, and
        all 0, with a range of 1, for a feature that is constant in training.

        Args:
            feature: The index of the feature.
            column: Its values as numbers, NaN where one is missing.
        """
        training_levels = self.training_levels[feature]
        column = column.contiguous()
        if len(training_levels) < 2:  # constant in training: there is no scale to measure by
            return torch.where(column.isnan(), torch.nan, 0.0), 1.0
        if self.columns.kinds[feature] in NUMBER_KINDS:
            return column, float(training_levels[-1] - training_levels[0])
        # The known level k has k training levels below it and k + 1 at or below it, so its
        # position is k + ½. A new level between k - 1 and k has k in both counts, so its position
        # is k, halfway between k - ½ and k + ½.
        count_below = torch.searchsorted(training_levels, column)
        count_at_or_below = torch.searchsorted(training_levels, column, right=True)
        ranks = (count_below + count_at_or_below).double() / 2
        return torch.where(column.isnan(), torch.nan, ranks), len(training_levels) - 1.0


def pair_codes(
    first: Int[Tensor, "*a"], second: Int[Tensor, "*b"], level_count: int
) -> Int[Tensor, "*c"]:
    """Return a code, from 0, for the pair of levels of two stimuli, element by element.

    It is 0 for equal levels and if a level is negative, which is an ignored missing value. The
    pairs of different known levels, in either order, have the codes 1 for (0, 1), 2 for (0, 2),
    ..., k (k - 1) / 2 for (k - 2, k - 1). Pairs with a level that is new to training have the next
    code, all the same one.

    Args:
        first, second: The levels; the shapes are broadcast.
        level_count: The number k of known levels, which are 0..k - 1; new ones are k or more.
    """
    # The codes of all pairs of levels, as a table; its last row and column are of a new level.
    codes = torch.zeros(level_count + 1, level_count + 1, dtype=torch.int32, device=first.device)
    rows, columns = torch.triu_indices(level_count, level_count, 1, device=first.device)
    code_of_pair = torch.arange(1, len(rows) + 1, device=first.device).int()
    code_of_new = len(rows) + 1
    codes[rows, columns] = code_of_pair
    codes[columns, rows] = code_of_pair
    codes[level_count] = code_of_new
    codes[:, level_count] = code_of_new
    # Clamping makes all new levels one, and brings ignored ones into the table.
    entries = first.clamp(0, level_count).long() * (level_count + 1) + second.clamp(0, level_count)
    code = codes.flatten().index_select(0, entries.flatten()).view(entries.shape)
    is_pair = (first != second) & (first >= 0) & (second >= 0)
    return code.where(is_pair, 0)


def is_level_pair(term: Term) -> bool:
    """Return whether a term (f, a, b) is the weight of two levels of one feature."""
    return len(term) == 3


def is_all_level_pairs(term: Term) -> bool:
    """Return whether a term is (f,), which stands for all pairs of levels of a feature f.

    Single terms of a model are (f, g), the product of the differences in two features, or
    (f, a, b), the pair of the levels a and b of feature f. `weight_slices` joins all terms
    (f, a, b) of a feature to (f,).
    """
    return len(term) == 1


def terms_of(
    weighted_level_counts: Sequence[int], interactions: bool, labels: Sequence[str] = ()
) -> list[Term]:
    """Return the terms of a model, in the order of its weights, with the intercept first.

    Then come, feature by feature, (f, f) or the pairs of its levels, and in the end, if wanted,
    the pairs f < g of different features.

    Args:
        weighted_level_counts: For each feature, how many levels it has if each pair of them has a
            weight of its own; 0 for a feature with one weight.
        interactions: Whether the terms (f, g) of W's upper triangle are included.
        labels: The names of the features in errors; empty: their numbers.

    Raises:
        ValueError: There are too many pairs of levels, or interactions beside levels.
    """
    if any(weighted_level_counts) and interactions:
        raise ValueError(
            "weights='full' has no levels: difference='levels' needs weights='diagonal'"
        )
    level_pairs = sum(size * (size - 1) // 2 for size in weighted_level_counts)
    if level_pairs > MOST_LEVEL_PAIRS:
        largest = max(
            range(len(weighted_level_counts)), key=lambda feature: weighted_level_counts[feature]
        )
        name = labels[largest] if labels else largest
        levels_of_largest = weighted_level_counts[largest] - 1  # without that of missing values
        raise ValueError(
            f"{level_pairs} pairs of levels are more than {MOST_LEVEL_PAIRS} weights; feature "
            f"{name} has {levels_of_largest} levels: leave it out, or give it another kind, such "
            "as ordinal, with one weight"
        )
    terms: list[Term] = [()]
    for feature, size in enumerate(weighted_level_counts):
        if not size:
            terms.append((feature, feature))
            continue
        for first, second in combinations(range(size), 2):
            terms.append((feature, first, second))
        terms.append((feature, size, size))  # any pair with a new level
    if interactions:
        terms += combinations(range(len(weighted_level_counts)), 2)
    return terms


def weight_slices(terms: Sequence[Term]) -> list[tuple[Term, slice]]:
    """Return the terms of a model but for the intercept, each with the slice of its weights.

    A term (f, g) has one weight, for the product of the differences of stimuli in the features f
    and g. The terms (f, a, b), which have the weights of pairs of levels a, b of a feature f, are
    joined: they are returned as the single term (f,), with the slice of all of their weights.

    Args:
        terms: All terms, the intercept first, those of a feature side by side. The intercept is
            not among the weights: weight 0 is that of `terms[1]`.
    """
    terms_with_slices = []
    start = 0
    for term, terms_of_group in groupby(terms[1:], key=_without_levels):
        stop = start + len(list(terms_of_group))
        terms_with_slices.append((term, slice(start, stop)))
        start = stop
    return terms_with_slices


def _without_levels(term: Term) -> Term:
    """Return (f,) for a term (f, a, b) of two levels of feature f, and other terms as they are."""
    if is_level_pair(term):
        return term[:1]
    return term


def features_by_term(terms: Sequence[Term]) -> Float[Tensor, "f r"]:
    """Return a matrix that is 1 where a term (column) is of a feature (row) alone, else 0.

    The terms of a feature f alone are (f, f), or (f, a, b) for all pairs of its levels a and b.
    Terms (f, g) of two different features are of neither.

    Args:
        terms: The 1 + r terms of a model, the intercept first, which has no column.
    """
    feature_of_term = []  # -1 for the product of two different features
    for term in terms[1:]:
        is_of_one_feature = is_level_pair(term) or term[0] == term[1]
        feature_of_term.append(term[0] if is_of_one_feature else -1)
    features = torch.arange(max(feature_of_term) + 1)
    return (torch.tensor(feature_of_term) == features[:, None]).double()


def regressors(differences: Sequence[Tensor], terms: Sequence[Term]) -> list[Float[Tensor, "*p"]]:
    """Return the value that the regressor of each term has at some pairs of stimuli, in float64.

    Δ_f is how the stimuli of a pair differ in feature f. The regressor of the intercept is 1, that
    of a term (f, g) is Δ_f Δ_g, and that of a term (f, a, b) is 1 for pairs in which one stimulus
    has level a of feature f and the other level b, else 0.

    Args:
        differences: Δ of the pairs of stimuli, feature by feature. For a feature that has a weight
            for each pair of its levels, it is the number of the pair of levels instead, from 1 on,
            or 0 where both levels are the same.
        terms: The terms, the intercept first. All terms (f, a, b) of a feature are side by side.
    """
    columns = [torch.ones_like(differences[0], dtype=torch.float64)]
    for term, weight_slice in weight_slices(terms):
        if is_all_level_pairs(term):  # a column for each pair of levels
            (feature,) = term
            codes = differences[feature]
            code_count = weight_slice.stop - weight_slice.start
            for code in range(1, code_count + 1):  # code 0, of equal levels, has no regressor
                columns.append((codes == code).double())
        else:
            first, second = term
            columns.append(differences[first].double() * differences[second])
    return columns


def predict(
    differences: Sequence[Tensor], terms: Sequence[Term], weights: Float[Tensor, "*b r"]
) -> Float[Tensor, "*b p"]:
    """Return the predicted squared distance of each of p pairs of stimuli, without the intercept.

    It is the sum over terms of weight times regressor. The regressor of a term (f, g) is Δ_f Δ_g,
    with Δ_f the difference of a pair in feature f; that of a term (f, a, b) is 1 for pairs with
    the levels a and b of feature f, else 0. Terms are added one by one, so that pairs with equal Δ
    have predictions with equal bits.

    Args:
        differences: Δ of the pairs, feature by feature. For a feature with a weight for each pair
            of levels these are codes of the pairs, from `pair_codes`.
        terms: The terms, the intercept first.
        weights: The r weights of the terms after the intercept, for any number of models.
    """
    total = weights.new_zeros(*weights.shape[:-1], len(differences[0]))
    for term, weight_slice in weight_slices(terms):
        weights_of_term = weights[..., weight_slice]
        if is_all_level_pairs(term):
            (feature,) = term
            weight_of_code = pad(weights_of_term, (1, 0))  # code 0, of equal levels, has weight 0
            total += weight_of_code.index_select(-1, differences[feature].long())
        else:
            first, second = term
            total += weights_of_term * (differences[first] * differences[second])
    return total


def distinct_patterns(differences: Sequence[Tensor]) -> tuple[list[Tensor], Int[Tensor, " p"]]:
    """Return the different patterns of differences, and which of them each pair of stimuli has.

    Pairs with the same difference Δ in every feature have one pattern, so that predictions are
    computed once for all of them. If most pairs of a sample have different patterns, each pair
    gets a pattern of its own, which saves sorting all pairs. No sample is taken if all differences
    are indicators, 0 or 1, as these have few patterns.

    Args:
        differences: Δ of p pairs, feature by feature.

    Returns:
        Δ of the patterns, feature by feature, and the index of each pair's pattern.
    """
    pair_count = len(differences[0])
    stride = -(-pair_count // SAMPLED_PAIRS)  # rounded up, so that the sample is no larger
    sample = [column[::stride] for column in differences]
    if any(column.dtype != torch.bool for column in sample):
        sampled_patterns = int(_pattern_numbers(sample).max() + 1)
        if 2 * sampled_patterns > len(sample[0]):
            return list(differences), torch.arange(pair_count, device=differences[0].device)
    pattern_of_pair = _pattern_numbers(differences)
    pattern_count = int(pattern_of_pair.max()) + 1
    device = pattern_of_pair.device
    # A pair that has the pattern, for each pattern; which one does not matter.
    example_pair = torch.empty(pattern_count, dtype=torch.int64, device=device)
    example_pair[pattern_of_pair] = torch.arange(pair_count, device=device)
    return [column[example_pair] for column in differences], pattern_of_pair


def _pattern_numbers(differences: Sequence[Tensor]) -> Int[Tensor, " p"]:
    """Return a number for each pair of stimuli, equal for pairs that agree in all differences.

    The numbers in use are 0, 1, 2, ... without a gap.

    Args:
        differences: Δ of the p pairs, feature by feature.
    """
    # A number has a digit for each feature, like a number in a mixed-radix system.
    numbers = torch.zeros_like(differences[0], dtype=torch.int64)
    number_count = 1  # how many numbers are possible so far
    for column in differences:
        if column.is_floating_point():
            _, column = torch.unique(column, return_inverse=True)
        size = int(column.max()) + 1
        if number_count * size >= GREATEST_CODE:  # would overflow int64: renumber without gaps
            number_count = len(numbers)  # at most one for each pair of stimuli
            _, numbers = torch.unique(numbers, return_inverse=True)
        numbers = numbers * size + column
        number_count *= size
    if number_count > MOST_COUNTED_PATTERNS:
        consecutive: Tensor = torch.unique(numbers, return_inverse=True)[1]
        return consecutive
    # Renumber them by counting, without sorting.
    occurs = torch.bincount(numbers, minlength=number_count) > 0
    return (occurs.cumsum(0) - 1)[numbers]
