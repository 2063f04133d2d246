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
"""The sections of lexicon.yaml whose words each grammar has."""

PREPOSITIONS = "in near behind beside outside"

Lexicon = dict[str, list[str]]
"""Entries of the lexicon by group, such as "female" nouns or "transitive" verbs."""


def lexicon(size: str) -> Lexicon:
    """Return the words of a grammar by group, such as "transitive" verbs; see lexicon.yaml.

    Args:
        size: The grammar: "small", "large" or "crossed". A group that it lacks has no words.

    Raises:
        DataError: There is no grammar of this size.
    """
    if size not in SIZES:
        raise DataError(f"size={size} is not known; {nearest(size, SIZES)}")
    sections = yaml.safe_load(Path(__file__).with_name("lexicon.yaml").read_text())
    words: Lexicon = {}
    all_groups = [*sections["more"], *sections["determiners"]]  # these two name every group
    for group in all_groups:
        entries = [sections[name].get(group, "") for name in SIZES[size]]
        words[group] = " ".join(entries).split()
    return words


# A word has a feature where it shows it, as in table S1 of Salle et al. 2024:
#
# - Gender: nouns, names, he, she, him, her.
# - Number: nouns, names, pronouns but "you", determiners of one number ("this", "many"; not
#   "the"), and finite verbs in the present, which have their subject's. As "do" of "do you sing"
#   is singular in the table, "you" counts as one.
# - Tense: verbs and auxiliaries, that of their clause: "sing" is present in "do you sing" and past
#   in "did you sing".
# - Person: nouns, names, pronouns, and verbs in -s.
#
# The table has no verb like "they sing" and no "did": what is said of these is a choice of this
# package.


class Word(NamedTuple):
    """A form with its features; None where one does not apply."""

    form: str
    pos: str
    gender: str | None = None
    number: str | None = None
    tense: str | None = None
    person: str | None = None


Slot = list[Word]
"""The words that can stand at one position of a sentence."""


def with_s(base: str) -> str:
    """Return a regular plural or a verb in the third person: ladies, girls; sings, vanishes."""
    if _ends_in_consonant_and_y(base):
        return base[:-1] + "ies"
    if base.endswith(("s", "sh", "ch", "x", "z", "o")):
        return base + "es"
    return base + "s"


def with_ed(base: str) -> str:
    """Return the regular past tense of a verb: played, danced, cried."""
    if _ends_in_consonant_and_y(base):
        return base[:-1] + "ied"
    if base.endswith("e"):
        return base + "d"
    return base + "ed"


def _ends_in_consonant_and_y(base: str) -> bool:
    """Return whether a word ends in "y" after a consonant, like "lady"; it is not "y" itself."""
    return base.endswith("y") and base[-2] not in "aeiou"


def noun(entry: str, gender: str | None, number: str = "singular") -> Word:
    """Return a noun or name of the lexicon with its features, in the singular or the plural.

    Args:
        entry: The singular, and behind a slash the plural if that is irregular, such as
            "child/children". Words in -man, which become -men, count as regular.
        gender: "female" or "male"; None: the word shows no gender.
        number: "singular" or "plural".
    """
    base, _, irregular_plural = entry.partition("/")
    if number == "singular":
        form = base
    elif base.endswith("man"):
        form = base[:-3] + "men"
    else:
        form = irregular_plural or with_s(base)
    return Word(form, "Noun", gender, number, person="3")


class Phrase(NamedTuple):
    """A noun phrase, with the number and the person that a verb agrees with."""

    slots: list[Slot]
    """For each position of the phrase, the words that can stand there."""

    number: str = "singular"
    is_third_person: bool = True


def pronoun(form: str, person: str, number: str | None = None, gender: str | None = None) -> Word:
    """Return a pronoun with its features; None where one does not apply."""
    return Word(form, "Pronoun", gender, number, person=person)


I_YOU = [pronoun("I", "1", "singular"), pronoun("you", "2")]
HE_SHE = [pronoun("he", "3", "singular", "male"), pronoun("she", "3", "singular", "female")]
WE_THEY = [pronoun("we", "1", "plural"), pronoun("they", "3", "plural")]
ME_US_YOU = [
    pronoun("me", "1", "singular"),
    pronoun("us", "1", "plural"),
    pronoun("you", "2"),
]
HIM_HER = [pronoun("him", "3", "singular", "male"), pronoun("her", "3", "singular", "female")]
THEM = [pronoun("them", "3", "plural")]
WHICH = [Word("which", "Wh-word")]
WHO = [Word("who", "Wh-word")]


def determiners(words: Lexicon, number: str) -> Slot:
    """Return the determiners of nouns of a number, "singular" or "plural".

    Those that go with either number, such as "the", have no feature of number.
    """
    of_either_number = [Word(form, "Det") for form in words["either"]]
    of_this_number = [Word(form, "Det", number=number) for form in words[number]]
    return of_either_number + of_this_number


