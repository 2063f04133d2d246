"""The words of a text: what stands between white space, or characters of scripts without spaces.

Chinese, Japanese, Thai, Lao, Khmer, Burmese, Tibetan and their like would be one word a sentence,
or a document. Their words need a dictionary, and dictionaries disagree, so the unit there is what
a reader takes for a character: an extended grapheme cluster (Unicode Standard Annex 29). It
depends on the text alone and is the same for all tokenizers. Punctuation belongs to what it
follows.

>>> text = "用python写 code, สวัสดี"
>>> [text[start:stop] for start, stop in word_spans(text)]
['用', 'python', '写', 'code,', 'ส', 'วั', 'ส', 'ดี']
"""

from __future__ import annotations

from functools import lru_cache

import regex  # because re of the standard library knows neither scripts nor grapheme clusters

Span = tuple[int, int]
"""The first character, and one past the last."""

UNSPACED_SCRIPTS = (
    "Han",
    "Hiragana",
    "Katakana",
    "Bopomofo",
    "Yi",
    "Tibetan",
    "Javanese",
    "Balinese",
)
# Line_Break=SA is what Unicode calls scripts whose words only a dictionary finds: Thai, Lao,
# Khmer, Burmese, ...
CLASS = r"\p{Line_Break=SA}" + "".join(
    rf"\p{{Script_Extensions={script}}}" for script in UNSPACED_SCRIPTS
)
CHARACTER = rf"[[{CLASS}]--[\p{{P}}\p{{S}}]]"
UNSPACED = regex.compile(rf"(?V1){CHARACTER}")
WORD = regex.compile(rf"(?V1)(?={CHARACTER})\X[^\w\s]*|(?:(?!{CHARACTER})\S)+")

# Beside a word that stands by itself there is no letter, digit or underscore. Accents, vowel
# signs, soft hyphens and marks of direction belong to what they follow (Annex 29, rule WB4).
CLUSTER = regex.compile(r"\X")
IN_WORD = r"[\w\p{N}]"
FOLLOWING = r"[\p{Word_Break=Extend}\p{Word_Break=Format}\p{Word_Break=ZWJ}]*"
AFTER_WORD = regex.compile(rf"(?<={IN_WORD}{FOLLOWING})")
BEFORE_WORD = regex.compile(rf"{FOLLOWING}{IN_WORD}")


def word_spans(text: str) -> list[Span]:
    """Return the first character of each word and the one after its last, in order."""
    return [match.span() for match in WORD.finditer(text)]


def spans_of(word: str, text: str) -> list[Span]:
    """Return where a word stands by itself in a text; if nowhere, where its characters stand.

    The latter is for scripts without spaces between words, which have no word boundaries.

    >>> spans_of("cat", "category, cat"), spans_of("猫", "黑猫睡")
    ([(10, 13)], [(1, 2)])
    """
    return whole_word_spans(word, text) or _spans_of_characters(word, text)


def whole_word_spans(word: str, text: str) -> list[Span]:
    """Return where a word stands in a text with no letter, digit or underscore beside it."""
    spans = []
    for start, stop in _spans_of_characters(word, text):
        if not AFTER_WORD.match(text, start) and not BEFORE_WORD.match(text, stop):
            spans.append((start, stop))
    return spans


def _spans_of_characters(word: str, text: str) -> list[Span]:
    """Return where a word stands in a text, beside whatever, but without cutting a character.

    So "cafe" does not stand in a "café" whose accent is a code point of its own.
    """
    spans = []
    start = text.find(word)
    while start >= 0:
        stop = start + len(word)
        if {start, stop} <= _boundaries(text):
            spans.append((start, stop))
        start = text.find(word, start + 1)
    return spans


@lru_cache(maxsize=1)  # as the words of a text are looked for one after another
def _boundaries(text: str) -> frozenset[int]:
    """Return where the characters of a text, as a reader counts them, begin and end."""
    return frozenset({0, *(match.end() for match in CLUSTER.finditer(text))})


def is_unspaced(word: str) -> bool:
    """Return whether a word is a character of a script that puts no space between words."""
    return bool(UNSPACED.match(word))
