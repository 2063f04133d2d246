"""The stimuli of a configuration, and those that users bring in tables (.csv, .tsv, .parquet).

Rows of tables are counted from 1, below the header. An empty cell or NaN says that a feature does
not apply.
"""

from __future__ import annotations

import contextlib
import csv
import json
import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from thinkalike.config import StimuliConfig
from thinkalike.config.in_memory import TableInMemory, TableWithDigest
from thinkalike.config.values import as_settings
from thinkalike.data.conllu import read_conllu
from thinkalike.data.sources import check_encoding, read_by_ending, whole_characters
from thinkalike.data.stimuli import (
    Kind,
    Kinds,
    Names,
    Stimuli,
    check_kinds,
    check_unique,
    controlled_stimuli,
    crossed_stimuli,
    duplicates,
    select_names,
    too_many_digits,
)
from thinkalike.data.words import Span, spans_of
from thinkalike.digests import content_key
from thinkalike.errors import DataError, in_home, short
from thinkalike.measures.kinds import NUMBER_KINDS, kind_of, plain_column

log = logging.getLogger(__name__)

IN_MEMORY = "stimuli"
"""What errors call a table in memory: the name of the argument that a user gave it as."""

SEPARATORS = {".csv": ",", ".tsv": "\t"}
"""What separates two cells, by the ending of a file."""

NUMBER_WITH_COMMA = r"[+-]?\d+(,\d+)?"
"""A number as many languages write it."""

AMBIGUOUS_NUMBER = r"[+-]?[1-9]\d{0,2},\d{3}"
"""A number such as 1,234, whose comma may mark thousands or decimals."""

LONG_WHOLE_NUMBER = r"[+-]?[1-9]\d{16,}"
"""A whole number of 17 digits or more, which float64 may not hold."""

FEWEST_ROWS_FOR_LABELS = 8
"""Tables of fewer rows are not searched for columns of labels."""

MOST_UNIQUE_ROWS = 0.9
"""A nominal column is one of labels if a larger share of rows has a level of its own."""

ROLES = ("text", "word", "start", "stop", "sentence", "id")
"""What a column can be, unless it is a feature."""

OTHER_SEPARATORS = (";", "\t", "|")
"""What some programs write between cells in place of the comma of .csv."""

MOST_DIGITS = 18
"""A position in a text has no more digits."""

DEFAULT_SENTENCES = 400
"""How many controlled sentences there are if `stimuli.sentences` is not set."""

MISSING = ["", "NaN", "nan"]
"""Cells that say that a feature does not apply."""


def read_stimuli(config: StimuliConfig) -> Stimuli:
    """Return the stimuli that a configuration describes: of a file, or of a table in memory.

    The stimuli of the last few configurations stay in memory. They are read again if the content
    of their file has changed.
    """
    # A table in memory is told from others by its digest, in place of the content of a file.
    table = config.table if isinstance(config, TableInMemory) else None
    return _cached_stimuli(json.dumps(as_settings(config)), content_key(config.path), table)


@lru_cache(maxsize=2)
def _cached_stimuli(settings: str, content_digest: str, table: TableWithDigest | None) -> Stimuli:
    """Return the stimuli of a configuration.

    Args:
        settings: The configuration in JSON.
        content_digest: A digest of the stimulus file. It is only part of the cache key, so that a
            file with a new content is read again.
        table: The table of the stimuli, if a user passed one in memory; None: a file, or stimuli
            that a grammar generates.
    """
    if table is None:
        config = StimuliConfig(**json.loads(settings))
        path = str(config.path)
        frame = None
    else:
        config = TableInMemory(**json.loads(settings), table=table)
        path = IN_MEMORY
        frame = table.frame
    if config.kind == "crossed":
        stimuli = _with_chosen_features(crossed_stimuli(), config)
    elif config.kind == "controlled":
        count = config.sentences or DEFAULT_SENTENCES
        stimuli = controlled_stimuli(count, config.seed, config.grammar)
        stimuli = _with_chosen_features(stimuli, config)
    elif config.kind == "conllu":
        stimuli = read_conllu(path, features=config.features, kinds=config.kinds)
    else:
        stimuli = read_table(
            path,
            features=config.features,
            kinds=config.kinds,
            columns=config.columns,
            frame=frame,
        )
    if config.token != stimuli.token:
        stimuli = replace(stimuli, token=config.token)
    if config.groups is not None:
        stimuli = _grouped(stimuli, config.groups, config.features)
    if config.sample:
        stimuli = stimuli.sample(config.sample, config.seed, config.balance)
    return stimuli


