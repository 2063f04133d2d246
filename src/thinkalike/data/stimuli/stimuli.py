"""Stimuli: words in sentences, or anything else, with the features that describe them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.data.stimuli.columns import Kinds, duplicates, typed
from thinkalike.data.stimuli.correlation import FeatureCorrelation, correlate_features
from thinkalike.data.stimuli.sampling import balanced_rows
from thinkalike.errors import DataError, nearest
from thinkalike.kinds import NUMBERS, kind_of


class Codes(NamedTuple):
    """Features as numbers: a numeric value, or else the place of the level in `levels`; NaN where none applies."""

    table: Float[Tensor, "n f"]
    levels: dict[str, list[str]]  # of the features that are not numbers


@dataclass(frozen=True, eq=False)
class Stimuli:
    """Words in sentences and their features; NaN where a feature does not apply.

    Features become categories (nominal, ordinal), which keep their levels in every choice of stimuli, or float64
    (numeric, continuous). `kinds` need only say what the type and the values of a column do not, see
    `thinkalike.kinds`.

    Raises:
        DataError: rows or kinds do not fit together, an id is there twice, a span lies outside its text, or a number is
            infinite; the message begins with `source`.
    """

    texts: list[str]
    sentence: Int[np.ndarray, " n"]  # the number of the text that a stimulus is a part of
    span: list[tuple[int, int]]  # its characters there: first, one past the last
    words: list[str]
    features: pd.DataFrame
    kinds: Kinds = field(default_factory=dict)
    ids: list[str] = field(default_factory=list)  # none: 1, 2, ...
    source: str = "stimuli"

    def __post_init__(self) -> None:
        self._set(ids=self.ids or [str(row) for row in range(1, len(self.words) + 1)])
        self._set(features=self.features.rename(columns=str).reset_index(drop=True))
        self._check_rows()
        self._check_spans()
        for name in self.kinds:
            if name not in self.features:
                raise DataError(f"{self.source}: kinds has no feature {name}; {nearest(name, self.names)}")
        asked = {name: self.kinds.get(name) or kind_of(self.features[name]) for name in self.names}
        columns = {name: typed(self.features[name], name, kind, self.source) for name, kind in asked.items()}
        kinds = {name: kind if kind in NUMBERS else kind_of(columns[name]) for name, kind in asked.items()}
        self._set(features=pd.DataFrame(columns), kinds=kinds)

    def __len__(self) -> int:
        return len(self.words)

    @property
    def names(self) -> list[str]:
        """The names of the features."""
        return [str(name) for name in self.features]

    @property
    def groups(self) -> Int[Tensor, " n"]:
        """The number of the text of each stimulus, by which measures keep stimuli together."""
        return torch.from_numpy(np.ascontiguousarray(self.sentence))

    def take(self, rows: Any) -> Stimuli:
        """Return some of the stimuli, with the sentences that they need.

        Args:
            rows: an index of numpy: numbers, a mask or a slice.
        """
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
        """Draw n stimuli without repetition and return them in their order.

        Args:
            balance: features of which every combination that occurs comes equally often, up to one.

        Raises:
            DataError: there are fewer than n, or too few of a combination.
        """
        names = [balance] if isinstance(balance, str) else list(balance)
        for name in names:
            if name not in self.features:
                raise DataError(f"{self.source}: balance={name} is no feature; {nearest(name, self.names)}")
        if not 0 < n <= len(self):
            raise DataError(f"{self.source}: n={n} must lie between 1 and {len(self)}, the number of stimuli")
        return self.take(balanced_rows(self.features[names], n, seed, self.source))

    def codes(self) -> Codes:
        """Return the features as one table of float64; a level has the same number in every choice of stimuli."""
        categories = {name: self.features[name].cat for name in self.names if self.kinds[name] not in NUMBERS}
        numbers = self.features.assign(**{name: column.codes for name, column in categories.items()})
        table = torch.tensor(numbers.to_numpy(float)).where(torch.tensor(self.features.notna().to_numpy()), torch.nan)
        return Codes(table, {name: list(column.categories) for name, column in categories.items()})

    def correlation(self) -> FeatureCorrelation:
        """Return how strongly features go together over all pairs of stimuli; see `correlate_features`.

        Raises:
            DataError: a feature is alike in all pairs, or different in all.
        """
        return correlate_features(self.features, self.source)

    def fingerprint(self) -> str:
        """Return the SHA-256 of texts, spans and features, as 16 hexadecimal digits."""
        table, levels = self.codes()
        everything = (self.texts, self.sentence.tolist(), self.span, self.kinds, table.tolist(), levels)
        return hashlib.sha256(repr(everything).encode()).hexdigest()[:16]

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _check_rows(self) -> None:
        counts = {name: len(getattr(self, name)) for name in ("words", "sentence", "span", "features", "ids")}
        if len(set(counts.values())) > 1:
            raise DataError(f"{self.source}: row counts differ: {counts}; give each the same")
        if not len(self) or not len(self.features.columns):
            raise DataError(f"{self.source} is empty: {len(self)} stimuli with {len(self.names)} features")
        if repeated := duplicates(self.ids):
            raise DataError(f"{self.source}: the id {repeated[0]} occurs more than once; give each row its own")
        if repeated := duplicates(self.features.columns):
            raise DataError(f"{self.source}: the feature {repeated[0]} occurs more than once; rename one")

    def _check_spans(self) -> None:
        for row, (number, (start, stop)) in enumerate(zip(self.sentence, self.span, strict=True), 1):
            if not 0 <= number < len(self.texts):
                raise DataError(f"{self.source} row {row}: sentence {number} is not among the {len(self.texts)} texts")
            length = len(self.texts[number])
            if not 0 <= start < stop <= length:
                raise DataError(
                    f"{self.source} row {row}: the span {start}-{stop} is empty or outside its text of {length} "
                    "characters; count from 0, with stop one past the last"
                )
