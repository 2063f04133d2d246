"""The documents of a source of text.

Sources are Python's library or manual, a grammar, local files, or a streamed set of the hub. A
.txt file is one document, or several if marks such as `<|endoftext|>` divide it, see
`thinkalike.data.marks`. A text of few documents, such as one book, is cut into pieces at its
paragraphs. Each piece is a document from then on: it is for fitting or for the report, and counts
as one in intervals.
"""

from __future__ import annotations

import datetime
import decimal
import glob
import hashlib
import logging
import os
import re
import sysconfig
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

from thinkalike.advice import named_setting
from thinkalike.config import DataConfig
from thinkalike.config.in_memory import TextInMemory
from thinkalike.data.marks import DividedText, divide_at_marks
from thinkalike.data.sources import (
    Record,
    commit_of,
    errors_name_file,
    json_lines,
    parquet_rows,
    stream_records,
    whole_characters,
    whole_text,
)
from thinkalike.errors import DataError, in_home, nearest, short
from thinkalike.files import is_there
from thinkalike.processes import log_once
from thinkalike.shards.index import states_fingerprint

log = logging.getLogger(__name__)

T = TypeVar("T")

# Changed together with any sentence of the grammar. The value was made from the source code of the
# first grammar.
GRAMMAR = bytes.fromhex(
    "7079bcf53ba375a91b3667b8fd37998962759fe9d7a0d7240493331a740e2d2ed02c7079af9d3348"
    "11527b934f01f8ec0cc87458d1de73eb26eb52c42eae7cddbc27b0767079cc1d3032135300c7592f"
    "0b95fb509faaba5c3571a369865c6badcd6b26c5f9fa70799010f92b72f325adcdba6edb2c086a44"
    "d970d3a838c0a4294de754f67e2983647079bd6c4a1968b7e83cb59cd3103b5e79a853ba3f56fc36"
    "fc403b0bab9ed5e8265e"
)

SPLIT_VERSION = 2
"""Raised where a change moves documents between fitting and the report."""

PIECES_VERSION = 1
"""Raised where a change cuts documents elsewhere."""

USER_TEXT_VERSION = 3
"""Raised where a change divides users' files elsewhere, or moves documents of users or the hub."""

FEWEST_WHOLE_DOCUMENTS = 200
"""Fewer documents are cut into pieces, as a report of a tenth of them would have under twenty."""

PIECE_CHARACTERS = 4096
"""The longest piece of a document: some thousand tokens of English."""

DOCUMENTS_FOR_INTERVALS = 100
"""How many documents a report should have, so that intervals over documents are not too wide."""

BYTES_PER_TOKEN = 2
"""Most tokens have at least this many bytes of text."""

FEWEST_BYTES = 1000
"""An evaluation does not cut a document shorter than this."""

DEFAULT_GRAMMAR_SENTENCES = 60_000
"""How many sentences the text of the grammar is chosen from if `data.sentences` is not set."""

MOST_NAMED_MARKS = 4
"""How many marks a warning names."""

GROUP_TYPES = (str, int, float, bool, datetime.date, decimal.Decimal)
"""The types of values that can name a group of documents."""

LEFT_OUT_FOLDERS = {
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idle_test",
    "__pycache__",
}
"""Folders of Python's library that are no part of its documents."""


class Document(str):
    """A text with the name of its group: documents of one group count as one in intervals.

    All of a group is for fitting, or all of it is for evaluation.
    """

    group: str | None = None

    def __new__(cls, text: str, group: str | None = None) -> Document:
        document = super().__new__(cls, text)
        document.group = group
        return document