def _with_chosen_features(stimuli: Stimuli, config: StimuliConfig) -> Stimuli:
    """Return stimuli of a grammar with only the features that a configuration names.

    Without names, all features stay. The kinds that the configuration declares replace the
    inferred ones.

    Raises:
        DataError: The grammar has no such feature.
    """
    names = select_names(stimuli.source, config.features, stimuli.names)
    return replace(stimuli, features=stimuli.features[names], kinds=config.kinds or {})


def _grouped(stimuli: Stimuli, column: str, features: Names) -> Stimuli:
    """Return the stimuli with the values of a column as their groups.

    The column is no feature then, unless the features that were named include it.

    Args:
        stimuli: The stimuli.
        column: The name of the column.
        features: The features that were named; None: all.

    Raises:
        DataError: There is no such column, one of its cells is empty, or it is the only feature.
    """
    stimuli = stimuli.grouped_by(column)
    if column not in stimuli.names or (features is not None and column in features):
        return stimuli
    further_columns = stimuli.features[[column]]
    if stimuli.further_columns is not None:
        further_columns = stimuli.further_columns.join(further_columns)
    kinds = {name: kind for name, kind in stimuli.kinds.items() if name != column}
    remaining_features = stimuli.features.drop(columns=column)
    return replace(
        stimuli, features=remaining_features, kinds=kinds, further_columns=further_columns
    )


def read_table(
    path: str | Path,
    *,
    features: Names = None,
    kinds: Kinds | None = None,
    columns: Mapping[str, str | None] | None = None,
    frame: pd.DataFrame | None = None,
) -> Stimuli:
    """Read stimuli from a table: each row is a word of a text, or a whole text, with its features.

    A column is a feature, or has one of these roles:

    - `text`: the text of the row.
    - `word`: the word that is the stimulus, which is looked for in the text.
    - `start`, `stop`: where the word stands in the text, in characters from 0.
    - `sentence`: the name of a sentence whose words stand row below row, and are joined with
      spaces to a text. An empty cell stands for the one above it.
    - `id`: the name of the stimulus, which replaces a missing text.

    Cells that are lists, such as the tokens and tags of a sentence, become rows.

    Args:
        path: The file of the table; for a table in memory, what errors call it.
        features: The columns that are features; None takes all that have no role.
        kinds: The kinds of features, such as "ordinal", that values do not show; see `Stimuli`.
        columns: The name of the column of each role, by default that of the role; None: no column
            has it.
        frame: The table itself, if it is in memory; None: it is read from the file.

    Raises:
        DataError: The file cannot be read, a column is missing, a row has no id, a word does not
            occur once in its text, or a feature has one level.
    """
    kinds = {} if kinds is None else kinds
    check_kinds(kinds, path)
    if columns is not None and not isinstance(columns, Mapping):
        raise DataError(
            f"{path}: columns={columns!r} must give the column of each role, as "
            "{'text': 'sentence'}"
        )
    frame = read_frame(in_home(path)) if frame is None else checked_frame(frame, path)
    frame, columns = _explode_lists(path, frame, columns or {})
    roles = _roles(path, frame, columns)
    cells = {role: _cell_texts(frame[name], path) for role, name in roles.items()}
    ids = [str(row) for row in range(1, len(frame) + 1)]
    if "id" in cells:
        ids = cells["id"]
        if "" in ids:
            raise DataError(f"{path} row {ids.index('') + 1} has no id")

    if "sentence" in roles:
        texts, spans = _join_words(path, cells["sentence"], cells["word"])
    else:
        texts = cells.get("text", ids)
        spans = []
        for index, text in enumerate(texts):
            cells_of_row = {role: column[index] for role, column in cells.items()}
            spans.append(_span_of_word(f"{path} row {index + 1}", text, cells_of_row))
    words = [text[start:stop] for text, (start, stop) in zip(texts, spans, strict=True)]
    sentence, distinct_texts = pd.factorize(np.array(texts, dtype=object))

    without_role = [name for name in frame.columns if name not in roles.values()]
    names = select_names(path, features, without_role)
    check_unique(path, "feature", names)

    def feature_values(column: pd.Series) -> pd.Series:
        return _feature_values(column, kinds.get(str(column.name)), f"{path}: {column.name}")

    table = frame[names].apply(feature_values)
    table = without_labels(table, kinds, named=features is not None, source=str(path))
    stimuli = Stimuli(
        texts=list(distinct_texts),
        sentence=sentence,
        span=spans,
        words=words,
        features=table,
        kinds=kinds,
        ids=ids,
        source=str(path),
        further_columns=frame[_further_columns(frame, roles, [str(name) for name in table])],
    )
    stimuli.check_features_vary()
    return stimuli


