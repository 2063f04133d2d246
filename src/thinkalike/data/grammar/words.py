"""Words and their forms.

A word has a feature where it shows it, as in table S1 of Salle et al. 2024:

- Gender: nouns, names, he, she, him, her.
- Number: nouns, names, pronouns but "you", determiners of one number ("this", "many"; not "the"), and finite verbs in
  the present, which have their subject's. As "do" of "do you sing" is singular in the table, "you" counts as one.
- Tense: verbs and auxiliaries, that of their clause: "sing" is present in "do you sing" and past in "did you sing".
- Person: nouns, names, pronouns, and verbs in -s.

The table has no verb like "they sing" and no "did": what is said of these is a choice of this package.
"""

from __future__ import annotations

from typing import NamedTuple


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
    """Return a regular past: played, danced, cried."""
    if base.endswith("y") and base[-2] not in "aeiou":
        return base[:-1] + "ied"
    return base + ("d" if base.endswith("e") else "ed")


def noun(entry: str, gender: str | None, number: str = "singular") -> Word:
    """Return a noun or name of the lexicon, whose entry gives an irregular plural after a slash."""
    base, _, irregular = entry.partition("/")
    plural = base[:-3] + "men" if base.endswith("man") else irregular or with_s(base)
    return Word(base if number == "singular" else plural, "Noun", gender, number, person="3")


def pronoun(form: str, person: str, number: str | None = None, gender: str | None = None) -> Word:
    """Return a pronoun."""
    return Word(form, "Pronoun", gender, number, person=person)
