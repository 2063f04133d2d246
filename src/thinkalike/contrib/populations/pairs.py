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

# The names of the classes of the pairs of either data set.
MNLI_CLASSES = ("entailment", "neutral", "contradiction")
HANS_CLASSES = ("entailment", "non-entailment")


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
        """Use "" for heuristics and subcases that were not given, and refuse an empty set.

        Raises:
            DataError: There is no pair.
        """
        unnamed = [""] * len(self)
        # The dataclass is frozen, so that attributes can only be set in this way.
        object.__setattr__(self, "heuristics", self.heuristics or unnamed)
        object.__setattr__(self, "subcases", self.subcases or unnamed)
        if len(self) == 0:
            raise DataError(f"{self.source} is empty: it has no labelled pairs")

    def __len__(self) -> int:
        return len(self.premises)

    def take(self, rows: Iterable[int]) -> Pairs:
        """Return the pairs at some indices, in the order of the indices."""
        indices = list(rows)
        return replace(
            self,
            premises=[self.premises[index] for index in indices],
            hypotheses=[self.hypotheses[index] for index in indices],
            labels=self.labels[indices],
            heuristics=[self.heuristics[index] for index in indices],
            subcases=[self.subcases[index] for index in indices],
        )

    def label_names(self) -> list[str]:
        """Return the name of the class of each pair."""
        return [self.classes[label] for label in self.labels.tolist()]

    def select(self, label: str | None = None, heuristic: str | None = None) -> Pairs:
        """Return the pairs of sentences that have a given label and a given heuristic.

        A pair of a challenge set names the heuristic that it tests, such as "lexical_overlap".

        Args:
            label: The name of the class; None: pairs of every class are returned.
            heuristic: The name of the heuristic; None: pairs of every heuristic are returned.

        Raises:
            DataError: There is no such pair. The message lists the labels and heuristics that
                occur together, with the number of their pairs.
        """
        labels_and_heuristics = list(zip(self.label_names(), self.heuristics, strict=True))
        rows = []
        for row, (label_of_row, heuristic_of_row) in enumerate(labels_and_heuristics):
            has_label = label is None or label == label_of_row
            has_heuristic = heuristic is None or heuristic == heuristic_of_row
            if has_label and has_heuristic:
                rows.append(row)
        if rows:
            return self.take(rows)

        counts = []
        for label_and_heuristic, count in sorted(Counter(labels_and_heuristics).items()):
            # The heuristic is "" if the data set names none.
            counts.append(f"{' '.join(label_and_heuristic).strip()} ({count})")
        raise DataError(
            f"{self.source} has no pairs of label={label}, heuristic={heuristic}; "
            f"there is: {', '.join(counts)}"
        )

    def subsets(self) -> dict[str, list[int]]:
        """Return the indices of pairs in each subset of a challenge set, by the subset's name.

        The subset "challenge" has all pairs. There is a further subset for each heuristic, for
        each label, and for each combination of both, with the name "heuristic, label". If the set
        names no heuristics, the heuristic of every pair is "".
        """
        indices_of_subset: dict[str, list[int]] = {"challenge": list(range(len(self)))}
        heuristics_and_labels = zip(self.heuristics, self.label_names(), strict=True)
        for index, (heuristic, label) in enumerate(heuristics_and_labels):
            for subset in (heuristic, label, f"{heuristic}, {label}"):
                indices_of_subset.setdefault(subset, []).append(index)
        return indices_of_subset

    def sample(self, n: int, seed: int) -> Pairs:
        """Draw n different pairs, and return them in their order."""
        return self.take(sorted(random.Random(seed).sample(range(len(self)), n)))

    def normalised_texts(self) -> list[str]:
        """Return each pair as one normalised text, by which copies of the pair are recognised.

        The text has both sentences in lower case, with each stretch of white space replaced by
        one space. The label is not part of it.
        """
        pairs = zip(self.premises, self.hypotheses, strict=True)
        return [f"{canonical(premise)}\n{canonical(hypothesis)}" for premise, hypothesis in pairs]

    def without(self, other_texts: Container[str], other_name: str) -> Pairs:
        """Return the pairs that have no copy in another set of pairs.

        A copy has the same two sentences, up to case and white space. Labels are not compared. A
        warning says how many pairs were left out, if any.

        Args:
            other_texts: The pairs of the other set, each as one text that `normalised_texts` made.
            other_name: What messages call the other set; `self.source` is the name of this one.

        Raises:
            DataError: All pairs have a copy in the other set.
        """
        rows = [row for row, text in enumerate(self.normalised_texts()) if text not in other_texts]
        if not rows:
            raise DataError(f"{self.source}: all {len(self)} pairs are also in {other_name}")
        repeated = len(self) - len(rows)
        if repeated:
            log.warning(
                "%s: left out %s of %s pairs, which are also in %s",
                self.source,
                repeated,
                len(self),
                other_name,
            )
        return self.take(rows)

    def fingerprint(self) -> str:
        """Return 16 hexadecimal digits of the SHA-256 of everything but the name of the set.

        Characters that UTF-8 cannot encode (lone surrogates) count as "?".
        """
        content = (
            self.premises,
            self.hypotheses,
            self.labels.tolist(),
            self.classes,
            self.heuristics,
            self.subcases,
        )
        return hashlib.sha256(repr(content).encode(errors="replace")).hexdigest()[:16]
