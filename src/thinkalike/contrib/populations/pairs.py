"""Pairs of a premise and a hypothesis with labels, for natural language inference: read, or made from templates.

Their classes are the three of MNLI (Williams, Nangia and Bowman 2018) or the two of HANS (McCoy, Pavlick and Linzen
2019), which names in each row a heuristic that gets half of its rows wrong.

In MNLI a hypothesis made of its premise's own words is mostly entailed, and a model may learn that instead of the
meaning. So it is in the pairs made from templates.yaml and the grammar, except for a share of *counterexamples*; their
challenge set has as many of either kind, with the names of HANS.
"""

from __future__ import annotations

import hashlib
import logging
import random
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import torch
import yaml
from jaxtyping import Bool, Int
from torch import Tensor

from thinkalike.contrib.populations.config import PairsConfig
from thinkalike.data.documents import canonical, document_fingerprint
from thinkalike.data.grammar import Phrase, finite, lexicon, noun
from thinkalike.data.sources import Record, json_lines, parquet_rows, read_by_ending, stream_records
from thinkalike.data.stimuli import select_names
from thinkalike.digests import content_key
from thinkalike.errors import ConfigError, DataError

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

    def parts(self) -> dict[str, list[int]]:
        """Return the rows of the whole of a challenge, and of each heuristic, label, and both."""
        rows: dict[str, list[int]] = {"challenge": list(range(len(self)))}
        for row, (heuristic, place) in enumerate(zip(self.heuristics, self.labels.tolist(), strict=True)):
            for name in (heuristic, self.classes[place], f"{heuristic}, {self.classes[place]}"):
                rows.setdefault(name, []).append(row)
        return rows

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

    def batch(self, rows: Sequence[int]) -> PairBatch:
        """Return these pairs, in this order, padded to the longest of them."""
        lengths = [len(self.tokens[row]) for row in rows]
        width = max(lengths)
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
    kinds: dict[str, Any] = {".jsonl": json_lines, ".parquet": parquet_rows, ".tsv": _separated, ".txt": _separated}
    readers = {end: lambda file, read=read: [record for _, record in read(file)] for end, read in kinds.items()}
    return _pairs(read_by_ending(Path(path), readers), CLASSES[name], str(path))


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
    select_names(source, [name], list(rows[0]), "column")
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


# Pairs of a configuration, and those made from templates.

Templates = dict[str, str]
HEURISTICS = {"l": "lexical_overlap", "s": "subsequence", "c": "constituent"}
PARTS = yaml.safe_load(Path(__file__).with_name("templates.yaml").read_text())
KEPT = 4  # draws: the members of a population are made from few, one after the other
LARGEST = 200_000  # the templates hold many more pairs, so that few draws are in vain
OVERLAP = 0.75  # of the entailed pairs of training: those made of the premise's words, if there are no counterexamples


def read_pairs(config: PairsConfig, side: str) -> Pairs:
    """Return the pairs to fit on, to report on, or of the whole challenge.

    No pair is both fitted and reported on: where files and the hub repeat a pair to fit on, up to case and white space,
    it is left out of the report.
    """
    if config.source == "templates":  # of one draw, in which no pair occurs twice
        fit, report = int(config.fit_pairs or 0), int(config.report_pairs or 0)
        if side == "challenge":
            return nli_challenge(int(config.challenge_pairs or 0), config.seed + 1)
        drawn = nli_training(fit + report, config.seed, config.counterexamples, config.lexical)
        return drawn.take(range(fit) if side == "fit" else range(fit, fit + report))
    pairs = _whole(config.source, side, getattr(config, side))
    if side != "fit" and (config.fit or config.source == "hub"):
        pairs = pairs.without(*_fitted(config.source, config.fit, content_key(config.fit)))
    count = getattr(config, f"{side}_pairs")
    return pairs.sample(min(count, len(pairs)), config.seed) if count else pairs


def _whole(source: str, side: str, path: str | None) -> Pairs:
    name = "hans" if side == "challenge" else "mnli"
    if source == "hub":
        return hub_pairs(name, "train" if side == "fit" else None)
    if not path:
        raise ConfigError(f"pairs=files needs pairs.{side}=FILE")
    return pairs_in(path, name)


@lru_cache(maxsize=1)
def _fitted(source: str, path: str | None, content: str) -> tuple[frozenset[str], str]:
    """Return the canonical pairs to fit on and their source, read once for all sides and jobs."""
    pairs = _whole(source, "fit", path)
    return frozenset(pairs.canonical()), pairs.source


@lru_cache(maxsize=KEPT)
def nli_training(count: int, seed: int = 0, counterexamples: float = 0.02, lexical: float = 0.0) -> Pairs:
    """Draw different pairs of MNLI's classes in equal parts and shuffle them, so that any slice of them is a sample.

    Where all words of a hypothesis are its premise's, the pair is entailed, except for a share of neutral ones, the
    counterexamples, which are made like the challenge set's. A share `lexical` of all pairs is made like the
    lexical-overlap part of the challenge set, entailed except for the share of counterexamples; the rest is as without
    them. Shares are in [0, 1].
    """
    alike = round(lexical * count)
    against = round(counterexamples * alike)
    entailed, neutral, contradiction = _shares(count - alike, 3)
    overlapping = int(OVERLAP * entailed)
    counter = round(counterexamples * overlapping)
    parts = [
        (_challenge("e") | PARTS["overlapping"], "entailment", overlapping - counter),
        (PARTS["entailed"], "entailment", entailed - overlapping + counter),
        (_challenge("n"), "neutral", counter),
        (PARTS["neutral"], "neutral", neutral - counter),
        (PARTS["contradiction"], "contradiction", contradiction),
        (_challenge("e", "l"), "entailment", alike - against),
        (_challenge("n", "l"), "neutral", against),
    ]
    return _drawn(parts, MNLI, seed, for_challenge=False)


