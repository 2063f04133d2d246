"""Stimuli: words in sentences, or anything else, with the features that describe them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.data.grammar import Sentence, controlled_sentences, crossed_sentences
from thinkalike.errors import DataError, natural_order, nearest
from thinkalike.measures.kinds import KINDS, MOST_FEATURES, NUMBERS, check_levels, kind_of

Kind = str | Sequence[str]  # one of KINDS, or the levels of an ordinal feature in order
Kinds = Mapping[str, Kind]  # by feature
Names = Sequence[str] | None  # None stands for all that there are
NAMED = 4  # words in a sentence
Span = tuple[int, int]  # characters: first, one past the last


# The share of the variance of a feature's differences that differences of words explain. Beyond one half, a model that
# knows nothing but words owes most of what the feature explains to them. Two words for each of two levels have .33.
WORD_SHARE = 0.5


class WordOverlap(NamedTuple):
    """How far a feature can be told from the words of the stimuli that it applies to.

    Attributes:
        explained: The squared correlation, over pairs of stimuli, of different levels and different words.
        differing: The share of pairs of one word that differ in the feature; 0 if the word determines the feature.
        one_word: The share of pairs of one level that are one word; 1 if every level is one word.
        words: The commonest word of each level.
    """

    feature: str
    explained: float
    differing: float
    one_word: float
    words: list[str]

    @property
    def is_confounded(self) -> bool:
        """Whether importance of the feature may be that of word identity."""
        is_one_word = self.one_word == 1 and self.differing == 0  # also of a single level, which has no correlation
        return is_one_word or self.explained >= WORD_SHARE

    def __str__(self) -> str:
        words = ", ".join(map(repr, self.words[:NAMED])) + ", ..." * (len(self.words) > NAMED)
        if self.one_word == 1:
            how = f"every level is one word ({words})"
        else:
            how = f"its levels are mostly one word each ({words}), and words explain {self.explained:.0%} of it"
        known = f"{self.feature}: {how}, so its importance may be the word's"
        return f"{known}; these stimuli cannot tell it from the word" if self.differing == 0 else known


class Codes(NamedTuple):
    """Features as numbers: a numeric value, or else the place of the level in `levels`; NaN where none applies."""

    table: Float[Tensor, "n f"]
    levels: dict[str, list[str]]  # of the features that are not numbers


@dataclass(frozen=True, eq=False)
class Stimuli:
    """Words in sentences and their features; NaN where a feature does not apply.

    Features become categories (nominal, ordinal), which keep their levels in every choice of stimuli, or float64
    (numeric, continuous). `kinds` holds those that differ from what `thinkalike.measures.kinds` infers.

    Raises:
        DataError: rows or kinds do not fit together, an id occurs twice, a span lies outside its text, or a number is
            infinite; the message begins with `source`.
    """

    texts: list[str]
    sentence: Int[np.ndarray, " n"]  # the number of the text that a stimulus is a part of
    span: list[Span]  # its characters there
    words: list[str]
    features: pd.DataFrame
    kinds: Kinds = field(default_factory=dict)
    ids: list[str] = field(default_factory=list)  # none: 1, 2, ...
    source: str = "stimuli"
    token: str = "last"  # the state of a stimulus is that of its last token, of its first, or their mean

    def __post_init__(self) -> None:
        check_kinds(self.kinds, self.source)
        ids = self.ids or [str(row) for row in range(1, len(self.words) + 1)]
        vars(self).update(ids=ids, features=self.features.rename(columns=str).reset_index(drop=True))
        self._check()
        for name, column in self.features.items():
            if any(isinstance(value, complex) for value in column.astype(object)):
                raise DataError(f"{self.source}: {name} has complex numbers; give their real and imaginary parts as "
                                "two features")  # fmt: skip
        kinds = {name: self.kinds.get(name) or kind_of(self.features[name]) for name in self.names}
        columns = {name: typed(self.features[name], name, kind, self.source) for name, kind in kinds.items()}
        kinds = {name: kind if kind in NUMBERS else kind_of(columns[name]) for name, kind in kinds.items()}
        vars(self).update(features=pd.DataFrame(columns), kinds=kinds)

    def __len__(self) -> int:
        return len(self.words)

    @property
    def names(self) -> list[str]:
        return [str(name) for name in self.features]

    @property
    def groups(self) -> Int[Tensor, " n"]:
        """The number of the text of each stimulus, by which measures keep stimuli together."""
        return torch.from_numpy(np.ascontiguousarray(self.sentence))

    def take(self, rows: Any) -> Stimuli:
        """Return the stimuli of an index of numpy (numbers, a mask or a slice), with the sentences that they need."""
        rows = np.arange(len(self))[rows]
        used, sentence = np.unique(self.sentence[rows], return_inverse=True)
        return replace(
            self,
            texts=[self.texts[number] for number in used],
            sentence=sentence,
            span=[self.span[row] for row in rows],
            words=[self.words[row] for row in rows],
            features=self.features.iloc[rows],
            ids=[self.ids[row] for row in rows],
        )

    def sample(self, n: int, seed: int = 0, balance: str | Sequence[str] = ()) -> Stimuli:
        """Draw n stimuli without repetition and return them in their order; too few are a DataError.

        Combinations of the features in `balance` come equally often, up to one.
        """
        names = chosen(self.source, [balance] if isinstance(balance, str) else balance, self.names)
        cell = joint_codes(self.features[names])
        counts = np.bincount(cell)
        most = len(counts) * counts.min() + (counts > counts.min()).sum()
        if not 0 < n <= most:
            rarest = f"the rarest of {len(counts)} combinations of {names} has {counts.min()} of {len(self)} stimuli"
            raise DataError(f"{self.source}: sample={n} must lie between 1 and {most}; {rarest}")
        rng = np.random.default_rng(seed)
        share, extra = divmod(n, len(counts))
        wanted = np.full(len(counts), share)
        wanted[rng.permutation(np.flatnonzero(counts > share))[:extra]] += 1
        shuffled = rng.permutation(len(self))
        drawn = [shuffled[cell[shuffled] == number][:count] for number, count in enumerate(wanted)]
        return self.take(np.sort(np.concatenate(drawn)))

    def codes(self) -> Codes:
        """Return the features as one table of float64; a level has the same number in every choice of stimuli."""
        categories = {name: self.features[name].cat for name in self.names if self.kinds[name] not in NUMBERS}
        numbers = self.features.assign(**{name: column.codes for name, column in categories.items()})
        table = torch.tensor(numbers.to_numpy(float)).where(torch.tensor(self.features.notna().to_numpy()), torch.nan)
        return Codes(table, {name: list(column.categories) for name, column in categories.items()})

    def varied(self) -> Stimuli:
        """Return the stimuli; a feature with one level only is a DataError."""
        for name, column in self.features.items():
            if column.nunique(dropna=False) < 2:
                raise DataError(f"{self.source}: {name} has one level only, {column.iloc[0]}; leave it out of features")
        return self

    def correlation(self) -> FeatureCorrelation:
        """Return the Pearson correlation of Δ_f and Δ_g over all pairs i < j of stimuli, for all features f and g.

        Δ_f(i, j) = 1[f_i ≠ f_j], and NaN equals NaN only. The Δ are the regressors of a metric-learning encoding model,
        which can hardly tell correlated ones apart (Salle et al. 2024, figure S5). Pairs alike in both features are
        counted as Σ c(c-1)/2 over the counts c of their joint levels. One that is alike in all is a DataError.
        """
        counts = [[np.bincount(joint_codes(self.features[[f, g]])) for g in self.names] for f in self.names]
        alike = np.array([[float((each * (each - 1) / 2).sum()) for each in row] for row in counts])
        alike /= max(len(self) * (len(self) - 1) / 2, 1)
        share = alike.diagonal()
        if useless := [name for name, part in zip(self.names, share, strict=True) if not 0 < part < 1]:
            raise DataError(f"{self.source}: {useless[0]} has one level or differs between all stimuli; leave it out")
        deviation = np.sqrt(share * (1 - share))
        correlation = (alike - np.outer(share, share)) / np.outer(deviation, deviation)
        return FeatureCorrelation(pd.DataFrame(correlation, self.names, self.names))

    def confounded_with_words(self) -> list[WordOverlap]:
        """Return the features whose importance may be that of word identity; upper and lower case do not differ.

        Continuous features are left out: an encoding model compares them by size and not by equality.
        """
        words = pd.Series(self.words).str.casefold()
        names = [name for name in self.names if self.kinds[name] != "continuous"]
        overlaps = [_word_overlap(name, self.features[name], words) for name in names]
        return [overlap for overlap in overlaps if overlap.is_confounded]

    def fingerprint(self) -> str:
        """Return the SHA-256 of texts, spans and features, as 16 hexadecimal digits."""
        table, levels = self.codes()
        token = () if self.token == "last" else (self.token,)
        everything = (self.texts, self.sentence.tolist(), self.span, self.kinds, table.tolist(), levels, *token)
        return hashlib.sha256(repr(everything).encode()).hexdigest()[:16]

    def _check(self) -> None:
        counts = {name: len(getattr(self, name)) for name in ("words", "sentence", "span", "features", "ids")}
        if len(set(counts.values())) > 1:
            raise DataError(f"{self.source}: row counts differ: {counts}")
        if not len(self):
            raise DataError(f"{self.source} has no stimuli")
        if not self.names:
            raise DataError(
                f"{self.source} has {len(self):,} stimuli and no feature; add a column of one beside their texts and "
                "words, or name one or more in features"
            )
        chosen(self.source, list(self.kinds), self.names)
        for what, names in (("id", self.ids), ("feature", self.names)):
            if repeated := duplicates(names):
                raise DataError(f"{self.source}: the {what} {repeated[0]} occurs more than once")
        for row, (number, (start, stop)) in enumerate(zip(self.sentence, self.span, strict=True), 1):
            length = len(self.texts[number])
            if not 0 <= start < stop <= length:
                raise DataError(f"{self.source} row {row}: the span {start}-{stop} is empty or outside its text")


def _word_overlap(name: str, feature: pd.Series, words: pd.Series) -> WordOverlap:
    table = pd.DataFrame({"level": feature.astype(object), "word": words})[feature.notna().to_numpy()]
    pairs = max(len(table) * (len(table) - 1) / 2, 1.0)
    alike = [_alike_pairs(table[columns]) / pairs for columns in (["level"], ["word"], ["level", "word"])]
    same_level, same_word, same_both = alike
    spread = same_level * (1 - same_level) * same_word * (1 - same_word)
    return WordOverlap(
        name,
        explained=(same_both - same_level * same_word) ** 2 / spread if spread > 0 else 0.0,
        differing=1 - same_both / same_word if same_word else 0.0,
        one_word=same_both / same_level if same_level else 0.0,
        words=[str(own.mode().iloc[0]) for _, own in table.groupby("level", sort=False)["word"]],
    )


def _alike_pairs(columns: pd.DataFrame) -> float:
    """Return the number of pairs of rows that agree in all columns."""
    counts = np.bincount(joint_codes(columns))
    return float((counts * (counts - 1) / 2).sum())


def chosen(source: str | Path, names: Names, there: Sequence[str], what: str = "feature") -> list[str]:
    """Return the names that are asked for, or all; one that is not there is a DataError, and so are too many."""
    if isinstance(names, str) or not isinstance(names, Iterable | None):
        raise DataError(f"{source}: {what}s={names!r} must be a list of names")
    count = len(there if names is None else names)
    if count > MOST_FEATURES:
        raise DataError(
            f"{source} has {count:,} {what}s, and {MOST_FEATURES:,} can be compared; name those that matter"
        )
    for name in names or []:
        if name not in there:
            raise DataError(f"{source} has no {what} {name}; {nearest(name, there)}")
    return list(there if names is None else names)


def check_kinds(kinds: Any, source: str | Path) -> None:
    """Raise a DataError unless these are kinds by feature: a name of a kind, or different levels in order."""
    if not isinstance(kinds, Mapping):
        raise DataError(f"{source}: kinds={kinds!r} must give kinds by feature, as {{'Number': 'nominal'}}")
    for name, kind in kinds.items():
        if not isinstance(kind, str):
            try:
                check_levels(kind, f"kinds.{name}")
            except ValueError as error:
                raise DataError(f"{source}: {error}") from None


def typed(column: pd.Series, name: str, kind: Kind | None, source: str) -> pd.Series:
    """Return a column as categories, or as float64 if it is numeric or continuous; without a kind it is inferred."""
    kind = kind or kind_of(column)
    if kind in NUMBERS:
        return _numbers(column, name, source)
    if isinstance(kind, str) and kind not in KINDS:
        raise DataError(f"{source}: kinds.{name}={kind} is not known; {nearest(kind, KINDS)}")
    if isinstance(column.dtype, pd.CategoricalDtype) and kind == kind_of(column):
        return column.cat.rename_categories(_level)
    texts = column.astype(object).map(_level, na_action="ignore")
    levels = _levels(column) if isinstance(kind, str) else list(dict.fromkeys(map(_level, kind)))
    if kind == "ordinal" and not pd.api.types.is_numeric_dtype(column):
        raise DataError(f"{source}: {name} is ordinal; give its levels in order: kinds.{name}={levels}")
    for row, level in enumerate(texts, 1):
        if pd.notna(level) and level not in levels:
            raise DataError(f"{source} row {row}: {name}={level} is not among its levels {levels}")
    return pd.Series(pd.Categorical(texts, levels, ordered=kind != "nominal"))


def joint_codes(features: pd.DataFrame) -> Int[np.ndarray, " n"]:
    """Number the combinations of values that occur, and return the number of each row; NaN is a value of its own."""
    joint = np.zeros(len(features), dtype=int)
    for _, column in features.items():
        codes = pd.factorize(column)[0] + 1
        joint = pd.factorize(joint * (codes.max() + 1) + codes)[0]
    return joint


def duplicates(names: Iterable[str]) -> list[str]:
    index = pd.Index(names)
    return list(index[index.duplicated()])


def _numbers(column: pd.Series, name: str, source: str) -> pd.Series:
    exact = pd.to_numeric(column.astype(object), errors="coerce")
    if (values := exact.astype("float64")).nunique() < exact.nunique():
        raise DataError(f"{source}: {name} has numbers of more than 16 digits; declare kinds.{name}=nominal")
    for row in np.flatnonzero((values.isna() & column.notna()) | np.isinf(values))[:1]:
        found = f"{source} row {row + 1}: {name}={column.iloc[row]} is not a finite number"
        raise DataError(f"{found}; empty it if the feature does not apply, or declare kinds.{name}=nominal")
    return values


def _level(value: Any) -> str:
    """Return the name of a level; a whole number loses its point."""
    return str(int(value)) if isinstance(value, float | np.floating) and value.is_integer() else str(value)


def _levels(column: pd.Series) -> list[str]:
    """Return the levels: numbers by size, names in natural order."""
    values = column.dropna().unique()
    if kind_of(column) in NUMBERS:
        return [_level(value) for value in sorted(values)]
    return sorted({_level(value) for value in values}, key=natural_order)


@dataclass(frozen=True, eq=False)
class FeatureCorrelation:
    """The correlations of all features with all."""

    table: pd.DataFrame  # (f, f), rows and columns named

    def strongest(self, k: int) -> list[tuple[str, str, float]]:
        """Return the k pairs of features whose correlation is furthest from 0, the strongest first."""
        names, values = list(map(str, self.table)), self.table.to_numpy()
        pairs = [(names[i], names[j], float(values[i, j])) for i, j in combinations(range(len(names)), 2)]
        return sorted(pairs, key=lambda pair: -abs(pair[2]))[:k]


FEATURES = ["Word length", "Gender", "Number", "PoS", "Tense", "Person", "Word position", "Question"]  # table S1


def controlled_stimuli(count: int, seed: int = 0, size: str = "small") -> Stimuli:
    """Return every word of `count` controlled sentences; as many, and a grammar of this size, must be there."""
    return from_sentences(controlled_sentences(count, seed, size), f"the {size} grammar")


def crossed_stimuli() -> Stimuli:
    """Return every word of the sentences of the crossed grammar."""
    return from_sentences(crossed_sentences(), "the crossed grammar")


def from_sentences(sentences: Sequence[Sentence], source: str = "the grammar") -> Stimuli:
    """Return every word of these sentences; messages of errors begin with `source`."""
    rows, span = [], []
    for each in sentences:
        start = 0
        for place, word in enumerate(each.words):
            length, question = len(word.form), str("question" in each.kind)
            rows.append((length, word.gender, word.number, word.pos, word.tense, word.person, place, question))
            span.append((start, start + length))
            start += length + 1
    texts, words = [each.text for each in sentences], [word.form for each in sentences for word in each.words]
    sentence = np.repeat(np.arange(len(texts)), [len(each.words) for each in sentences])
    ids = [f"{n}:{place}" for n, each in enumerate(sentences, 1) for place in range(1, len(each.words) + 1)]
    return Stimuli(texts, sentence, span, words, pd.DataFrame(rows, columns=FEATURES), ids=ids, source=source)
