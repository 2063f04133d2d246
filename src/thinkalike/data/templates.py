"""The templates of pairs for natural language inference, and their words.

A template is `premise -> hypothesis`; above each row stands an example. Its letters stand for words, each for another:

    A B C   people: the doctor, the doctors, Mary         X      a noun, singular or plural
    N Ns    a noun in the singular; its plural            was:A  was or were, as A needs
    S T     intransitive verbs in the past; s t: bases    V W    transitive verbs in the past; v w: bases
    K       a past that takes a noun or a clause          G g P  adjectives; g is the opposite of G
    R       near, behind, beside                          L M    places
"""

from __future__ import annotations

import random
from functools import cache, lru_cache

import torch

from thinkalike.data.documents import document_fingerprint
from thinkalike.data.grammar import Phrase, finite, lexicon, noun
from thinkalike.data.pairs import HANS, MNLI, Pairs
from thinkalike.errors import DataError

# ----------------------------------------------------------------------------------------------------------- the words

FUNCTION_WORDS = (
    "the a no every someone nobody was were did not by who that and or if because in outside near behind beside "
    "thought said hoped knew maybe perhaps clearly certainly"
)
OPPOSITES = "tall/short rich/poor strong/weak loud/quiet polite/rude calm/nervous fierce/gentle"
CLAUSE_TAKING = ["heard", "feared", "remembered", "mentioned", "understood"]

# Words that say something of another (whoever whispers speaks; a girl may be a princess), and verbs whose participle
# is not their past: "was seen by" would not be made of the words of "saw".
LEFT_OUT = (
    "woman girl lady man boy gentleman lad bachelor child goddess god hero noblewoman nobleman schoolgirl schoolboy "
    "student governess pony bird visitor tourist house jungle "
    "whisper shout mutter scream talk weep giggle snore limp march wander hurry travel disappear stay pause return "
    "stumble succeed fail dream breathe think see know forgive like notice touch hold meet protect bother disturb "
    "scare shock question respect rescue greet bring"
)

# -------------------------------------------------------------------------------------------------------- the templates

Templates = dict[str, str]
HEURISTICS = {"l": "lexical_overlap", "s": "subsequence", "c": "constituent"}

