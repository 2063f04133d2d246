"""Pairs of a premise and a hypothesis with labels, for natural language inference.

Their classes are the three of MNLI (Williams, Nangia and Bowman 2018) or the two of HANS (McCoy, Pavlick and Linzen
2019), which names in each row a heuristic that gets half of its rows wrong.
"""

from __future__ import annotations

import hashlib
import logging
import random
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from thinkalike.data.documents import canonical, record_of
from thinkalike.data.sources import read_with, stream_records
from thinkalike.errors import DataError, nearest

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
            raise DataError(
                f"{self.source}: labels {sorted(set(self.labels.tolist()))} are not places in {self.classes}"
            )

    def __len__(self) -> int:
        return len(self.premises)

    def take(self, rows: Iterable[int]) -> Pairs:
        """Return the pairs at these places, in this order."""
        rows = list(rows)
        names = ("premises", "hypotheses", "heuristics", "subcases")
        taken: dict[str, Any] = {name: [getattr(self, name)[row] for row in rows] for name in names}
        return replace(self, labels=self.labels[rows], **taken)

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
        """Draw n different pairs and return them in their order."""
        return self.take(sorted(random.Random(seed).sample(range(len(self)), n)))

    def canonical(self) -> list[str]:
        """Return each pair without its label, its case and its kinds of white space: what copies have in common."""
        return [
            f"{canonical(premise)}\n{canonical(hypothesis)}"
            for premise, hypothesis in zip(self.premises, self.hypotheses, strict=True)
        ]

    def without(self, others: Container[str], source: str) -> Pairs:
        """Return the pairs that have no copy among others, whatever their labels.

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


# ------------------------------------------------------------------------------------------------------------- encoding


@dataclass(frozen=True)
class PairBatch:
    """Some pairs, padded to the longest of them."""

    tokens: Int[Tensor, "b t"]
    mask: Bool[Tensor, "b t"]  # true where there is no padding
    types: Int[Tensor, "b t"]  # 0 in the premise, 1 in the hypothesis
    rows: Int[Tensor, " b"]  # which pairs these are


@dataclass(frozen=True)
class EncodedPairs:
    """The tokens of pairs, without padding, and how many pairs were cut."""

    tokens: list[list[int]]
    types: list[list[int]]
    padding: int
    truncated: int

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def longest(self) -> int:
        """The tokens of the longest pair."""
        return max(map(len, self.tokens))

    def batch(self, rows: Sequence[int], at_least: int = 0) -> PairBatch:
        """Return these pairs, in this order, padded to the longest of them, or further to `at_least` tokens."""
        shape = len(rows), max(at_least, *(len(self.tokens[row]) for row in rows))
        tokens, types = torch.full(shape, self.padding), torch.zeros(shape, dtype=torch.long)
        mask = torch.zeros(shape, dtype=torch.bool)
        for place, row in enumerate(rows):
            length = len(self.tokens[row])
            tokens[place, :length] = torch.tensor(self.tokens[row])
            types[place, :length] = torch.tensor(self.types[row])
            mask[place, :length] = True
        return PairBatch(tokens, mask, types, torch.tensor(rows))


def encode(pairs: Pairs, tokenizer: Any, context: int, truncate: bool = True) -> EncodedPairs:
    """Encode pairs as the tokenizer itself writes them.

    Args:
        context: the most tokens of a pair; in a longer one the longer text loses its end, token by token.
        truncate: whether that is allowed; the number of such pairs is logged.

    Raises:
        DataError: a pair is longer and `truncate` is false, or the tokenizer sets no [CLS] and [SEP].
    """

    def encoded_as(**options: Any) -> Any:
        return tokenizer(pairs.premises, pairs.hypotheses, return_token_type_ids=True, verbose=False, **options)

    encoded = encoded_as()
    first, *_, last = encoded["input_ids"][0]
    if tokenizer.cls_token_id is None or (first, last) != (tokenizer.cls_token_id, tokenizer.sep_token_id):
        raise DataError("the tokenizer does not write pairs as [CLS] premise [SEP] hypothesis [SEP]; use one of BERT's")
    long = [row for row, tokens in enumerate(encoded["input_ids"], 1) if len(tokens) > context]
    if long and not truncate:
        raise DataError(
            f"{pairs.source} row {long[0]} has {len(encoded['input_ids'][long[0] - 1])} tokens, but context={context}; "
            "raise it, or allow truncation"
        )
    if long:
        encoded = encoded_as(truncation="longest_first", max_length=context)
        log.warning("%s: cut %s of %s pairs to %s tokens", pairs.source, len(long), len(pairs), context)
    padding = tokenizer.pad_token_id or 0  # without a padding token any will do: the mask hides it
    return EncodedPairs(encoded["input_ids"], encoded["token_type_ids"], padding, len(long))


def batches(encoded: EncodedPairs, size: int) -> Iterator[PairBatch]:
    """Yield all pairs, the longest first, which need most memory; so little is padded.

    `values[batch.rows] = ...` puts results back in the order of the pairs.
    """
    order = sorted(range(len(encoded)), key=lambda row: -len(encoded.tokens[row]))
    for start in range(0, len(order), size):
        yield encoded.batch(order[start : start + size])


# ------------------------------------------------------------------------------------------------------ published pairs

Record = Mapping[str, Any]  # a row, by column

PUBLISHED = ["sentence1", "sentence2", "gold_label"]
OF_THE_HUB = ["premise", "hypothesis", "label"]  # where labels are places among the classes
NO_LABEL = ("-", "-1")  # in MNLI, as published and on the hub: its annotators did not agree

# repositories of the hub: the name, the classes, the split that results are reported on, and the revision
HUB = {
    "mnli": ("nyu-mll/multi_nli", MNLI, "validation_matched", None),
    "hans": ("jhu-cogsci/hans", HANS, "validation", "refs/convert/parquet"),  # its main branch is a script
}


def read_mnli(path: str | Path) -> Pairs:
    """Read the pairs of an MNLI file: `.jsonl` and `.txt` as published, `.tsv` of GLUE, `.parquet` of the hub.

    Raises:
        DataError: the file cannot be read or is empty, a line is damaged, a column is missing or a label is unknown.
    """
    return _pairs(_records(Path(path)), MNLI, str(path))


def read_hans(path: str | Path) -> Pairs:
    """Read the pairs of a HANS file: `.txt` and `.jsonl` as published, `.parquet` of the hub.

    Raises:
        DataError: as in `read_mnli`.
    """
    return _pairs(_records(Path(path)), HANS, str(path))


def hub_pairs(name: str, split: str | None = None) -> Pairs:
    """Return MNLI or HANS from the hub.

    Args:
        name: "mnli" or "hans".
        split: None takes the one that results are reported on.

    Raises:
        DataError: the hub cannot be reached; or as in `read_mnli`.
    """
    repository, classes, default, revision = HUB[name]
    remedy = f"use a local file (read_{name}) or the templates (nli_training, nli_challenge)"
    records = list(stream_records(name, repository, split=split or default, revision=revision, remedy=remedy))
    return _pairs(records, classes, f"{repository} {split or default}")


def _records(path: Path) -> list[Record]:
    return read_with(path, {".jsonl": _lines, ".tsv": _separated, ".txt": _separated, ".parquet": _parquet})


def _lines(path: Path) -> list[Record]:
    lines = enumerate(path.read_text(encoding="utf-8-sig").split("\n"), 1)
    return [record_of(line, f"{path} line {number}") for number, line in lines if line.strip()]


def _separated(path: Path) -> list[Record]:
    """Read cells between tabs. A quotation mark is a character like any other: GLUE has ones that are never closed."""
    lines = path.read_text(encoding="utf-8-sig").split("\n")  # splitlines would cut at U+2028, too
    header, *rows = [line.split("\t") for line in lines]
    for number, row in enumerate(rows, 2):
        if row != [""] and len(row) != len(header):
            raise DataError(
                f"{path} line {number} has {len(row)} cells, the header {len(header)}; separate them by one tab each"
            )
    return [dict(zip(header, row, strict=True)) for row in rows if row != [""]]


def _parquet(path: Path) -> list[Record]:
    import pyarrow.parquet

    return pyarrow.parquet.read_table(path).to_pylist()


def _pairs(rows: Sequence[Record], classes: tuple[str, ...], source: str) -> Pairs:
    if not rows:
        raise DataError(f"{source} is empty: it has no rows; give a file that has some")
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
    """Return the cells of a column as text; the hub has numbers for labels."""
    if name not in rows[0]:
        raise DataError(f"{source} has no column {name}; {nearest(name, rows[0])}")
    for number, row in enumerate(rows, 1):
        if not isinstance(row.get(name), str | int):
            raise DataError(f"{source} row {number} has no text in column {name}, but {row.get(name)!r}")
    return [str(row[name]) for row in rows]
