"""The grammar: words of lexicon.yaml with their features, phrases, and sentences."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from itertools import groupby, product
from math import prod
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import yaml

from thinkalike.errors import DataError, nearest

SIZES = {
    "small": ["small", "determiners"],
    "large": ["small", "more", "determiners"],
    "crossed": ["crossed"],
}
PREPOSITIONS = "in near behind beside outside"

Lexicon = dict[str, list[str]]


def lexicon(size: str) -> Lexicon:
    """Return the words of the small, the large or the crossed grammar, by group."""
    if size not in SIZES:
        raise DataError(f"size={size} is not known; {nearest(size, SIZES)}")
    parts = yaml.safe_load(Path(__file__).with_name("lexicon.yaml").read_text())
    groups = [*parts["more"], *parts["determiners"]]
    return {
        group: " ".join(parts[name].get(group, "") for name in SIZES[size]).split()
        for group in groups
    }


# A word has a feature where it shows it, as in table S1 of Salle et al. 2024:
#
# - Gender: nouns, names, he, she, him, her.
# - Number: nouns, names, pronouns but "you", determiners of one number ("this", "many"; not "the"), and finite verbs in
#   the present, which have their subject's. As "do" of "do you sing" is singular in the table, "you" counts as one.
# - Tense: verbs and auxiliaries, that of their clause: "sing" is present in "do you sing" and past in "did you sing".
# - Person: nouns, names, pronouns, and verbs in -s.
#
# The table has no verb like "they sing" and no "did": what is said of these is a choice of this package.


class Word(NamedTuple):
    """A form with its features; None where one does not apply."""

    form: str
    pos: str
    gender: str | None = None
    number: str | None = None
    tense: str | None = None
    person: str | None = None


Slot = list[Word]


def with_s(base: str) -> str:
    """Return a plural or a third person: girls, ladies; sings, vanishes, cries."""
    if base.endswith("y") and base[-2] not in "aeiou":
        return base[:-1] + "ies"
    return base + ("es" if base.endswith(("s", "sh", "ch", "x", "z", "o")) else "s")


def with_ed(base: str) -> str:
    if base.endswith("y") and base[-2] not in "aeiou":
        return base[:-1] + "ied"
    return base + ("d" if base.endswith("e") else "ed")


def noun(entry: str, gender: str | None, number: str = "singular") -> Word:
    """Return a noun or name of the lexicon, whose entry gives an irregular plural after a slash."""
    base, _, irregular = entry.partition("/")
    plural = base[:-3] + "men" if base.endswith("man") else irregular or with_s(base)
    return Word(base if number == "singular" else plural, "Noun", gender, number, person="3")


class Phrase(NamedTuple):
    """A noun phrase, with the number and the person that a verb agrees with."""

    slots: list[Slot]
    number: str = "singular"
    third: bool = True


def pronoun(form: str, person: str, number: str | None = None, gender: str | None = None) -> Word:
    return Word(form, "Pronoun", gender, number, person=person)


I_YOU = [pronoun("I", "1", "singular"), pronoun("you", "2")]
HE_SHE = [pronoun("he", "3", "singular", "male"), pronoun("she", "3", "singular", "female")]
WE_THEY = [pronoun("we", "1", "plural"), pronoun("they", "3", "plural")]
ME_US_YOU = [pronoun("me", "1", "singular"), pronoun("us", "1", "plural"), pronoun("you", "2")]
HIM_HER = [pronoun("him", "3", "singular", "male"), pronoun("her", "3", "singular", "female")]
THEM = [pronoun("them", "3", "plural")]
WHICH, WHO = [Word("which", "Wh-word")], [Word("who", "Wh-word")]


def determiners(words: Lexicon, number: str) -> Slot:
    own = [Word(form, "Det", number=number) for form in words[number]]
    return [Word(form, "Det") for form in words["either"]] + own


def nouns(words: Lexicon, number: str) -> Slot:
    genders = {"female": "female", "male": "male", "neither": None}
    return [
        noun(entry, gender, number) for group, gender in genders.items() for entry in words[group]
    ]


def with_noun(words: Lexicon, first: Slot, number: str) -> list[Phrase]:
    """Return phrases such as "the woman" and "the tall woman", which begin with the words of `first`."""
    head, adjectives = (
        nouns(words, number),
        [Word(form, "Adjective") for form in words["adjectives"]],
    )
    return [Phrase([first, head], number), Phrase([first, adjectives, head], number)]


def full_phrases(words: Lexicon) -> list[Phrase]:
    """Return phrases such as "Mary", "the woman" and "no men"."""
    names = [
        noun(name, gender) for gender in ("female", "male") for name in words[f"{gender} names"]
    ]
    singular, plural = (
        with_noun(words, determiners(words, number), number) for number in ("singular", "plural")
    )
    return [Phrase([names]), *singular, *plural]


def finite(entries: list[str], tense: str, subject: Phrase, pos: str = "Verb") -> Slot:
    """Return verbs that agree with their subject: she sings, I sing, they sing, all sang."""
    forms = [entry.partition("/")[::2] for entry in entries]
    if tense == "past":
        return [Word(past or with_ed(base), pos, tense=tense) for base, past in forms]
    if subject.third and subject.number == "singular":
        return [Word(with_s(base), pos, None, "singular", tense, "3") for base, _ in forms]
    return [Word(base, pos, None, subject.number, tense) for base, _ in forms]


class Pattern(NamedTuple):
    """A row of slots; one word of each makes a sentence of this kind, which no other pattern makes."""

    kind: str
    slots: list[Slot]

    @property
    def size(self) -> int:
        return prod(map(len, self.slots))


@cache
def patterns(size: str = "small") -> tuple[Pattern, ...]:
    """Return all patterns of a grammar: each kind of sentence by tense, subject, object and place."""
    words = lexicon(size)
    clauses = [clause for tense in ("present", "past") for clause in _clauses(words, tense)]
    prepositions = [Word(form, "Preposition") for form in PREPOSITIONS.split()]
    place = [
        prepositions,
        determiners(words, "singular"),
        [noun(entry, None) for entry in words["places"]],
    ]
    every = [
        Pattern(kind, slots + after) for (kind, slots), after in product(clauses, ([], place))
    ]
    return tuple(
        pattern for pattern in every if pattern.size
    )  # the small grammar has no adjectives and no places


def _clauses(words: Lexicon, tense: str) -> Iterator[tuple[str, list[Slot]]]:
    alone, taking = words["intransitive"], words["transitive"]
    sing, see = (
        [Word(each.partition("/")[0], "Verb", tense=tense) for each in verbs]
        for verbs in (alone, taking)
    )
    interrogatives = [
        Phrase([WHO]),
        *with_noun(words, WHICH, "singular"),
        *with_noun(words, WHICH, "plural"),
    ]
    full = full_phrases(words)

    def objects(subject: Phrase) -> list[list[Slot]]:  # after I, you, we, they no "I see me"
        others = [] if subject.slots in ([I_YOU], [WE_THEY]) else ME_US_YOU
        return [[HIM_HER + THEM + others], *(phrase.slots for phrase in full)]

    for subject in [
        Phrase([I_YOU], third=False),
        Phrase([HE_SHE]),
        Phrase([WE_THEY], "plural"),
        *full,
    ]:
        first, do = subject.slots, finite(["do/did"], tense, subject, "Auxiliary")
        yield "intransitive", [*first, finite(alone, tense, subject)]  # the woman plays
        yield "do-question", [do, *first, sing]  # do you sing
        for object_ in objects(subject):
            yield "transitive", [*first, finite(taking, tense, subject), *object_]  # Mary saw him
            yield "transitive do-question", [do, *first, see, *object_]  # did Mary see him
        for asked in interrogatives:
            yield "object wh-question", [*asked.slots, do, *first, see]  # who did Mary see
    for asked in interrogatives:
        yield "wh-question", [*asked.slots, finite(alone, tense, asked)]  # which men sneezed
        for object_ in objects(asked):
            yield (
                "transitive wh-question",
                [*asked.slots, finite(taking, tense, asked), *object_],
            )  # who saw Mary


class Sentence(NamedTuple):
    """A sentence of the grammar, and the kind of its pattern."""

    kind: str
    words: tuple[Word, ...]

    @property
    def text(self) -> str:
        return " ".join(word.form for word in self.words)


def crossed_sentences(longest: int = 5) -> list[Sentence]:
    """Return all sentences of the crossed grammar of at most `longest` words: every word wherever it can stand.

    With one or two words of each kind, features depend on each other and on single words as little as possible.
    """
    within = [pattern for pattern in patterns("crossed") if len(pattern.slots) <= longest]
    return [Sentence(kind, words) for kind, slots in within for words in product(*slots)]


def controlled_sentences(count: int, seed: int = 0, size: str = "small") -> list[Sentence]:
    """Draw distinct sentences: half of them questions, and each kind equally often, until it is used up."""
    total = sum(pattern.size for pattern in patterns(size))
    if not 0 < count <= total:
        raise DataError(
            f"count={count} must lie between 1 and {total}, the number of sentences of the {size} grammar"
        )
    moods: dict[bool, list[list[Pattern]]] = {False: [], True: []}
    for kind, group in groupby(sorted(patterns(size), key=attrgetter("kind")), attrgetter("kind")):
        moods["question" in kind].append(list(group))
    rng, sentences = random.Random(seed), dict[str, Sentence]()
    while len(sentences) < count:
        kind, slots = rng.choice(rng.choice(moods[rng.random() < 0.5]))
        drawn = Sentence(kind, tuple(rng.choice(slot) for slot in slots))
        sentences.setdefault(drawn.text, drawn)
    return list(sentences.values())


def derivations(text: str, size: str = "small") -> list[Sentence]:
    """Return the ways in which the grammar derives a sentence: one, or none if it is not a sentence of the grammar."""
    forms, derived = text.split(), list[Sentence]()
    for kind, slots in patterns(size):
        if len(slots) == len(forms):
            fitting = [
                [word for word in slot if word.form == form]
                for slot, form in zip(slots, forms, strict=True)
            ]
            derived += [Sentence(kind, words) for words in product(*fitting)]
    return derived
