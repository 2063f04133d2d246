"""Pairs for natural language inference that are made from templates.

In MNLI a hypothesis made of its premise's own words is mostly entailed, and a model may learn that
instead of the meaning. So it is in the training pairs here, except for a share of
*counterexamples*. The challenge has as many pairs of either class, with the names of HANS.
"""

from __future__ import annotations

import random
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
import yaml

from thinkalike.contrib.populations.pairs import HANS, MNLI, Pairs
from thinkalike.data.documents import document_fingerprint
from thinkalike.data.grammar import Phrase, finite_verbs, lexicon, noun
from thinkalike.errors import DataError

Templates = dict[str, str]  # rules by subcase, separated by "; "

TEMPLATES = yaml.safe_load(Path(__file__).with_name("templates.yaml").read_text())

# The first letter of a subcase of the challenge.
HEURISTICS = {"l": "lexical_overlap", "s": "subsequence", "c": "constituent"}

# The second letter.
ENTAILED = "e"
NOT_ENTAILED = "n"

# The share of entailed training pairs whose hypothesis has only words of its premise. Their
# counterexamples count as well.
OVERLAP = 0.75
SETS_IN_MEMORY = 4  # the members of a population are made from few sets, one after the other
MOST_PAIRS = 200_000  # the templates hold many more pairs, so that few draws repeat one
NAME_SHARE = 0.25  # of people who have a name, where the others are called by a noun
HASHES_OF_CHALLENGE = "01234567"  # the first digits of the hashes of half of all sentences


class Quota(NamedTuple):
    """How many pairs of a class are made from some templates.

    Attributes:
        templates: The templates, of which one is drawn for each pair.
        label: The class.
        n_pairs: How many pairs are made.
    """

    templates: Templates
    label: str
    n_pairs: int


@lru_cache(maxsize=SETS_IN_MEMORY)
def nli_training(
    count: int, seed: int = 0, counterexamples: float = 0.02, lexical: float = 0.0
) -> Pairs:
    """Draw distinct pairs of a premise and a hypothesis, in equal shares of MNLI's three classes.

    They are shuffled, so that any slice is a random sample. If a hypothesis has only words of its
    premise, the pair is mostly entailed, so that a model may learn the heuristic "same words,
    therefore entailed".

    Args:
        count: How many pairs there are.
        seed: Decides the pairs and their order.
        counterexamples: The share of neutral pairs among those whose hypotheses have only words of
            their premises. They are made like the challenge; all other such pairs are entailed.
        lexical: The share of all pairs that are made like the lexical-overlap part of the
            challenge. They are entailed, except for the share of counterexamples.
    """
    # "against" stands for counterexamples: the hypothesis has the same words, but is not entailed.
    n_lexical = round(lexical * count)
    n_lexical_against = round(counterexamples * n_lexical)
    n_entailed, n_neutral, n_contradiction = _equal_shares(count - n_lexical, 3)
    n_overlapping = int(OVERLAP * n_entailed)
    n_against = round(counterexamples * n_overlapping)

    overlapping = _challenge_templates(ENTAILED) | TEMPLATES["overlapping"]
    against = _challenge_templates(NOT_ENTAILED)
    # Entailed pairs without overlap also replace the counterexamples, which are neutral.
    n_other_words = n_entailed - n_overlapping + n_against
    quotas = [
        Quota(overlapping, "entailment", n_overlapping - n_against),
        Quota(TEMPLATES["entailed"], "entailment", n_other_words),
        Quota(against, "neutral", n_against),
        Quota(TEMPLATES["neutral"], "neutral", n_neutral - n_against),
        Quota(TEMPLATES["contradiction"], "contradiction", n_contradiction),
        Quota(_challenge_templates(ENTAILED, "l"), "entailment", n_lexical - n_lexical_against),
        Quota(_challenge_templates(NOT_ENTAILED, "l"), "neutral", n_lexical_against),
    ]
    return _draw_pairs(quotas, MNLI, seed, for_challenge=False)


