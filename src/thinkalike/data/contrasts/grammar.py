"""Contrasts of the grammar: what the number of a subject, and a question, do to the form of the verb.

A verb of the third person ends in -s after a singular subject of a statement. It has none after a plural subject, and
none in a do-question: the girl sings, the girls sing, does the girl sing.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from thinkalike.data.contrasts.contrasts import BOUNDARY, Contrasts, Prompt
from thinkalike.data.contrasts.tokens import ids_of
from thinkalike.data.grammar.lexicon import lexicon
from thinkalike.data.grammar.words import noun, with_s
from thinkalike.errors import DataError

CONTRASTS = ("number", "question")


class _Verb(NamedTuple):
    """What stands after the subject, and how that goes on in the bare form and in the third person."""

    before: str
    bare: str
    third: str


def grammar_contrasts(kind: str, tokenizer: Any, count: int, seed: int = 0, size: str = "small") -> Contrasts:
    """Draw pairs of texts that end in a verb, or before one, whose form the feature decides.

    A verb whose third person is its stem and one further token is asked for that token, after the stem, against the end
    of the word. One of which both forms are single tokens is asked for one form against the other, after the subject.
    Other verbs are left out.

    Args:
        kind: number: a singular subject against a plural one; question: a statement against a do-question.
        count: how many, at most as many as there are.
        size: of the grammar.

    Raises:
        DataError: no verb of the grammar can be asked for with this tokenizer.
    """
    words = lexicon(size)
    verbs = list(_verbs(words["intransitive"] + words["transitive"], tokenizer))
    if not verbs:
        raise DataError(
            f"measure.contrast={kind}: this tokenizer cuts no verb of the grammar so that its forms are told by one "
            "token; give pairs of your own: measure.contrast=table measure.path=FILE"
        )
    entries = words["female"] + words["male"] + words["neither"]
    every = [(determiner, entry, verb) for determiner in words["either"] for entry in entries for verb in verbs]
    drawn = random.Random(seed).sample(every, min(count, len(every)))
    pairs = [_pair(kind, *each) for each in drawn]
    ends = [verb for _, _, verb in drawn]
    return Contrasts(
        [text for text, _ in pairs],
        [counterpart for _, counterpart in pairs],
        [verb.bare for verb in ends],
        [verb.third for verb in ends],
        f"the {size} grammar, {kind}",
    )


def _pair(kind: str, determiner: str, entry: str, verb: _Verb) -> tuple[Prompt, Prompt]:
    singular, plural = (noun(entry, None, number).form for number in ("singular", "plural"))
    text = _prompt(f"{determiner} ", singular, verb.before)
    if kind == "number":
        return text, _prompt(f"{determiner} ", plural, verb.before)
    return text, _prompt(f"does {determiner} ", singular, verb.before)


def _prompt(before: str, word: str, after: str) -> Prompt:
    return Prompt(before + word + after, (len(before), len(before) + len(word)))


def _verbs(entries: Sequence[str], tokenizer: Any) -> Iterator[_Verb]:
    for base in (entry.partition("/")[0] for entry in entries):
        third = with_s(base)
        stem, whole = (ids_of(tokenizer, f"the {form}") for form in (base, third))
        before = len(ids_of(tokenizer, "the"))
        if whole[:-1] == stem and third.startswith(base):
            yield _Verb(f" {base}", BOUNDARY, third[len(base) :])
        elif len(stem) == len(whole) == before + 1:
            yield _Verb("", f" {base}", f" {third}")