def group_of(text: str) -> str | None:
    """Return the name of the group of a document; None if it is in no group, as a plain `str`."""
    return getattr(text, "group", None)


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield items in lists of `size`; the last list may be shorter."""
    iterator = iter(items)
    while True:
        batch = list(islice(iterator, size))
        if not batch:
            return
        yield batch


def documents_of(config: DataConfig) -> Iterator[str]:
    """Return the documents of a source of text, in an order that never changes.

    If there are fewer than `FEWEST_WHOLE_DOCUMENTS`, long ones are cut into pieces. Then each
    piece counts as a document, and the pieces are in the order of their hashes.

    Raises:
        DataError: The source cannot be read.
    """
    documents = _whole_documents(config)
    first_documents = list(islice(documents, FEWEST_WHOLE_DOCUMENTS))
    if len(first_documents) == FEWEST_WHOLE_DOCUMENTS:
        return chain(first_documents, documents)  # the iterator has what follows the first ones

    pieces = []
    for document in first_documents:
        for piece in cut_into_pieces(document):
            pieces.append(Document(piece, group_of(document)))
    if len(pieces) > len(first_documents):
        # Neighbouring pieces resemble each other. In the order of their hashes, the first pieces
        # come from all over the text and not from one passage.
        pieces.sort(key=document_fingerprint)
    return iter(pieces)


def cut_into_pieces(text: str) -> Iterator[str]:
    """Yield a document in pieces of about equal length, at most `PIECE_CHARACTERS` each.

    A piece ends after the last paragraph of its second half. If none ends there, it ends after the
    last line there, or else after the last word, or else at its full length.
    """
    start = 0
    remaining = len(text)
    while remaining > PIECE_CHARACTERS:
        pieces_left = -(-remaining // PIECE_CHARACTERS)  # rounded up
        stop = start + -(-remaining // pieces_left)  # an equal share, rounded up
        end = _last_break(text, start, stop)
        yield text[start:end]
        start = end
        remaining = len(text) - start
    yield text[start:]


def _last_break(text: str, start: int, stop: int) -> int:
    """Return where to end a piece of a text that begins at `start` and ends at most at `stop`.

    It ends after the last paragraph in the second half of text[start:stop]. If none ends there, it
    ends after the last line there, or else after the last word, or else at `stop`.
    """
    middle = (start + stop) // 2
    for separator in ("\n\n", "\n", " "):
        position = text.rfind(separator, middle, stop)
        if position != -1:
            return position + len(separator)
    return stop


def _whole_documents(config: DataConfig) -> Iterator[str]:
    """Yield the documents of a source before any of them is cut.

    Raises:
        DataError: The source cannot be read, or is a folder of states.
    """
    if config.source == "stdlib":
        yield from _stdlib_documents()
    elif config.source == "pydoc":
        yield from _manual_topics()
    elif config.source == "grammar":
        yield from _grammar_sentences(config.sentences or DEFAULT_GRAMMAR_SENTENCES)
    elif isinstance(config, TextInMemory):
        yield from _documents_in_memory(config)
    elif config.source == "text":
        yield from _documents_of_files(config)
    elif config.source == "states":
        raise DataError(
            f"{named_setting('data', config.name)} has the rows of a folder of states, which "
            "measures of states alone compare; give text"
        )
    else:
        yield from _documents_of_hub(config)


def _stdlib_documents() -> list[str]:
    """Return the texts of the files of Python's standard library, in the order of their hashes.

    This order mixes topics and does not depend on the names of files.
    """
    texts = []
    for path in _stdlib_files():
        texts.append(path.read_text(encoding="utf-8", errors="replace"))
    return sorted(texts, key=document_fingerprint)


def _stdlib_files() -> list[Path]:
    """Return the Python files of the standard library, without tests, in the order of paths."""
    files: list[Path] = []
    for folder, subfolders, names in os.walk(sysconfig.get_paths()["stdlib"]):
        # `os.walk` enters the folders that this list, changed in place, still has.
        subfolders[:] = set(subfolders) - LEFT_OUT_FOLDERS
        files += [Path(folder, name) for name in names if name.endswith(".py")]
    return sorted(files)


def _manual_topics() -> list[str]:
    """Return the topics of Python's manual as documents, without lines such as "****".

    Topics share paragraphs. A paragraph is kept only in the first topic that has it.
    """
    from pydoc_data.topics import topics

    documents = []
    known_paragraphs: set[str] = set()
    for _, topic in sorted(topics.items()):
        text = re.sub(r"(?m)^\W{4,}\n", "", topic)
        paragraphs = {canonical(paragraph): paragraph for paragraph in text.split("\n\n")}
        new_paragraphs = []
        for canonical_paragraph, paragraph in paragraphs.items():
            if canonical_paragraph not in known_paragraphs:
                new_paragraphs.append(paragraph)
        documents.append("\n\n".join(new_paragraphs))
        known_paragraphs.update(paragraphs.keys())
    return documents


def _grammar_sentences(count: int) -> Iterator[str]:
    """Yield sentences of the large grammar that have a word that the small grammar lacks.

    Sentences of the small grammar are stimuli that probe models, and must not be among the text
    that models learn. `count` sentences are drawn, and those of the small grammar are left out.
    """
    from thinkalike.data.grammar import controlled_sentences, patterns

    probing_words: set[str] = set()
    for pattern in patterns("small"):
        for slot in pattern.slots:
            probing_words.update(word.form for word in slot)
    for sentence in controlled_sentences(count, size="large"):
        if not probing_words.issuperset(word.form for word in sentence.words):
            yield sentence.text


def _documents_in_memory(config: TextInMemory) -> Iterator[str]:
    """Yield the documents of texts that a user passed in memory.

    If the setting `data.group` names a field of their records, each is a `Document`: a string with
    the name of its group as an attribute.
    """
    grouping = _Grouping(config.group)
    for number, record in enumerate(config.records.rows, 1):
        text = _text_of(record, config.field or "text", f"texts line {number}")
        yield grouping.document(text, record)


def _documents_of_files(config: DataConfig) -> Iterator[str]:
    """Yield the documents of the user's files, file by file.

    If the setting `data.group` is given, each is a `Document`: a string with the name of its group
    as an attribute.
    """
    paths = files_of(config)
    root = os.path.commonpath([path.parent.absolute() for path in paths])
    grouping = _Grouping(config.group, root)
    for path in paths:
        for text, record in _texts_of_file(path, config.field or "text", config.group):
            yield grouping.document(text, record, path)


def _documents_of_hub(config: DataConfig) -> Iterator[str]:
    """Yield the documents of a data set of the Hugging Face hub as they are downloaded.

    The default split is "train". If the setting `data.group` names a field, each document is a
    `Document`: a string with the name of its group as an attribute.
    """
    options: dict[str, Any] = {"split": config.split or "train", "revision": config.revision}
    if config.hub_files:
        options["data_files"] = list(config.hub_files)
    label = named_setting("data", config.name)
    records = stream_records(label, str(config.hub_id), config.subset, **options)
    grouping = _Grouping(config.group)
    for number, record in enumerate(records, 1):
        row = f"{config.hub_id} row {number}"
        text = _text_of(record, config.field or "text", row)
        yield grouping.document(text, record)


def rows_folder(config: DataConfig) -> str:
    """Return the folder of stored states whose text is used, the only entry of `data.files`."""
    assert config.files is not None, "DataConfig checks that there is one"
    return config.files[0]


def text_fingerprint(config: DataConfig) -> str:
    """Return a hash of everything that decides documents and their split: 16 digits of SHA-256.

    This is the content of local files, the version of the grammar, or the name and commit of a
    data set of the hub; and the versions of the rules that split and cut documents. Documents of
    the standard library and the grammar are never cut, so that the rules of cutting do not count.
    """
    if config.source == "states":
        return states_fingerprint(rows_folder(config))
    if config.source == "hub":
        return _hub_fingerprint(config)

    # The number of sentences of a grammar, or the field of records that holds the text.
    setting = config.sentences or config.field
    digest = hashlib.sha256(repr((SPLIT_VERSION, setting)).encode())
    if config.source == "grammar":
        digest.update(GRAMMAR)
    elif config.source != "stdlib":
        digest.update(bytes([PIECES_VERSION]))
    if config.source == "text":
        digest.update(bytes([USER_TEXT_VERSION]))
    if config.source == "pydoc":
        digest.update("\0".join(_manual_topics()).encode())

    if config.source == "stdlib":
        for path in _stdlib_files():
            digest.update(_file_fingerprint(path))
    else:
        for path in files_of(config):  # only a text of local files has any
            with errors_name_file(path):
                digest.update(_file_fingerprint(path))
    if isinstance(config, TextInMemory):
        digest.update(b"jsonl" + config.records.digest)  # as a file of JSON lines
    if config.group:
        # Folders and files name groups, so that here their paths matter, too.
        paths = []
        if config.group in ("file", "folder"):
            paths = [str(path) for path in files_of(config)]
        digest.update(repr((config.group, paths)).encode())
    return digest.hexdigest()[:16]


def _hub_fingerprint(config: DataConfig) -> str:
    """Return a fingerprint of the text of a data set of the hub.

    It is a hash of the commit and of all settings that choose or split the text.
    """
    commit = commit_of(str(config.hub_id), config.revision, named_setting("data", config.name))
    entries = [
        SPLIT_VERSION,
        PIECES_VERSION,
        USER_TEXT_VERSION,
        config.hub_id,
        config.subset,
        config.split,
        commit,
        config.hub_files,
        config.field,
    ]
    if config.group:  # without groups, the fingerprint is the one from before this setting
        entries.append(config.group)
    return hashlib.sha256(repr(tuple(entries)).encode()).hexdigest()[:16]


def _file_fingerprint(path: Path) -> bytes:
    """Return the endings of a file's name and the SHA-256 of its content."""
    endings = path.name.partition(".")[2]  # "jsonl.gz" of a.jsonl.gz, since they decide the reader
    with path.open("rb") as file:
        return endings.encode() + hashlib.file_digest(file, "sha256").digest()


