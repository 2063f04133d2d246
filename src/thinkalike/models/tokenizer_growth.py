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


def check_growth_of_texts(file: Path) -> None:
    """Raise a ModelError if a tokenizer.json may make a text more than MOST_GROWTH times as long.

    Its normaliser and its decoder may replace parts of a text by longer ones, one replacement
    after the other, until memory is full. A file that is no JSON object is refused as well.
    """
    growth_of_stage = {}
    try:
        settings = read_json(file)
        for stage in ("normalizer", "decoder"):
            growth_of_stage[stage] = _growth(_replacements(settings.get(stage)))
    except ValueError as error:
        raise ModelError(f"{file} is no JSON object ({error})") from None
    for stage, growth in growth_of_stage.items():
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
        """An upper bound on the factor by which a long text becomes longer, in letters.

        At worst the whole text consists of matches of the least length, `shortest`, each of which
        `content` replaces. A text never counts as becoming shorter.
        """
        if self.shortest == 0:
            # Empty matches: the content is put before each letter, and once behind the last one,
            # which is left out here as it adds next to nothing to a long text.
            return 1.0 + len(self.content)
        return max(1.0, len(self.content) / self.shortest)

    def may_find(self, contents: Collection[str]) -> bool:
        """Return whether this replacement may apply to text that earlier replacements inserted.

        It may if its pattern shares a letter with one of the `contents` that they inserted, or if
        its pattern is a regular expression.
        """
        if self.pattern is None:  # a regular expression
            return True
        # Any match that overlaps inserted text has a letter of it.
        letters_of_pattern = set(self.pattern)
        return any(letters_of_pattern & set(content) for content in contents)


def _growth(replacements: Iterable[_Replacement]) -> float:
    """Return an upper bound on the factor by which replacements in sequence lengthen a text.

    It is 1 without any replacements.
    """
    growth = 1.0
    earlier_contents: list[str] = []
    for replacement in replacements:
        if replacement.may_find(earlier_contents):
            growth *= replacement.growth
        else:
            # It replaces only letters of the original text, which no earlier replacement made
            # longer.
            growth = max(growth, replacement.growth)
        earlier_contents.append(replacement.content)
    return growth


def _replacements(stage: object) -> Iterator[_Replacement]:
    """Yield the replacements of a tokenizer's normaliser or decoder in their order.

    A sequence of normalisers or decoders yields the replacements of each in turn.

    Args:
        stage: The section of tokenizer.json. A section of an unknown form has no replacements.
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
            yield _Replacement(content, pattern=literal, shortest=len(literal))
        elif isinstance(expression, str):
            shortest = _shortest_match(expression)
            yield _Replacement(content, pattern=None, shortest=shortest)
    elif kind == "Precompiled":
        # SentencePiece's map from characters to texts: at worst each gives the longest text.
        longest = _longest_of_charsmap(stage.get("precompiled_charsmap"))
        yield _Replacement(longest, pattern=None, shortest=1)
    elif kind == "Prepend" and isinstance(stage.get("prepend"), str):
        # It replaces nothing. As an upper bound it counts as if it were put between all letters.
        yield _Replacement(stage["prepend"], pattern="", shortest=0)
    for sequence in ("normalizers", "decoders"):
        yield from _replacements(stage.get(sequence))


def _longest_of_charsmap(charsmap: object) -> str:
    """Return the longest text by which SentencePiece's map of characters replaces a character.

    The map is text in base 64. Decoded, it has the length of a trie in four bytes, the trie, and
    then all texts, each with a NUL at its end. A damaged map gives ""; the library that uses it
    reports that.
    """
    if not isinstance(charsmap, str | bytes | bytearray):
        return ""
    try:
        content = base64.b64decode(charsmap)
    except ValueError:
        return ""
    length_of_trie = int.from_bytes(content[:4], "little")
    texts = content[4 + length_of_trie :].split(b"\0")
    return max(texts, key=len).decode(errors="replace")


def _shortest_match(expression: str) -> int:
    """Return the smallest number of letters that a regular expression matches.

    It is 0 if Python cannot read the expression.
    """
    # Python does not know Unicode classes such as \p{L}, which match one letter.
    expression_for_python = re.sub(r"\\[pP]\{[^}]*\}", ".", expression)
    with warnings.catch_warnings(), contextlib.suppress(re.error, RecursionError, OverflowError):
        warnings.simplefilter("ignore")  # the expression is written for another library
        shortest, _ = sre_parse(expression_for_python).getwidth()
        return int(shortest)
    return 0