def _further_columns(
    frame: pd.DataFrame, roles: Mapping[str, str], features: Sequence[str]
) -> list[object]:
    """Return the columns that several stimuli may share, and that are no features.

    These are the column of words, and those that have no role, but not one of lists.
    """
    known = {*features, *(name for role, name in roles.items() if role != "word")}
    return [
        name
        for name in frame.columns
        if name not in known and not frame[name].map(pd.api.types.is_list_like).any()
    ]


def read_frame(path: Path) -> pd.DataFrame:
    """Return the table of a .csv, .tsv or .parquet file.

    The cells of .csv and .tsv files are strings exactly as they are written in the file.

    Raises:
        DataError: The file cannot be read, it has no rows, or two columns have one name.
    """
    readers = {
        ".csv": _read_separated,
        ".tsv": _read_separated,
        ".parquet": _read_parquet,
    }
    return checked_frame(read_by_ending(path, readers), path)


def _read_parquet(path: Path) -> pd.DataFrame:
    """Return the table of a .parquet file.

    A column of integers with missing cells becomes Int64. By default pandas makes floats of it,
    and two long integers may then become the same float.
    """
    options = {"integer_object_nulls": True}
    frame = pd.read_parquet(path, engine="pyarrow", to_pandas_kwargs=options)
    for name, column in frame.items():
        is_object = column.dtype == object
        if is_object and pd.api.types.infer_dtype(column, skipna=True) == "integer":
            frame[name] = column.astype("Int64")
    return frame


def checked_frame(frame: pd.DataFrame, path: str | Path) -> pd.DataFrame:
    """Return a table with uniquely named columns, in pandas' own types instead of Arrow's.

    An index with a name becomes a column. White space around the names of columns is removed. A
    column whose name is empty or made up by pandas ("Unnamed: 0") is left out, because it only
    numbers the rows; one whose name is a missing value, such as NaN, is an error.

    Args:
        frame: The table, which is not changed.
        path: What errors call the table.

    Raises:
        DataError: The table has no rows, two columns have one name, or a name is a missing value.
    """
    frame = with_named_index(frame, path)
    if frame.empty:
        raise DataError(f"{path} is empty: it has no rows below a header")
    # In a header such as "text, word", a column " word" would have no role.
    frame = frame.rename(columns=lambda name: name.strip() if isinstance(name, str) else name)
    missing_names = [name for name in frame.columns if _is_missing(name)]
    if missing_names:
        raise DataError(f"{path} has a column named {missing_names[0]}: name it, or leave it out")
    is_named = [_is_column_name(name) for name in frame.columns]
    if not all(is_named):
        log.info("%s: columns without a name are left out; name them if they are read", path)
        frame = frame.loc[:, is_named]
    repeated = duplicates(list(frame.columns))
    if repeated:
        raise DataError(f"{path}: the column {repeated[0]} occurs more than once")
    if any(isinstance(column_type, pd.ArrowDtype) for column_type in frame.dtypes):
        frame = frame.apply(_in_types_of_pandas)
    return frame


