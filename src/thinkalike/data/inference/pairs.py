"""Pairs of a premise and a hypothesis with labels, for natural language inference.

Their classes are the three of MNLI (Williams, Nangia and Bowman 2018) or the two of HANS (McCoy, Pavlick and Linzen
2019), which names in each row a heuristic that gets half of its rows wrong.
"""

from __future__ import annotations

import hashlib
import logging
import random
from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass, field, replace

from jaxtyping import Int
from torch import Tensor

from thinkalike.data.text.documents import canonical
from thinkalike.errors import DataError

log = logging.getLogger(__name__)

MNLI = ("entailment", "neutral", "contradiction")
HANS = ("entailment", "non-entailment")


@dataclass(frozen=True, eq=False)
class Pairs:
    """Premises, hypotheses, and the class of each pair.

    Raises:
        DataError: there are no pairs, or the fields do not fit together; the message begins with `source`.
    """

    premises: list[str]
    hypotheses: list[str]
    labels: Int[Tensor, " n"]  # places in `classes`
    classes: tuple[str, ...]
    heuristics: list[str] = field(default_factory=list)  # "" where there is none
    subcases: list[str] = field(default_factory=list)
    source: str = "pairs"
    unlabelled: int = 0  # rows of the source that were left out because people did not agree on a label
    repeated: int = 0  # pairs of the source that were left out because those to fit on have them, too

    def __post_init__(self) -> None:
        for name in ("heuristics", "subcases"):
            object.__setattr__(self, name, getattr(self, name) or [""] * len(self))
        names = ("premises", "hypotheses", "labels", "heuristics", "subcases")
        counts = {name: len(getattr(self, name)) for name in names}
        if len(set(counts.values())) > 1:
            raise DataError(f"{self.source}: row counts differ: {counts}; give each the same")
        if not len(self):
            raise DataError(f"{self.source} is empty: it has no labelled pairs; give a file that has some")
        if self.labels.min() < 0 or self.labels.max() >= len(self.classes):
            wrong = next(label for label in self.labels.tolist() if not 0 <= label < len(self.classes))
            raise DataError(f"{self.source}: label {wrong} is not the place of one of the classes {self.classes}")

    def __len__(self) -> int:
        return len(self.premises)

    def take(self, rows: Iterable[int]) -> Pairs:
        """Return the pairs at these places, in this order."""
        rows = list(rows)
        premises, hypotheses, heuristics, subcases = (
            [texts[row] for row in rows] for texts in (self.premises, self.hypotheses, self.heuristics, self.subcases)
        )
        return replace(
            self,
            premises=premises,
            hypotheses=hypotheses,
            labels=self.labels[rows],
            heuristics=heuristics,
            subcases=subcases,
        )

    def select(self, label: str | None = None, heuristic: str | None = None) -> Pairs:
        """Return the pairs of a class, of a heuristic, or of both.

        Raises:
            DataError: nothing is left; the message says what there is.
        """
        labels = [self.classes[place] for place in self.labels.tolist()]
        there = list(zip(labels, self.heuristics, strict=True))
        kept = [row for row, (is_, of) in enumerate(there) if label in (None, is_) and heuristic in (None, of)]
        if not kept:
            counts = ", ".join(f"{' '.join(kind).strip()} ({count})" for kind, count in sorted(Counter(there).items()))
            raise DataError(f"{self.source} has no pairs of label={label}, heuristic={heuristic}; there is: {counts}")
        return self.take(kept)

    def sample(self, n: int, seed: int) -> Pairs:
        """Draw n different pairs and return them in their order.

        Raises:
            DataError: there are fewer than n.
        """
        if not 0 < n <= len(self):
            raise DataError(f"{self.source}: n={n} must lie between 1 and {len(self)}, the pairs that there are")
        return self.take(sorted(random.Random(seed).sample(range(len(self)), n)))

    def canonical(self) -> list[str]:
        """Return each pair without its label, its case and its kinds of white space: what copies have in common."""
        return [
            f"{canonical(premise)}\n{canonical(hypothesis)}"
            for premise, hypothesis in zip(self.premises, self.hypotheses, strict=True)
        ]

    def without(self, others: Container[str], source: str) -> Pairs:
        """Return the pairs of which no copy is among others, whatever their labels.

        Args:
            others: canonical pairs.
            source: what messages call them.

        Raises:
            DataError: nothing is left.
        """
        kept = [row for row, pair in enumerate(self.canonical()) if pair not in others]
        if not kept:
            raise DataError(f"{self.source}: all {len(self)} pairs are also in {source}; give pairs that are not")
        if repeated := len(self) - len(kept):
            log.warning("%s: left out %s of %s pairs, which are also in %s", self.source, repeated, len(self), source)
        return replace(self.take(kept), repeated=self.repeated + repeated)

    def fingerprint(self) -> str:
        """Return the SHA-256 of texts, labels, heuristics and subcases, as 16 hexadecimal digits."""
        labels = self.labels.tolist()
        everything = (self.premises, self.hypotheses, labels, self.classes, self.heuristics, self.subcases)
        return hashlib.sha256(repr(everything).encode(errors="replace")).hexdigest()[:16]
