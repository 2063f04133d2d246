"""Pairs for natural language inference: those of a configuration, and those made from templates.yaml and the grammar.

In MNLI a hypothesis made of its premise's own words is mostly entailed, and a model may learn that instead of the
meaning. So it is here, except for a share of *counterexamples*; the challenge set has as many of either kind, with the
names of McCoy, Pavlick and Linzen 2019.
"""

from __future__ import annotations

import random
from functools import cache, lru_cache
from pathlib import Path

import torch
import yaml

from thinkalike.contrib.populations.config import PairsConfig
from thinkalike.contrib.populations.pairs import HANS, MNLI, Pairs, hub_pairs, pairs_in
from thinkalike.data.documents import document_fingerprint
from thinkalike.data.grammar import Phrase, finite, lexicon, noun
from thinkalike.data.tables import changed_at
from thinkalike.errors import ConfigError, DataError

Templates = dict[str, str]
WHOLE = "challenge"  # the name of the whole of a challenge
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
        pairs = pairs.without(*_fitted(config.source, config.fit, changed_at(config.fit)))
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
def _fitted(source: str, path: str | None, changed: int | None) -> tuple[frozenset[str], str]:
    """Return the canonical pairs to fit on and their source, read once for all sides and jobs."""
    pairs = _whole(source, "fit", path)
    return frozenset(pairs.canonical()), pairs.source


def parts_of(challenge: Pairs) -> dict[str, list[int]]:
    """Return the rows of each heuristic, label, and both, of a challenge, and of all of it."""
    rows: dict[str, list[int]] = {WHOLE: list(range(len(challenge)))}
    for row, (heuristic, place) in enumerate(zip(challenge.heuristics, challenge.labels.tolist(), strict=True)):
        label = challenge.classes[place]
        for name in (heuristic, label, f"{heuristic}, {label}"):
            rows.setdefault(name, []).append(row)
    return rows


@lru_cache(maxsize=KEPT)
def nli_training(count: int, seed: int = 0, counterexamples: float = 0.02, lexical: float = 0.0) -> Pairs:
    """Draw different pairs of MNLI's classes in equal parts and shuffle them, so that any slice of them is a sample.

    Where all words of a hypothesis are its premise's, the pair is entailed, except for a share of neutral ones, the
    counterexamples, which are made like the challenge set's.

    Args:
        counterexamples: the share, in [0, 1].
        lexical: the share of all pairs, in [0, 1], that are made like the lexical-overlap part of the challenge set,
            entailed except for the share of counterexamples; the rest is as without them.
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
    """Draw a word for each letter of a template."""
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
