"""Sentences and numbers on the screen."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from contextvars import ContextVar

from rich.console import Console
from rich.text import Text

from thinkalike.errors import plain

UNBROKEN_SPACE = "\ue000"  # stands for a space at which a line is not broken, as in "18 %"
HANGING_INDENT = 2  # columns by which the lines after the first begin further right

# what `gathered_sentences` gathers while it is open
_GATHERED: ContextVar[list[str] | None] = ContextVar("_GATHERED", default=None)


@contextlib.contextmanager
def gathered_sentences() -> Iterator[list[str]]:
    """Gather the texts that are shown while this is open.

    Nothing is printed meanwhile: neither the texts, nor tables, nor maps.
    """
    sentences: list[str] = []
    token = _GATHERED.set(sentences)
    try:
        yield sentences
    finally:
        _GATHERED.reset(token)


def only_sentences_count() -> bool:
    """Return whether sentences are being gathered, and tables and maps are not to be printed."""
    return _GATHERED.get() is not None


def screen_width() -> int:
    """Return the columns of the screen: $COLUMNS, else those of the terminal, else 80."""
    return shutil.get_terminal_size().columns


def wrapped(text: str, width: int) -> list[str]:
    """Return the lines of a text in this many columns; only a word wider than that is broken."""
    unbroken = plain(text).replace(" %", f"{UNBROKEN_SPACE}%")
    lines = Text(unbroken).wrap(Console(), max(width, 1))
    return [line.plain.rstrip().replace(UNBROKEN_SPACE, " ") for line in lines]


def show_text(text: str, indent: int = 0) -> None:
    """Print a text to stdout in lines that fit the screen, with a hanging indent."""
    sentences = _GATHERED.get()
    if sentences is not None:
        sentences.append(plain(text))
        return
    first_line, *more_lines = wrapped(text, screen_width() - indent - HANGING_INDENT)
    print(" " * indent + first_line)
    for line in more_lines:
        print(" " * (indent + HANGING_INDENT) + line)


def span(value: object, low: object, high: object, spec: str = "+.3f") -> str:
    """Return a number with its interval, if that is known: "+0.037 [+0.032, +0.043]".

    The numbers may be cells of a table, whose types pandas does not know.
    """
    if _is_nan(low) or _is_nan(high):
        return in_digits(value, spec)
    return f"{in_digits(value, spec)} [{in_digits(low, spec)}, {in_digits(high, spec)}]"


def in_digits(number: object, spec: str) -> str:
    """Return a number in a format; one that rounds to zero has no minus sign.

    A percentage has a space before its sign: "18 %".
    """
    sign = "+" if spec.startswith("+") else ""
    digits = f"{number:{sign}z{spec.removeprefix('+')}}"
    return digits.replace("%", " %")


def _is_nan(number: object) -> bool:
    return bool(number != number)


def number_of_documents(numbers: Mapping[str, float]) -> str:
    """Return how many documents an interval is over: "58 documents (as 41.3 of equal length)".

    Results of earlier versions have no number of equal length.
    """
    text = f"{numbers['documents']:.0f} documents"
    effective = numbers.get("effective_sample_size")
    if effective:
        text += f" (as {effective:.1f} of equal length)"
    return text
