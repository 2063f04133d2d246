"""Controlled English sentences and the features of their words (Salle et al. 2024, appendix A).

From top to bottom: lexicon, forms of words, noun phrases, verbs, kinds of sentences, drawing. A *slot* is a list of
words for one place, a *pattern* a row of slots; one word of each slot makes a sentence, and no sentence is made twice.
A word has a feature where it shows it, as in table S1:

- Gender: nouns, names, he, she, him, her.
- Number: nouns, names, pronouns but "you", determiners of one number ("this", "many"; not "the"), and finite verbs in
  the present, which have their subject's. As "do" of "do you sing" is singular in the table, "you" counts as one.
- Tense: verbs and auxiliaries, that of their clause: "sing" is present in "do you sing" and past in "did you sing".
- Person: nouns, names, pronouns, and verbs in -s.

The table has no verb like "they sing" and no "did": what is said of these is a choice of this file.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from itertools import groupby, product
from math import prod
from operator import attrgetter
from typing import NamedTuple

from thinkalike.errors import DataError, nearest

SIZES = ("small", "large")

# --------------------------------------------------------------------------------------------------------- the lexicon

# A slash gives an irregular plural or past. No past is like its base (hit, put). Nouns and adjectives begin with a
# consonant, so that "a" goes with all of them.
SMALL = {
    "female": "woman girl princess queen mother daughter sister wife/wives bride widow waitress witch niece lady "
    "nun duchess hostess grandmother maid goddess",
    "male": "man boy prince king father son brother husband groom widower waiter wizard nephew gentleman monk duke "
    "host grandfather butler god",
    "female names": "Mary Anna Emma Laura Julia Sarah Alice Clara Nora Helen Ruth Grace Lucy Eve Charlotte Rebecca",
    "male names": "John Peter Paul David Thomas Henry Simon Martin Robert Philip Oscar Victor Max Leo Benjamin "
    "Nathaniel",
    "intransitive": "sing/sang play fall/fell vanish sneeze laugh sleep/slept dance smile cough dream swim/swam "
    "run/ran jump cry sit/sat yawn travel complain disappear hesitate rest wait work",
    "transitive": "see/saw admire greet help love call thank follow praise visit know/knew find/found hire blame "
    "warn trust miss forgive/forgave watch meet/met invite ignore recognize catch/caught",
}
MORE = {  # what the large grammar has besides
    "female": "granddaughter stepmother stepsister countess baroness priestess stewardess policewoman businesswoman "
    "saleswoman sportswoman spokeswoman councilwoman noblewoman horsewoman schoolgirl ballerina landlady milkmaid "
    "bridesmaid godmother goddaughter sorceress shepherdess seamstress mermaid matron governess cowgirl",
    "male": "grandson stepfather stepbrother count baron priest steward policeman businessman cowboy salesman "
    "sportsman spokesman councilman nobleman horseman schoolboy hero landlord milkman bridegroom godfather godson "
    "sorcerer shepherd knight fisherman lad bachelor",
    "neither": "teacher doctor student pilot nurse singer dancer painter baker farmer soldier lawyer writer "
    "neighbor child/children tailor driver sailor poet cook guard guest visitor stranger tourist scientist cat dog "
    "horse bird fox wolf/wolves rabbit bear lion tiger monkey parrot mouse/mice goose/geese donkey pony turtle",
    "female names": "Susan Linda Karen Nancy Betty Margaret Sandra Carol Diana Amy Olivia Rachel Maria Catherine "
    "Hannah Victoria Martha Irene Rose Judith Jane Sophia Isabel Amelia Ella Zoe Nina Vera Stella Ivy Agnes Claire "
    "Daisy Fiona",
    "male names": "James Michael William Richard Joseph Charles Daniel Matthew Anthony Mark Steven Andrew Kenneth "
    "Kevin Brian George Edward Ronald Timothy Jason Ryan Jacob Gary Nicholas Eric Jonathan Scott Samuel Gregory "
    "Frank Hugo",
    "intransitive": "walk arrive whisper shout kneel/knelt nod/nodded blush faint stumble hide/hid shiver snore "
    "giggle sigh agree weep/wept argue wander stay breathe listen speak/spoke talk think/thought rise/rose march "
    "sail ride/rode float bow mutter groan scream tremble limp hurry pause return pray joke fail succeed retire "
    "suffer",
    "transitive": "kiss hug/hugged touch push pull kick carry lead/led teach/taught accuse amuse annoy attack avoid "
    "chase bother bring/brought comfort defend describe disturb envy examine fear fight/fought frighten hear/heard "
    "hold/held inspire insult interview judge leave/left like mention nominate notice obey pity protect punish "
    "question remember rescue respect scare shock surprise tease understand/understood want welcome",
    "adjectives": "tall short young brave clever kind happy sad quiet loud strong weak rich poor famous lazy polite "
    "rude proud shy tired busy calm cheerful curious friendly gentle nervous patient serious silly wise lucky "
    "careful modest noble fierce hungry thirsty sleepy beautiful handsome mysterious sensible stubborn talented "
    "wonderful charming",
    "places": "garden kitchen market library station museum castle village forest park school church hotel harbor "
    "bakery barn theater tower palace farm hospital tunnel cave cellar courtyard desert field house jungle lobby "
    "meadow cabin monastery prison restaurant shop stable studio temple tent valley warehouse cottage mansion",
}
DETERMINERS = {"either": "the no", "singular": "a this that every", "plural": "these those many few"}
PREPOSITIONS = "in near behind beside outside"

Lexicon = dict[str, list[str]]


def lexicon(size: str) -> Lexicon:
    """The words of a size; a DataError if there is no such size."""
    if size not in SIZES:
        raise DataError(f"size={size} is not known; {nearest(size, SIZES)}")
    parts = [SMALL, MORE] if size == "large" else [SMALL]
    return {group: " ".join(part.get(group, "") for part in parts).split() for group in MORE}


# -------------------------------------------------------------------------------------------------- the forms of words


class Word(NamedTuple):
    form: str
    pos: str
    gender: str | None = None
    number: str | None = None
    tense: str | None = None
    person: str | None = None


Slot = list[Word]


def with_s(base: str) -> str:
    """A plural, or a third person: girls, ladies; sings, vanishes, cries."""
    if base.endswith("y") and base[-2] not in "aeiou":
        return base[:-1] + "ies"
    return base + ("es" if base.endswith(("s", "sh", "ch", "x", "z", "o")) else "s")


def with_ed(base: str) -> str:
    """A past: played, danced, cried."""
    if base.endswith("y") and base[-2] not in "aeiou":
        return base[:-1] + "ied"
    return base + ("d" if base.endswith("e") else "ed")


def noun(entry: str, gender: str | None, number: str = "singular") -> Word:
    base, _, irregular = entry.partition("/")
    plural = base[:-3] + "men" if base.endswith("man") else irregular or with_s(base)
    return Word(base if number == "singular" else plural, "Noun", gender, number, person="3")


def pronoun(form: str, person: str, number: str | None = None, gender: str | None = None) -> Word:
    return Word(form, "Pronoun", gender, number, person=person)


# -------------------------------------------------------------------------------------------------------- noun phrases


class Phrase(NamedTuple):
    """A noun phrase, and what a verb agrees with."""

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


def determiners(number: str) -> Slot:
    either, own = (DETERMINERS[key].split() for key in ("either", number))
    return [Word(form, "Det") for form in either] + [Word(form, "Det", number=number) for form in own]


def nouns(words: Lexicon, number: str) -> Slot:
    genders = {"female": "female", "male": "male", "neither": None}
    return [noun(entry, gender, number) for group, gender in genders.items() for entry in words[group]]


def with_noun(words: Lexicon, first: Slot, number: str) -> list[Phrase]:
    """the woman; the tall woman"""
    head, adjectives = nouns(words, number), [Word(form, "Adjective") for form in words["adjectives"]]
    return [Phrase([first, head], number), Phrase([first, adjectives, head], number)]


def full_phrases(words: Lexicon) -> list[Phrase]:
    """Mary; the woman, no men"""
    names = [noun(name, gender) for gender in ("female", "male") for name in words[f"{gender} names"]]
    singular, plural = (with_noun(words, determiners(number), number) for number in ("singular", "plural"))
    return [Phrase([names]), *singular, *plural]


def subjects(words: Lexicon) -> list[Phrase]:
    pronouns = [Phrase([I_YOU], third=False), Phrase([HE_SHE]), Phrase([WE_THEY], "plural")]
    return pronouns + full_phrases(words)


def objects(words: Lexicon, subject: Phrase) -> list[list[Slot]]:
    """After I, you, we and they a pronoun is him, her or them: not "I see me"."""
    others = [] if subject.slots in ([I_YOU], [WE_THEY]) else ME_US_YOU
    return [[HIM_HER + THEM + others], *(phrase.slots for phrase in full_phrases(words))]


def interrogatives(words: Lexicon) -> list[Phrase]:
    """who; which woman, which men"""
    return [Phrase([WHO]), *with_noun(words, WHICH, "singular"), *with_noun(words, WHICH, "plural")]


def place(words: Lexicon) -> list[Slot]:
    """near the garden"""
    prepositions = [Word(form, "Preposition") for form in PREPOSITIONS.split()]
    return [prepositions, determiners("singular"), [noun(entry, None) for entry in words["places"]]]


# --------------------------------------------------------------------------------------------------------------- verbs


def finite(entries: list[str], tense: str, subject: Phrase, pos: str = "Verb") -> Slot:
    """sings (she), sing (I, they), sang (all)"""
    forms = [entry.partition("/")[::2] for entry in entries]
    if tense == "past":
        return [Word(past or with_ed(base), pos, tense=tense) for base, past in forms]
    if subject.third and subject.number == "singular":
        return [Word(with_s(base), pos, None, "singular", tense, "3") for base, _ in forms]
    return [Word(base, pos, None, subject.number, tense) for base, _ in forms]


def bare(entries: list[str], tense: str) -> Slot:
    """The verb of a do-question."""
    return [Word(entry.partition("/")[0], "Verb", tense=tense) for entry in entries]


# ----------------------------------------------------------------------------------------------- the kinds of sentences


class Pattern(NamedTuple):
    kind: str
    slots: list[Slot]

    @property
    def size(self) -> int:
        return prod(map(len, self.slots))


@cache
def patterns(size: str = "small") -> tuple[Pattern, ...]:
    """All patterns: of each kind by tense, subject, object and place."""
    words = lexicon(size)
    clauses = [clause for tense in ("present", "past") for clause in _clauses(words, tense)]
    found = [Pattern(kind, slots + after) for (kind, slots), after in product(clauses, ([], place(words)))]
    return tuple(pattern for pattern in found if pattern.size)  # the small grammar has no adjectives and no places


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
    kind: str
    words: tuple[Word, ...]

    @property
    def question(self) -> bool:
        return "question" in self.kind

    @property
    def text(self) -> str:
        return " ".join(word.form for word in self.words)


def derivations(text: str, size: str = "small") -> list[Sentence]:
    """The sentence as the grammar derives it; an empty list if it does not."""
    forms, found = text.split(), []
    for kind, slots in patterns(size):
        if len(slots) == len(forms):
            fitting = [[word for word in slot if word.form == form] for slot, form in zip(slots, forms, strict=True)]
            found += [Sentence(kind, words) for words in product(*fitting)]
    return found


def controlled_sentences(count: int, seed: int = 0, size: str = "small") -> list[Sentence]:
    """Distinct sentences, half of them questions, of all kinds alike; a kind that is used up leaves room to others.

    Raises:
        DataError: the grammar has fewer sentences, or there is no such size.
    """
    total = sum(pattern.size for pattern in patterns(size))
    if not 0 < count <= total:
        raise DataError(f"count={count} must lie between 1 and {total}, the sentences of the {size} grammar")
    moods: dict[bool, list[list[Pattern]]] = {False: [], True: []}
    for kind, group in groupby(sorted(patterns(size), key=attrgetter("kind")), attrgetter("kind")):
        moods["question" in kind].append(list(group))
    rng, found = random.Random(seed), dict[str, Sentence]()
    while len(found) < count:
        kind, slots = rng.choice(rng.choice(moods[rng.random() < 0.5]))
        drawn = Sentence(kind, tuple(rng.choice(slot) for slot in slots))
        found.setdefault(drawn.text, drawn)
    return list(found.values())