def _in_types_of_pandas(column: pd.Series) -> pd.Series:
    """Return a column with the same values in pandas' own types, if it has a type of Arrow.

    A column of Arrow raises an error when it is compared with values of another type: a column of
    numbers, for example, when its missing cells are looked for by their text, "NaN".
    """
    if not isinstance(column.dtype, pd.ArrowDtype):
        return column
    if column.dtype.kind in "iufb":  # integers, floats and truth values
        # This widens float16, of which pandas has no nullable type.
        float_of_pandas = plain_column(column, str(column.name))
        return float_of_pandas.convert_dtypes(dtype_backend="numpy_nullable")
    import pyarrow

    values = pyarrow.array(column.array).to_pandas()
    return pd.Series(values.array, index=column.index, name=column.name)


def with_named_index(frame: pd.DataFrame, source: str | Path) -> pd.DataFrame:
    """Return a table in which an index that has a name is a column.

    An index without a name only numbers the rows and is dropped, and so is one that has the name
    and the values of a column.

    Args:
        frame: The table, whose index may have several levels; it is not changed.
        source: What errors call the table.

    Raises:
        DataError: The index and a column have one name and differ.
    """
    index = frame.index
    frame = frame.reset_index(drop=True)
    # From the last level of the index to the first, as each is put in front of the columns.
    for position, name in reversed(list(enumerate(index.names))):
        if name is None:
            continue
        level = pd.Series(index.get_level_values(position))
        if name not in frame:
            frame.insert(0, name, level)
        elif not level.equals(frame[name]):
            raise DataError(
                f"{source}: the index and a column are both named {name}, and differ: rename one "
                "of them"
            )
    return frame


def _cell_texts(column: pd.Series, source: str | Path) -> list[str]:
    """Return the cells of a column as strings; a missing value becomes "".

    Raises:
        DataError: A cell holds bytes, a list, or half of a surrogate pair.
    """
    for row, cell in enumerate(column, 1):
        _check_cell(cell, f"{source} row {row}: {column.name}")
    return ["" if pd.isna(cell) else str(cell) for cell in column]


def _check_cell(cell: object, location: str) -> None:
    """Raise a DataError if a cell is bytes or a list, which `str` would turn into a made-up text.

    A text with half of a surrogate pair, which no file can hold, is refused as well.

    Args:
        cell: The cell.
        location: What the error calls it.
    """
    if isinstance(cell, str):
        whole_characters(cell, location)
        return
    if isinstance(cell, bytes | bytearray):
        raise DataError(
            f"{location} holds bytes; decode them, as by frame[column].str.decode('utf-8')"
        )
    if pd.api.types.is_list_like(cell):
        type_name = type(cell).__name__
        raise DataError(
            f"{location} holds a {type_name} in a cell, and no name or number; leave it out"
        )


