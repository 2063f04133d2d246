"""Pairs of a premise and a hypothesis with labels, for natural language inference.

Their classes are the three of MNLI (Williams, Nangia and Bowman 2018) or the two of HANS (McCoy,
Pavlick and Linzen 2019). HANS names for each pair a heuristic that is wrong for half of its pairs.
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

from thinkalike.data.documents import canonical
from thinkalike.errors import DataError

log = logging.getLogger(__name__)

MNLI = ("entailment", "neutral", "contradiction")
HANS = ("entailment", "non-entailment")


@dataclass(frozen=True, eq=False)
class Pairs:
    """Premises, hypotheses, and the class of each pair.

    Attributes:
        premises, hypotheses: The two texts of each pair.
        labels: The class of each pair, as an index in `classes`.
        classes: The names of the classes.
        heuristics: The heuristic of each pair, or "" where the set names none.
        subcases: The kind of each pair within its heuristic, or "".
        source: What messages call the set.

    Raises:
        DataError: There is no pair.
    """

    premises: list[str]
    hypotheses: list[str]
    labels: Int[Tensor, " n"]
    classes: tuple[str, ...]
    heuristics: list[str] = field(default_factory=list)
    subcases: list[str] = field(default_factory=list)
    source: str = "pairs"

    def __post_init__(self) -> None:
        """Fill in empty heuristics and subcases, and refuse an empty set."""
        unnamed = [""] * len(self)
        object.__setattr__(self, "heuristics", self.heuristics or unnamed)
        object.__setattr__(self, "subcases", self.subcases or unnamed)
        if len(self) == 0:
            raise DataError(f"{self.source} is empty: it has no labelled pairs")

    def __len__(self) -> int:
        return len(self.premises)

    def take(self, rows: Iterable[int]) -> Pairs:
        """Return the pairs at some indices, in this order."""
        rows = list(rows)
        return replace(
            self,
            premises=[self.premises[row] for row in rows],
            hypotheses=[self.hypotheses[row] for row in rows],
            labels=self.labels[rows],
            heuristics=[self.heuristics[row] for row in rows],
            subcases=[self.subcases[row] for row in rows],
        )

    def label_names(self) -> list[str]:
        """Return the name of the class of each pair."""
        return [self.classes[label] for label in self.labels.tolist()]

    def select(self, label: str | None = None, heuristic: str | None = None) -> Pairs:
        """Return the pairs of a class, of a heuristic, or of both.

        Args:
            label: The name of the class; None: any.
            heuristic: The name of the heuristic; None: any.

        Raises:
            DataError: No pair is left; the message lists what there is.
        """
        kinds = list(zip(self.label_names(), self.heuristics, strict=True))
        rows = []
        for row, (label_of_row, heuristic_of_row) in enumerate(kinds):
            if label in (None, label_of_row) and heuristic in (None, heuristic_of_row):
                rows.append(row)
        if not rows:
            counts = [
                f"{' '.join(kind).strip()} ({n})" for kind, n in sorted(Counter(kinds).items())
            ]
            raise DataError(
                f"{self.source} has no pairs of label={label}, heuristic={heuristic}; "
                f"there is: {', '.join(counts)}"
            )
        return self.take(rows)

    def subsets(self) -> dict[str, list[int]]:
        """Return the indices of pairs in each subset, by the name of the subset.

        The subsets are "challenge" (all pairs), each heuristic, each label, and each combination
        "heuristic, label".
        """
        rows: dict[str, list[int]] = {"challenge": list(range(len(self)))}
        kinds = zip(self.heuristics, self.label_names(), strict=True)
        for row, (heuristic, label) in enumerate(kinds):
            for name in (heuristic, label, f"{heuristic}, {label}"):
                rows.setdefault(name, []).append(row)
        return rows

    def sample(self, n: int, seed: int) -> Pairs:
        """Draw n different pairs, and return them in their order."""
        return self.take(sorted(random.Random(seed).sample(range(len(self)), n)))

    def canonical(self) -> list[str]:
        """Return each pair as one normalised text, by which copies of it are recognised.

        The text has both sentences in lower case, with single spaces for white space, and no
        label.
        """
        pairs = zip(self.premises, self.hypotheses, strict=True)
        return [f"{canonical(premise)}\n{canonical(hypothesis)}" for premise, hypothesis in pairs]

    def without(self, canonical_pairs: Container[str], source: str) -> Pairs:
        """Return the pairs that have no copy in another set of pairs, whatever their labels.

        A warning says how many were left out.

        Args:
            canonical_pairs: The pairs of the other set as normalised texts, see `canonical`.
            source: The name of the other set in messages.

        Raises:
            DataError: All pairs have a copy in the other set.
        """
        rows = [row for row, pair in enumerate(self.canonical()) if pair not in canonical_pairs]
        if not rows:
            raise DataError(f"{self.source}: all {len(self)} pairs are also in {source}")
        repeated = len(self) - len(rows)
        if repeated:
            log.warning(
                "%s: left out %s of %s pairs, which are also in %s",
                self.source,
                repeated,
                len(self),
                source,
            )
        return self.take(rows)

    def fingerprint(self) -> str:
        """Return the SHA-256 of texts, labels, heuristics and subcases: 16 hexadecimal digits."""
        content = (
            self.premises,
            self.hypotheses,
            self.labels.tolist(),
            self.classes,
            self.heuristics,
            self.subcases,
        )
        return hashlib.sha256(repr(content).encode(errors="replace")).hexdigest()[:16]