def beginning_bytes(evaluation_tokens: int) -> int:
    """Return how many UTF-8 bytes of each document to read for so many tokens of evaluation.

    With this limit, the tokens come from about `DOCUMENTS_FOR_INTERVALS` documents or more. Where
    that would be less than `FEWEST_BYTES` of each, the limit is `FEWEST_BYTES`, and the tokens
    come from fewer documents. Bytes are counted and not tokens, so that models with different
    tokenizers read the same text.
    """
    bytes_per_document = BYTES_PER_TOKEN * evaluation_tokens // DOCUMENTS_FOR_INTERVALS
    return max(bytes_per_document, FEWEST_BYTES)


def beginning(text: str, most_bytes: int | None) -> str:
    """Return the beginning of a document, of at most `most_bytes` in UTF-8; None: all of it.

    It ends before a white space, unless there is none in its second half.
    """
    if most_bytes is None:
        return text
    encoded = text.encode("utf-8", errors="replace")
    if len(encoded) <= most_bytes:
        return text
    start = encoded[:most_bytes].decode("utf-8", errors="ignore")  # drops a cut character
    match = re.match(r"(?s).*\S(?=\s)", start)  # up to the last white space
    if match is None:
        return start
    whole_words = match[0]
    ends_in_second_half = 2 * len(whole_words) > len(start)
    return whole_words if ends_in_second_half else start


