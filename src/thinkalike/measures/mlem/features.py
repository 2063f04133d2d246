"""Feature tables, the differences Δ of their stimuli, and the terms of a model of these (Salle et al. 2024, app. B).

The term (f, g) is the entry W_fg, with the regressor Δ_f Δ_g; the term (f, a, b) the weight of the levels a and b of
feature f, with the regressor 1[one stimulus has a, the other b]; the term () is the intercept. Terms of the levels of
one feature are in the order of their codes, see `pair_codes`; the last, (f, k, k), is any pair with a new level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, groupby
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from thinkalike.arguments import check_choice
from thinkalike.measures.kinds import NUMBERS, Columns, Kinds, Level, level_of

DIFFERENCES = ("indicator", "scaled", "levels")
MISSING = ("own_level", "ignore", "drop", "error")
Term = tuple[int, ...]
DENSE = 2**16  # possible patterns of differences up to which all of them are counted
SAMPLE = 4096  # pairs that are looked at to estimate how many differ
MOST = 1000  # weights of pairs of levels: a fit solves systems of that size hundreds of times


@dataclass(frozen=True, eq=False)
class Features:
    """An encoded table of the f features of n stimuli.

    Δ_f(i, j) = 0 where the levels are equal, or where either is ignored (a negative level); else 1, or for a scaled
    feature the distance of the two positions, or the code of two levels with a weight of their own, see `pair_codes`.
    """

    levels: Int[Tensor, "n f"]
    positions: Float[Tensor, "n f"]  # NaN where there is none
    ranges: tuple[float, ...]  # how far apart positions of Δ = 1 are: divided last, so that equal Δ have equal bits
    scaled: tuple[bool, ...]
    known: tuple[int, ...]  # the number of levels whose pairs have weights; 0 for a feature with one weight
    labels: tuple[str, ...] = ()  # names of the features in messages; by default their numbers

    def __len__(self) -> int:
        return len(self.levels)

    def take(self, index: Int[Tensor, " k"]) -> Features:
        return replace(self, levels=self.levels[index], positions=self.positions[index])

    def permuted(self, features: Sequence[int], order: Int[Tensor, " n"]) -> Features:
        """Return a table in which these features have moved between stimuli together."""
        moves, order = torch.zeros(len(self.scaled), dtype=torch.bool), order.to(self.levels.device)
        moves[[*features]] = True
        moves = moves.to(self.levels.device)
        levels, positions = (part[order].where(moves, part) for part in (self.levels, self.positions))
        return replace(self, levels=levels, positions=positions)

    def difference(
        self, feature: int, rows: Int[Tensor, " a"] | None = None, columns: Int[Tensor, " b"] | None = None
    ) -> Bool[Tensor, "a b"] | Float[Tensor, "a b"] | Int[Tensor, "a b"]:
        """Return Δ_f between stimuli `rows` and `columns`, by default all, see `Features`; bool for an indicator."""
        left, right = (self if index is None else self.take(index) for index in (rows, columns))
        if self.known[feature]:
            return pair_codes(left.levels[:, feature, None], right.levels[:, feature], self.known[feature])
        differ = _differ(left.levels[:, feature, None], right.levels[:, feature])
        if not self.scaled[feature]:
            return differ
        apart = _apart(left.positions[:, feature, None], right.positions[:, feature], self.ranges[feature])
        return apart * differ

    def differences(self, pairs: Int[Tensor, "2 p"]) -> Float[Tensor, "p f"]:
        """Return Δ of these pairs of stimuli, in float64; that of a pair of levels is 1."""
        left, right = self.take(pairs[0]), self.take(pairs[1])
        ranges = left.positions.new_tensor(self.ranges)
        return _apart(left.positions, right.positions, ranges) * _differ(left.levels, right.levels)


def _differ(left: Int[Tensor, "*a"], right: Int[Tensor, "*b"]) -> Bool[Tensor, "*c"]:
    differ = left != right
    ignored = left < 0, right < 0
    return differ & ~ignored[0] & ~ignored[1] if any(part.any() for part in ignored) else differ


def _apart(
    left: Float[Tensor, "*a"], right: Float[Tensor, "*b"], ranges: float | Float[Tensor, " f"]
) -> Float[Tensor, "*c"]:
    """Return |left - right| / range, or 1 where there is no position: for an indicator, or a missing value."""
    return ((left - right).abs() / ranges).nan_to_num(1.0)


@dataclass(frozen=True, eq=False)
class FeatureEncoder:
    """The levels of each feature in the training stimuli, and how two levels differ.

    A nominal feature has Δ = 1[f_i ≠ f_j], and in the paper every feature does (difference="indicator"); the indicator
    of a continuous feature would be constant, so Δ = |f_i - f_j| / range of it under any difference. With "scaled", a
    numeric feature has that Δ, too, and an ordinal one the same of the ranks of its levels; a value that is new to
    training lies between its neighbours' ranks, and Δ can exceed 1. With "levels", each pair of levels of a nominal
    feature has a Δ of its own; ordinal and numeric features have Δ = 1[f_i ≠ f_j].

    A missing value (NaN, None, pd.NA) is, with "own_level", equal to a missing one and at distance 1 from any value;
    with "ignore", at distance 0 from everything; "drop" leaves the stimulus out, and "error" refuses it.
    """

    columns: Columns
    difference: str
    missing: str
    known: tuple[Float[Tensor, " _"], ...]  # sorted
    lacks: tuple[bool, ...]  # whether a training stimulus lacks a value of the feature

    @classmethod
    def fit(
        cls, X: Any, kinds: Kinds = "auto", difference: str = "indicator", missing: str = "own_level"
    ) -> FeatureEncoder:
        """Return an encoder that knows the levels of these stimuli; for X and kinds see `MLEM`."""
        columns = Columns.of(X, kinds)
        return cls.of(columns.read(X)[0], columns, difference, missing)

    @classmethod
    def of(cls, values: Float[Tensor, "n f"], columns: Columns, difference: str, missing: str) -> FeatureEncoder:
        """Return the encoder that `fit` does, from the numbers that `Columns.read` gives."""
        check_choice("difference", difference, DIFFERENCES)
        check_choice("missing", missing, MISSING)
        known = tuple(column[~column.isnan()].unique() for column in values.T)
        return cls(columns, difference, missing, known, tuple(values.isnan().any(0).tolist()))

    def encode(self, X: Any) -> Features:
        """Return a table in terms of the known levels; a ValueError of missing values under "error" and "drop"."""
        return self.encode_values(self.columns.read(X)[0])

    def encode_values(self, values: Float[Tensor, "n f"]) -> Features:
        """Return what `encode` does, from the numbers that `Columns.read` gives."""
        absent = values.isnan()
        if self.missing in ("error", "drop") and absent.any():
            label = self.columns.label(int(absent.any(0).nonzero()[0]))
            raise ValueError(f"feature {label} lacks a value: missing={self.missing!r}")
        lack = -1 if self.missing == "ignore" else 0
        levels = [self._levels(feature, column) + 1 for feature, column in enumerate(values.nan_to_num(0.0).T)]
        nominal = ("nominal",) if self.difference == "scaled" else ("nominal", "ordinal", "numeric")
        scaled = tuple(kind not in nominal for kind in self.columns.kinds)
        nowhere = torch.full_like(values[:, 0], torch.nan), 1.0
        placed = [self._placed(f, column) if scaled[f] else nowhere for f, column in enumerate(values.T)]
        return Features(
            torch.stack(levels, 1).where(~absent, lack).int(),
            torch.stack([positions for positions, _ in placed], 1),
            tuple(extent for _, extent in placed),
            scaled,
            tuple(map(self.size, range(len(scaled)))),
            tuple(map(self.columns.label, range(len(scaled)))),
        )

    def refuse_new(self, values: Float[Tensor, "n f"], levels: Sequence[Sequence[Level] | None]) -> None:
        """Check that these stimuli have no level that is new to training, a missing value under "own_level" included.

        New numbers of ordinal, numeric and continuous features are accepted: they lie between or beyond the others.
        """
        for feature, (column, own, named) in enumerate(zip(values.T, self.columns.levels, levels, strict=True)):
            absent = column.isnan()
            if own is not None:
                new = column >= len(own)
            else:
                new = ~torch.isin(column, self.known[feature]) & ~absent & (self.columns.kinds[feature] == "nominal")
            if self.missing == "own_level" and not self.lacks[feature]:
                new |= absent
            if new.any():
                value = level_of(column[new][0].item(), named)
                raise ValueError(
                    f"feature {self.columns.label(feature)} has {value!r} in {int(new.sum())} stimuli, and in none of "
                    "the fit: correct or leave out, or choose unknown='new' for levels as far from others as the mean"
                )

    def size(self, feature: int) -> int:
        """Return the number of levels whose pairs have weights; 0 for a feature with one weight."""
        of_levels = self.difference == "levels" and self.columns.kinds[feature] == "nominal"
        return 1 + len(self.known[feature]) if of_levels else 0

    def _levels(self, feature: int, column: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
        """Return numbers from 0: if pairs of levels have weights, known levels in order, then new ones."""
        if not self.size(feature):
            return torch.unique(column, return_inverse=True)[1]
        known, column = self.known[feature], column.double().contiguous()
        places = torch.searchsorted(known, column)
        there = torch.isin(column, known)
        return torch.where(there, places, len(known) + torch.unique(column, return_inverse=True)[1])

    def _placed(self, feature: int, column: Float[Tensor, " n"]) -> tuple[Float[Tensor, " n"], float]:
        """Return numbers, or the ranks of ordinal levels from 0, and their range in training."""
        known, column = self.known[feature], column.contiguous()
        if len(known) < 2:
            return torch.where(column.isnan(), torch.nan, 0.0), 1.0  # constant in training: no scale to measure by
        if self.columns.kinds[feature] in NUMBERS:
            return column, float(known[-1] - known[0])
        both = torch.searchsorted(known, column) + torch.searchsorted(known, column, right=True)
        return torch.where(column.isnan(), torch.nan, both.double() / 2), len(known) - 1.0


def pair_codes(left: Int[Tensor, "*a"], right: Int[Tensor, "*b"], known: int) -> Int[Tensor, "*c"]:
    """Return the codes of pairs of levels; `left` and `right` are broadcast.

    Two stimuli of one level, or with an ignored, negative one, have code 0; those of the known levels a < b codes from
    1, in the order (0, 1), (0, 2), ..., (k - 2, k - 1); those with a level that is new to training have the last code.
    """
    codes = torch.zeros(known + 1, known + 1, dtype=torch.int32, device=left.device)
    rows, columns = torch.triu_indices(known, known, 1, device=left.device)
    codes[rows, columns] = codes[columns, rows] = torch.arange(1, len(rows) + 1, device=left.device).int()
    codes[known] = codes[:, known] = len(rows) + 1
    place = left.clamp(0, known).long() * (known + 1) + right.clamp(0, known)
    found = codes.flatten().index_select(0, place.flatten()).view(place.shape)
    return found.where((left != right) & (left >= 0) & (right >= 0), 0)


def terms_of(known: Sequence[int], interactions: bool, labels: Sequence[str] = ()) -> list[Term]:
    """Return the intercept, the diagonal of W or the pairs of levels, and with interactions W's upper triangle."""
    if any(known) and interactions:
        raise ValueError("weights='full' has no levels: difference='levels' needs weights='diagonal'")
    number = sum(size * (size - 1) // 2 for size in known)
    if number > MOST:
        worst = max(range(len(known)), key=lambda feature: known[feature])
        raise ValueError(
            f"{number} pairs of levels are more than {MOST} weights; feature {labels[worst] if labels else worst} has "
            f"{known[worst] - 1} levels: leave it out, or give it another kind, such as ordinal, with one weight"
        )
    terms: list[Term] = [()]
    for feature, size in enumerate(known):
        pairs = [*combinations(range(size), 2), (size, size)]
        terms += [(feature, *pair) for pair in pairs] if size else [(feature, feature)]
    return [*terms, *combinations(range(len(known)), 2)] if interactions else terms


def grouped(terms: Sequence[Term]) -> list[tuple[Term, slice]]:
    """Return the terms but the first, with the places of their weights; (f,) stands for all pairs of levels of f."""
    groups, start = [], 0
    for term, same in groupby(terms[1:], key=lambda term: term[:1] if len(term) == 3 else term):
        stop = start + len(list(same))
        groups.append((term, slice(start, stop)))
        start = stop
    return groups


def of_features(terms: Sequence[Term]) -> Float[Tensor, "f r"]:
    """Return which terms sum to Δ_f."""
    own = [term[0] if len(term) == 3 or term[0] == term[1] else -1 for term in terms[1:]]
    return (torch.tensor(own) == torch.arange(max(own) + 1)[:, None]).double()


def regressors(differences: Sequence[Tensor], terms: Sequence[Term]) -> list[Float[Tensor, "*p"]]:
    """Return the regressor of each term, in float64: 1, the product of two differences, or an indicator of levels."""
    products = [torch.ones_like(differences[0], dtype=torch.float64)]
    for term, places in grouped(terms):
        if len(term) == 1:
            codes = differences[term[0]]
            products += [(codes == code).double() for code in range(1, places.stop - places.start + 1)]
        else:
            products.append(differences[term[0]].double() * differences[term[1]])
    return products


def predict(
    differences: Sequence[Tensor], terms: Sequence[Term], weights: Float[Tensor, "*b r"]
) -> Float[Tensor, "*b p"]:
    """Return the sum of weights times `regressors`, added one by one, so that equal Δ give equal bits."""
    total = weights.new_zeros(*weights.shape[:-1], len(differences[0]))
    for term, places in grouped(terms):
        if len(term) == 1:
            total += pad(weights[..., places], (1, 0)).index_select(-1, differences[term[0]].long())
        else:
            total += weights[..., places] * (differences[term[0]] * differences[term[1]])
    return total


def distinct(differences: Sequence[Tensor]) -> tuple[list[Tensor], Int[Tensor, " p"]]:
    """Return patterns of differences, feature by feature, and the pattern of each pair: its own, if most differ."""
    some = [column[:: -(-len(column) // SAMPLE)] for column in differences]
    if any(column.dtype != torch.bool for column in some) and 2 * int(_pattern(some).max() + 1) > len(some[0]):
        return list(differences), torch.arange(len(differences[0]), device=differences[0].device)
    key = _pattern(differences)
    first = torch.empty(int(key.max()) + 1, dtype=torch.int64, device=key.device)
    first[key] = torch.arange(len(key), device=key.device)  # any pair of the pattern
    return [column[first] for column in differences], key


def _pattern(differences: Sequence[Tensor]) -> Int[Tensor, " p"]:
    key, number = torch.zeros_like(differences[0], dtype=torch.int64), 1
    for column in differences:
        column = torch.unique(column, return_inverse=True)[1] if column.is_floating_point() else column
        size = int(column.max()) + 1
        if number * size >= 2**62:
            key, number = torch.unique(key, return_inverse=True)[1], len(key)
        key, number = key * size + column, number * size
    if number > DENSE:
        return torch.unique(key, return_inverse=True)[1]
    return ((torch.bincount(key, minlength=number) > 0).cumsum(0) - 1)[key]  # without sorting