# The first letter is that of the heuristic by which the pair is entailed; the second is n where it is not. Training
# has the e as entailed pairs and the n as counterexamples.
CHALLENGE: Templates = {
    # the doctor was helped by Mary -> Mary helped the doctor
    "le_passive": "A was:A V by B -> B V A",
    # Mary helped the nurse and the pilot -> Mary helped the pilot
    "le_conjunction": "A V B and C -> A V C; A and B V C -> A V C; A and B S -> A S",
    # Mary helped the poet who praised John -> the poet praised John
    "le_relative_clause": "A V the X who W B -> the X W B",
    # the poet near Mary danced -> the poet danced
    "le_around_prepositional_phrase": "the X R A S -> the X S; the X R A V B -> the X V B",
    # the poet who helped Mary danced -> the poet danced
    "le_around_relative_clause": "the X who V A S -> the X S; the X who W A V B -> the X V B",
    # Mary helped the doctor -> the doctor helped Mary
    "ln_subject/object_swap": "A V B -> B V A",
    # the poet near Mary helped John -> Mary helped the poet
    "ln_preposition": "the X R A V B -> A V the X; the X R A V B -> B V the X; A V the X R B -> A V B",
    # the poet who praised Mary helped John -> Mary praised the poet
    "ln_relative_clause": "the X who W A V B -> A W the X; A V the X who W B -> A W B",
    # the doctor was helped by Mary -> the doctor helped Mary
    "ln_passive": "A was:A V by B -> A V B",
    # Mary helped the nurse and the pilot -> the nurse helped the pilot
    "ln_conjunction": "A V B and C -> B V C; A and B V C -> A V B",
    # Mary and the doctor danced -> the doctor danced
    "se_conjunction": "A and B S -> B S; A and B V C -> B V C; A V B and C -> A V B",
    # Mary helped the poet near John -> Mary helped the poet
    "se_PP_on_obj": "A V the X R B -> A V the X",
    # Mary helped the poet who praised John -> Mary helped the poet
    "se_relative_clause_on_obj": "A V the X who W B -> A V the X",
    # brave doctors danced -> doctors danced
    "se_adjective": "P Ns S -> Ns S; P Ns V A -> Ns V A",
    # the poet near Mary danced -> Mary danced
    "sn_PP_on_subject": "the X R A S -> A S; the X R A V B -> A V B",
    # the poet who helped Mary danced -> Mary danced
    "sn_relative_clause_on_subject": "the X who V A S -> A S; the X who W A V B -> A V B",
    # the poet helped by Mary danced -> Mary danced
    "sn_past_participle": "the X V by A S -> A S",
    # Mary heard the doctor danced -> Mary heard the doctor
    "sn_NP/S": "A K B S -> A K B",
    # because Mary sang John danced -> Mary sang
    "ce_embedded_under_because": "because A S B T -> A S; B T because A S -> A S",
    # because Mary sang John danced -> John danced
    "ce_after_because_clause": "because A S B T -> B T; because A S B V C -> B V C",
    # Mary knew that John danced -> John danced
    "ce_embedded_under_verb": "A knew that B S -> B S; A knew that B V C -> B V C",
    # Mary sang and John danced -> John danced
    "ce_conjunction": "A S and B T -> A S; A S and B T -> B T; A S and B V C -> B V C",
    # clearly Mary danced -> Mary danced
    "ce_adverb": "clearly A S -> A S; certainly A V B -> A V B",
    # if Mary sang John danced -> Mary sang
    "cn_embedded_under_if": "if A S B T -> A S; B T if A S -> A S",
    # if Mary sang John danced -> John danced
    "cn_after_if_clause": "if A S B T -> B T; if A S B V C -> B V C",
    # Mary thought that John danced -> John danced
    "cn_embedded_under_verb": "A thought that B S -> B S; A said that B V C -> B V C; A hoped that B S -> B S",
    # Mary sang or John danced -> John danced
    "cn_disjunction": "A S or B T -> A S; A S or B T -> B T; A S or B V C -> B V C",
    # maybe Mary danced -> Mary danced
    "cn_adverb": "maybe A S -> A S; perhaps A V B -> A V B",
}

# From here on for training only. These are entailed; they begin like counterexamples, as a premise should not tell.
OVERLAPPING: Templates = {
    # Mary danced in the park -> Mary danced
    "place": "A S in the L -> A S; A S outside the L -> A S; A V B in the L -> A V B",
    # the tall poet danced -> the poet danced
    "adjective": "the P X S -> the X S; the P X V A -> the X V A; A V the P X -> A V the X",
    # the poet helped by Mary danced -> Mary helped the poet
    "participle": "the X V by A S -> the X S; the X V by A S -> A V the X",
    # if Mary sang John danced -> John danced if Mary sang
    "order": "if A S B T -> B T if A S; A S or B T -> B T or A S",
    # maybe Mary and John danced -> maybe John danced
    "inside": "maybe A and B S -> maybe B S; perhaps A V B and C -> perhaps A V C; if A S B and C T -> if A S C T; "
    "A and B thought that C S -> B thought that C S; A hoped that B and C S -> A hoped that B S; "
    "A and B said that C S -> A said that C S; A and B K C S -> B K C S",
}

