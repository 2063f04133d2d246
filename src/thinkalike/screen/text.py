"""Sentences and numbers on the screen."""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from decimal import Context, Decimal

from rich.console import Console
from rich.text import Text

from thinkalike.errors import plain

UNBROKEN_SPACE = "\ue000"  # stands for a space at which a line is not broken, as in "18 %"
HANGING_INDENT = 2  # columns by which the lines after the first begin further right
FLOAT_DIGITS_END = 1e15  # a float has no further digits
WRITTEN_OUT = 1e7  # rounded numbers below it have no exponent

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


def show_note(text: str) -> None:
    """Print a text that explains words of a table or a map, unless only sentences count.

    A summary has the sentences of a screen without such explanations.
    """
    if not only_sentences_count():
        show_text(text)


def capitalised(text: str) -> str:
    """Return a text with a capital at its beginning, and otherwise as it is."""
    return f"{text[:1].upper()}{text[1:]}"


def number_text(value: object, form: str) -> str:
    """Return a number in a format, without a sign if it rounds to 0: 0.00 and not -0.00.

    A percentage has a space before its sign: "18 %". A rounded number of up to seven digits is
    written out: "110" and not "1.1e+02". A number of more digits than a float has is written with
    a power of ten: "1e+300" and not 301 digits. The number may be a cell of a table, whose type
    pandas does not know.
    """
    if form.endswith(("f", "%")):
        number = float(f"{value}")
        if FLOAT_DIGITS_END <= abs(number) < math.inf:
            sign = "+" if form.startswith("+") else ""
            if form.endswith("%"):
                percent = (100 * Decimal(number)).normalize(Context(prec=3))
                return f"{percent:{sign}.3g} %"  # as a float, it may be beyond the greatest
            return f"{number:{sign}.3g}"
    text = f"{value:{form}}".replace("%", " %")
    if form.endswith("g") and "e+" in text and abs(float(text)) < WRITTEN_OUT:
        sign = "+" if form.startswith("+") else ""
        text = f"{float(text):{sign},.0f}"
    rounds_to_zero = text.startswith("-") and not any(digit in text for digit in "123456789")
    if rounds_to_zero and "0" in text:
        return text[1:]
    return text


def span(value: object, low: object, high: object, form: str = "+.3f") -> str:
    """Return a number with its interval, if that is known: "+0.037 [+0.032, +0.043]"."""
    if _is_nan(low) or _is_nan(high):
        return number_text(value, form)
    ends = f"{number_text(low, form)}, {number_text(high, form)}"
    return f"{number_text(value, form)} [{ends}]"


def range_text(least: object, greatest: object, form: str) -> str:
    """Return two numbers as a range, "0.1 to 0.3", or one of them if they round to the same."""
    first = number_text(least, form)
    last = number_text(greatest, form)
    if first == last:
        return first
    return f"{first} to {last}"


def _is_nan(number: object) -> bool:
    return bool(number != number)


def number_of_documents(numbers: Mapping[str, float]) -> str:
    """Return how many documents an interval is over, with the effective sample size.

    It is "58 documents (effective sample size 41.3)". Results of earlier versions have none.
    """
    text = f"{numbers['documents']:.0f} documents"
    effective = numbers.get("effective_sample_size")
    if effective:
        text += f" (effective sample size {effective:.1f})"
    return text
