"""Pairs of a premise and a hypothesis with labels, for natural language inference.

Their classes are the three of MNLI (Williams, Nangia and Bowman 2018) or the two of HANS (McCoy, Pavlick and Linzen
2019), which names in each row a heuristic that gets half of its rows wrong.
"""

from __future__ import annotations

import hashlib
import logging
import random
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from thinkalike.contrib.populations.config import PairsConfig
from thinkalike.data.documents import canonical
from thinkalike.data.sources import Record, json_lines, parquet_rows, read_with, stream_records
from thinkalike.data.stimuli import chosen
from thinkalike.errors import DataError

log = logging.getLogger(__name__)

PAIR = 40  # tokens of a pair of MNLI, about
SIZES = {"fit": 392_702, "report": 9_815, "challenge": 30_000}  # pairs of MNLI and HANS
MNLI = ("entailment", "neutral", "contradiction")
HANS = ("entailment", "non-entailment")


@dataclass(frozen=True, eq=False)
class Pairs:
    """Premises, hypotheses, and the class of each pair; without any pair it is a DataError."""

    premises: list[str]
    hypotheses: list[str]
    labels: Int[Tensor, " n"]  # places in `classes`
    classes: tuple[str, ...]
    heuristics: list[str] = field(default_factory=list)  # "" where the set names no heuristic
    subcases: list[str] = field(default_factory=list)
    source: str = "pairs"

    def __post_init__(self) -> None:
        nothing = [""] * len(self)
        vars(self).update(heuristics=self.heuristics or nothing, subcases=self.subcases or nothing)
        if not len(self):
            raise DataError(f"{self.source} is empty: it has no labelled pairs")

    def __len__(self) -> int:
        return len(self.premises)

    def take(self, rows: Iterable[int]) -> Pairs:
        """Return the pairs at these places, in this order."""
        rows = list(rows)
        names = ("premises", "hypotheses", "heuristics", "subcases")
        taken: dict[str, Any] = {name: [getattr(self, name)[row] for row in rows] for name in names}
        return replace(self, labels=self.labels[rows], **taken)

    def select(self, label: str | None = None, heuristic: str | None = None) -> Pairs:
        """Return the pairs of a class, of a heuristic, or of both; an error lists the parts if no pair is left."""
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
        """Return each pair as it is compared: without its label and case, and with one space for any white space."""
        pairs = zip(self.premises, self.hypotheses, strict=True)
        return [f"{canonical(premise)}\n{canonical(hypothesis)}" for premise, hypothesis in pairs]

    def without(self, others: Container[str], source: str) -> Pairs:
        """Return the pairs that have no copy among other canonical pairs of this name, whatever their labels."""
        kept = [row for row, pair in enumerate(self.canonical()) if pair not in others]
        if not kept:
            raise DataError(f"{self.source}: all {len(self)} pairs are also in {source}")
        if repeated := len(self) - len(kept):
            log.warning("%s: left out %s of %s pairs, which are also in %s", self.source, repeated, len(self), source)
        return self.take(kept)

    def fingerprint(self) -> str:
        """Return the SHA-256 of texts, labels, heuristics and subcases, as 16 hexadecimal digits."""
        labels = self.labels.tolist()
        everything = (self.premises, self.hypotheses, labels, self.classes, self.heuristics, self.subcases)
        return hashlib.sha256(repr(everything).encode(errors="replace")).hexdigest()[:16]


@dataclass(frozen=True)
class PairBatch:
    """Some pairs, padded to one length."""

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

    def batch(self, rows: Sequence[int], at_least: int = 0) -> PairBatch:
        """Return these pairs, in this order, padded to the longest of them, or further to `at_least` tokens."""
        lengths = [len(self.tokens[row]) for row in rows]
        width = max(at_least, *lengths)
        tokens = [self.tokens[row] + [self.padding] * (width - len(self.tokens[row])) for row in rows]
        types = [self.types[row] + [0] * (width - len(self.types[row])) for row in rows]
        mask = torch.arange(width) < torch.tensor(lengths)[:, None]
        return PairBatch(torch.tensor(tokens), mask, torch.tensor(types), torch.tensor(rows))


def encode(pairs: Pairs, tokenizer: Any, context: int) -> EncodedPairs:
    """Encode pairs as the tokenizer itself writes them, which must be [CLS] premise [SEP] hypothesis [SEP].

    A pair has at most `context` tokens: in a longer one the longer text loses its end, token by token. The number of
    those is logged.
    """

    def encoded_as(**options: Any) -> Any:
        return tokenizer(pairs.premises, pairs.hypotheses, return_token_type_ids=True, verbose=False, **options)

    encoded = encoded_as()
    first, *_, last = encoded["input_ids"][0]
    if tokenizer.cls_token_id is None or (first, last) != (tokenizer.cls_token_id, tokenizer.sep_token_id):
        raise DataError("the tokenizer does not write pairs as [CLS] premise [SEP] hypothesis [SEP]; use one of BERT's")
    if long := sum(len(tokens) > context for tokens in encoded["input_ids"]):
        encoded = encoded_as(truncation="longest_first", max_length=context)
        log.warning("%s: cut %s of %s pairs to %s tokens", pairs.source, long, len(pairs), context)
    padding = tokenizer.pad_token_id or 0  # without a padding token any will do: the mask hides it
    return EncodedPairs(encoded["input_ids"], encoded["token_type_ids"], padding, long)