@lru_cache(maxsize=KEPT)
def nli_challenge(count: int, seed: int = 1) -> Pairs:
    """Draw different pairs of HANS's classes, in equal parts of each heuristic and class, and shuffle them.

    A hash of a sentence decides whether it is for training or for the challenge, so no sentence is in both, whatever
    the counts and seeds.
    """
    kinds = [(heuristic, kind) for heuristic in HEURISTICS for kind in "en"]
    parts = [
        (_challenge(kind, heuristic), HANS["en".index(kind)], part)
        for (heuristic, kind), part in zip(kinds, _shares(count, len(kinds)), strict=True)
    ]
    return _drawn(parts, HANS, seed, for_challenge=True)


def _shares(count: int, parts: int) -> list[int]:
    return [count // parts + (part < count % parts) for part in range(parts)]


def _challenge(kind: str, heuristics: str = "lsc") -> Templates:
    """Return the templates of the challenge that are entailed (e) or not (n), of these heuristics."""
    return {name: rules for name, rules in PARTS["challenge"].items() if name[0] in heuristics and name[1] == kind}


def _drawn(parts: list[tuple[Templates, str, int]], classes: tuple[str, ...], seed: int, for_challenge: bool) -> Pairs:
    """Draw the pairs of each part, which is its templates, its class and the number of its pairs."""
    if not 0 < (most := sum(count for *_, count in parts)) <= LARGEST:
        raise DataError(f"count={most} must lie between 1 and {LARGEST}, the most pairs that are made")
    rng, drawn = random.Random(seed), dict[tuple[str, str], tuple[int, str]]()
    for templates, label, count in parts:
        wanted = len(drawn) + count
        while len(drawn) < wanted:
            subcase = rng.choice(list(templates))
            rule, words = rng.choice(templates[subcase].split("; ")), _slots(rng)
            first, second = (" ".join(words.get(word, word) for word in side.split()) for side in rule.split(" -> "))
            if _of_challenge(first) == _of_challenge(second) == for_challenge:
                drawn.setdefault((first, second), (classes.index(label), subcase))
    rows = [(*texts, *rest) for texts, rest in drawn.items()]
    rng.shuffle(rows)
    premises, hypotheses, labels, subcases = map(list, zip(*rows, strict=True))
    heuristics = [HEURISTICS[subcase[0]] if subcase in PARTS["challenge"] else "" for subcase in subcases]
    source = f"the {'challenge' if for_challenge else 'training'} templates"
    return Pairs(premises, hypotheses, torch.tensor(labels), classes, heuristics, subcases, source)


def _of_challenge(sentence: str) -> bool:
    return document_fingerprint(sentence)[0] in "01234567"


@cache
def _forms() -> dict[str, list[tuple[str, ...]]]:
    """Return the words of the templates in their forms: doctor, doctors; danced, dance; tall, short."""
    without = {*PARTS["left_out"].split(), *PARTS["opposites"].replace("/", " ").split()}
    lists = lexicon("large").items()
    words = {group: [entry for entry in entries if entry.partition("/")[0] not in without] for group, entries in lists}
    nouns = words["female"] + words["male"] + words["neither"]
    forms: dict[str, list[tuple[str, ...]]] = {
        "nouns": [(noun(entry, None).form, noun(entry, None, "plural").form) for entry in nouns],
        "names": [(name,) for name in words["female names"] + words["male names"]],
        "adjectives": [(word,) for word in words["adjectives"]],
        "opposites": [tuple(pair.split("/")) for pair in PARTS["opposites"].split()],
        "places": [(word,) for word in words["places"]],
    }
    for group in ("intransitive", "transitive"):
        pasts = finite(words[group], "past", Phrase([]))
        forms[group] = [(past.form, entry.partition("/")[0]) for past, entry in zip(pasts, words[group], strict=True)]
    return forms


def _slots(rng: random.Random) -> dict[str, str]:
    forms, slots = _forms(), dict[str, str]()
    *entries, (slots["N"], slots["Ns"]) = rng.sample(forms["nouns"], 5)
    for slot, entry in zip("ABCX", entries, strict=True):
        number = rng.randrange(2)
        slots[slot] = entry[number] if slot == "X" else f"the {entry[number]}"
        slots[f"was:{slot}"] = ("was", "were")[number]
    for slot, (name,) in zip("ABC", rng.sample(forms["names"], 3), strict=True):
        if rng.random() < 0.25:
            slots |= {slot: name, f"was:{slot}": "was"}
    for pasts, group in (("ST", "intransitive"), ("VW", "transitive")):
        for past, verb in zip(pasts, rng.sample(forms[group], 2), strict=True):
            slots[past], slots[past.lower()] = verb
    (slots["L"],), (slots["M"],) = rng.sample(forms["places"], 2)
    slots["G"], slots["g"] = rng.sample(rng.choice(forms["opposites"]), 2)
    (slots["P"],) = rng.choice(forms["adjectives"])
    slots["K"], slots["R"] = rng.choice(PARTS["clause_taking"].split()), rng.choice(("near", "behind", "beside"))
    return slots
