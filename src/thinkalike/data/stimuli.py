"""Stimuli: words in sentences, or anything else, with the features that describe them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from numbers import Integral, Number
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from thinkalike.advice import named_setting
from thinkalike.data.grammar import Sentence, controlled_sentences, crossed_sentences
from thinkalike.data.words import Span
from thinkalike.errors import DataError, natural_order, nearest, short
from thinkalike.measures.kinds import (
    KINDS,
    MOST_FEATURES,
    NUMBER_KINDS,
    check_levels,
    kind_of,
    plain_cell,
)
from thinkalike.measures.sample_size import FEWEST_GROUPS

Kind = str | Sequence[object]
"""One of KINDS, or the levels of an ordinal feature in order."""

Kinds = Mapping[str, Kind]
"""Kinds by feature."""

Names = Sequence[str] | None
"""Names of features or other columns; None stands for all that there are."""

QUOTED_WORDS = 4
"""How many words of a feature a message quotes."""

WORD_SHARE = 0.5
"""From this share on, the words explain most of what a feature explains.

It is the share of the variance of a feature's differences that differences of words explain. A
model that knows only words owes most of the feature's importance to them then. Two words for each
of two levels have .33.
"""

GRAMMAR_FEATURES = [
    "Word length",
    "Gender",
    "Number",
    "PoS",
    "Tense",
    "Person",
    "Word position",
    "Question",
]
"""The features of Salle et al. 2024, table S1."""


class WordOverlap(NamedTuple):
    """How far a feature can be told from the words of the stimuli that it applies to."""

    feature: str

    explained: float
    """The squared correlation, over pairs of stimuli, of different levels and different words."""

    differing: float
    """The share of pairs of one word that differ in the feature; 0 if the word determines it."""

    one_word: float
    """The share of pairs of one level that are one word; 1 if every level is one word."""

    words: list[str]
    """The commonest word of each level."""

    @property
    def is_confounded(self) -> bool:
        """Whether a model that knows only word identity could show importance of the feature."""
        # Every level is one word, and every word has one level. This is asked for separately
        # because `explained` is 0 for a feature of a single level.
        names_the_word = self.one_word == 1 and self.differing == 0
        return names_the_word or self.explained >= WORD_SHARE

    def __str__(self) -> str:
        """Return a warning that says how far words explain the feature."""
        words = ", ".join(repr(word) for word in self.words[:QUOTED_WORDS])
        if len(self.words) > QUOTED_WORDS:
            words += ", ..."
        if self.one_word == 1:
            overlap = f"every level is one word ({words})"
        else:
            overlap = (
                f"its levels are mostly one word each ({words}), and words explain "
                f"{self.explained:.0%} of it"
            )
        text = f"{self.feature}: {overlap}, so its importance may be the word's"
        if self.differing == 0:
            text += "; these stimuli cannot tell it from the word"
        return text


class SharedValues(NamedTuple):
    """Features that are constant for each value of a column that several groups share."""

    features: list[str]

    column: str

    n_values: int
    """How many values the column has."""


class Codes(NamedTuple):
    """Features as numbers."""

    table: Float[Tensor, "n f"]
    """Numeric values, and the index of the level of other features; NaN where none applies."""

    levels: dict[str, list[str]]
    """The levels of the features that are not numeric."""


@dataclass(frozen=True, eq=False)
class Stimuli:
    """Words in sentences and their features; NaN where a feature does not apply.

    Features become categories (nominal, ordinal), which keep their levels in every choice of
    stimuli, or float64 (numeric, continuous).

    Raises:
        DataError: Rows or kinds do not fit together, an id occurs twice, a span lies outside its
            text, or a number is infinite. The message begins with `source`.
    """

    texts: list[str]

    sentence: Int[np.ndarray, " n"]
    """The index of the text that each stimulus is in."""

    span: list[Span]
    """The characters of each stimulus in its text."""

    words: list[str]

    features: pd.DataFrame

    kinds: Kinds = field(default_factory=dict)
    """The kinds that differ from what `thinkalike.measures.kinds` infers; later those of all."""

    ids: list[str] = field(default_factory=list)
    """By default the numbers from 1."""

    source: str = "stimuli"
    """What errors call the stimuli."""

    token: str = "last"
    """Which token's state a stimulus has: that of its "last" or "first" one, or their "mean"."""

    further_columns: pd.DataFrame | None = None
    """The columns of a table that are no features, such as an item; None: there are none."""

    groups_column: str | None = None
    """The column whose values measures keep together; None: they keep texts together."""

    def __post_init__(self) -> None:
        """Check all fields, fill in missing ids and kinds, and convert features to their types.

        A feature whose kind is one of numbers (`NUMBER_KINDS`) becomes float64. Any other feature
        becomes categories.
        """
        check_kinds(self.kinds, self.source)
        ids = self.ids
        if not ids:
            ids = [str(row) for row in range(1, len(self.words) + 1)]
        features = self.features.rename(columns=str).reset_index(drop=True)
        vars(self).update(ids=ids, features=features)  # the class is frozen
        if self.further_columns is not None:
            vars(self).update(further_columns=self.further_columns.reset_index(drop=True))
        self._check()

        columns = {}
        kinds: dict[str, Kind] = {}
        for name in self.names:
            kind = self.kinds.get(name) or kind_of(self.features[name])
            columns[name] = as_feature_column(self.features[name], name, kind, self.source)
            if kind in NUMBER_KINDS:
                kinds[name] = kind
            else:
                # The kind may be given as the list of levels; it is "ordinal" or "nominal" here.
                kinds[name] = kind_of(columns[name])
        vars(self).update(features=pd.DataFrame(columns), kinds=kinds)

    def __len__(self) -> int:
        return len(self.words)

    @property
    def names(self) -> list[str]:
        """The names of the features."""
        return [str(name) for name in self.features]

    @property
    def groups(self) -> Int[Tensor, " n"]:
        """The number of the group of each stimulus, which measures keep together.

        A group is all stimuli of one text, or of one value of `groups_column`.
        """
        if self.groups_column is None:
            return self._texts
        return torch.from_numpy(pd.factorize(self.columns_of_items()[self.groups_column])[0])

    @property
    def unit(self) -> str:
        """What groups are called: "sentences", or "values of verb"."""
        return "sentences" if self.groups_column is None else f"values of {self.groups_column}"

    def columns_of_items(self) -> dict[str, pd.Series]:
        """Return the columns by which stimuli can be grouped, by name.

        These are the features, the further columns of a table, and the words. Words that differ
        only in case count as equal.
        """
        columns = {str(name): column for name, column in self.features.items()}
        if self.further_columns is not None:
            columns |= {str(name): column for name, column in self.further_columns.items()}
        columns.setdefault("word", pd.Series(self.words).str.casefold())
        return columns

    def grouped_by(self, name: str) -> Stimuli:
        """Return the stimuli with the values of a column as their groups.

        Raises:
            DataError: There is no such column, or one of its cells is empty.
        """
        columns = self.columns_of_items()
        setting = named_setting("stimuli.groups", name)
        if name not in columns:
            raise DataError(f"{self.source} has no column {name}; {nearest(name, list(columns))}")
        is_empty = columns[name].isna() | (columns[name] == "")
        if is_empty.any():
            row = int(np.flatnonzero(is_empty)[0]) + 1
            raise DataError(
                f"{self.source} row {row} has no {name}, and {setting} needs one in every row"
            )
        return replace(self, groups_column=name)

    def shared_values(self) -> list[SharedValues]:
        """Return the features that are constant for each value of a column that groups share.

        Stimuli that share a value, such as a verb, may be alike for any reason, so that a feature
        of verbs varies between verbs alone. For each feature, only the column with the fewest
        values counts. It has at least `FEWEST_GROUPS` values, as whole values can be permuted only
        then, fewer values than there are groups, and more than the feature has levels.
        """
        n_groups = len(self.groups.unique())
        columns = self.columns_of_items()
        counts = {}
        for name, column in columns.items():
            count = column.nunique(dropna=False)
            if FEWEST_GROUPS <= count < n_groups and self.kinds.get(name) != "continuous":
                counts[name] = count
        features_by_column: dict[str, list[str]] = {}
        for feature in self.names:
            levels = self.features[feature]
            for name in sorted(counts, key=lambda name: counts[name]):
                is_coarser = levels.nunique(dropna=False) < counts[name]
                if is_coarser and _is_constant_for_each(columns[name], levels):
                    features_by_column.setdefault(name, []).append(feature)
                    break
        return [
            SharedValues(features, name, counts[name])
            for name, features in features_by_column.items()
        ]

    def constant_features(self, groups: Int[Tensor, " n"]) -> list[str]:
        """Return the features that have one level in each group of stimuli."""
        group_numbers = pd.Series(groups.numpy())
        return [
            name
            for name in self.names
            if _is_constant_for_each(group_numbers, self.features[name])
        ]

    def texts_beside_groups(self) -> Int[Tensor, " n"] | None:
        """Return the number of each stimulus's text; None if texts need not be told from groups.

        The null of feature importance permutes whole groups, or whole texts for a feature that is
        constant in each text: the stimuli of one text may be alike, too. None is returned if texts
        are the groups, as they are without `groups_column`, or if each text has one stimulus.
        """
        texts = self._texts
        if self.groups_column is None or len(texts.unique()) == len(self):
            return None
        return texts

    @property
    def _texts(self) -> Int[Tensor, " n"]:
        """The number of the text of each stimulus."""
        return torch.from_numpy(np.ascontiguousarray(self.sentence))

    def name_of_row(self, number: int) -> str:
        """Return what errors call the states of a stimulus: by its word.

        The id is added if another stimulus has the same word. The rows of arrays that are compared
        without stimuli have their numbers in place of words.
        """
        word = self.words[number]
        name = f"row {short(word)!r}"
        if self.words.count(word) == 1:
            return name
        return f"{name} (id {short(self.ids[number])})"

    def take(self, rows: NDArray[np.generic] | pd.Series | slice | Sequence[int]) -> Stimuli:
        """Return some of the stimuli, in the order of `rows`.

        Texts without a chosen stimulus are dropped, and the other texts are numbered anew.

        Args:
            rows: Indices, a mask or a slice.
        """
        indices = np.arange(len(self))[rows]
        further_columns = self.further_columns
        if further_columns is not None:
            further_columns = further_columns.iloc[indices]
        used_texts, sentence = np.unique(self.sentence[indices], return_inverse=True)
        return replace(
            self,
            texts=[self.texts[number] for number in used_texts],
            sentence=sentence,
            span=[self.span[row] for row in indices],
            words=[self.words[row] for row in indices],
            features=self.features.iloc[indices],
            ids=[self.ids[row] for row in indices],
            further_columns=further_columns,
        )

    def sample(self, n: int, seed: int = 0, balance: str | Sequence[str] = ()) -> Stimuli:
        """Draw n stimuli without repetition and return them in their original order.

        Each combination of levels of the features in `balance` is drawn equally often; the counts
        differ by at most one.

        Args:
            n: How many stimuli are drawn.
            seed: The same seed draws the same stimuli.
            balance: The name of a feature, or several names; without any, all stimuli are equally
                likely.

        Raises:
            DataError: There are too few stimuli, or no such feature.
        """
        balanced_names = [balance] if isinstance(balance, str) else balance
        names = select_names(self.source, balanced_names, self.names)
        # A cell is a combination of levels; `cell_of_stimulus` has the index of each stimulus's.
        cell_of_stimulus = joint_codes(self.features[names])
        counts = np.bincount(cell_of_stimulus)  # the stimuli of each cell
        rarest = counts.min()
        # Once the rarest combination is used up, each of the others can come once more.
        largest_sample = len(counts) * rarest + (counts > rarest).sum()
        if not 0 < n <= largest_sample:
            raise DataError(
                f"{self.source}: sample={n} must lie between 1 and {largest_sample}; the rarest "
                f"of {len(counts)} combinations of {names} has {rarest} of {len(self)} stimuli"
            )

        # Every cell gives the same number of stimuli, and some give one more.
        rng = np.random.default_rng(seed)
        per_cell, remainder = divmod(n, len(counts))
        counts_to_draw = np.full(len(counts), per_cell)
        cells_with_more = rng.permutation(np.flatnonzero(counts > per_cell))
        counts_to_draw[cells_with_more[:remainder]] += 1

        shuffled = rng.permutation(len(self))
        drawn = []
        for cell, count in enumerate(counts_to_draw):
            shuffled_of_cell = shuffled[cell_of_stimulus[shuffled] == cell]
            drawn.append(shuffled_of_cell[:count])
        return self.take(np.sort(np.concatenate(drawn)))

    def codes(self) -> Codes:
        """Return the features as one table of float64, with an index in place of each level.

        Features of numbers stay as they are. For any other feature, the index counts all its
        levels, also those that no stimulus has, so that a level keeps its index when some of the
        stimuli are taken. A missing value is NaN.
        """
        columns = {}
        levels = {}
        for name in self.names:
            column = self.features[name]
            if self.kinds[name] in NUMBER_KINDS:
                columns[name] = column
            else:
                columns[name] = column.cat.codes
                levels[name] = list(column.cat.categories)
        values = torch.tensor(pd.DataFrame(columns).to_numpy(float))
        # The code of a missing level is -1 in pandas; it becomes NaN.
        is_present = torch.tensor(self.features.notna().to_numpy())
        return Codes(values.where(is_present, torch.nan), levels)

    def check_features_vary(self, missing: str = "own_level") -> None:
        """Raise a DataError if a feature has one level only.

        Args:
            missing: What becomes of missing values: they are a level ("own_level"), or are left
                out ("ignore"), or whole stimuli with one are ("drop").
        """
        features = self.features
        if missing == "drop":
            features = features.dropna()
        for name, column in features.items():
            levels = column.drop_duplicates()
            without_missing = ""
            if missing in ("ignore", "drop"):
                levels = levels.dropna()
                if column.isna().any() or len(features) < len(self):
                    without_missing = f" where missing values are left out (missing={missing})"
            if len(levels) < 2:
                level = f", {levels.iloc[0]}" if len(levels) else ""
                raise DataError(
                    f"{self.source}: {name} has one level only{level}{without_missing}; leave it "
                    "out of features"
                )

    def correlation(self) -> FeatureCorrelation:
        """Return, for all features f and g, the correlation of Δ_f and Δ_g over pairs of stimuli.

        Δ_f(i, j) = 1[f_i ≠ f_j] says whether the stimuli i < j differ in f, where NaN equals only
        NaN. The Δ are the regressors of a metric-learning encoding model, which can hardly tell
        correlated ones apart (Salle et al. 2024, figure S5).

        No pair is enumerated: if c stimuli share a combination of levels, they are c(c-1)/2 pairs
        that agree in both features.

        Raises:
            DataError: A feature has one level, or differs between all stimuli.
        """
        pair_count = max(len(self) * (len(self) - 1) / 2, 1)
        equal_pairs = np.zeros((len(self.names), len(self.names)))
        for i, f in enumerate(self.names):
            for j, g in enumerate(self.names):
                equal_pairs[i, j] = _count_equal_pairs(self.features[[f, g]])
        equal_share = equal_pairs / pair_count  # of pairs that agree in both features

        share = equal_share.diagonal()
        for name, share_of_feature in zip(self.names, share, strict=True):
            if not 0 < share_of_feature < 1:
                raise DataError(
                    f"{self.source}: {name} has one level or differs between all stimuli; leave "
                    "it out"
                )
        # The indicators 1 - Δ have the same correlation as the Δ.
        deviation = np.sqrt(share * (1 - share))
        covariance = equal_share - np.outer(share, share)
        correlation = covariance / np.outer(deviation, deviation)
        return FeatureCorrelation(pd.DataFrame(correlation, self.names, self.names))

    def confounded_with_words(self) -> list[WordOverlap]:
        """Return the features whose importance a model that knows only words could show as well.

        Words that differ only in case count as equal. Continuous features are left out, because an
        encoding model compares their sizes and does not ask whether they are equal.
        """
        words = pd.Series(self.words).str.casefold()
        overlaps = []
        for name in self.names:
            if self.kinds[name] != "continuous":
                overlaps.append(_word_overlap(name, self.features[name], words))
        return [overlap for overlap in overlaps if overlap.is_confounded]

    def fingerprint(self) -> str:
        """Return a hash of texts, spans and features: the first 16 hexadecimal digits of SHA-256.

        The setting `token` counts only if it is not its default, "last", and groups only if they
        are not the texts.
        """
        table, levels = self.codes()
        content: list[object] = [
            self.texts,
            self.sentence.tolist(),
            self.span,
            self.kinds,
            table.tolist(),
            levels,
        ]
        # Without this condition, fingerprints from before the setting existed would change.
        if self.token != "last":
            content.append(self.token)
        if self.groups_column is not None:
            content.append(self.groups.tolist())
        return hashlib.sha256(repr(tuple(content)).encode()).hexdigest()[:16]

    def _check(self) -> None:
        """Raise a DataError if rows, names, spans or feature values cannot be used.

        There must be at least one stimulus and one feature. All fields must have as many rows, ids
        and names of features must be unique, `kinds` must name features only, no text may be
        blank, and each span must lie in its text. No feature may have complex numbers, or truth
        values beside numbers.
        """
        counts = {}
        for name in ("words", "sentence", "span", "features", "ids"):
            counts[name] = len(getattr(self, name))
        if len(set(counts.values())) > 1:
            raise DataError(f"{self.source}: row counts differ: {counts}")
        if len(self) == 0:
            raise DataError(f"{self.source} has no stimuli")
        if not self.names:
            raise DataError(
                f"{self.source} has {len(self):,} stimuli and no feature; add a column of one "
                "beside their texts and words, or name one or more in features"
            )
        select_names(self.source, list(self.kinds), self.names)
        check_unique(self.source, "id", self.ids)
        check_unique(self.source, "feature", self.names)
        for row, (number, (start, stop)) in enumerate(
            zip(self.sentence, self.span, strict=True), 1
        ):
            if not self.texts[number].strip():
                raise DataError(f"{self.source} row {row}: its text is blank")
            if not 0 <= start < stop <= len(self.texts[number]):
                raise DataError(
                    f"{self.source} row {row}: the span {start}-{stop} is empty or outside its "
                    "text"
                )
        for feature, column in self.features.items():
            if any(isinstance(value, complex) for value in column.astype(object)):
                raise DataError(
                    f"{self.source}: {feature} has complex numbers; give their real and imaginary "
                    "parts as two features"
                )
            if _mixes_truth_values_and_numbers(column):
                raise DataError(
                    f"{self.source}: {feature} mixes truth values and numbers, and True equals 1; "
                    "write the truth values as text, such as 'yes' and 'no', or all as numbers"
                )


