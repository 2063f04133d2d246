"""Files of users, read by their ending, and data sets of the hub; errors name the file or the set."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from thinkalike.errors import DataError, one_line
from thinkalike.files import is_pointer, is_there, what_pulls
from thinkalike.hub import cause_of, resolved

LOCAL = "use local files (data=text 'data.files=[...]') or data=pydoc"
Record = dict[str, Any]  # a row, by column


def read_with(path: Path, readers: Mapping[str, Callable[[Path], Any]]) -> Any:
    """Read a file with the reader of its ending (".csv"); errors are DataErrors that name it."""
    if path.suffix.lower() not in readers:
        raise DataError(f"{path}: the ending must be one of {', '.join(readers)}")
    with reading(path):
        return readers[path.suffix.lower()](path)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Name a file in all errors of the libraries that read it: missing, damaged, in another encoding.

    A file that is not regular is refused: a pipe or /dev/zero would never end.
    """
    try:
        if is_there(path) and not path.is_file():
            raise DataError(
                f"cannot read {path}: it is not a regular file; give files or a glob such as 'FOLDER/*.txt'"
            )
        if is_pointer(path):
            raise DataError(what_pulls(path))
        yield
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"cannot read {path}: {type(error).__name__}: {one_line(error)}") from error


def json_lines(path: Path) -> Iterator[tuple[str, Record]]:
    """Yield each line of a .jsonl file and where it is; the file may end in .gz or .zst and begin with a BOM."""
    import pyarrow

    packed = {".zst": "zstd", ".gz": "gzip"}.get(path.suffix.lower())
    with io.TextIOWrapper(pyarrow.input_stream(str(path), compression=packed), encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    record = json.loads(line)
                except ValueError as error:
                    raise DataError(f"{path} line {number} is not a JSON object ({error})") from None
                if not isinstance(record, dict):  # dict() would read a list of pairs as a record
                    kind = type(record).__name__
                    raise DataError(f"{path} line {number} is not a JSON object, but a {kind}; write {{...}}")
                yield f"{path} line {number}", record


def parquet_rows(path: Path, field: str | None = None) -> Iterator[tuple[str, Record]]:
    """Yield each row of a .parquet file and where it is: all columns, or one if there is a column of that name."""
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(path)
    columns = [field] if field in file.schema_arrow.names else None
    records = (record for batch in file.iter_batches(columns=columns) for record in batch.to_pylist())
    for number, record in enumerate(records, 1):
        yield f"{path} row {number}", record


def commit_of(repository: str, revision: str | None, label: str = "a data set") -> str:
    """Return the commit of a data set of the hub, so that a branch that has moved is another data set."""
    if revision and re.fullmatch(r"[0-9a-f]{40}", revision):
        return revision
    with _explained(label, repository, revision, LOCAL):
        return resolved("dataset", repository, revision).sha


def stream_records(
    label: str, repository: str, subset: str | None = None, *, revision: str | None, remedy: str = LOCAL, **options: Any
) -> Iterator[Record]:
    """Yield the rows of a data set of the hub as it is downloaded, with these options of `datasets.load_dataset`.

    The message of an error calls the set by its `label` and suggests the `remedy`.
    """
    import datasets

    datasets.disable_progress_bars()
    with _explained(label, repository, revision, remedy):
        # This call fails at once where there is no hub; load_dataset would try for minutes.
        commit = resolved("dataset", repository, revision)
        if commit.trouble:
            raise commit.trouble  # a copy of some files does not make a data set
        name = commit.repository or repository
        yield from datasets.load_dataset(name, subset, streaming=True, revision=commit.sha, **options)


@contextlib.contextmanager
def _explained(label: str, repository: str, revision: str | None, remedy: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # no hub, no such split, a damaged shard
        words = f"{type(error).__name__}: {one_line(error)}"
        reason = cause_of(error, repository, revision) or words
        raise DataError(f"cannot stream {label} ({repository}): {reason}; {remedy}") from error


def whole_characters(text: str, place: str) -> str:
    """Return a text; a DataError names the place of one with half of a character, which no file can hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{place}: {text[error.start]!r} is half of a character; remove it") from None
    return text