def nouns(words: Lexicon, number: str) -> Slot:
    """Return all nouns of the lexicon in a number, "singular" or "plural"."""
    genders = {"female": "female", "male": "male", "neither": None}
    slot = []
    for group, gender in genders.items():
        slot += [noun(entry, gender, number) for entry in words[group]]
    return slot


def phrases_with_noun(words: Lexicon, first: Slot, number: str) -> list[Phrase]:
    """Return a phrase such as "the woman" and one with an adjective, such as "the tall woman".

    In a grammar without adjectives, the second phrase has an empty slot, so that no sentence is
    made of it.

    Args:
        words: The words of the grammar by group.
        first: The words at the first position, such as "the".
        number: The number of the noun, "singular" or "plural".
    """
    head = nouns(words, number)
    adjectives = [Word(form, "Adjective") for form in words["adjectives"]]
    return [Phrase([first, head], number), Phrase([first, adjectives, head], number)]


def phrases_without_pronoun(words: Lexicon) -> list[Phrase]:
    """Return the forms of all noun phrases without a pronoun, with the words that fill them.

    A `Phrase` is a list of slots, one for each position, and each slot is a list of the words that
    can stand there. One phrase of two slots thus gives "the woman", "no man" and many others. The
    first phrase has a single slot, that of all names, such as "Mary".
    """
    names = []
    for gender in ("female", "male"):
        names += [noun(name, gender) for name in words[f"{gender} names"]]
    phrases = [Phrase([names])]
    for number in ("singular", "plural"):
        phrases += phrases_with_noun(words, determiners(words, number), number)
    return phrases


def finite_verbs(entries: list[str], tense: str, subject: Phrase, pos: str = "Verb") -> Slot:
    """Return finite verbs that agree with their subject: she sings, I sing, they sing, all sang.

    Args:
        entries: Verbs of the lexicon; behind a slash stands the past tense if it is irregular,
            such as "sing/sang".
        tense: "present" or "past".
        subject: The subject, whose number and person decide the form in the present.
        pos: The part of speech: "Verb" or "Auxiliary".
    """
    slot = []
    for entry in entries:
        base, _, irregular_past = entry.partition("/")
        if tense == "past":
            word = Word(irregular_past or with_ed(base), pos, tense=tense)
        elif subject.is_third_person and subject.number == "singular":
            word = Word(with_s(base), pos, number="singular", tense=tense, person="3")
        else:
            word = Word(base, pos, number=subject.number, tense=tense)
        slot.append(word)
    return slot


class Pattern(NamedTuple):
    """A row of slots; one word of each makes a sentence of this kind.

    No other pattern makes the same sentence.
    """

    kind: str
    slots: list[Slot]

    @property
    def size(self) -> int:
        """The number of sentences of this pattern."""
        return prod(map(len, self.slots))


@cache
def patterns(size: str = "small") -> tuple[Pattern, ...]:
    """Return all patterns of a grammar; a pattern is a row of slots, one for each word.

    Each tense and each clause has a pattern without a place and one with a place, such as "in the
    garden". Patterns with an empty slot make no sentence and are left out: the small grammar, for
    example, has no adjectives and no places.

    Args:
        size: The grammar: "small", "large" or "crossed".
    """
    words = lexicon(size)
    prepositions = [Word(form, "Preposition") for form in PREPOSITIONS.split()]
    place_nouns = [noun(entry, None) for entry in words["places"]]
    place_phrase = [prepositions, determiners(words, "singular"), place_nouns]

    grammar_patterns = []
    for tense in ("present", "past"):
        for kind, slots in _clauses(words, tense):
            for ending in ([], place_phrase):
                pattern = Pattern(kind, slots + ending)
                if pattern.size > 0:
                    grammar_patterns.append(pattern)
    return tuple(grammar_patterns)


def _clauses(words: Lexicon, tense: str) -> Iterator[tuple[str, list[Slot]]]:
    """Yield the kind and the slots of each clause in a tense, "present" or "past".

    A slot is the list of words that can stand at one position.
    """
    intransitive = words["intransitive"]
    transitive = words["transitive"]
    # Infinitives follow an auxiliary, as in "did she sing" and "did she see him".
    sing = [Word(entry.partition("/")[0], "Verb", tense=tense) for entry in intransitive]
    see = [Word(entry.partition("/")[0], "Verb", tense=tense) for entry in transitive]
    interrogatives = [
        Phrase([WHO]),
        *phrases_with_noun(words, WHICH, "singular"),
        *phrases_with_noun(words, WHICH, "plural"),
    ]
    noun_phrases = phrases_without_pronoun(words)
    subjects = [
        Phrase([I_YOU], is_third_person=False),
        Phrase([HE_SHE]),
        Phrase([WE_THEY], "plural"),
        *noun_phrases,
    ]

    for subject in subjects:
        first = subject.slots
        do = finite_verbs(["do/did"], tense, subject, "Auxiliary")
        # the woman plays
        yield "intransitive", [*first, finite_verbs(intransitive, tense, subject)]
        # do you sing
        yield "do-question", [do, *first, sing]
        for object_slots in _objects_of(subject, noun_phrases):
            verb = finite_verbs(transitive, tense, subject)
            # Mary saw him
            yield "transitive", [*first, verb, *object_slots]
            # did Mary see him
            yield "transitive do-question", [do, *first, see, *object_slots]
        for phrase in interrogatives:
            # who did Mary see
            yield "object wh-question", [*phrase.slots, do, *first, see]
    for phrase in interrogatives:
        # which men sneezed
        yield "wh-question", [*phrase.slots, finite_verbs(intransitive, tense, phrase)]
        for object_slots in _objects_of(phrase, noun_phrases):
            verb = finite_verbs(transitive, tense, phrase)
            # who saw Mary
            yield "transitive wh-question", [*phrase.slots, verb, *object_slots]