def _mixes_truth_values_and_numbers(column: pd.Series) -> bool:
    """Return whether some values are True or False, and others numbers."""
    if column.dtype != object:
        return False
    has_truth_values = False
    has_numbers = False
    for value in column.dropna():
        if isinstance(value, bool | np.bool_):
            has_truth_values = True
        elif isinstance(value, Number):
            has_numbers = True
    return has_truth_values and has_numbers


def _word_overlap(name: str, feature: pd.Series, words: pd.Series) -> WordOverlap:
    """Return how well the words of stimuli predict the levels of a feature.

    Only stimuli that have the feature count. All shares are over pairs of them.

    Args:
        name: The name of the feature.
        feature: Its value for each stimulus; NaN: it does not apply.
        words: The word of each stimulus, in the same order.
    """
    table = pd.DataFrame({"level": feature.astype(object), "word": words})
    table = table[feature.notna().to_numpy()]
    pair_count = max(len(table) * (len(table) - 1) / 2, 1.0)
    same_level = _count_equal_pairs(table[["level"]]) / pair_count
    same_word = _count_equal_pairs(table[["word"]]) / pair_count
    same_both = _count_equal_pairs(table[["level", "word"]]) / pair_count

    # The squared correlation of the indicators of equal levels and of equal words. Their variances
    # are 0 if all pairs, or none, are equal.
    explained = 0.0
    variances = same_level * (1 - same_level) * same_word * (1 - same_word)
    if variances > 0:
        explained = (same_both - same_level * same_word) ** 2 / variances
    differing = 0.0  # P(different levels | same word)
    if same_word:
        differing = 1 - same_both / same_word
    one_word = 0.0  # P(same word | same level)
    if same_level:
        one_word = same_both / same_level
    commonest_words = []
    for _, words_of_level in table.groupby("level", sort=False)["word"]:
        commonest_words.append(str(words_of_level.mode().iloc[0]))
    return WordOverlap(name, explained, differing, one_word, commonest_words)