# From here on the hypothesis always has a word that the premise has not.
ENTAILED: Templates = {
    # Mary helped the doctor -> the doctor was helped by Mary
    "passive": "A V B -> B was:B V by A",
    # Mary danced -> someone danced
    "someone": "A S -> someone S; A V B -> someone V B; A V B -> A V someone",
    # the doctor danced -> a doctor danced
    "article": "the N S -> a N S; the N V A -> a N V A; every N S -> the N S",
    # no doctor danced -> the doctor did not dance
    "negation": "A did not s -> A did not s in the L; no X S -> the X did not s; nobody S -> A did not s; "
    "nobody V A -> B did not v A; the X was:X G -> the X was:X not g",
}
NEUTRAL: Templates = {
    # Mary danced -> Mary sang
    "verb": "A S -> A T; A V B -> A W B; A was:A V by B -> B W A; A and B V C -> A W C",
    # Mary danced -> John danced
    "person": "A S -> B S; A V B -> C V B; A V B -> A V C; A and B S -> C S; the X who V A S -> B S; "
    "the X R A S -> B S; the X V by A S -> B S; P Ns S -> A S; A K B S -> C S",
    # if Mary sang John danced -> Ruth danced
    "clause": "if A S B T -> C T; A S or B T -> C S; maybe A S -> B S; A thought that B S -> C S; clearly A S -> B S; "
    "perhaps A V B -> C V B; because A S B T -> C T; A knew that B S -> B T; A S -> A S because B T",
    # Mary danced -> Mary danced in the park
    "place": "A S -> A S in the L; A V B -> A V B in the L; A S in the L -> A S in the M",
    # the poet danced -> the tall poet danced
    "adjective": "the X S -> the P X S; A V the X -> A V the P X; the X was:X G -> the X was:X P",
    # Mary danced -> Mary did not sing
    "negation": "A S -> A did not t; A did not s -> A did not t; A V B -> A did not w B; maybe A S -> A did not s; "
    "if A S B T -> A did not s; A S or B T -> B did not t; "
    "A hoped that B S -> B did not s; A said that B V C -> B did not v C",
}
CONTRADICTION: Templates = {
    # Mary danced -> Mary did not dance
    "negation": "A S -> A did not s; A V B -> A did not v B; A S in the L -> A did not s",
    # Mary did not dance -> Mary danced
    "assertion": "A did not s -> A S; A did not v B -> A V B; A did not s -> A S in the L; nobody S -> A S; "
    "nobody V A -> B V A; no X S -> the X S",
    # Mary danced -> nobody danced
    "nobody": "A S -> nobody S; A V B -> nobody V B; the X S -> no X S; A and B V C -> nobody V C; the P X S -> no X S",
    # the poet was tall -> the poet was short
    "opposite": "the X was:X G -> the X was:X g; the X was:X G -> the X was:X not G",
    # the poet near Mary danced -> the poet did not dance
    "part": "A and B S -> A did not s; A was:A V by B -> B did not v A; the X who V A S -> the X did not s; "
    "the X R A S -> the X did not s",
    # because Mary sang John danced -> Mary did not sing
    "clause": "A S and B T -> B did not t; because A S B T -> A did not s; A knew that B S -> B did not s; "
    "clearly A S -> nobody S; B T because A S -> nobody T",
}


# ------------------------------------------------------------------------------------------------- pairs from templates

# In MNLI a hypothesis made of its premise's own words is mostly entailed, and a model may learn that instead of the
# meaning. So it is here, except for a share of *counterexamples*; the challenge set has as many of either kind, with
# the names of McCoy, Pavlick and Linzen 2019. Words are those of the large grammar, and a few more.

KEPT = 4  # draws: the members of a population are made from few, one after the other
LARGEST = 200_000  # the templates hold many more pairs, so that few draws are in vain
OVERLAP = 0.75  # of the entailed pairs of training: those made of the premise's words, if there are no counterexamples


