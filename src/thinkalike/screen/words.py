"""Text in lines of a given width: a line ends between words, and never inside a name or a number."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from rich.cells import cell_len

# an interval, "95 %", "p = 0.01" and "R² →" are one word
WORD = re.compile(r"(?:\[\S+, \S+\]\S*|\S+(?: = \S+| [%→←](?!\S))?) *")
LONG = 40  # columns of a word that may continue on the next line after a comma, an equals sign or a folder of a path


@lru_cache(maxsize=4096)  # a table is laid out in many widths
def parts(text: str) -> tuple[str, ...]:
    """Return what a line may end after: words, with the space that follows them, and the parts of long lists."""
    return tuple(part for word in WORD.findall(text) for part in _pieces(word))


def wrapped(text: str, width: int) -> list[str]:
    """Return the lines of a text in so many columns; a word that is wider than that has a line to itself."""
    return [line for given in text.split("\n") for line in _filled(given, width)]


def longest(text: str) -> int:
    """Return the columns of the widest part of a text."""
    return max((cell_len(part.rstrip()) for part in parts(text)), default=0)


def widest(text: str) -> int:
    """Return the columns of the widest line of a text."""
    return max(map(cell_len, text.split("\n")))


def _filled(line: str, width: int) -> Iterator[str]:
    filled = ""
    for part in parts(line):
        if filled and cell_len(filled + part.rstrip()) > width:
            yield filled.rstrip()
            filled = ""
        filled += part
    yield filled.rstrip()


def _pieces(word: str) -> list[str]:
    """Return a word, or the parts of a long list or path; the name of a model, ORG/NAME at most, is one part."""
    if cell_len(word.rstrip()) <= LONG:
        return [word]
    marks = ",=/" if word.count("/") > 1 else ",="
    return re.findall(rf"[^{marks}]*[{marks}]+ *|[^{marks}]+$", word)