def _is_constant_for_each(column: pd.Series, feature: pd.Series) -> bool:
    """Return whether all stimuli of one value of a column have the same level of a feature."""
    values = pd.DataFrame({"column": column})
    with_levels = values.assign(level=feature.astype(object))
    return bool(joint_codes(with_levels).max() == joint_codes(values).max())


def _count_equal_pairs(columns: pd.DataFrame) -> float:
    """Return the number of pairs of different rows that agree in all columns."""
    # Among c rows of one combination of values, there are c (c - 1) / 2 pairs.
    counts = np.bincount(joint_codes(columns))
    return float((counts * (counts - 1) / 2).sum())


def select_names(
    source: str | Path, names: Names, available: Sequence[str], label: str = "feature"
) -> list[str]:
    """Return the names that are asked for, after a check that all of them are available.

    Args:
        source: What errors call the file or table that should have the names.
        names: The names that are asked for; None: all that are available.
        available: The names that there are.
        label: What errors call one of the names, such as "column".

    Raises:
        DataError: A name is not available, or there are too many.
    """
    if isinstance(names, str) or not isinstance(names, Iterable | None):
        raise DataError(f"{source}: {label}s={names!r} must be a list of names")
    selected = available if names is None else names
    count = len(selected)
    if count > MOST_FEATURES:
        raise DataError(
            f"{source} has {count:,} {label}s, and {MOST_FEATURES:,} can be compared; name those "
            "that matter"
        )
    for name in selected:
        if name not in available:
            raise DataError(f"{source} has no {label} {name}; {nearest(name, available)}")
    return list(selected)


