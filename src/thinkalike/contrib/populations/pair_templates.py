"""Pairs for natural language inference that are made from templates.

In MNLI a hypothesis made of its premise's own words is mostly entailed, and a model may learn that
instead of the meaning. So it is in the training pairs here, except for a share of
*counterexamples*. The challenge has as many pairs of either class, with the names of HANS.
"""

from __future__ import annotations

import itertools
import random
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
import yaml

from thinkalike.contrib.populations.pairs import HANS_CLASSES, MNLI_CLASSES, Pairs
from thinkalike.data.documents import document_fingerprint
from thinkalike.data.grammar import Phrase, finite_verbs, lexicon, noun
from thinkalike.errors import DataError

Templates = dict[str, str]  # rules by subcase, separated by "; "

TEMPLATES = yaml.safe_load(Path(__file__).with_name("templates.yaml").read_text())

# The first letter of a subcase of the challenge.
HEURISTICS = {"l": "lexical_overlap", "s": "subsequence", "c": "constituent"}

# The second letter, for the class.
ENTAILED_LETTER = "e"
NOT_ENTAILED_LETTER = "n"

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
    """Generate distinct pairs of sentences for training on natural language inference.

    The three classes of MNLI have equal shares, apart from the pairs that `lexical` asks for. If a
    hypothesis has only words of its premise, the pair is mostly entailed, so that a model may
    learn the heuristic "same words, therefore entailed". Pairs are shuffled, so that any slice is
    a random sample.

    Args:
        count: How many pairs there are.
        seed: Decides the pairs and their order.
        counterexamples: The share of counterexamples to the heuristic (not entailed, labelled
            neutral) among the pairs whose hypothesis has only words of its premise.
        lexical: The share of all pairs that are generated from the lexical-overlap templates of
            the challenge set. They are entailed, except for the counterexamples.
    """
    n_lexical = round(lexical * count)
    n_lexical_counterexamples = round(counterexamples * n_lexical)
    n_entailed, n_neutral, n_contradiction = _equal_shares(count - n_lexical, len(MNLI_CLASSES))
    n_overlapping = int(OVERLAP * n_entailed)
    n_counterexamples = round(counterexamples * n_overlapping)

    overlapping = _challenge_templates(ENTAILED_LETTER) | TEMPLATES["overlapping"]
    # Counterexamples are neutral, so each one takes the place of a neutral pair. The entailed pair
    # that it displaces is made up for by an entailed pair without overlap.
    n_without_overlap = n_entailed - n_overlapping + n_counterexamples
    quotas = [
        Quota(overlapping, "entailment", n_overlapping - n_counterexamples),
        Quota(TEMPLATES["entailed"], "entailment", n_without_overlap),
        Quota(_challenge_templates(NOT_ENTAILED_LETTER), "neutral", n_counterexamples),
        Quota(TEMPLATES["neutral"], "neutral", n_neutral - n_counterexamples),
        Quota(TEMPLATES["contradiction"], "contradiction", n_contradiction),
        Quota(
            _challenge_templates(ENTAILED_LETTER, "l"),
            "entailment",
            n_lexical - n_lexical_counterexamples,
        ),
        Quota(
            _challenge_templates(NOT_ENTAILED_LETTER, "l"), "neutral", n_lexical_counterexamples
        ),
    ]
    return _draw_pairs(quotas, MNLI_CLASSES, seed, for_challenge=False)


@lru_cache(maxsize=SETS_IN_MEMORY)
def nli_challenge(count: int, seed: int = 1) -> Pairs:
    """Generate a challenge set: distinct pairs of sentences like those of HANS, shuffled.

    HANS is a data set that tests whether a model relies on heuristics such as "if all words of the
    hypothesis occur in the premise, it is entailed". There are three heuristics. Of the pairs for
    each one, half are entailed, as the heuristic says, and half are not. A hash of each sentence
    decides whether it is for training or for the challenge set, so no sentence is in both,
    whatever the counts and seeds.

    Args:
        count: How many pairs there are, divided equally between heuristics and classes.
        seed: Decides the pairs and their order.
    """
    entailment, non_entailment = HANS_CLASSES  # the names of the two classes
    # The name of a template begins with the letters of its heuristic and of its class: "ln_...".
    class_of_letter = {ENTAILED_LETTER: entailment, NOT_ENTAILED_LETTER: non_entailment}
    letter_pairs = list(itertools.product(HEURISTICS, class_of_letter))  # (heuristic, class)
    pair_counts = _equal_shares(count, len(letter_pairs))
    quotas = []
    for letters, n_pairs in zip(letter_pairs, pair_counts, strict=True):
        heuristic_letter, class_letter = letters
        templates = _challenge_templates(class_letter, heuristic_letter)
        quotas.append(Quota(templates, class_of_letter[class_letter], n_pairs))
    return _draw_pairs(quotas, HANS_CLASSES, seed, for_challenge=True)


