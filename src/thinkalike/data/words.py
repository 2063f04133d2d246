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

# Accents, vowel signs, soft hyphens and marks of direction belong to what they follow (Annex 29,
# rule WB4).
CLUSTER = regex.compile(r"\X")
FOLLOWING = r"[\p{Word_Break=Extend}\p{Word_Break=Format}\p{Word_Break=ZWJ}]*"
# A letter, digit or underscore of a script with spaces between words.
LETTER = rf"[[\w\p{{N}}]--[{CLASS}]]"
INSIDE_WORD = regex.compile(rf"(?V1)(?<={LETTER}{FOLLOWING}){FOLLOWING}{LETTER}")


def word_spans(text: str) -> list[Span]:
    """Return the first character of each word and the one after its last, in order."""
    return [match.span() for match in WORD.finditer(text)]


def spans_of(word: str, text: str) -> list[Span]:
    """Return where a word stands in a text, and not inside another word.

    Its ends do not divide two letters (digits, underscores), unless one of these belongs to a
    script without spaces between words, where a word may end at any character. No character is
    cut: "cafe" does not stand in a "café" whose accent is a code point of its own.

    >>> spans_of("cat", "category, cat"), spans_of("猫", "黑猫睡")
    ([(10, 13)], [(1, 2)])
    """
    spans = []
    start = text.find(word)
    while start >= 0:
        stop = start + len(word)
        divides_word = INSIDE_WORD.match(text, start) or INSIDE_WORD.match(text, stop)
        if {start, stop} <= _boundaries(text) and not divides_word:
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
