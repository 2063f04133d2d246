"""Natural language inference: pairs of a premise and a hypothesis with labels, from MNLI and HANS.

MNLI: Williams, Nangia and Bowman 2018, three classes. HANS: McCoy, Pavlick and Linzen 2019, two classes, and in each
row a heuristic that gets half of its rows wrong.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from thinkalike.data.sources import streamed
from thinkalike.data.tables import read_with
from thinkalike.errors import DataError, nearest

log = logging.getLogger(__name__)

MNLI = ("entailment", "neutral", "contradiction")
HANS = ("entailment", "non-entailment")

Record = Mapping[str, Any]  # a row, by column


@dataclass(frozen=True, eq=False)
class Pairs:
    """Premises and hypotheses, and the class of each pair.

    Raises:
        DataError: there are none, or the fields do not fit together; the message begins with `source`.
    """

    premises: list[str]
    hypotheses: list[str]
    labels: Int[Tensor, " n"]  # places in `classes`
    classes: tuple[str, ...]
    heuristics: list[str] = field(default_factory=list)  # "" where there is none
    subcases: list[str] = field(default_factory=list)
    source: str = "pairs"
    unlabelled: int = 0  # rows of the source that were left out because people did not agree on a label

    def __post_init__(self) -> None:
        for name in ("heuristics", "subcases"):
            object.__setattr__(self, name, getattr(self, name) or [""] * len(self))
        names = ("premises", "hypotheses", "labels", "heuristics", "subcases")
        counts = {name: len(getattr(self, name)) for name in names}
        if len(set(counts.values())) > 1:
            raise DataError(f"{self.source}: row counts differ: {counts}")
        if not len(self):
            raise DataError(f"{self.source} is empty: it has no labelled pairs")
        if self.labels.min() < 0 or self.labels.max() >= len(self.classes):
            wrong = next(label for label in self.labels.tolist() if not 0 <= label < len(self.classes))
            raise DataError(f"{self.source}: label {wrong} is not the place of one of the classes {self.classes}")

    def __len__(self) -> int:
        return len(self.premises)

    def take(self, rows: Iterable[int]) -> Pairs:
        """The pairs at these places, in this order."""
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
        """The pairs of a class, of a heuristic, or of both.

        Raises:
            DataError: nothing is left; it says what there is.
        """
        labels = [self.classes[place] for place in self.labels.tolist()]
        there = list(zip(labels, self.heuristics, strict=True))
        kept = [row for row, (is_, of) in enumerate(there) if label in (None, is_) and heuristic in (None, of)]
        if not kept:
            counts = ", ".join(f"{' '.join(kind).strip()} ({count})" for kind, count in sorted(Counter(there).items()))
            raise DataError(f"{self.source} has no pairs of label={label}, heuristic={heuristic}; there is: {counts}")
        return self.take(kept)

    def sample(self, n: int, seed: int) -> Pairs:
        """n different pairs, in the order that they have here.

        Raises:
            DataError: there are fewer.
        """
        if not 0 < n <= len(self):
            raise DataError(f"{self.source}: n={n} must lie between 1 and {len(self)}, the pairs that there are")
        return self.take(sorted(random.Random(seed).sample(range(len(self)), n)))

    def fingerprint(self) -> str:
        """SHA-256 of texts, labels, heuristics and subcases, as 16 hexadecimal digits."""
        content = (self.premises, self.hypotheses, self.labels.tolist(), self.classes, self.heuristics, self.subcases)
        return hashlib.sha256(repr(content).encode(errors="replace")).hexdigest()[:16]


# --------------------------------------------------------------------------------------------------------------- files


def read_mnli(path: str | Path) -> Pairs:
    """The pairs of an MNLI file: `.jsonl` and `.txt` as published, `.tsv` of GLUE, `.parquet` of the hub.

    Raises:
        DataError: the file cannot be read or is empty, a line is damaged, a column is missing or a label is unknown.
    """
    return _pairs(_records(Path(path)), MNLI, str(path))


def read_hans(path: str | Path) -> Pairs:
    """The pairs of a HANS file: `.txt` and `.jsonl` as published, `.parquet` of the hub.

    Raises:
        DataError: as in `read_mnli`.
    """
    return _pairs(_records(Path(path)), HANS, str(path))


def _records(path: Path) -> Iterable[Record]:
    return read_with(path, {".jsonl": _lines, ".tsv": _separated, ".txt": _separated, ".parquet": _parquet})


def _lines(path: Path) -> list[Record]:
    found: list[Record] = []
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), 1):
        if line.strip():
            try:
                found.append(dict(json.loads(line)))
            except (ValueError, TypeError) as error:
                raise DataError(f"{path} line {number} is no JSON object: {error}") from None
    return found


def _separated(path: Path) -> list[Record]:
    """Cells between tabs. A quotation mark is a character like any other: GLUE has ones that are never closed."""
    lines = path.read_text(encoding="utf-8-sig").split("\n")  # splitlines would cut at U+2028, too
    header, *rows = [line.split("\t") for line in lines]
    for number, row in enumerate(rows, 2):
        if row != [""] and len(row) != len(header):
            raise DataError(f"{path} line {number} has {len(row)} cells, the header {len(header)}")
    return [dict(zip(header, row, strict=True)) for row in rows if row != [""]]


def _parquet(path: Path) -> list[Record]:
    import pyarrow.parquet

    return pyarrow.parquet.read_table(path).to_pylist()


# ----------------------------------------------------------------------------------------------------------------- hub


class _HubSet(NamedTuple):
    name: str
    classes: tuple[str, ...]
    split: str
    revision: str | None = None


HUB = {
    "mnli": _HubSet("nyu-mll/multi_nli", MNLI, "validation_matched"),
    "hans": _HubSet("jhu-cogsci/hans", HANS, "validation", "refs/convert/parquet"),  # its main branch is a script
}


def hub_pairs(name: str, split: str | None = None) -> Pairs:
    """MNLI or HANS from the hub; no split given: the one that results are reported on.

    Args:
        name: mnli or hans.

    Raises:
        DataError: there is no such set, or the hub cannot be reached; or as in `read_mnli`.
    """
    if name not in HUB:
        raise DataError(f"pairs={name} are not on the hub; {nearest(name, HUB)}")
    repository, classes, default, revision = HUB[name]
    split, remedy = split or default, f"use a local file (read_{name}) or the templates (nli_training, nli_challenge)"
    records = list(streamed(name, repository, split, revision, remedy))
    return _pairs(records, classes, f"{repository} {split}")


# -------------------------------------------------------------------------------------------------- from rows to pairs

PUBLISHED = ["sentence1", "sentence2", "gold_label"]
OF_THE_HUB = ["premise", "hypothesis", "label"]  # labels are places among the classes
NO_LABEL = ("-", "-1")  # of MNLI, as published and on the hub: its annotators did not agree


def _pairs(records: Iterable[Record], classes: tuple[str, ...], source: str) -> Pairs:
    rows = list(records)
    if not rows:
        raise DataError(f"{source} is empty: it has no rows")
    named = max((PUBLISHED, OF_THE_HUB), key=lambda names: len(set(names) & set(rows[0])))
    premises, hypotheses, labels = (_column(rows, name, source) for name in named)
    heuristics, subcases = (_column(rows, name, source) if classes == HANS else [] for name in ("heuristic", "subcase"))
    places = {name: place for place, name in enumerate(classes)} | {str(n): n for n in range(len(classes))}
    for number, label in enumerate(labels, 1):
        if label not in places and not (classes == MNLI and label in NO_LABEL):
            raise DataError(f"{source} row {number}: the label {label!r} is not known; there is: {', '.join(classes)}")
    kept = [row for row, label in enumerate(labels) if label in places]
    if unlabelled := len(rows) - len(kept):
        log.info("%s: left out %s of %s pairs, which have no agreed label", source, f"{unlabelled:,}", f"{len(rows):,}")
    kept_premises, kept_hypotheses = ([texts[row] for row in kept] for texts in (premises, hypotheses))
    numbers = torch.tensor([places[labels[row]] for row in kept], dtype=torch.long)
    return Pairs(kept_premises, kept_hypotheses, numbers, classes, heuristics, subcases, source, unlabelled)


def _column(rows: Sequence[Record], name: str, source: str) -> list[str]:
    """The cells of a column; the numbers of labels are written out."""
    if name not in rows[0]:
        raise DataError(f"{source} has no column {name}; {nearest(name, rows[0])}")
    for number, row in enumerate(rows, 1):
        if not isinstance(row.get(name), str | int):
            raise DataError(f"{source} row {number} has no text in column {name}, but {row.get(name)!r}")
    return [str(row[name]) for row in rows]
