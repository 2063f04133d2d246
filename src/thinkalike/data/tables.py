"""The stimuli of a configuration, and those that users bring in tables (.csv, .tsv, .parquet) and CoNLL-U files.

Rows of tables are counted from 1, below the header. An empty cell or NaN says that a feature does not apply.
"""

from __future__ import annotations

import contextlib
import csv
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from functools import lru_cache, partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from thinkalike.config import StimuliConfig
from thinkalike.data.sources import read_with, whole_characters
from thinkalike.data.stimuli import (
    Kinds,
    Names,
    Span,
    Stimuli,
    check_kinds,
    chosen,
    controlled_stimuli,
    crossed_stimuli,
    duplicates,
)
from thinkalike.errors import DataError
from thinkalike.files import is_there
from thinkalike.plugins import HELD

log = logging.getLogger(__name__)

MARKS = {".csv": ",", ".tsv": "\t"}  # between two cells
COMMA = r"[+-]?\d+(,\d+)?"  # a number as many languages write it
THOUSANDS = r"[+-]?[1-9]\d{0,2},\d{3}"  # a number that has one value here and another there
WHOLE = r"[+-]?[1-9]\d{16,}"  # a whole number that float64 may not have
FEWEST_ROWS, MOST_ALONE = 8, 0.9  # of a table that is checked, and the share of rows with a level of their own
ROLES = ("text", "word", "start", "stop", "sentence", "id")
MOST_DIGITS = 18  # of a number of characters
CONLLU_COLUMNS = 10
ENDS = ["Word length", "Word position"]  # features of the words of CoNLL-U files beside UPOS and FEATS
ID = re.compile(r"(\d{1,9})(?:([-.])(\d{1,9}))?")  # of a word, a multiword token 3-4, or an empty node 3.1


def read_stimuli(config: StimuliConfig) -> Stimuli:
    """Return the stimuli that a configuration describes; the last ones are kept while their file stays as it is."""
    return _stimuli(json.dumps(asdict(config)), changed_at(config.path))


@lru_cache(maxsize=2)
def _stimuli(settings: str, _: int | None) -> Stimuli:
    config = StimuliConfig(**json.loads(settings))
    if config.kind in ("controlled", "crossed"):
        is_crossed, count = config.kind == "crossed", config.sentences or 400
        stimuli = crossed_stimuli() if is_crossed else controlled_stimuli(count, config.seed, config.grammar)
        names = chosen(stimuli.source, config.features, stimuli.names)
        stimuli = replace(stimuli, features=stimuli.features[names], kinds=config.kinds or {})
    elif config.kind == "conllu":
        stimuli = read_conllu(str(config.path), features=config.features, kinds=config.kinds)
    else:
        stimuli = read_table(str(config.path), features=config.features, kinds=config.kinds, columns=config.columns)
    stimuli = stimuli if config.token == stimuli.token else replace(stimuli, token=config.token)
    return stimuli.sample(config.sample, config.seed, config.balance) if config.sample else stimuli


def changed_at(path: str | None) -> int | None:
    """Return when a file was last changed, in ns, if there is one."""
    return Path(path).stat().st_mtime_ns if path and is_there(path) else None


