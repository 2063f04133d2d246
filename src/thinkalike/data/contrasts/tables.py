"""Contrasts that users bring in a table: text, counterpart, word, counterpart_word, up, down."""

from __future__ import annotations

import re
from pathlib import Path

from thinkalike.data.contrasts.contrasts import Contrasts, Prompt
from thinkalike.data.stimuli.tables import read_frame
from thinkalike.errors import DataError, nearest

COLUMNS = ("text", "counterpart", "word", "up", "down")
OPTIONAL = "counterpart_word"  # where the word is another one in the counterpart


def read_contrasts(path: str | Path) -> Contrasts:
    """Read pairs of texts from a .csv, .tsv or .parquet; rows are counted from 1, below the header.

    Raises:
        DataError: the file cannot be read, a column or a cell is missing, or a text does not have its word just once.
    """
    frame = read_frame(Path(path))
    there = list(map(str, frame.columns))
    for name in COLUMNS:
        if name not in there:
            raise DataError(f"{path} has no column {name}; {nearest(name, there)}; contrasts need {', '.join(COLUMNS)}")
    texts, counterparts = [], []
    for number, row in enumerate(frame.astype(str).to_dict("records"), 1):
        for name in COLUMNS:
            if not row[name]:
                raise DataError(f"{path} row {number}: {name} is empty; give one")
        place = f"{path} row {number}"
        texts.append(prompt(place, row["text"], row["word"]))
        counterparts.append(prompt(place, row["counterpart"], row.get(OPTIONAL) or row["word"]))
    return Contrasts(texts, counterparts, list(map(str, frame["up"])), list(map(str, frame["down"])), str(path))


def prompt(place: str, text: str, word: str) -> Prompt:
    """Return a text with the characters of a word of it.

    Args:
        place: what the message of an error begins with.

    Raises:
        DataError: the text does not have the word, or more than once.
    """
    found = list(re.finditer(rf"(?<!\w){re.escape(word)}(?!\w)", text))
    if len(found) != 1:
        raise DataError(
            f"{place}: the word {word!r} occurs {len(found)} times in {text[:80]!r}, and states are changed at one "
            "place; give a word that it has once"
        )
    return Prompt(text, found[0].span())