def _objects_of(subject: Phrase, noun_phrases: list[Phrase]) -> list[list[Slot]]:
    """Return the objects that a transitive verb can have, each as its slots.

    A slot is the list of words that can stand at one position. The first object is a pronoun, one
    slot. The objects "me", "us" and "you" are left out after the subjects "I", "you" and "we", as
    in "I see me". They are left out after "they", too, which shares a slot with "we".

    Args:
        subject: The subject of the verb.
        noun_phrases: All noun phrases without a pronoun, each of which can be the object.
    """
    pronouns = [*HIM_HER, *THEM]
    if subject.slots not in ([I_YOU], [WE_THEY]):
        pronouns += ME_US_YOU
    objects = [[pronouns]]
    for phrase in noun_phrases:
        objects.append(phrase.slots)
    return objects


class Sentence(NamedTuple):
    """A sentence of the grammar, and the kind of its pattern."""

    kind: str
    words: tuple[Word, ...]

    @property
    def text(self) -> str:
        """The words with a space between two of them."""
        return " ".join(word.form for word in self.words)


def crossed_sentences(most_words: int = 5) -> list[Sentence]:
    """Return all sentences of the crossed grammar that have at most `most_words` words.

    This grammar has only one or two words of each kind, so that all their combinations can be
    returned. In these, features depend on each other and on single words as little as possible.
    """
    sentences = []
    for kind, slots in patterns("crossed"):
        if len(slots) <= most_words:
            sentences += [Sentence(kind, words) for words in product(*slots)]
    return sentences


def controlled_sentences(count: int, seed: int = 0, size: str = "small") -> list[Sentence]:
    """Draw distinct sentences of a grammar in random order, about half of them questions.

    Each kind of statement, such as "transitive", is drawn equally often, and so is each kind of
    question. A sentence that was drawn before is not counted again, so a kind of few sentences
    adds fewer than others.

    Args:
        count: How many sentences are drawn.
        seed: The same seed draws the same sentences.
        size: The grammar: "small", "large" or "crossed".

    Raises:
        DataError: There is no grammar of this size, or it has fewer sentences.
    """
    total = sum(pattern.size for pattern in patterns(size))
    if not 0 < count <= total:
        raise DataError(
            f"count={count} must lie between 1 and {total}, the number of sentences of the {size} "
            "grammar"
        )
    kinds_of_statements: list[list[Pattern]] = []
    kinds_of_questions: list[list[Pattern]] = []
    by_kind = attrgetter("kind")
    for kind, group in groupby(sorted(patterns(size), key=by_kind), by_kind):
        kinds = kinds_of_questions if "question" in kind else kinds_of_statements
        kinds.append(list(group))

    rng = random.Random(seed)
    sentences: dict[str, Sentence] = {}
    while len(sentences) < count:
        is_question = rng.random() < 0.5
        kinds = kinds_of_questions if is_question else kinds_of_statements
        pattern = rng.choice(rng.choice(kinds))
        words = tuple(rng.choice(slot) for slot in pattern.slots)
        sentence = Sentence(pattern.kind, words)
        sentences.setdefault(sentence.text, sentence)  # a repeated sentence counts once
    return list(sentences.values())


def derivations(text: str, size: str = "small") -> list[Sentence]:
    """Return the sentence of a grammar that reads like a text, with the features of its words.

    The list is empty if the text is not a sentence of the grammar. Otherwise it has one sentence,
    since no text can be read in two ways in these grammars.

    Args:
        text: The words of the text, divided by spaces.
        size: The grammar: "small", "large" or "crossed".
    """
    forms = text.split()
    sentences = []
    for kind, slots in patterns(size):
        if len(slots) != len(forms):
            continue
        matching_words = []
        for slot, form in zip(slots, forms, strict=True):
            matching_words.append([word for word in slot if word.form == form])
        sentences += [Sentence(kind, words) for words in product(*matching_words)]
    return sentences