@lru_cache(maxsize=SETS_IN_MEMORY)
def nli_challenge(count: int, seed: int = 1) -> Pairs:
    """Draw distinct pairs like those of HANS, in equal shares by heuristic and class, shuffled.

    HANS has pairs of sentences for which a heuristic, such as "all words of the hypothesis occur
    in the premise", is right (entailed) or wrong. A hash of a sentence decides whether it is for
    training or for the challenge, so no sentence is in both, whatever the counts and seeds.
    """
    entailed, not_entailed = HANS
    label_of = {ENTAILED: entailed, NOT_ENTAILED: not_entailed}
    kinds = [(heuristic, letter) for heuristic in HEURISTICS for letter in label_of]
    quotas = []
    for (heuristic, letter), share in zip(kinds, _equal_shares(count, len(kinds)), strict=True):
        quotas.append(Quota(_challenge_templates(letter, heuristic), label_of[letter], share))
    return _draw_pairs(quotas, HANS, seed, for_challenge=True)


def _equal_shares(count: int, n_shares: int) -> list[int]:
    """Return whole numbers that add up to the count and differ by at most 1."""
    smallest, remainder = divmod(count, n_shares)
    return [smallest + 1] * remainder + [smallest] * (n_shares - remainder)


def _challenge_templates(entailed: str, heuristics: str = "lsc") -> Templates:
    """Return the templates of the challenge of one class and of some heuristics, by subcase.

    Args:
        entailed: "e" for entailed pairs, "n" for pairs that are not entailed.
        heuristics: The first letters of the heuristics.
    """
    # A subcase is named by the letters of its heuristic and its class, such as "ln_...".
    return {
        subcase: rules
        for subcase, rules in TEMPLATES["challenge"].items()
        if subcase[0] in heuristics and subcase[1] == entailed
    }


def _draw_pairs(
    quotas: list[Quota], classes: tuple[str, ...], seed: int, for_challenge: bool
) -> Pairs:
    """Draw the pairs of each quota, no two of them the same, and shuffle them.

    Args:
        quotas: How many pairs of which class are made from which templates.
        classes: The names of the classes, whose positions are the labels.
        seed: Decides the pairs and their order.
        for_challenge: Whether both sentences of each pair are of the half of all sentences that is
            for the challenge; else both are of the other half.

    Raises:
        DataError: There are no pairs to draw, or more than `MOST_PAIRS`.
    """
    total = sum(quota.n_pairs for quota in quotas)
    if not 0 < total <= MOST_PAIRS:
        raise DataError(
            f"count={total} must lie between 1 and {MOST_PAIRS}, the most pairs that are made"
        )

    rng = random.Random(seed)
    drawn: dict[tuple[str, str], tuple[int, str]] = {}  # (premise, hypothesis): (label, subcase)
    for quota in quotas:
        n_wanted = len(drawn) + quota.n_pairs
        while len(drawn) < n_wanted:
            subcase = rng.choice(list(quota.templates))
            rule = rng.choice(quota.templates[subcase].split("; "))
            words = _words_of_slots(rng)
            premise, hypothesis = (_filled(template, words) for template in rule.split(" -> "))
            if _is_for_challenge(premise) == _is_for_challenge(hypothesis) == for_challenge:
                label = classes.index(quota.label)
                drawn.setdefault((premise, hypothesis), (label, subcase))

    rows = list(drawn.items())
    rng.shuffle(rows)
    subcases = [subcase for _, (_, subcase) in rows]
    set_name = "challenge" if for_challenge else "training"
    return Pairs(
        premises=[premise for (premise, _), _ in rows],
        hypotheses=[hypothesis for (_, hypothesis), _ in rows],
        labels=torch.tensor([label for _, (label, _) in rows]),
        classes=classes,
        heuristics=[_heuristic_of(subcase) for subcase in subcases],
        subcases=subcases,
        source=f"the {set_name} templates",
    )