def read_table(
    path: str | Path,
    *,
    features: Names = None,
    kinds: Kinds | None = None,
    columns: Mapping[str, str | None] | None = None,
) -> Stimuli:
    """Read stimuli from a table, whose rows have a word of a text, or a whole text, and its features.

    Args:
        features: the columns that are features; None takes all that have no role.
        kinds: the kinds that values do not show; see `Stimuli`.
        columns: the name of the column of each role, by default that of the role; None: no column has it. Roles are
            `text`; `word`, which is looked for in the text, or `start` and `stop`, its characters from 0; `sentence`,
            by which words that stand row below row become a text with spaces, an empty cell being that above it; `id`,
            which replaces a missing text. Cells that are lists, as tokens and tags of a sentence, become rows.

    Raises:
        DataError: the file cannot be read, a column is missing, a row has no id, a word does not occur once in its
            text, or a feature has one level.
    """
    check_kinds(kinds or {}, path)
    if columns is not None and not isinstance(columns, Mapping):
        raise DataError(f"{path}: columns={columns!r} must give the column of each role, as {{'text': 'sentence'}}")
    frame, columns = _in_rows(path, read_frame(Path(path).expanduser()), columns or {})
    roles = _roles(path, frame, columns)
    cells = {role: _texts(frame[name], path) for role, name in roles.items()}
    if "" in cells.get("id", []):
        raise DataError(f"{path} row {cells['id'].index('') + 1} has no id")
    ids = cells.get("id", [str(row) for row in range(1, len(frame) + 1)])
    texts = cells.get("text", ids)
    if "sentence" in roles:
        texts, spans = _joined(path, cells["sentence"], cells["word"])
    else:
        spans = [
            _span(f"{path} row {row + 1}", text, {role: column[row] for role, column in cells.items()})
            for row, text in enumerate(texts)
        ]
    words = [text[start:stop] for text, (start, stop) in zip(texts, spans, strict=True)]
    sentence, distinct = pd.factorize(np.array(texts, dtype=object))
    names = chosen(path, features, [name for name in frame.columns if name not in roles.values()])
    table = frame[names].apply(
        lambda column: _values(column, (kinds or {}).get(str(column.name)), f"{path}: {column.name}")
    )
    table = without_labels(table, kinds or {}, named=features is not None, source=str(path))
    return Stimuli(list(distinct), sentence, spans, words, table, kinds or {}, ids, str(path)).varied()


def read_frame(path: Path) -> pd.DataFrame:
    """Return a table with the cells of a text file as they are written; one without rows is a DataError."""
    if (frame := HELD.get(str(path))) is None:
        frame = read_with(path, {".csv": _separated, ".tsv": _separated, ".parquet": pd.read_parquet})
    frame = with_named_index(frame, path)
    if frame.empty:
        raise DataError(f"{path} is empty: it has no rows below a header")
    # of a header such as "text, word", where a column " word" would have no role
    frame = frame.rename(columns=lambda name: name.strip() if isinstance(name, str) else name)
    if repeated := duplicates(frame.columns[[bool(str(name)) for name in frame.columns]]):
        raise DataError(f"{path}: the column {repeated[0]} occurs more than once")
    return frame


def with_named_index(frame: pd.DataFrame, source: str | Path) -> pd.DataFrame:
    """Return a table in which an index that has a name is a column; one without a name numbers the rows.

    A column of the name must hold the same, or it is a DataError.
    """
    index = frame.index
    frame = frame.reset_index(drop=True)
    for place, name in reversed(list(enumerate(index.names))):
        if name is None:
            continue
        level = pd.Series(index.get_level_values(place))
        if name not in frame:
            frame.insert(0, name, level)
        elif not level.equals(frame[name]):
            raise DataError(f"{source}: the index and a column are both named {name}, and differ: rename one of them")
    return frame


def _texts(column: pd.Series, source: str | Path) -> list[str]:
    """Return the cells of a column as text, empty where a value is missing; bytes and lists are a DataError."""
    for row, cell in enumerate(column, 1):
        _check_cell(cell, f"{source} row {row}: {column.name}")
    return ["" if pd.isna(cell) else str(cell) for cell in column]


def _check_cell(cell: Any, place: str) -> None:
    """Raise a DataError if a cell is bytes or has parts, of which `str` would make a text that nobody wrote.

    Halves of a character, which no file can hold, are refused as well.
    """
    if isinstance(cell, str):
        whole_characters(cell, place)
        return
    if isinstance(cell, bytes | bytearray):
        raise DataError(f"{place} holds bytes; decode them, as by frame[column].str.decode('utf-8')")
    if pd.api.types.is_list_like(cell):
        raise DataError(f"{place} holds a {type(cell).__name__} in a cell, and no name or number; leave it out")