def document_fingerprint(text: str) -> str:
    """Return the SHA-256 of a document, as 64 hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8", errors="replace")).hexdigest()


def canonical(text: str) -> str:
    """Return a text in lower case with single spaces.

    Documents whose canonical forms are equal are copies of each other.
    """
    return " ".join(text.split()).casefold()


def files_of(config: DataConfig) -> list[Path]:
    """Return the files that the setting `data.files` names, in its order.

    A "~" at the beginning of a name stands for the home folder. A name is taken as a glob only if
    there is no file of this name, because `notes [v2].txt` may be either. The files of a glob are
    sorted.

    Raises:
        DataError: A glob matches no file.
    """
    files: list[Path] = []
    for name in config.files or []:
        path = in_home(name)  # with the home folder in place of "~"
        if is_there(path):
            files.append(path)
            continue
        matches = sorted(Path(match) for match in glob.glob(str(path), recursive=True))
        if not matches:
            raise DataError(f"{named_setting('data.files')}: nothing matches {name}")
        files.extend(matches)
    return files


class _Grouping:
    """Gives the documents of a source the names of their groups, by `data.group`.

    Args:
        field: A field of the records, or "file" or "folder" of local files. None puts no document
            into a group.
        root: The folder that all files have in common. For "folder", a group is a folder in it,
            and a file that lies there itself is a group of its own.
    """

    def __init__(self, field: str | None, root: str = ""):
        self.field = field
        self.root = root
        self._value_type: type | None = None
        self._first_value: object = None

    def document(self, text: str, record: Record, path: Path | None = None) -> str:
        """Return a text as a `Document` with the name of its group, or as it is without groups.

        The group is the file of the text, or the first folder of its path below the common folder
        of all files, if `data.group` is "file" or "folder"; else the value of a field of its
        record.

        Args:
            text: The text.
            record: The record that the text is a field of; empty for a file of plain text.
            path: The file of the text; None for text that is not in files.

        Raises:
            DataError: The record lacks the field, or its value names no group.
        """
        if self.field is None:
            return text
        if self.field in ("file", "folder") and path is not None:
            path_in_root = path.absolute().relative_to(self.root)
            if self.field == "folder":
                return Document(text, path_in_root.parts[0])
            return Document(text, str(path_in_root))
        if self.field not in record:
            hint = nearest(self.field, map(str, record))
            raise DataError(
                f"{named_setting('data.group', self.field)}: the records have no such field; "
                f"{hint}"
            )
        return Document(text, self._group_name(record[self.field]))

    def _group_name(self, value: object) -> str:
        """Return the name of the group that a record's value stands for.

        Raises:
            DataError: The value names no group, or its type is not that of the values before it,
                so that two different values could have one name.
        """
        setting = named_setting("data.group", self.field)
        is_nan = value != value  # only NaN differs from itself
        if value is None or is_nan or value == "":
            raise DataError(
                f"{setting}: a record has no value in this field; fill it in, or leave these "
                "records out"
            )
        if not isinstance(value, GROUP_TYPES):
            type_name = type(value).__name__
            raise DataError(
                f"{setting}: a record has a {type_name} in this field ({short(repr(value))}); "
                "write a text or a number"
            )

        if self._value_type is None:
            self._value_type = type(value)
            self._first_value = value
        elif type(value) is not self._value_type:
            first = f"{self._first_value!r}, a {self._value_type.__name__}"
            difference = f"the field has {first}, and {value!r}, a {type(value).__name__}"
            raise DataError(f"{setting}: {short(difference)}; write all of them alike")
        return str(value)


def _texts_of_file(path: Path, field: str, group: str | None) -> Iterator[tuple[str, Record]]:
    """Yield the texts of a file, each with the record that it is a field of.

    Args:
        path: The file. A .txt file has no records, so each of its texts comes with an empty one.
        field: The field of a record that holds the text.
        group: The field that names the group of a document, or "file" or "folder"; None: there are
            no groups, and a .parquet file is read for its texts alone.

    Raises:
        DataError: The file cannot be read, has another ending, or a record lacks the text.
    """
    name = path.name.lower()
    if not name.endswith((".txt", ".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")):
        raise DataError(
            f"{path}: the ending must be .txt, .jsonl, .jsonl.gz, .jsonl.zst or .parquet"
        )
    with errors_name_file(path):
        if name.endswith(".txt"):
            divided = divide_at_marks(whole_text(path))
            if divided.marks:
                marks = " and ".join(divided.marks)
                count = len(divided.documents)
                log_once(log, f"{path}: {count:,} documents, divided at {marks}")
            if divided.unused_marks:
                log.warning("warning: %s", _warning_of_unused_marks(path, divided))
            for text in divided.documents:
                yield text, {}
        elif name.endswith(".parquet"):
            only_field = None if group else field
            for row, record in parquet_rows(path, only_field):
                yield _text_of(record, field, row), record
        else:
            for line, record in json_lines(path):
                yield _text_of(record, field, line), record


def _warning_of_unused_marks(path: Path, divided: DividedText) -> str:
    """Return a sentence that names marks of a file at which it was not divided, and the remedy.

    The most frequent ones are named, with how often they occur.
    """
    by_count = sorted(divided.unused_marks.items(), key=lambda item: -item[1])
    names = ", ".join(f"{mark} ({count:,})" for mark, count in by_count[:MOST_NAMED_MARKS])
    if len(by_count) > MOST_NAMED_MARKS:
        names += f" and {len(by_count) - MOST_NAMED_MARKS:,} more"
    is_divided = "was divided at other marks only" if divided.marks else "counts as one document"
    return (
        f"{path} {is_divided}, although it also has {names}: if these separate "
        "documents, write each document in a line of a .jsonl file, or put <|endoftext|> alone on "
        "a line between two documents and remove these marks"
    )


def _text_of(record: Record, field: str, location: str) -> str:
    """Return the text that stands in a field of a record.

    Args:
        record: A row of a file or data set, by field.
        field: The field that holds the text.
        location: What errors call the record.

    Raises:
        DataError: The field is missing, holds no text, or holds half of a character.
    """
    if field not in record:
        hint = nearest(field, map(str, record))
        raise DataError(f"{location} has no text in field {field}; {hint}")
    text = record[field]
    if not isinstance(text, str):
        type_name = type(text).__name__
        raise DataError(f"{location} has no text in field {field}; it holds a {type_name}")
    return whole_characters(text, location)