def _read_separated(path: Path) -> pd.DataFrame:
    """Return the table of a .csv or .tsv file, whose cells are strings as they are written.

    `pd.read_csv` is not used, because it fills short rows and renames columns that occur twice.
    If a space follows a separator in the header, spaces after separators are removed everywhere.

    Raises:
        DataError: The file is in UTF-16, or a row has more or fewer cells than the header.
    """
    separator = SEPARATORS[path.suffix.lower()]
    with path.open(encoding="utf-8-sig", newline="") as file:
        heading = file.readline()
        check_encoding(heading, path)
        if "\0" in heading:
            raise DataError(f"cannot read {path}: its heading has characters NUL; remove them")
        has_initial_spaces = any(name.startswith(" ") for name in heading.split(separator)[1:])
        file.seek(0)
        with _unlimited_cells():
            reader = csv.reader(
                file, delimiter=separator, strict=True, skipinitialspace=has_initial_spaces
            )
            lines = [line for line in reader if line]  # without empty lines
    header = lines[0] if lines else []
    rows = lines[1:]
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise DataError(f"{path} row {number} has {len(row)} cells, the header {len(header)}")
    return pd.DataFrame(rows, columns=header, dtype=object)


def _is_column_name(name: object) -> bool:
    """Return whether a name was given to a column, and not made up by pandas.

    pandas writes row numbers under an empty name, and reads an empty name as "Unnamed: 0". A name
    that is no string, such as a number, counts as given.
    """
    if not isinstance(name, str):
        return True
    is_made_up_by_pandas = re.fullmatch(r"Unnamed: [\d.]+", name) is not None
    return bool(name.strip()) and not is_made_up_by_pandas


def _is_missing(name: object) -> bool:
    """Return whether the name of a column is NaN, None, pd.NA or pd.NaT."""
    is_nan = isinstance(name, float) and math.isnan(name)
    return is_nan or name is None or name is pd.NA or name is pd.NaT


@contextlib.contextmanager
def _unlimited_cells() -> Iterator[None]:
    """Let `csv.reader` read cells of any length; by default it refuses over 131,072 characters.

    The limit holds for the whole process. The former one is restored at the end.
    """
    old_limit = csv.field_size_limit(2**31 - 1)  # the greatest limit on every platform
    try:
        yield
    finally:
        csv.field_size_limit(old_limit)


def _check_separator(path: str | Path, names: Sequence[str]) -> None:
    """Check that the names of columns are not a single one with other separators than commas.

    Raises:
        DataError: They are; the message names the separator.
    """
    for separator in OTHER_SEPARATORS:
        if len(names) == 1 and separator in names[0]:
            raise DataError(
                f"{path} has the single column {short(names[0])}: cells are separated by "
                f"{separator!r}, not by commas; give what "
                f"pandas.read_csv(FILE, sep={separator!r}) returns, or save it with commas"
            )


def _roles(
    path: str | Path, frame: pd.DataFrame, columns: Mapping[str, str | None]
) -> dict[str, str]:
    """Return the column of each role that a table has.

    Args:
        path: What errors call the table.
        frame: The table.
        columns: The columns that a user named for roles; None: no column has the role. A role
            that is not named has the column of its own name, if there is one.

    Raises:
        DataError: A role is not known, a column is missing, or only one of `start` and `stop` is
            there.
    """
    available = [str(name) for name in frame.columns]
    _check_separator(path, available)
    select_names("columns", list(columns), ROLES, "role")
    roles = {}
    for role in ROLES:
        name = columns.get(role, role)
        if name in available:
            roles[role] = name

    # Texts are joined from words if sentences are asked for, or if there is no column of texts.
    has_words_in_sentences = "sentence" in roles and "word" in roles
    has_text = "text" in columns or "text" in roles
    if has_words_in_sentences and ("sentence" in columns or not has_text):
        return {role: roles[role] for role in ("sentence", "word", "id") if role in roles}

    # A column of texts is required as well, unless `columns` says that there is none.
    required = [name for name in {"text": "text", **columns}.values() if name is not None]
    select_names(path, required, available, "column")
    roles.pop("sentence", None)
    # Without a text, its id stands for each stimulus, and words or positions have no meaning.
    if "text" not in roles:
        for role in columns.keys() & {"word", "start", "stop"}:
            if columns[role] is not None:
                raise DataError(
                    f"{path}: columns.{role}={columns[role]} has no effect without a column of "
                    "texts; leave it out, or name that of the texts"
                )
        return {role: name for role, name in roles.items() if role == "id"}
    if ("start" in roles) != ("stop" in roles):
        raise DataError(f"{path} has only one of the columns start and stop")
    return roles


