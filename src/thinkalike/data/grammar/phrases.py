"""Noun phrases, and verbs that agree with them. A *slot* is a list of the words for one place in a sentence."""

from __future__ import annotations

from typing import NamedTuple

from thinkalike.data.grammar.lexicon import PREPOSITIONS, Lexicon
from thinkalike.data.grammar.words import Slot, Word, noun, pronoun, with_ed, with_s


class Phrase(NamedTuple):
    """A noun phrase, with the number and person that a verb agrees with."""

    slots: list[Slot]
    number: str = "singular"
    third: bool = True


I_YOU = [pronoun("I", "1", "singular"), pronoun("you", "2")]
HE_SHE = [pronoun("he", "3", "singular", "male"), pronoun("she", "3", "singular", "female")]
WE_THEY = [pronoun("we", "1", "plural"), pronoun("they", "3", "plural")]
ME_US_YOU = [pronoun("me", "1", "singular"), pronoun("us", "1", "plural"), pronoun("you", "2")]
HIM_HER = [pronoun("him", "3", "singular", "male"), pronoun("her", "3", "singular", "female")]
THEM = [pronoun("them", "3", "plural")]
WHICH, WHO = [Word("which", "Wh-word")], [Word("who", "Wh-word")]


def determiners(words: Lexicon, number: str) -> Slot:
    """Return the determiners of a number."""
    own = [Word(form, "Det", number=number) for form in words[number]]
    return [Word(form, "Det") for form in words["either"]] + own


def nouns(words: Lexicon, number: str) -> Slot:
    """Return the common nouns in a number."""
    genders = {"female": "female", "male": "male", "neither": None}
    return [noun(entry, gender, number) for group, gender in genders.items() for entry in words[group]]


def with_noun(words: Lexicon, first: Slot, number: str) -> list[Phrase]:
    """Return phrases such as "the woman" and "the tall woman", which begin with the words of `first`."""
    head, adjectives = nouns(words, number), [Word(form, "Adjective") for form in words["adjectives"]]
    return [Phrase([first, head], number), Phrase([first, adjectives, head], number)]


def full_phrases(words: Lexicon) -> list[Phrase]:
    """Return phrases such as "Mary", "the woman" and "no men"."""
    names = [noun(name, gender) for gender in ("female", "male") for name in words[f"{gender} names"]]
    singular, plural = (with_noun(words, determiners(words, number), number) for number in ("singular", "plural"))
    return [Phrase([names]), *singular, *plural]


def subjects(words: Lexicon) -> list[Phrase]:
    """Return what can be a subject: pronouns and full phrases."""
    pronouns = [Phrase([I_YOU], third=False), Phrase([HE_SHE]), Phrase([WE_THEY], "plural")]
    return pronouns + full_phrases(words)


def objects(words: Lexicon, subject: Phrase) -> list[list[Slot]]:
    """Return what can be the object of a subject.

    After I, you, we and they a pronoun is him, her or them, so that nobody says "I see me".
    """
    others = [] if subject.slots in ([I_YOU], [WE_THEY]) else ME_US_YOU
    return [[HIM_HER + THEM + others], *(phrase.slots for phrase in full_phrases(words))]


def interrogatives(words: Lexicon) -> list[Phrase]:
    """Return phrases that ask: "who", "which woman", "which men"."""
    return [Phrase([WHO]), *with_noun(words, WHICH, "singular"), *with_noun(words, WHICH, "plural")]


def place(words: Lexicon) -> list[Slot]:
    """Return the slots of a place such as "near the garden"."""
    prepositions = [Word(form, "Preposition") for form in PREPOSITIONS.split()]
    return [prepositions, determiners(words, "singular"), [noun(entry, None) for entry in words["places"]]]


def finite(entries: list[str], tense: str, subject: Phrase, pos: str = "Verb") -> Slot:
    """Return verbs that agree with their subject: she sings, I sing, they sing, all sang."""
    forms = [entry.partition("/")[::2] for entry in entries]
    if tense == "past":
        return [Word(past or with_ed(base), pos, tense=tense) for base, past in forms]
    if subject.third and subject.number == "singular":
        return [Word(with_s(base), pos, None, "singular", tense, "3") for base, _ in forms]
    return [Word(base, pos, None, subject.number, tense) for base, _ in forms]


def bare(entries: list[str], tense: str) -> Slot:
    """Return the verbs of a do-question in this tense."""
    return [Word(entry.partition("/")[0], "Verb", tense=tense) for entry in entries]