def check_unique(source: str | Path, label: str, names: Sequence[str]) -> None:
    """Raise a DataError if a name occurs more than once; `label` is what errors call it."""
    repeated = duplicates(names)
    if repeated:
        raise DataError(f"{source}: the {label} {repeated[0]} occurs more than once")


def check_kinds(kinds: object, source: str | Path) -> None:
    """Check that `kinds` maps names of features to kinds of values.

    A kind is a name such as "nominal", or a list of the distinct levels of an ordinal feature in
    order. Whether the name of a kind is known is not checked here.

    Args:
        kinds: What a user gave.
        source: What errors call the stimuli.

    Raises:
        DataError: `kinds` is no mapping, or levels are no list of distinct ones.
    """
    if not isinstance(kinds, Mapping):
        raise DataError(
            f"{source}: kinds={kinds!r} must give kinds by feature, as {{'Number': 'nominal'}}"
        )
    for name, kind in kinds.items():
        if not isinstance(kind, str):
            try:
                check_levels(kind, named_setting(f"stimuli.kinds.{name}"))
            except ValueError as error:
                raise DataError(f"{source}: {error}") from None


def as_feature_column(column: pd.Series, name: str, kind: Kind | None, source: str) -> pd.Series:
    """Return the values of a feature as categories, or as float64 if it is numeric or continuous.

    Args:
        column: The values of a feature.
        name: The name of the feature.
        kind: The name of its kind, or its levels in order; None: the kind is inferred.
        source: What errors call the stimuli.

    Raises:
        DataError: The kind is not known or does not fit the values, or two levels have one name.
    """
    if not kind:
        kind = kind_of(column)
    if kind in NUMBER_KINDS:
        return _as_float64(column, name, source)
    if isinstance(kind, str) and kind not in KINDS:
        raise DataError(
            f"{source}: {named_setting(f'stimuli.kinds.{name}', kind)} is not known; "
            f"{nearest(kind, KINDS)}"
        )
    _check_level_names(column, name, source)
    # Categories of pandas already have levels, and an order if they are ordinal.
    if isinstance(column.dtype, pd.CategoricalDtype) and kind == kind_of(column):
        return column.cat.rename_categories(_level_name)

    texts = column.astype(object).map(_level_name, na_action="ignore")
    if isinstance(kind, str):
        levels = _levels_of(column)
    else:
        levels = list(dict.fromkeys(_level_name(level) for level in kind))
    # Numbers have an order by themselves. Names have none, unless `kind` lists them in order.
    if kind == "ordinal" and kind_of(column) not in NUMBER_KINDS:
        raise DataError(
            f"{source}: {name} is ordinal; give its levels in order: "
            f"{named_setting(f'stimuli.kinds.{name}', levels)}"
        )
    for row, level in enumerate(texts, 1):
        if pd.notna(level) and level not in levels:
            raise DataError(f"{source} row {row}: {name}={level} is not among its levels {levels}")
    return pd.Series(pd.Categorical(texts, levels, ordered=kind != "nominal"))