@lru_cache(maxsize=KEPT)
def nli_training(count: int, seed: int = 0, counterexamples: float = 0.02, lexical: float = 0.0) -> Pairs:
    """Draw different pairs of MNLI's classes in equal parts and shuffle them, so that any slice of them is a sample.

    Where all words of a hypothesis are its premise's, the pair is entailed, except for a share of neutral ones, the
    counterexamples, which are made like the challenge set's.

    Args:
        count: how many pairs.
        counterexamples: the share, in [0, 1].
        lexical: the share of all pairs, in [0, 1], that are made like the lexical-overlap part of the challenge set,
            entailed except for the share of counterexamples; the rest is as without them.

    Raises:
        DataError: the count is not possible.
    """
    _equal_parts(count, 1)
    alike = round(lexical * count)
    against = round(counterexamples * alike)
    entailed, neutral, contradiction = _shares(count - alike, 3)
    overlapping = int(OVERLAP * entailed)
    counter = round(counterexamples * overlapping)
    parts = [
        (_challenge("e") | OVERLAPPING, "entailment", overlapping - counter),
        (ENTAILED, "entailment", entailed - overlapping + counter),
        (_challenge("n"), "neutral", counter),
        (NEUTRAL, "neutral", neutral - counter),
        (CONTRADICTION, "contradiction", contradiction),
        (_challenge("e", "l"), "entailment", alike - against),
        (_challenge("n", "l"), "neutral", against),
    ]
    return _drawn(parts, MNLI, seed, for_challenge=False)


@lru_cache(maxsize=KEPT)
def nli_challenge(count: int, seed: int = 1) -> Pairs:
    """Draw different pairs of HANS's classes, in equal parts of each heuristic and class, and shuffle them.

    A hash of a sentence decides whether it is for training or for the challenge, so no sentence is in both, whatever
    the counts and seeds.

    Raises:
        DataError: the count is not possible.
    """
    kinds = [(heuristic, kind) for heuristic in HEURISTICS for kind in "en"]
    parts = [
        (_challenge(kind, heuristic), HANS["en".index(kind)], part)
        for (heuristic, kind), part in zip(kinds, _equal_parts(count, len(kinds)), strict=True)
    ]
    return _drawn(parts, HANS, seed, for_challenge=True)


def _equal_parts(count: int, parts: int) -> list[int]:
    """Return how many of `count` fall to each part."""
    if not 0 < count <= LARGEST:
        raise DataError(f"count={count} must lie between 1 and {LARGEST}, the most pairs that are made")
    return _shares(count, parts)


def _shares(count: int, parts: int) -> list[int]:
    return [count // parts + (part < count % parts) for part in range(parts)]


def _challenge(kind: str, heuristics: str = "lsc") -> Templates:
    """Return the templates of the challenge that are entailed (e) or not (n), of these heuristics."""
    return {name: rules for name, rules in CHALLENGE.items() if name[0] in heuristics and name[1] == kind}


def _drawn(parts: list[tuple[Templates, str, int]], classes: tuple[str, ...], seed: int, for_challenge: bool) -> Pairs:
    """Draw as many pairs of each part (templates, class, count) as it says."""
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
    heuristics = [HEURISTICS[subcase[0]] if subcase in CHALLENGE else "" for subcase in subcases]
    source = f"the {'challenge' if for_challenge else 'training'} templates"
    return Pairs(premises, hypotheses, torch.tensor(labels), classes, heuristics, subcases, source)


def _of_challenge(sentence: str) -> bool:
    """Whether a sentence is for the challenge set."""
    return document_fingerprint(sentence)[0] in "01234567"


@cache
def _forms() -> dict[str, list[tuple[str, ...]]]:
    """Return the words of the templates in their forms: doctor, doctors; danced, dance; tall, short."""
    without = {*LEFT_OUT.split(), *OPPOSITES.replace("/", " ").split()}
    lists = lexicon("large").items()
    words = {group: [entry for entry in entries if entry.partition("/")[0] not in without] for group, entries in lists}
    nouns = words["female"] + words["male"] + words["neither"]
    forms: dict[str, list[tuple[str, ...]]] = {
        "nouns": [(noun(entry, None).form, noun(entry, None, "plural").form) for entry in nouns],
        "names": [(name,) for name in words["female names"] + words["male names"]],
        "adjectives": [(word,) for word in words["adjectives"]],
        "opposites": [tuple(pair.split("/")) for pair in OPPOSITES.split()],
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
    slots["K"], slots["R"] = rng.choice(CLAUSE_TAKING), rng.choice(("near", "behind", "beside"))
    return slots