def _explode_lists(
    path: str | Path, frame: pd.DataFrame, columns: Mapping[str, str | None]
) -> tuple[pd.DataFrame, Mapping[str, str | None]]:
    """Return a table whose cells that are lists have become rows, and the columns of roles.

    A table without a column of lists of words is returned as it is. Otherwise each row is a
    sentence: in the columns of roles, that of words is set, and so is that of sentences, which is
    the column "sentence" or "id", or else the number of the row.

    Args:
        path: What errors call the table.
        frame: The table. The cells of its first row tell which columns hold lists.
        columns: The columns that are given by role.

    Raises:
        DataError: The lists of a row have different lengths.
    """
    list_columns = []
    for name in frame:
        if len(frame) and isinstance(frame[name].iloc[0], list | np.ndarray):
            list_columns.append(str(name))
    word_column = None
    for name in (columns.get("word"), "word", "words", "tokens"):
        if name in list_columns:
            word_column = name
            break
    if word_column is None:
        return frame, columns

    new_columns: dict[str, str | None] = {**columns, "word": word_column}
    if "sentence" not in columns:
        if "sentence" in frame:
            sentence_column = "sentence"
        elif "id" in frame:
            sentence_column = "id"
        else:
            sentence_column = "number of the row"
            frame = frame.assign(**{sentence_column: range(1, len(frame) + 1)})
        new_columns = {"id": None, **new_columns, "sentence": sentence_column}
        # The words are the text; a column of whole texts beside them says nothing more.
        if "text" not in columns and "text" not in list_columns:
            frame = frame.drop(columns="text", errors="ignore")
    try:
        exploded = frame.explode(list_columns, ignore_index=True)
    except ValueError as error:
        raise DataError(
            f"{path}: the lists {', '.join(list_columns)} of a row are not of one length ({error})"
        ) from None
    return exploded.infer_objects(), new_columns


def _join_words(
    path: str | Path, sentences: Sequence[str], words: Sequence[str]
) -> tuple[list[str], list[Span]]:
    """Join the words of each sentence with spaces.

    Args:
        path: What errors call the table.
        sentences: The name of the sentence of each row; empty for that of the row above.
        words: The word of each row.

    Returns:
        For each row, the text of its sentence, and the span of its word in that text.

    Raises:
        DataError: A row has no word or no sentence, or the rows of a sentence do not stand
            together.
    """
    words_of_sentences: dict[str, list[str]] = {}
    spans: list[Span] = []
    current_sentence = ""
    start = 0
    for row, (sentence, word) in enumerate(zip(sentences, words, strict=True), 1):
        if not word.strip():
            raise DataError(f"{path} row {row} has no word")
        if not sentence and not current_sentence:
            raise DataError(f"{path} row {row} has no sentence")
        if sentence not in ("", current_sentence):
            if sentence in words_of_sentences:
                raise DataError(
                    f"{path} row {row}: the sentence {sentence} has ended in a row above it"
                )
            current_sentence = sentence
            start = 0
        words_of_sentences.setdefault(current_sentence, []).append(word)
        spans.append((start, start + len(word)))
        start += len(word) + 1  # a space

    texts = []
    for sentence_words in words_of_sentences.values():
        texts += [" ".join(sentence_words)] * len(sentence_words)
    return texts, spans