def joint_codes(features: pd.DataFrame) -> Int[np.ndarray, " n"]:
    """Return, for each row, a number for its combination of values: 0, 1, ... as they first occur.

    Rows have the same number if they are equal in all columns, where NaN equals only NaN. Without
    columns, all rows have the number 0.
    """
    joint = np.zeros(len(features), dtype=int)  # the numbers for the columns so far
    for _, column in features.items():
        value_indices = pd.factorize(column)[0] + 1  # 0 for NaN
        # A different number for each pair (combination of the columns so far, value of this one).
        # `factorize` makes indices of these numbers, so that they stay small.
        pair_numbers = joint * (value_indices.max() + 1) + value_indices
        joint = pd.factorize(pair_numbers)[0]
    return joint


def duplicates(names: Iterable[str]) -> list[str]:
    """Return the second and further occurrences of names, in order; [] if all are different."""
    index = pd.Index(names)
    return list(index[index.duplicated()])


def _as_float64(column: pd.Series, name: str, source: str) -> pd.Series:
    """Return the numbers of a column in float64; NaN, where the feature does not apply, stays NaN.

    Args:
        column: The values of a feature.
        name: The name of the feature.
        source: What errors call the stimuli.

    Raises:
        DataError: A value is not a finite number, or float64 would make two numbers one.
    """
    objects = column.astype(object)
    try:
        values = pd.to_numeric(objects, errors="coerce").astype("float64")
        # Without missing values, pandas leaves integers exact instead of making floats of them.
        exact_values = pd.to_numeric(objects.dropna(), errors="coerce")
        # Of integers beyond 64 bits, pandas makes floats in any case.
        is_whole = [isinstance(value, Integral) for value in objects]
        whole = objects[is_whole]
        # With fewer values, two integers have become one float.
        has_long_numbers = (
            values.nunique() < exact_values.nunique()
            or values[is_whole].nunique() < whole.nunique()
        )
    except OverflowError:  # a whole number of Python is beyond float64, which has 309 digits
        has_long_numbers = True
    if has_long_numbers:
        raise too_many_digits(f"{source}: {name}", name)
    is_no_number = values.isna() & column.notna()
    flawed_rows = np.flatnonzero(is_no_number | np.isinf(values))
    if len(flawed_rows):
        row = flawed_rows[0]
        raise DataError(
            f"{source} row {row + 1}: {name}={column.iloc[row]} is not a finite number; empty it "
            f"if the feature does not apply, or declare "
            f"{named_setting(f'stimuli.kinds.{name}', 'nominal')}"
        )
    return values


