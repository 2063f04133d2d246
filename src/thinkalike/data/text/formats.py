"""Documents in local files: .txt, .jsonl, plain or compressed, and .parquet."""

from __future__ import annotations

import glob
import gzip
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from thinkalike.config import DataConfig
from thinkalike.errors import DataError, first_line, nearest


def files_of(config: DataConfig) -> list[Path]:
    """Return the files that `data.files` names: in its order, and sorted within a glob.

    Raises:
        DataError: nothing matches, or a folder does.
    """
    paths: list[Path] = []
    for pattern in config.files or []:
        if "\0" in pattern:
            raise DataError(f"data.files: {pattern!r} holds a NUL byte and names no file; give files that exist")
        matches = sorted(glob.glob(os.path.expanduser(pattern), recursive=True))
        if not matches:
            raise DataError(f"data.files: nothing matches {pattern}; give files that exist, or a glob of them")
        paths += [Path(match) for match in matches]
    for path in paths:
        if path.is_dir():
            raise DataError(f"data.files: {path} is a folder; give files or a glob such as '{path}/*.txt'")
    return paths


def texts_of(config: DataConfig) -> Iterator[str]:
    """Yield the documents of all files.

    Raises:
        DataError: a file is missing, damaged or of an unknown kind, or the field that should hold text does not.
    """
    for path in files_of(config):
        try:
            yield from _read(path, str(config.field or "text"))
        except DataError:
            raise
        except Exception as error:  # each format's library has errors of its own
            reason = first_line(error)
            raise DataError(f"cannot read {path}: {type(error).__name__}: {reason}") from error


def text_of(record: dict[str, Any], field: str, place: str) -> str:
    """Return the text of a record.

    Args:
        place: where the record stands, for the message.

    Raises:
        DataError: the field is missing, or holds no text or half a character.
    """
    if field not in record:
        raise DataError(f"{place} has no text in field {field}; {nearest(field, map(str, record))}")
    text = record[field]
    if not isinstance(text, str):
        held = "null" if text is None else type(text).__name__
        raise DataError(f"{place} has no text in field {field}, but {held}; correct it, or leave the record out")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise DataError(f"{place}: the field {field} holds {half}, half a surrogate pair; correct the text") from None
    return text


def _read(path: Path, field: str) -> Iterator[str]:
    name = path.name
    if name.endswith(".txt"):
        yield path.read_text(encoding="utf-8")
    elif name.endswith(".parquet"):
        yield from _parquet(path, field)
    elif name.endswith((".jsonl", ".jsonl.gz", ".jsonl.zst")):
        with _lines(path) as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield text_of(_record(line, place := f"{path} line {number}"), field, place)
    else:
        raise DataError(f"{path} is of no known kind; give a file of .txt, .jsonl, .jsonl.gz, .jsonl.zst or .parquet")


def _record(line: str, place: str) -> dict[str, Any]:
    """Return the record that a line of JSON holds."""
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(
            f"cannot read {place}: JSONDecodeError: {error.msg} at column {error.colno}; correct it, or leave it out"
        ) from None
    if not isinstance(record, dict):
        raise DataError(f'{place} holds no record such as {{"text": ...}}; give one JSON object a line')
    return record


def _lines(path: Path) -> Any:
    if path.name.endswith(".gz"):
        return gzip.open(path, "rt", encoding="utf-8")
    if path.name.endswith(".zst"):
        import pyarrow

        return io.TextIOWrapper(pyarrow.input_stream(str(path), compression="zstd"), encoding="utf-8")
    return path.open(encoding="utf-8")


def _parquet(path: Path, field: str) -> Iterator[str]:
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(path)
    if field not in file.schema_arrow.names:
        raise DataError(f"{path} has no field {field}; {nearest(field, file.schema_arrow.names)}")
    values = (value for batch in file.iter_batches(columns=[field]) for value in batch.column(0).to_pylist())
    for row, value in enumerate(values, 1):
        yield text_of({field: value}, field, f"{path} row {row}")
