"""How much longer the replacements of a tokenizer may make a text.

Replacements of a sequence multiply, so that four of a thousand letters each ask for a million
million bytes. Nothing here imports torch or transformers.
"""

from __future__ import annotations

import base64
import contextlib
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from re._parser import parse as sre_parse  # type: ignore[import-not-found]
from typing import NamedTuple

from thinkalike.digests import read_json
from thinkalike.errors import ModelError

# How many times as long a text may become. Replacing a symbol by words, as people do, makes a text
# ten times as long.
MOST_GROWTH = 1000


def check_growth(file: Path) -> None:
    """Raise a ModelError if the replacements of a tokenizer.json may make a text much longer.

    The limit is `MOST_GROWTH` times as long. A file that is no JSON object is an error as well.
    """
    growths = {}
    try:
        stated = read_json(file)
        for stage in ("normalizer", "decoder"):
            growths[stage] = _growth(_replacements(stated.get(stage)))
    except ValueError as error:
        raise ModelError(f"{file} is no JSON object ({error})") from None
    for stage, growth in growths.items():
        if growth > MOST_GROWTH:
            raise ModelError(
                f"{file}: the replacements of its {stage} may make a text {growth:.3g} times as "
                "long; give the checkpoint's own tokenizer.json"
            )


class _Replacement(NamedTuple):
    """What a normaliser or a decoder puts in the place of what it finds.

    Attributes:
        content: What it puts there.
        pattern: The text that it looks for; None: a regular expression, which may find anything.
        shortest: How many letters it replaces at least.
    """

    content: str
    pattern: str | None
    shortest: int

    @property
    def growth(self) -> float:
        """How many times as long a text becomes at most."""
        if not self.shortest:  # the content goes between all letters
            return 1.0 + len(self.content)
        return max(1.0, len(self.content) / self.shortest)

    def may_find(self, contents: Collection[str]) -> bool:
        """Return whether it may find something in what replacements before it wrote.

        It may if they share a letter, or if it looks for a regular expression.
        """
        if self.pattern is None:
            return True
        letters = set(self.pattern)
        return any(letters & set(content) for content in contents)


def _growth(replacements: Iterable[_Replacement]) -> float:
    """Return how many times as long a text may become by replacements one after the other.

    It is an upper bound, and 1 without any replacements.
    """
    growth = 1.0
    contents: list[str] = []
    for replacement in replacements:
        if replacement.may_find(contents):
            growth *= replacement.growth
        else:
            # It makes letters longer that no replacement before it has made longer.
            growth = max(growth, replacement.growth)
        contents.append(replacement.content)
    return growth


def _replacements(stage: object) -> Iterator[_Replacement]:
    """Yield the replacements of a normaliser or a decoder in their order.

    Of a sequence of normalisers or decoders, these are the replacements of each.

    Args:
        stage: What tokenizer.json says of it; anything of another form has no replacements.
    """
    if isinstance(stage, list):
        for step in stage:
            yield from _replacements(step)
    if not isinstance(stage, Mapping):
        return
    kind = stage.get("type")
    content = stage.get("content")
    pattern = stage.get("pattern")
    if kind == "Replace" and isinstance(content, str) and isinstance(pattern, Mapping):
        literal = pattern.get("String")
        expression = pattern.get("Regex")
        if isinstance(literal, str):
            yield _Replacement(content, literal, len(literal))
        elif isinstance(expression, str):
            yield _Replacement(content, None, _shortest_match(expression))
    elif kind == "Precompiled":
        yield _Replacement(_longest_of_charsmap(stage.get("precompiled_charsmap")), None, 1)
    elif kind == "Prepend" and isinstance(stage.get("prepend"), str):
        # It replaces nothing, and so counts as if it were put between all letters.
        yield _Replacement(stage["prepend"], "", 0)
    for sequence in ("normalizers", "decoders"):
        yield from _replacements(stage.get(sequence))


def _longest_of_charsmap(charsmap: object) -> str:
    """Return the longest text that a map of characters of SentencePiece puts in the place of one.

    The map, in base 64, begins with the length of a trie in four bytes, and the trie. All texts
    follow one after the other, each with a NUL at its end. The result is "" if the map is damaged.
    """
    if not isinstance(charsmap, str | bytes | bytearray):
        return ""  # which the library that reads it reports
    try:
        content = base64.b64decode(charsmap)
    except ValueError:  # which the library reports, too
        return ""
    length_of_trie = int.from_bytes(content[:4], "little")
    texts = content[4 + length_of_trie :].split(b"\0")
    return max(texts, key=len).decode(errors="replace")


def _shortest_match(expression: str) -> int:
    """Return how many letters a regular expression matches at least, 0 if it cannot be known."""
    # Python does not know classes such as \p{L}.
    known_expression = re.sub(r"\\[pP]\{[^}]*\}", ".", expression)
    with warnings.catch_warnings(), contextlib.suppress(re.error, RecursionError, OverflowError):
        warnings.simplefilter("ignore")  # of what other libraries read otherwise
        return int(sre_parse(known_expression).getwidth()[0])
    return 0