def _separated(path: Path) -> pd.DataFrame:
    """Read all cells as they are written; pandas fills short rows and renames columns that occur twice.

    Where a space follows a comma in the header, spaces that follow commas are no part of cells, either.
    """
    mark = MARKS[path.suffix.lower()]
    with path.open(encoding="utf-8-sig", newline="") as file:
        heading = file.readline()
        if "\0" in heading:  # every second byte of English in UTF-16
            raise DataError(f"cannot read {path}: it has characters NUL, as UTF-16 read as UTF-8; save it as UTF-8")
        is_spaced = any(name.startswith(" ") for name in heading.split(mark)[1:])
        file.seek(0)
        with _whole_cells():
            reader = csv.reader(file, delimiter=mark, strict=True, skipinitialspace=is_spaced)
            rows = [row for row in reader if row]
    header, rows = (rows or [[]])[0], rows[1:]
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise DataError(f"{path} row {number} has {len(row)} cells, the header {len(header)}")
    named = [bool(name.strip()) and not re.fullmatch(r"Unnamed: [\d.]+", name) for name in header]
    if not all(named):  # such as the row numbers that pandas writes unless it is told not to
        log.info("%s: columns without a name are left out; to_csv(..., index=False) writes none", path)
    return pd.DataFrame(rows, columns=header, dtype=object).loc[:, named]