def _span_of_word(location: str, text: str, cells: dict[str, str]) -> Span:
    """Return where a stimulus stands in its text: its first character, and one past its last.

    The cells `start` and `stop` say it, if the table has them. Otherwise the word is looked for in
    the text. Without a word, the stimulus is the whole text.

    Args:
        location: What errors call the row.
        text: The text of the row.
        cells: The cells of the row by role.

    Raises:
        DataError: `start` and `stop` do not cut the word out of the text, or the word does not
            occur exactly once.
    """
    word = cells.get("word")
    if "start" in cells:
        return _span_from_cells(location, text, word, cells["start"], cells["stop"])
    if word is None:
        return 0, len(text)
    trimmed = word.strip()  # as spreadsheets leave spaces around
    spans = spans_of(trimmed, text) if trimmed else []
    if len(spans) != 1:
        raise DataError(
            f"{location}: the word {word!r} must occur once in {text[:80]!r}; or add columns "
            "start and stop"
        )
    return spans[0]


def _span_from_cells(
    location: str, text: str, word: str | None, start_cell: str, stop_cell: str
) -> Span:
    """Return the span that the cells of the columns `start` and `stop` give.

    Args:
        location: What errors call the row.
        text: The text of the row.
        word: The word that stands at the span; None or "": this is not checked.
        start_cell, stop_cell: The cells of the two columns.

    Raises:
        DataError: The cells are no positions or both are 0, or the word does not stand there.
    """
    # In a column with missing cells, pandas writes whole numbers as floats, such as "3.0".
    start = start_cell.removesuffix(".0")
    stop = stop_cell.removesuffix(".0")
    no_span = (0, 0)
    span = no_span
    if _is_position(start) and _is_position(stop):
        span = (int(start), int(stop))
    piece = text[slice(*span)]
    if span == no_span or (word and piece != word):
        raise DataError(
            f"{location}: start={start[:MOST_DIGITS]}, stop={stop[:MOST_DIGITS]} cut {piece!r} "
            f"out of the text, not {word!r}"
        )
    return span


def _is_position(cell: str) -> bool:
    """Return whether a cell is a whole number that may be a position in a text."""
    return cell.isdecimal() and len(cell) <= MOST_DIGITS


def _plain_values(column: pd.Series, kind: Kind | None, location: str) -> pd.Series:
    """Return a column whose cells are numbers, names, or missing, see `plain_column`.

    If two different numbers would become the same float, all cells are returned as strings for a
    kind that is declared and is not one of numbers.

    Args:
        column: The column.
        kind: The declared kind of the feature; None: none is declared.
        location: What errors call the column.

    Raises:
        DataError: Two different numbers would become the same float, and the declared kind is one
            of numbers, or there is none.
    """
    try:
        return plain_column(column, location)
    except ValueError:
        if kind is not None and kind not in NUMBER_KINDS:
            return column.map(str, na_action="ignore")
        raise too_many_digits(location, column.name) from None


