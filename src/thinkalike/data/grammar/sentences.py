"""Controlled English sentences and the features of their words (Salle et al. 2024, appendix A).

One word of each slot of a pattern makes a sentence, and no sentence is made twice.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from itertools import groupby, product
from math import prod
from operator import attrgetter
from typing import NamedTuple

from thinkalike.data.grammar.lexicon import Lexicon, lexicon
from thinkalike.data.grammar.phrases import bare, finite, interrogatives, objects, place, subjects
from thinkalike.data.grammar.words import Slot, Word
from thinkalike.errors import DataError


class Pattern(NamedTuple):
    """A row of slots; one word of each of them makes a sentence of this kind."""

    kind: str
    slots: list[Slot]

    @property
    def size(self) -> int:
        """The number of its sentences."""
        return prod(map(len, self.slots))


@cache
def patterns(size: str = "small") -> tuple[Pattern, ...]:
    """Return all patterns of a grammar: each kind of sentence by tense, subject, object and place.

    Raises:
        DataError: there is no grammar of this size.
    """
    words = lexicon(size)
    clauses = [clause for tense in ("present", "past") for clause in _clauses(words, tense)]
    every = [Pattern(kind, slots + after) for (kind, slots), after in product(clauses, ([], place(words)))]
    return tuple(pattern for pattern in every if pattern.size)  # the small grammar has no adjectives and no places


def _clauses(words: Lexicon, tense: str) -> Iterator[tuple[str, list[Slot]]]:
    alone, taking = words["intransitive"], words["transitive"]
    for subject in subjects(words):
        first, do = subject.slots, finite(["do/did"], tense, subject, "Auxiliary")
        yield "intransitive", [*first, finite(alone, tense, subject)]  # the woman plays
        yield "do-question", [do, *first, bare(alone, tense)]  # do you sing
        for object_ in objects(words, subject):
            yield "transitive", [*first, finite(taking, tense, subject), *object_]  # Mary saw him
            yield "transitive do-question", [do, *first, bare(taking, tense), *object_]  # did Mary see him
        for asked in interrogatives(words):
            yield "object wh-question", [*asked.slots, do, *first, bare(taking, tense)]  # who did Mary see
    for asked in interrogatives(words):
        yield "wh-question", [*asked.slots, finite(alone, tense, asked)]  # which men sneezed
        for object_ in objects(words, asked):
            yield "transitive wh-question", [*asked.slots, finite(taking, tense, asked), *object_]  # who saw Mary


class Sentence(NamedTuple):
    """A sentence of the grammar, and the kind of its pattern."""

    kind: str
    words: tuple[Word, ...]

    @property
    def question(self) -> bool:
        """Whether the sentence asks something."""
        return "question" in self.kind

    @property
    def text(self) -> str:
        """The words, separated by spaces."""
        return " ".join(word.form for word in self.words)


def crossed_sentences(longest: int = 5) -> list[Sentence]:
    """Return all sentences of the crossed grammar of so many words at most: every word wherever it can stand.

    With one or two words of each kind, features are as independent of each other and of single words as a language
    lets them be.
    """
    within = [pattern for pattern in patterns("crossed") if len(pattern.slots) <= longest]
    return [Sentence(kind, words) for kind, slots in within for words in product(*slots)]


def derivations(text: str, size: str = "small") -> list[Sentence]:
    """Return the ways in which the grammar derives a sentence: one, or none if it is not a sentence of the grammar."""
    forms, derived = text.split(), list[Sentence]()
    for kind, slots in patterns(size):
        if len(slots) == len(forms):
            fitting = [[word for word in slot if word.form == form] for slot, form in zip(slots, forms, strict=True)]
            derived += [Sentence(kind, words) for words in product(*fitting)]
    return derived


def controlled_sentences(count: int, seed: int = 0, size: str = "small") -> list[Sentence]:
    """Draw distinct sentences: half of them questions, and each kind of question or statement equally often.

    A kind that is used up leaves room to the others.

    Raises:
        DataError: the grammar has fewer sentences, or there is no such size.
    """
    total = sum(pattern.size for pattern in patterns(size))
    if not 0 < count <= total:
        raise DataError(f"count={count} must lie between 1 and {total}, the number of sentences of the {size} grammar")
    moods: dict[bool, list[list[Pattern]]] = {False: [], True: []}
    for kind, group in groupby(sorted(patterns(size), key=attrgetter("kind")), attrgetter("kind")):
        moods["question" in kind].append(list(group))
    rng, sentences = random.Random(seed), dict[str, Sentence]()
    while len(sentences) < count:
        kind, slots = rng.choice(rng.choice(moods[rng.random() < 0.5]))
        drawn = Sentence(kind, tuple(rng.choice(slot) for slot in slots))
        sentences.setdefault(drawn.text, drawn)
    return list(sentences.values())
