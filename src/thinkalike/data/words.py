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


def word_spans(text: str) -> list[Span]:
    """Return the first character of each word and the one after its last, in order."""
    return [match.span() for match in WORD.finditer(text)]


def is_unspaced(word: str) -> bool:
    """Return whether a word is a character of a script that puts no space between words."""
    return bool(UNSPACED.match(word))