def _feature_values(column: pd.Series, kind: Kind | None, location: str) -> pd.Series:
    """Return a column with NaN for missing cells, and numbers for numbers written as strings.

    If a string is no number, all strings stay as they are. So do those of a nominal column of
    which some have a comma, or two are one number, such as 1.1 and 1.10; and those that `kind`
    lists as levels. In other columns, a decimal comma is read as well.

    Args:
        column: The column. Categories are returned as they are.
        kind: The kind of the feature; None: it is inferred.
        location: What errors call the column.

    Raises:
        DataError: A cell is bytes or a list, commas may mark thousands as well as decimals, or
            float64 would make one number of two.
    """
    if isinstance(column.dtype, pd.CategoricalDtype):
        return column
    column = _plain_values(column, kind, location)
    present = column.dropna()
    if present.empty:
        return column
    if column.dtype == object:
        for cell in present:
            _check_cell(cell, location)

    values = column.mask(column.isin(MISSING))
    written = values.dropna()
    if not all(isinstance(value, str) for value in written):
        return values
    # Two cases in which the strings are names of levels and are not read as numbers: a nominal
    # feature has commas, or the strings are among the levels that `kind` lists.
    has_names_with_commas = kind == "nominal" and written.str.contains(",").any()
    lists_levels = isinstance(kind, Sequence) and not isinstance(kind, str)
    if has_names_with_commas or (lists_levels and set(written) <= set(map(str, kind or ()))):
        return values
    values = _with_decimal_points(values, written, location)
    numbers = pd.to_numeric(values, errors="coerce")
    not_numbers = values[values.notna() & numbers.isna()]
    if kind is None and 0 < len(not_numbers) < numbers.count():
        log.warning(
            "%s has cells such as %r among its numbers, and is read as names",
            column.name,
            not_numbers.iloc[0],
        )

    is_long = written.str.fullmatch(LONG_WHOLE_NUMBER)
    if kind != "nominal" and not_numbers.empty:
        distinct_written = written[is_long].nunique()
        distinct_numbers = numbers[written.index][is_long].nunique()
        if distinct_written > distinct_numbers:
            raise too_many_digits(location, column.name)
    # Levels such as 1.1 and 1.10 would become one number.
    would_merge_levels = kind == "nominal" and numbers.nunique() < values.nunique()
    if not_numbers.empty and not would_merge_levels:
        return numbers
    return values


def _with_decimal_points(values: pd.Series, written: pd.Series, location: str) -> pd.Series:
    """Replace decimal commas by points, if all values are numbers and some have a comma.

    Otherwise the values are returned unchanged.

    Args:
        values: The cells of a column, as strings or missing.
        written: The cells that are not missing.
        location: What errors call the column.

    Raises:
        DataError: Every comma may as well mark thousands, as in 1,234.
    """
    with_comma = written[written.str.contains(",")]
    if with_comma.empty or not written.str.fullmatch(NUMBER_WITH_COMMA).all():
        return values
    if with_comma.str.fullmatch(AMBIGUOUS_NUMBER).all():
        raise DataError(
            f"{location} has {with_comma.iloc[0]}: of thousands or decimals? write 1234 or 1.234"
        )
    log.warning(
        "%s has decimal commas, such as %s, and is read as numbers",
        values.name,
        with_comma.iloc[0],
    )
    return values.str.replace(",", ".")


def without_labels(table: pd.DataFrame, kinds: Kinds, *, named: bool, source: str) -> pd.DataFrame:
    """Return a table without nominal columns in which nearly every row has its own level.

    Such columns are labels, such as row numbers or dates. A feature that differs between nearly
    all pairs of rows cannot explain why some pairs are closer than others.

    Args:
        table: The features.
        kinds: The kinds that are declared.
        named: Whether the columns were asked for by name.
        source: What errors call the table.

    Raises:
        DataError: A column of labels was asked for by name, or all columns are labels.
    """
    labels = [name for name in table.columns if _is_label(table[name], kinds)]
    if labels and (named or len(labels) == len(table.columns)):
        raise DataError(
            f"{source}: {labels[0]} has a level of its own in most rows, which explains no "
            "distance; leave it out of features, or write numbers as 3.14"
        )
    if labels:
        log.warning(
            "%s: %s has a level of its own in most rows and is left out",
            source,
            ", ".join(labels),
        )
    return table.drop(columns=labels)


def _is_label(column: pd.Series, kinds: Kinds) -> bool:
    """Return whether a column labels rows: it is nominal, and most rows have a unique level.

    A column of numbers is no label, and a table of few rows has none. A column of strings counts
    as nominal unless another kind is declared.
    """
    is_nominal = kinds.get(str(column.name), "nominal") == "nominal"
    if not is_nominal or kind_of(column) in NUMBER_KINDS:
        return False
    if len(column) < FEWEST_ROWS_FOR_LABELS:
        return False
    is_unique = ~column.duplicated(keep=False)
    return bool(is_unique.mean() > MOST_UNIQUE_ROWS)