@contextlib.contextmanager
def _whole_cells() -> Iterator[None]:
    """Let cells be of any length: by default the reader of Python refuses more than 131,072 letters."""
    before = csv.field_size_limit(2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _roles(path: str | Path, frame: pd.DataFrame, columns: Mapping[str, str | None]) -> dict[str, str]:
    there = list(map(str, frame.columns))
    chosen("columns", list(columns), ROLES, "role")
    present = {role: name for role in ROLES if (name := columns.get(role, role)) in there}
    if {"sentence", "word"} <= {*present} and ("sentence" in columns or not {"text"} & {*columns, *present}):
        return {role: present[role] for role in ("sentence", "word", "id") if role in present}
    chosen(path, [name for name in {"text": "text", **columns}.values() if name is not None], there, "column")
    present.pop("sentence", None)
    if "text" not in present:
        return {role: name for role, name in present.items() if role == "id"}
    if ("start" in present) != ("stop" in present):
        raise DataError(f"{path} has only one of the columns start and stop")
    return present


def _in_rows(
    path: str | Path, frame: pd.DataFrame, columns: Mapping[str, str | None]
) -> tuple[pd.DataFrame, Mapping[str, str | None]]:
    """Return a table whose lists, of equal lengths in each row, are rows of their own, and which column is which."""
    lists = [str(name) for name in frame if len(frame) and isinstance(frame[name].iloc[0], list | np.ndarray)]
    words = next((name for name in (columns.get("word"), "word", "words", "tokens") if name in lists), None)
    if words is None:
        return frame, columns
    own: dict[str, str | None] = {**columns, "word": words}
    if "sentence" not in columns:
        name = next((name for name in ("sentence", "id") if name in frame), "number of the row")
        frame = frame.assign(**{name: frame.get(name, range(1, len(frame) + 1))})
        own = {"id": None, **own, "sentence": name}
    try:
        return frame.explode(lists, ignore_index=True).infer_objects(), own
    except ValueError as error:
        raise DataError(f"{path}: the lists {', '.join(lists)} of a row are not of one length ({error})") from None


def _joined(path: str | Path, sentences: Sequence[str], words: Sequence[str]) -> tuple[list[str], list[Span]]:
    """Return for each word the text of its sentence, all of its words with spaces between them, and its characters."""
    found: dict[str, list[str]] = {}
    spans, place, current = list[Span](), 0, ""
    for row, (named, word) in enumerate(zip(sentences, words, strict=True), 1):
        if not word.strip() or not (named or current):
            raise DataError(f"{path} row {row} has no {'sentence' if word.strip() else 'word'}")
        if named not in ("", current):
            if named in found:
                raise DataError(f"{path} row {row}: the sentence {named} has ended in a row above it")
            current, place = named, 0
        found.setdefault(current, []).append(word)
        spans.append((place, place + len(word)))
        place += len(word) + 1
    return [text for own in found.values() for text in [" ".join(own)] * len(own)], spans


def _span(place: str, text: str, cells: dict[str, str]) -> Span:
    word = cells.get("word")
    if "start" in cells:
        start, stop = (cells[end].removesuffix(".0") for end in ("start", "stop"))
        are_numbers = all(end.isdecimal() and len(end) <= MOST_DIGITS for end in (start, stop))
        span = (int(start), int(stop)) if are_numbers else (0, 0)
        if span == (0, 0) or (word and text[slice(*span)] != word):
            cut = text[slice(*span)]
            start, stop = start[:MOST_DIGITS], stop[:MOST_DIGITS]
            raise DataError(f"{place}: start={start}, stop={stop} cut {cut!r} out of the text, not {word!r}")
        return span
    if word is None:
        return 0, len(text)
    literal = re.escape(word)
    matches = list(re.finditer(rf"(?<!\w){literal}(?!\w)", text)) or list(re.finditer(literal, text))
    if not word or len(matches) != 1:
        raise DataError(f"{place}: the word {word!r} must occur once in {text[:80]!r}; or add columns start and stop")
    return matches[0].span()


def _values(column: pd.Series, kind: Any, place: str) -> pd.Series:
    """Make missing cells NaN, and written numbers numbers, also those with a decimal comma.

    A nominal column stays as written where two of its levels, such as 1.1 and 1.10, are one number.
    """
    if isinstance(column.dtype, pd.CategoricalDtype):
        return column
    present = column.dropna()
    if present.empty:
        return column
    if column.dtype == object:
        for cell in present:
            _check_cell(cell, place)
    if isinstance(present.iloc[0], Decimal):
        return column.astype(float)
    values = column.mask(column.isin(["", "NaN", "nan"]))
    written = values.dropna()
    if not all(isinstance(value, str) for value in written):
        return values
    commas = written[written.str.contains(",")]
    if len(commas) and written.str.fullmatch(COMMA).all():
        if commas.str.fullmatch(THOUSANDS).all():
            raise DataError(f"{place} has {commas.iloc[0]}: of thousands or decimals? write 1234 or 1.234")
        log.warning("%s has decimal commas, such as %s, and is read as numbers", column.name, commas.iloc[0])
        values = values.str.replace(",", ".")
    numbers = pd.to_numeric(values, errors="coerce")
    others = values[values.notna() & numbers.isna()]
    if kind is None and 0 < len(others) < numbers.count():
        log.warning("%s has cells such as %r among its numbers, and is read as names", column.name, others.iloc[0])
    whole = written.str.fullmatch(WHOLE)
    if kind != "nominal" and others.empty and written[whole].nunique() > numbers[written.index][whole].nunique():
        raise DataError(f"{place} has numbers of more than 16 digits; declare kinds.{column.name}=nominal")
    merges = kind == "nominal" and numbers.nunique() < values.nunique()
    return numbers if others.empty and not merges else values


def without_labels(table: pd.DataFrame, kinds: Kinds, *, named: bool, source: str) -> pd.DataFrame:
    """Return a table without nominal columns in which hardly two rows are alike, such as numbers of rows, or dates.

    Rows that all differ say nothing of distances. Where columns were asked for by name (`named`), or no other one is
    left, that is a DataError.
    """
    labels = [
        name for name in table.columns
        if kinds.get(name, "nominal") == "nominal" and not pd.api.types.is_numeric_dtype(table[name])
        and len(table) >= FEWEST_ROWS and (~table[name].duplicated(keep=False)).mean() > MOST_ALONE
    ]  # fmt: skip
    if labels and (named or len(labels) == len(table.columns)):
        raise DataError(f"{source}: {labels[0]} has a level of its own in most rows, which explains no distance; leave "
                        "it out of features, or write numbers as 3.14")  # fmt: skip
    if labels:
        log.warning("%s: %s has a level of its own in most rows and is left out", source, ", ".join(labels))
    return table.drop(columns=labels)


def read_conllu(path: str | Path, *, features: Names = None, kinds: Kinds | None = None) -> Stimuli:
    """Read the words of a CoNLL-U file (universaldependencies.org/format): UPOS, all FEATS, length and position.

    The text of a sentence is put together from its forms. Each word of a multiword token has a part of its characters
    where they spell it (don't = do + n't), else all of them (du = de + le). Empty nodes are left out. For `features`,
    names such as UPOS and Number, and `kinds` see `read_table`.

    Raises:
        DataError: the file cannot be read or is empty, a line is malformed, or a feature has one level.
    """
    text = read_with(Path(path), {".conllu": partial(Path.read_text, encoding="utf-8-sig")})
    sentences = list(_sentences(path, text.split("\n")))  # splitlines would cut at U+2028, too
    if not sentences:
        raise DataError(f"{path} has no line of a word")
    words, spans, rows = ([x for each in sentences for x in getattr(each, name)] for name in ("words", "spans", "rows"))
    sentence = np.repeat(np.arange(len(sentences)), [len(each.words) for each in sentences])
    ids = [f"{each.name or n}:{place}" for n, each in enumerate(sentences, 1) for place, _ in enumerate(each.words, 1)]
    names = ["UPOS", *sorted({name for row in rows for name in row} - {"UPOS", *ENDS}), *ENDS]
    names = chosen(path, features, names)
    table = pd.DataFrame([{name: row.get(name) for name in names} for row in rows])
    texts = [each.text.rstrip(" ") for each in sentences]
    return Stimuli(texts, sentence, spans, words, table, kinds or {}, ids, str(path)).varied()


@dataclass
class _Sentence:
    """A sentence that is read line by line."""

    name: str = ""
    text: str = ""
    words: list[str] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    multiword: list[tuple[int, int, Span]] = field(default_factory=list)  # first word, last word, characters

    def add(self, line: str) -> None:
        """Read the line of a word, of a multiword token or of an empty node; a malformed one is a ValueError."""
        columns = line.split("\t")
        if len(columns) != CONLLU_COLUMNS:
            count = "1 column" if len(columns) == 1 else f"{len(columns)} columns"
            raise ValueError(f"it has {count}, and CoNLL-U has {CONLLU_COLUMNS}, divided by single tabs")
        number, form, _, upos, _, feats, _, _, _, misc = columns
        match = ID.fullmatch(number)
        due, covered = len(self.words) + 1, self.multiword[-1][1] if self.multiword else 0
        if match and match[2] == ".":
            return
        last = int(match[3]) if match and match[2] else None
        if not form:
            raise ValueError(f"the word with the ID {number[:40]} has no form, which is the second column")
        if not match or int(match[1]) != due or (last is not None and not covered < due < last):
            raise ValueError(f"the ID is {number[:40]} of {form!r} where {due} is due; empty lines divide sentences")
        span = len(self.text), len(self.text) + len(form)
        if due > covered:
            self.text += form if "SpaceAfter=No" in misc.split("|") else form + " "
        if last is not None:
            self.multiword.append((due, last, span))
            return
        self.words.append(form)
        self.spans.append(span if due > covered else self.multiword[-1][2])
        pairs: list[list[str]] = [] if feats == "_" else [each.split("=") for each in feats.split("|")]
        if len({pair[0] for pair in pairs}) < len(pairs) or any(len(pair) != 2 or not all(pair) for pair in pairs):
            raise ValueError(f"FEATS {feats!r} are not Name=Value|Name=Value with different names, or _ for none")
        if taken := {pair[0] for pair in pairs} & {"UPOS", *ENDS}:
            raise ValueError(f"FEATS {feats!r} name {min(taken)}, which is a feature of its own; rename it in FEATS")
        ends = dict(zip(ENDS, (len(form), due - 1), strict=True))
        self.rows.append({**dict(pairs), "UPOS": None if upos == "_" else upos, **ends})

    def end(self) -> None:
        """Give the words of multiword tokens their spans."""
        for first, last, (start, stop) in self.multiword:
            if len(self.words) < last:
                raise ValueError(f"the sentence ends within the multiword token {first}-{last}")
            forms = self.words[first - 1 : last]
            if "".join(forms) == self.text[start:stop]:
                self.spans[first - 1 : last] = pairwise(accumulate(map(len, forms), initial=start))


def _sentences(path: str | Path, lines: list[str]) -> Iterator[_Sentence]:
    sentence = _Sentence()
    for number, line in enumerate([*lines, ""], 1):
        try:
            if match := re.match(r"#\s*sent_id\s*=\s*(.*\S)", line):
                sentence.name = match[1]
            elif line.strip() and not line.startswith("#"):
                sentence.add(line)
            elif not line.strip():
                sentence.end()
                if sentence.words:
                    yield sentence
                sentence = _Sentence()
        except ValueError as error:
            raise DataError(f"{path} line {number}: {error}") from None