def too_many_digits(location: str, name: object) -> DataError:
    """Return the error for a feature with numbers that float64 cannot tell apart.

    Args:
        location: What the message calls the feature.
        name: The name of the feature, for the remedy.
    """
    return DataError(
        f"{location} has numbers of more than 16 digits; declare "
        f"{named_setting(f'stimuli.kinds.{name}', 'nominal')}"
    )


def _level_name(value: object) -> str:
    """Return the name of a level as a string; a float that is a whole number, 2.0, becomes "2"."""
    value = plain_cell(value)
    if isinstance(value, float | np.floating) and value.is_integer():
        return str(int(value))
    return str(value)


def _check_level_names(column: pd.Series, name: str, source: str) -> None:
    """Raise a DataError if two different levels, such as 1 and "1", have the same name.

    All categories of a categorical column are compared, also those that no row has.

    Args:
        column: The values of a feature.
        name: The name of the feature.
        source: What the error calls the stimuli.
    """
    levels: Iterable[object] = column.dropna().unique()
    if isinstance(column.dtype, pd.CategoricalDtype):
        levels = column.cat.categories
    level_of_name: dict[str, object] = {}
    for level in levels:
        level_name = _level_name(level)
        earlier = level_of_name.setdefault(level_name, level)
        if earlier != level:
            raise DataError(
                f"{source}: {name} has the levels {earlier!r} and {level!r}, which are written "
                "alike: make them one, as by frame[column].map(str), or rename one"
            )


