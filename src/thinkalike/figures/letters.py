"""Texts of figures in letters that a font has.

matplotlib draws a box for any other letter, and warns of each whenever a figure is drawn.
"""

from __future__ import annotations

from functools import cache

from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font
from matplotlib.text import Text
from matplotlib.ticker import FixedFormatter

from thinkalike.errors import plain, plain_name

REGULAR_WEIGHT = 400  # of a font, as matplotlib counts


def use_existing_letters(figure: Figure) -> None:
    r"""Let all texts of a figure have letters that a font has.

    A letter that the font of a text lacks is taken from another installed font. If none has it, it
    is written as in a text of Python, such as \u6a21, and so are control characters.
    """
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            formatter = axis.get_major_formatter()
            if isinstance(formatter, FixedFormatter):  # it writes the labels whenever it is drawn
                formatter.seq = [_existing(name, _families(axis.label)) for name in formatter.seq]
                axis.get_ticklabels()
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        families = _families(text)
        written = _existing(text.get_text(), families)
        if written != text.get_text():
            text.set_text(written)
        others = {_family_with(letter) for letter in _missing(written, families)}
        if others:
            text.set_fontfamily([*families, *sorted(name for name in others if name)])


def _families(text: Text) -> tuple[str, ...]:
    """Return the families of fonts in which a text is written, the first before the others."""
    return tuple(text.get_fontfamily())


def _existing(text: str, families: tuple[str, ...]) -> str:
    """Return a text with another way to write the letters that no installed font has."""
    written = "\n".join(plain(plain_name(line)) for line in text.split("\n"))
    for letter in _missing(written, families):
        if _family_with(letter) is None:
            written = written.replace(letter, letter.encode("unicode_escape").decode())
    return written


def _missing(text: str, families: tuple[str, ...]) -> list[str]:
    """Return the letters of a text that some fonts lack."""
    if text.isascii():
        return []
    return [
        letter
        for letter in dict.fromkeys(text)
        if letter != "\n" and not any(_has(_file_of(family), letter) for family in families)
    ]


@cache
def _family_with(letter: str) -> str | None:
    """Return the first installed family of fonts, by name, that has a letter."""
    regular = [
        (font.name, font.fname)
        for font in fontManager.ttflist
        if (font.style, font.variant, font.weight) == ("normal", "normal", REGULAR_WEIGHT)
    ]
    for family, file in sorted(regular):
        if _has(file, letter):
            return family
    return None


@cache
def _file_of(family: str) -> str:
    """Return the file of a family of fonts."""
    return str(findfont(FontProperties(family=[family])))


@cache
def _has(file: str, letter: str) -> bool:
    """Return whether a font has a letter; one that cannot be read has none."""
    try:
        return bool(get_font(file).get_char_index(ord(letter)))
    except (OSError, RuntimeError):
        return False