def _heuristic_of(subcase: str) -> str:
    """Return the heuristic of a subcase of the challenge; "" for any other template."""
    if subcase in TEMPLATES["challenge"]:
        return HEURISTICS[subcase[0]]
    return ""


def _filled(template: str, words: dict[str, str]) -> str:
    """Return a sentence: the template with a word in place of each slot."""
    return " ".join(words.get(slot, slot) for slot in template.split())


def _is_for_challenge(sentence: str) -> bool:
    """Return whether a sentence is for the challenge, not for training, by its hash."""
    return document_fingerprint(sentence)[0] in HASHES_OF_CHALLENGE


@cache
def _word_forms() -> dict[str, list[tuple[str, ...]]]:
    """Return the words that fill the slots of templates, as tuples of forms, by word class.

    Nouns are (singular, plural), such as ("doctor", "doctors"); verbs are (past, base); opposites
    are the two words of a pair. Names, adjectives and places have one form.
    """
    left_out = set(TEMPLATES["left_out"].split())
    opposites = [tuple(pair.split("/")) for pair in TEMPLATES["opposites"].split()]
    for pair in opposites:
        left_out.update(pair)
    words = {}
    for group, entries in lexicon("large").items():
        words[group] = [entry for entry in entries if entry.partition("/")[0] not in left_out]

    forms: dict[str, list[tuple[str, ...]]] = {"opposites": opposites}
    forms["nouns"] = []
    for entry in words["female"] + words["male"] + words["neither"]:
        forms["nouns"].append((noun(entry, None).form, noun(entry, None, "plural").form))
    forms["names"] = [(name,) for name in words["female names"] + words["male names"]]
    forms["adjectives"] = [(word,) for word in words["adjectives"]]
    forms["places"] = [(word,) for word in words["places"]]
    for group in ("intransitive", "transitive"):
        pasts = finite_verbs(words[group], "past", Phrase([]))
        bases = [entry.partition("/")[0] for entry in words[group]]
        forms[group] = [(past.form, base) for past, base in zip(pasts, bases, strict=True)]
    return forms


def _words_of_slots(rng: random.Random) -> dict[str, str]:
    """Draw a word for each slot of a template, such as A in "A V B -> B V A".

    The words of different slots of a kind are different.
    """
    forms = _word_forms()
    slots: dict[str, str] = {}

    # A, B and C: people ("the doctors"); X: a noun; was:A: the form of "to be" that A needs.
    # N and Ns: a noun in singular and plural.
    *person_nouns, (slots["N"], slots["Ns"]) = rng.sample(forms["nouns"], 5)
    for slot, (singular, plural) in zip("ABCX", person_nouns, strict=True):
        is_plural = rng.randrange(2) == 1
        word = plural if is_plural else singular
        slots[slot] = word if slot == "X" else f"the {word}"
        slots[f"was:{slot}"] = "were" if is_plural else "was"
    # Some people have a name instead of a noun.
    for slot, (name,) in zip("ABC", rng.sample(forms["names"], 3), strict=True):
        if rng.random() < NAME_SHARE:
            slots[slot] = name
            slots[f"was:{slot}"] = "was"

    # S, T, V and W: verbs in the past tense; s, t, v and w: their base forms.
    for past_slots, group in (("ST", "intransitive"), ("VW", "transitive")):
        verbs = rng.sample(forms[group], 2)
        for slot, (past, base) in zip(past_slots, verbs, strict=True):
            slots[slot] = past
            slots[slot.lower()] = base

    # L, M: places; G, g: adjectives that are opposites; P: an adjective; K: a verb that takes a
    # clause; R: a preposition.
    (slots["L"],), (slots["M"],) = rng.sample(forms["places"], 2)
    slots["G"], slots["g"] = rng.sample(rng.choice(forms["opposites"]), 2)
    (slots["P"],) = rng.choice(forms["adjectives"])
    slots["K"] = rng.choice(TEMPLATES["clause_taking"].split())
    slots["R"] = rng.choice(("near", "behind", "beside"))
    return slots