def _levels_of(column: pd.Series) -> list[str]:
    """Return the names of the distinct levels of a column, without missing values.

    Numbers are ordered by size, and names in natural order ("a2" before "a10").
    """
    values = column.dropna()
    if kind_of(column) in NUMBER_KINDS:
        return [_level_name(value) for value in sorted(values.unique())]
    return sorted({_level_name(value) for value in values}, key=natural_order)


@dataclass(frozen=True, eq=False)
class FeatureCorrelation:
    """The correlations of f features with each other."""

    table: pd.DataFrame
    """(f, f), with the features as rows and columns."""

    def strongest(self, k: int) -> list[tuple[str, str, float]]:
        """Return the k pairs of features with the largest absolute correlation, largest first.

        Each is the names of two features and their correlation. Fewer than k are returned if there
        are fewer pairs.
        """
        names = [str(name) for name in self.table]
        values = self.table.to_numpy()
        pairs = []
        for i, j in combinations(range(len(names)), 2):
            pairs.append((names[i], names[j], float(values[i, j])))
        return sorted(pairs, key=lambda pair: -abs(pair[2]))[:k]


def controlled_stimuli(count: int, seed: int = 0, size: str = "small") -> Stimuli:
    """Return every word of `count` random sentences of a grammar as a stimulus with features.

    Args:
        count: How many sentences are drawn.
        seed: The same seed draws the same sentences.
        size: The grammar: "small", "large" or "crossed".

    Raises:
        DataError: There is no grammar of this size, or it has fewer sentences.
    """
    return from_sentences(controlled_sentences(count, seed, size), f"the {size} grammar")