def _equal_shares(count: int, n_shares: int) -> list[int]:
    """Divide a count into whole numbers that differ by at most 1, the larger ones first."""
    smallest, remainder = divmod(count, n_shares)
    return [smallest + 1] * remainder + [smallest] * (n_shares - remainder)


def _challenge_templates(class_letter: str, heuristic_letters: str = "lsc") -> Templates:
    """Return the templates of the challenge set for one class and for some heuristics.

    A subcase, the name of a group of templates, begins with the letters of its heuristic and its
    class: "ln_passive" has pairs in which lexical overlap does not mean entailment.

    Args:
        class_letter: "e" for entailed pairs, "n" for pairs that are not entailed.
        heuristic_letters: The letters of the heuristics: "l" for lexical overlap, "s" for
            subsequence, "c" for constituent.
    """
    templates = {}
    for subcase, rules in TEMPLATES["challenge"].items():
        if subcase[0] in heuristic_letters and subcase[1] == class_letter:
            templates[subcase] = rules
    return templates


def _draw_pairs(
    quotas: list[Quota], classes: tuple[str, ...], seed: int, for_challenge: bool
) -> Pairs:
    """Draw the pairs of each quota, no two of them the same, and shuffle them.

    A drawn pair is rejected if it was drawn before, or if one of its sentences is in the wrong
    half of all sentences: a hash assigns each sentence to training or to the challenge set.

    Args:
        quotas: How many pairs of which class are made from which templates.
        classes: The names of the classes. A label is an index in this list.
        seed: Decides the pairs and their order.
        for_challenge: Whether sentences are of the half for the challenge set, not for training.

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
                # A pair that was drawn before stays as it is, and does not count.
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
    are the two words of a pair, such as "tall" and "short". Names, adjectives and places have one
    form. Adjectives that have an opposite are only among the opposites.
    """
    words_left_out = set(TEMPLATES["left_out"].split())
    opposites = [tuple(pair.split("/")) for pair in TEMPLATES["opposites"].split()]
    for pair in opposites:
        words_left_out.update(pair)
    # An entry is a word, with its irregular form after a slash if it has one: "mouse/mice".
    entries_of: dict[str, list[str]] = {}
    for word_class, entries in lexicon("large").items():
        entries_of[word_class] = [
            entry for entry in entries if entry.partition("/")[0] not in words_left_out
        ]

    forms: dict[str, list[tuple[str, ...]]] = {"opposites": opposites}
    forms["nouns"] = []
    for entry in entries_of["female"] + entries_of["male"] + entries_of["neither"]:
        singular = noun(entry, gender=None, number="singular").form
        plural = noun(entry, gender=None, number="plural").form
        forms["nouns"].append((singular, plural))
    forms["names"] = [(name,) for name in entries_of["female names"] + entries_of["male names"]]
    forms["adjectives"] = [(word,) for word in entries_of["adjectives"]]
    forms["places"] = [(word,) for word in entries_of["places"]]
    no_subject = Phrase([])  # in the past tense, the form does not depend on the subject
    for verb_class in ("intransitive", "transitive"):
        pasts = finite_verbs(entries_of[verb_class], "past", no_subject)
        bases = [entry.partition("/")[0] for entry in entries_of[verb_class]]
        forms[verb_class] = [(past.form, base) for past, base in zip(pasts, bases, strict=True)]
    return forms


def _words_of_slots(rng: random.Random) -> dict[str, str]:
    """Draw a word for each slot of a template, such as A, V and B in "A V B -> B V A".

    Slots of the same kind, such as the people A and B, get different words.
    """
    forms = _word_forms()
    slots: dict[str, str] = {}

    # A, B and C: people ("the doctors"); X: a noun; was:A: the form of "to be" that A needs.
    # N and Ns: a noun in singular and plural.
    *nouns, last_noun = rng.sample(forms["nouns"], 5)
    slots["N"], slots["Ns"] = last_noun
    for slot, (singular, plural) in zip("ABCX", nouns, strict=True):
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
    # clause; R: a preposition. Places and adjectives have a single form.
    (slots["L"],), (slots["M"],) = rng.sample(forms["places"], 2)
    opposites = rng.choice(forms["opposites"])
    slots["G"], slots["g"] = rng.sample(opposites, 2)  # in random order
    (slots["P"],) = rng.choice(forms["adjectives"])
    slots["K"] = rng.choice(TEMPLATES["clause_taking"].split())
    slots["R"] = rng.choice(("near", "behind", "beside"))
    return slots