def batches(encoded: EncodedPairs, size: int) -> Iterator[PairBatch]:
    """Yield all pairs, the longest first, which need most memory; so little is padded.

    `values[batch.rows] = ...` puts results back in the order of the pairs.
    """
    order = sorted(range(len(encoded)), key=lambda row: -len(encoded.tokens[row]))
    for start in range(0, len(order), size):
        yield encoded.batch(order[start : start + size])


PUBLISHED = ["sentence1", "sentence2", "gold_label"]
OF_THE_HUB = ["premise", "hypothesis", "label"]  # where labels are places among the classes
NO_LABEL = ("-", "-1")  # in MNLI, as published and on the hub: its annotators did not agree
CLASSES = {"mnli": MNLI, "hans": HANS}

# repositories of the hub: the name, the split that results are reported on, and the revision
HUB = {
    "mnli": ("nyu-mll/multi_nli", "validation_matched", None),
    "hans": ("jhu-cogsci/hans", "validation", "refs/convert/parquet"),  # its main branch is a script
}


def pairs_in(path: str | Path, name: str) -> Pairs:
    """Read the pairs of MNLI or HANS ("mnli", "hans"): `.jsonl`, `.txt` as published, `.tsv` of GLUE, `.parquet`."""
    readers = {".jsonl": json_lines, ".parquet": parquet_rows, ".tsv": _separated, ".txt": _separated}
    records = read_with(Path(path), {end: partial(_records, read) for end, read in readers.items()})
    return _pairs(records, CLASSES[name], str(path))


def _records(read: Callable[[Path], Iterator[tuple[str, Record]]], path: Path) -> list[Record]:
    return [record for _, record in read(path)]


def hub_pairs(name: str, split: str | None = None) -> Pairs:
    """Return MNLI ("mnli") or HANS ("hans") from the hub; without a split, the one that results are reported on."""
    repository, default, revision = HUB[name]
    split = split or default
    remedy = "use files (pairs=files) or the templates (pairs=templates)"
    records = list(stream_records(name, repository, split=split, revision=revision, remedy=remedy))
    return _pairs(records, CLASSES[name], f"{repository} {split}")


def _separated(path: Path) -> Iterator[tuple[str, Record]]:
    """Read cells between tabs. A quotation mark is a character like any other: GLUE has ones that are never closed."""
    header, *rows = [line.split("\t") for line in path.read_text(encoding="utf-8-sig").split("\n")]
    for number, row in enumerate(rows, 2):  # splitlines would cut at U+2028, too
        if row != [""]:
            if len(row) != len(header):
                raise DataError(f"{path} line {number} has {len(row)} cells, the header {len(header)}")
            yield f"{path} line {number}", dict(zip(header, row, strict=True))


def _pairs(rows: Sequence[Record], classes: tuple[str, ...], source: str) -> Pairs:
    if not rows:
        raise DataError(f"{source} is empty: it has no rows")
    named = max((PUBLISHED, OF_THE_HUB), key=lambda names: len(set(names) & set(rows[0])))
    premises, hypotheses, labels = (_column(rows, name, source) for name in named)
    heuristics, subcases = (_column(rows, name, source) if classes == HANS else [] for name in ("heuristic", "subcase"))
    places = {name: place for place, name in enumerate(classes)} | {str(n): n for n in range(len(classes))}
    without = NO_LABEL if classes == MNLI else ()
    for number, label in enumerate(labels, 1):
        if label not in places and label not in without:
            raise DataError(f"{source} row {number}: the label {label!r} is not one of {', '.join(classes)}")
    kept = [row for row, label in enumerate(labels) if label in places]
    if unlabelled := len(rows) - len(kept):
        log.info("%s: left out %s of %s pairs, which have no agreed label", source, f"{unlabelled:,}", f"{len(rows):,}")
    premises, hypotheses = ([texts[row] for row in kept] for texts in (premises, hypotheses))
    numbers = torch.tensor([places[labels[row]] for row in kept], dtype=torch.long)
    return Pairs(premises, hypotheses, numbers, classes, heuristics, subcases, source)


def _column(rows: Sequence[Record], name: str, source: str) -> list[str]:
    """Return the cells of a column as text; the hub has numbers for labels."""
    chosen(source, [name], list(rows[0]), "column")
    for number, row in enumerate(rows, 1):
        if not isinstance(row.get(name), str | int):
            raise DataError(f"{source} row {number} has no text in column {name}, but {row.get(name)!r}")
    return [str(row[name]) for row in rows]


def tokens_of(config: PairsConfig, side: str) -> float:
    """Return about how many tokens the pairs of a side have; of the challenge, those of the part that is reported."""
    asked = getattr(config, f"{side}_pairs") or SIZES[side]
    if side == "challenge" and config.heuristic:
        return PAIR * min(asked, SIZES[side]) / 3 / (2 if config.label else 1)
    return float(PAIR * asked)