def crossed_stimuli() -> Stimuli:
    """Return every word of the sentences of the crossed grammar as a stimulus with features."""
    return from_sentences(crossed_sentences(), "the crossed grammar")


def from_sentences(sentences: Sequence[Sentence], source: str = "the grammar") -> Stimuli:
    """Return every word of sentences as a stimulus, with the features of `GRAMMAR_FEATURES`.

    The text of a stimulus is its whole sentence. Ids are "SENTENCE:WORD", both counted from 1.

    Args:
        sentences: Sentences of the grammar.
        source: What errors call the stimuli.
    """
    rows = []
    spans = []
    words = []
    ids = []
    for sentence_number, sentence in enumerate(sentences, 1):
        question = str("question" in sentence.kind)
        start = 0
        for position, word in enumerate(sentence.words):
            stop = start + len(word.form)
            row = (
                len(word.form),
                word.gender,
                word.number,
                word.pos,
                word.tense,
                word.person,
                position,
                question,
            )
            rows.append(row)
            spans.append((start, stop))
            words.append(word.form)
            ids.append(f"{sentence_number}:{position + 1}")
            start = stop + 1  # a space
    texts = [sentence.text for sentence in sentences]
    words_per_sentence = [len(sentence.words) for sentence in sentences]
    sentence_of_word = np.repeat(np.arange(len(texts)), words_per_sentence)
    features = pd.DataFrame(rows, columns=GRAMMAR_FEATURES)
    return Stimuli(texts, sentence_of_word, spans, words, features, ids=ids, source=source)
