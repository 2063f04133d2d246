"""Reads files of users by their ending, and data sets of the hub.

Errors name the file or the data set.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from thinkalike.advice import named_setting
from thinkalike.digests import with_unique_names
from thinkalike.errors import DataError, ThinkalikeError, reason_in_words
from thinkalike.files import is_pointer, is_sparse, is_there, what_pulls
from thinkalike.hub import cause_of, resolved, sending_steadily

if TYPE_CHECKING:
    import pyarrow  # which takes a tenth of a second to import

MOST_TEXT_BYTES = 2**32
"""The most bytes of a file that is read as one text, which needs several times as much memory."""

LONGEST_LINE = 2**28
"""The most characters of a line of a .jsonl file, which is one document."""

MOST_EXPANSION = 200
"""How many times as large as its file a compressed text may be; English is 3 to 10 times."""

ALWAYS_EXPANDED = 2**26
"""The bytes that every compressed file may expand to, as a small file may repeat one sentence."""

ENCODING_BY_MARK = {  # those of UTF-16 begin those of UTF-32, so that they come later
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
"""The encodings that begin with a byte-order mark, by this mark."""

CONTROL_BYTE = re.compile(rb"[\x00-\x08\x0e-\x1f]")
"""A byte that text in no usual encoding of one byte for each character has."""

MOST_NUL = 0.25
"""How much of a text may be the character NUL: UTF-16 has it after each letter of English."""

MOST_NUL_IN_UTF16 = 0.6
"""More of a text is NUL only in UTF-32."""

BUFFER_BYTES = 2**20
"""The bytes of a compressed file that are expanded at once."""

Record = dict[str, Any]
"""A row, by column."""

Content = TypeVar("Content")
"""What is read from a file."""


def read_by_ending(path: Path, readers: Mapping[str, Callable[[Path], Content]]) -> Content:
    """Return what the reader of a file's ending returns for the file.

    Args:
        path: The file, whose ending may be in capitals.
        readers: A reader for each ending, such as ".csv", in lower case.

    Raises:
        DataError: There is no reader for the ending, or the reader fails.
    """
    ending = path.suffix.lower()
    if ending not in readers:
        raise DataError(f"{path}: the ending must be one of {', '.join(readers)}")
    with errors_name_file(path):
        return readers[ending](path)


@contextlib.contextmanager
def errors_name_file(path: Path) -> Iterator[None]:
    """Turn any error of the body, which reads a file, into a DataError that names the file.

    Refused before the body runs are a file that is not regular, since a pipe or /dev/zero would
    never end, a pointer of Git LFS in place of the file, and a sparse file.
    """
    try:
        if is_there(path) and not path.is_file():
            raise DataError(
                f"cannot read {path}: it is not a regular file; give files or a glob such as "
                "'FOLDER/*.txt'"
            )
        if is_pointer(path):
            raise DataError(what_pulls(path))
        if is_there(path) and is_sparse(path):
            raise DataError(
                f"cannot read {path}: it is a sparse file of {path.stat().st_size:,} bytes, most "
                "of which are not on the disk; give the whole file"
            )
        yield
    except DataError:
        raise
    except UnicodeDecodeError as error:
        raise DataError(f"cannot read {path}: {_reason_of_encoding(error, path)}") from error
    except Exception as error:
        raise DataError(f"cannot read {path}: {reason_in_words(error)}") from error


def _reason_of_encoding(error: UnicodeDecodeError, path: Path) -> str:
    """Return why a file is not UTF-8 in one line, with the command that converts it.

    UTF-16 and UTF-32 are known by their byte-order mark. Other text that is not UTF-8 usually has
    one byte for each character, and which encoding it is cannot be seen.

    Args:
        error: The error of decoding, with the bytes that were decoded.
        path: The file.
    """
    content = error.object
    for byte_order_mark, encoding in ENCODING_BY_MARK.items():
        if error.start == 0 and content.startswith(byte_order_mark):
            return f"it is in {encoding} and not UTF-8; {_how_to_convert(path, encoding)}"
    unmarked = _encoding_with_nul(content[0::2].count(0), content[1::2].count(0), len(content))
    if unmarked:
        return f"it seems to be in {unmarked} and not UTF-8; {_how_to_convert(path, unmarked)}"
    wrong_byte = f"byte 0x{content[error.start]:02x} is not UTF-8"
    if CONTROL_BYTE.search(content):
        return (
            f"{wrong_byte}, and there are control characters: it is no plain text, but perhaps "
            "compressed or of another format; its name must have the ending of its format"
        )
    return (
        f"{wrong_byte}; if the file is in Windows-1252 or Latin-1, "
        f"{_how_to_convert(path, 'WINDOWS-1252')}, or else name its encoding there"
    )


def _encoding_with_nul(even: int, odd: int, length: int) -> str | None:
    """Return the encoding that a content with many characters NUL has; None: there are few.

    Half of English in UTF-16 is NUL, and three quarters in UTF-32.

    Args:
        even, odd: How many NUL are at even and odd places of the content, counted from 0.
        length: The length of the content.
    """
    if not length or even + odd < MOST_NUL * length:
        return None
    if even + odd > MOST_NUL_IN_UTF16 * length:
        return "UTF-32"
    return "UTF-16LE" if odd > even else "UTF-16BE"


def _how_to_convert(path: Path, encoding: str) -> str:
    """Return the command that converts a file to UTF-8."""
    reading = f"iconv -f {encoding} -t UTF-8"
    expanding = {".gz": "gzip -dc", ".zst": "zstd -dc"}.get(path.suffix.lower())
    name = shlex.quote(str(path))
    if expanding:
        return f"convert it: {expanding} {name} | {reading} > NEW_FILE"
    return f"convert it: {reading} {name} > NEW_FILE"


def whole_text(path: Path) -> str:
    """Return the text of a UTF-8 file, without the byte-order mark that it may begin with.

    Raises:
        DataError: The file is too large to be read at once, or is in UTF-16.
    """
    size = path.stat().st_size
    if size > MOST_TEXT_BYTES:
        raise DataError(
            f"{path} has {size:,} bytes, and a file that is read at once has at most "
            f"{MOST_TEXT_BYTES:,}; divide it into several files"
        )
    text = path.read_text(encoding="utf-8-sig")
    check_encoding(text, path)
    return text


def check_encoding(text: str, path: Path) -> None:
    """Raise a DataError if a text seems to be UTF-16 or UTF-32 that was read as UTF-8.

    Decoding raises no error then, but a quarter of the characters or more are NUL.
    """
    if "\0" not in text:  # as in nearly every line: the slices below would copy it
        return
    encoding = _encoding_with_nul(text[0::2].count("\0"), text[1::2].count("\0"), len(text))
    if encoding:
        raise DataError(
            f"cannot read {path}: it has characters NUL, as {encoding} read as UTF-8; "
            f"{_how_to_convert(path, encoding)}"
        )


class _ExpansionLimit:
    """Counts the bytes that a compressed file expands to, and refuses more than a text has.

    A few kilobytes can stand for gigabytes.
    """

    def __init__(self, path: Path):
        self._path = path
        self._most = ALWAYS_EXPANDED + MOST_EXPANSION * path.stat().st_size
        self._count = 0

    def add(self, count: int) -> None:
        """Add to the number of expanded bytes.

        Raises:
            DataError: The file has expanded to more than a text of its size can.
        """
        self._count += count
        if self._count > self._most:
            raise DataError(
                f"{self._path} expands to more than {self._most:,} bytes, as no text does; "
                "replace it, or give it uncompressed"
            )


class _ExpandedBytes(io.RawIOBase):
    """The content of a compressed file, which ends in an error if it expands too much.

    Args:
        path: The file.
        read: Given a number, returns at most as many of the next bytes of the expanded content.
    """

    def __init__(self, path: Path, read: Callable[[int], bytes]):
        self._read = read
        self._expanded = _ExpansionLimit(path)

    def readable(self) -> bool:
        """Return True: `io.BufferedReader` asks whether the stream can be read."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read expanded bytes into a buffer, and return how many; 0 at the end.

        Raises:
            DataError: The file has expanded too much.
        """
        content = self._read(len(buffer))
        self._expanded.add(len(content))
        buffer[: len(content)] = content
        return len(content)


def _lines_of(path: Path) -> Iterator[str]:
    """Yield the lines of a text file in UTF-8, with their line breaks.

    A file that ends in .zst or .gz is decompressed. A byte-order mark is left out.

    Raises:
        DataError: A line is too long or in UTF-16, or a compressed file expands too much.
    """
    import pyarrow

    compression = {".zst": "zstd", ".gz": "gzip"}.get(path.suffix.lower())
    stream = pyarrow.input_stream(str(path), compression=compression)
    if compression is not None:
        stream = io.BufferedReader(_ExpandedBytes(path, stream.read), BUFFER_BYTES)
    with io.TextIOWrapper(stream, encoding="utf-8-sig") as lines:
        # Reading one character more than allowed shows that a line is too long.
        read_line = partial(lines.readline, LONGEST_LINE + 1)
        lines_until_end = iter(read_line, "")  # `readline` returns "" at the end of the file
        for number, line in enumerate(lines_until_end, 1):
            if len(line) > LONGEST_LINE:
                raise DataError(
                    f"{path} line {number} has more than {LONGEST_LINE:,} characters; write each "
                    "document in a line of its own"
                )
            check_encoding(line, path)
            yield line


def json_lines(path: Path) -> Iterator[tuple[str, Record]]:
    """Yield, for each line of a .jsonl file, a name such as "FILE line 3" and the line's object.

    Errors use the name. Empty lines are left out. The file may be compressed (.gz, .zst) and may
    begin with a byte-order mark.

    Raises:
        DataError: A line is not a JSON object, or has a name twice, of whose two values `json`
            would keep one.
    """
    for number, line in enumerate(_lines_of(path), 1):
        if not line.strip():
            continue
        location = f"{path} line {number}"
        try:
            record = json.loads(line, object_pairs_hook=with_unique_names)
        except ValueError as error:
            raise DataError(f"{location} is not a JSON object ({error})") from None
        except RecursionError:
            raise DataError(
                f"{location} has lists or objects inside of each other too many times to be read; "
                "leave out the field that has them"
            ) from None
        if not isinstance(record, dict):  # dict() would read a list of pairs as a record
            type_name = type(record).__name__
            raise DataError(f"{location} is not a JSON object, but a {type_name}; write {{...}}")
        yield location, record


def parquet_rows(path: Path, field: str | None = None) -> Iterator[tuple[str, Record]]:
    """Yield, for each row of a .parquet file, a name such as "FILE row 3" and the row.

    Errors use the name.

    Args:
        path: The file.
        field: The only column to read. All columns are read if there is none of this name, or if
            it is None.

    Raises:
        DataError: Two columns have one name, or the file expands to far more bytes than it has.
    """
    import pyarrow.parquet

    names = pyarrow.parquet.ParquetFile(path).schema_arrow.names
    for name, count in Counter(names).items():
        if count > 1:
            raise DataError(f"{path}: the column {name} occurs more than once; rename one")
    columns_to_read = None  # all
    if field in names:
        columns_to_read = [field]

    # Texts stay in dictionaries until their lengths are added up: a row may repeat a text of
    # megabytes in two bytes.
    schema = pyarrow.parquet.ParquetFile(path).schema
    stored_columns = [schema.column(index).path for index in range(len(schema))]
    file = pyarrow.parquet.ParquetFile(path, read_dictionary=stored_columns)
    expanded = _ExpansionLimit(path)
    number = 0
    for batch in file.iter_batches(columns=columns_to_read):
        for column in batch.columns:
            expanded.add(_bytes_of_texts(column))
        for record in batch.to_pylist():
            number += 1
            yield f"{path} row {number}", record


def _bytes_of_texts(column: pyarrow.Array) -> int:
    """Return how many bytes the texts of a column have in total, repeated ones included.

    Args:
        column: A column in which texts are dictionary-encoded, also those of a nested column, such
            as lists of records; any other column has 0 bytes.
    """
    import pyarrow.compute

    if pyarrow.types.is_nested(column.type):
        if pyarrow.types.is_struct(column.type):
            inner_columns = column.flatten()
        elif pyarrow.types.is_map(column.type):
            inner_columns = [column.keys, column.items]
        else:  # a list
            inner_columns = [column.flatten()]
        return sum(_bytes_of_texts(inner_column) for inner_column in inner_columns)
    if not pyarrow.types.is_dictionary(column.type) or not len(column):
        return 0
    lengths_in_dictionary = pyarrow.compute.binary_length(column.dictionary)
    lengths = lengths_in_dictionary.take(column.indices)  # of the text of each row
    return pyarrow.compute.sum(lengths).as_py() or 0  # None where all texts are missing


def commit_of(repository: str, revision: str | None, label: str = "a data set") -> str:
    """Return the commit that a revision of a data set of the hub is now, as 40 digits.

    A branch that has moved has another commit, so that it counts as another data set.

    Args:
        repository: The data set, ORG/NAME.
        revision: A branch, tag or commit; None: the default branch. A commit is returned without
            asking the hub.
        label: What errors call the data set.

    Raises:
        DataError: The hub does not answer, or has no such data set.
    """
    if revision and re.fullmatch(r"[0-9a-f]{40}", revision):
        return revision
    remedy = _use_local_text()  # what an error suggests
    with _errors_name_data_set(label, repository, revision, remedy):
        return resolved("dataset", repository, revision).sha


def stream_records(
    label: str,
    repository: str,
    subset: str | None = None,
    *,
    revision: str | None,
    remedy: str | None = None,
    **options: object,
) -> Iterator[Record]:
    """Yield the rows of a data set of the hub as it is downloaded.

    Args:
        label: What errors call the data set.
        repository: The data set, ORG/NAME.
        subset: The name of one of its configurations; None: the default one.
        revision: A branch, tag or commit; None: the default branch.
        remedy: What errors suggest; None: text that is on this machine.
        options: Passed to `datasets.load_dataset`.

    Raises:
        DataError: The data set cannot be read.
    """
    import datasets

    datasets.disable_progress_bars()
    with _errors_name_data_set(label, repository, revision, remedy or _use_local_text()):
        # Where the hub cannot be reached, this call fails at once; load_dataset would try for
        # minutes.
        commit = resolved("dataset", repository, revision)
        if commit.trouble:
            # The hub did not answer, and the commit is that of a copy on this machine, which may
            # lack files of the data set.
            raise commit.trouble
        name = commit.repository or repository
        with sending_steadily():
            records = iter(
                datasets.load_dataset(name, subset, streaming=True, revision=commit.sha, **options)
            )
        while True:
            # `sending_steadily` ends a download that would take for ever. It changes the hub's
            # connections, which other code uses between two records.
            with sending_steadily():
                record = next(records, None)
            if record is None:
                return
            yield record


@contextlib.contextmanager
def _errors_name_data_set(
    label: str, repository: str, revision: str | None, remedy: str
) -> Iterator[None]:
    """Turn any error, such as an unreachable hub or a missing split, into a one-line DataError.

    The message names the data set, the cause and the remedy. The cause is the message of one of
    the package's own errors, an explanation of an error of the hub, or else the type and the
    message of the error.

    Args:
        label: What the errors call the data set.
        repository, revision: The data set and its branch, tag or commit.
        remedy: What the errors suggest.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, ThinkalikeError):
            cause = str(error)
        else:
            cause = cause_of(error, repository, revision) or ""  # "": it is no error of the hub
        if not cause:
            cause = reason_in_words(error)
        raise DataError(f"cannot stream {label} ({repository}): {cause}; {remedy}") from error


def whole_characters(text: str, location: str) -> str:
    """Return a text unchanged, after a check that it can be encoded in UTF-8.

    Args:
        text: The text.
        location: What errors call the place of the text.

    Raises:
        DataError: The text has half of a surrogate pair.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = text[error.start]
        raise DataError(f"{location}: {half!r} is half of a character; remove it") from None
    return text


def _use_local_text() -> str:
    """Return the remedy in errors about a data set of the hub that cannot be read."""
    return (
        f"use local files ({named_setting('data.files', like='[...]')}) or "
        f"{named_setting('data', 'pydoc')}"
    )
