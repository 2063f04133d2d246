"""Sources of documents: the standard library, a grammar, local files, or a streamed set of the hub."""

from __future__ import annotations

import glob
import gzip
import hashlib
import io
import json
import os
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from thinkalike.config import DataConfig
from thinkalike.data.sources import commit_of, stream_records
from thinkalike.errors import DataError, first_line, nearest

SPLIT_VERSION = 2  # raised where a change moves documents to or from a side; 2: near-duplicates leave the report


def documents(config: DataConfig) -> Iterator[str]:
    """Return the documents of a source in an order that never changes.

    Raises:
        DataError: files are missing, damaged or of an unknown kind; a field is missing; the hub cannot be reached.
    """
    if config.source == "stdlib":
        return _by_fingerprint(path.read_text(encoding="utf-8", errors="replace") for path in _stdlib_files())
    if config.source == "grammar":
        return _sentences(config)
    if config.source == "text":
        return texts_of(config)
    return _of_the_hub(config)


def text_fingerprint(config: DataConfig) -> str:
    """Return the SHA-256 of what decides the documents of a source and their sides, as 16 hexadecimal digits.

    This is the content of local files, the source code of the grammar, or the name and commit of a set of the hub; and
    the version of the rule that keeps the sides apart.

    Raises:
        DataError: files are missing, or the hub does not say the commit.
    """
    if config.source == "hub":
        commit = commit_of(str(config.hub_id), config.revision, f"data={config.name}")
        choice = (SPLIT_VERSION, config.hub_id, config.subset, config.split, commit, config.hub_files, config.field)
        return hashlib.sha256(repr(choice).encode()).hexdigest()[:16]
    digest = hashlib.sha256(repr((SPLIT_VERSION, config.sentences or config.field)).encode())
    for path in _local_files(config):
        digest.update(path.name.partition(".")[2].encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def document_fingerprint(text: str) -> str:
    """Return the SHA-256 of a document, as 64 hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8", errors="replace")).hexdigest()


def canonical(text: str) -> str:
    """Return a text without what does not count when it is compared: its case, and its kinds of white space."""
    return " ".join(text.split()).casefold()


def _by_fingerprint(texts: Iterable[str]) -> Iterator[str]:
    """Sort documents into an order that mixes topics and that no file name decides."""
    return iter(sorted(texts, key=document_fingerprint))


def _local_files(config: DataConfig) -> list[Path]:
    if config.source == "stdlib":
        return _stdlib_files()
    if config.source == "grammar":
        return [Path(__file__).with_name("grammar.py")]
    return files_of(config)


def _stdlib_files() -> list[Path]:
    left_out = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
    files: list[Path] = []
    for folder, inner, names in os.walk(sysconfig.get_paths()["stdlib"]):
        inner[:] = set(inner) - left_out  # packages that are installed there are thousands of files
        files += [Path(folder, name) for name in names if name.endswith(".py")]
    return sorted(files)


def _sentences(config: DataConfig) -> Iterator[str]:
    """Yield sentences of the large grammar, except those of words of the small one alone, which probe models."""
    from thinkalike.data import grammar

    probing = {word.form for pattern in grammar.patterns("small") for slot in pattern.slots for word in slot}
    for sentence in grammar.controlled_sentences(config.sentences or 60_000, size="large"):
        if not probing.issuperset(word.form for word in sentence.words):
            yield sentence.text


def _of_the_hub(config: DataConfig) -> Iterator[str]:
    options: dict[str, Any] = {"data_files": list(config.hub_files)} if config.hub_files else {}
    options |= {"split": config.split or "train", "revision": config.revision}
    for number, record in enumerate(
        stream_records(f"data={config.name}", str(config.hub_id), config.subset, **options)
    ):
        yield text_of(record, str(config.field or "text"), f"{config.hub_id} row {number}")


# --------------------------------------------------------------------------------------------------------- local files


def files_of(config: DataConfig) -> list[Path]:
    """Return the files that `data.files` names: in its order, and sorted within a glob.

    Raises:
        DataError: nothing matches, or something that is no regular file, such as a folder or a pipe.
    """
    paths: list[Path] = []
    for pattern in config.files or []:
        matches = sorted(glob.glob(os.path.expanduser(pattern), recursive=True))
        if not matches:
            raise DataError(f"data.files: nothing matches {pattern}; give files that exist, or a glob of them")
        paths += map(Path, matches)
    for path in paths:
        if not path.is_file():
            raise DataError(f"data.files: {path} is no regular file; give files or a glob such as 'FOLDER/*.txt'")
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
            raise DataError(f"cannot read {path}: {type(error).__name__}: {first_line(error)}") from error


def text_of(record: dict[str, Any], field: str, place: str) -> str:
    """Return the text of a record.

    Args:
        place: where the record stands, for the message.

    Raises:
        DataError: the field is missing, or holds no text or half a character.
    """
    text = record.get(field)
    if not isinstance(text, str):
        found = f"{type(text).__name__} in it" if field in record else nearest(field, map(str, record))
        raise DataError(f"{place} has no text in field {field}; {found}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise DataError(f"{place}: the field {field} holds half a surrogate pair; correct the text") from None
    return text


def _read(path: Path, field: str) -> Iterator[str]:
    name = path.name.lower()
    if name.endswith(".txt"):
        yield path.read_text(encoding="utf-8")
    elif name.endswith(".parquet"):
        yield from _parquet(path, field)
    elif name.endswith((".jsonl", ".jsonl.gz", ".jsonl.zst")):
        with _opened(path) as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield text_of(record_of(line, place := f"{path} line {number}"), field, place)
    else:
        raise DataError(f"{path} is of no known kind; give a file of .txt, .jsonl, .jsonl.gz, .jsonl.zst or .parquet")


def record_of(line: str, place: str) -> dict[str, Any]:
    """Return the record that a line of JSON holds.

    Raises:
        DataError: the line is no JSON object.
    """
    try:
        return dict(json.loads(line))
    except (ValueError, TypeError) as error:
        raise DataError(f"{place} is no JSON object ({error}); correct it, or leave it out") from None


def _opened(path: Path) -> Any:
    """Open a text file of UTF-8, with or without a byte-order mark."""
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig")
    if path.suffix.lower() == ".zst":
        import pyarrow

        return io.TextIOWrapper(pyarrow.input_stream(str(path), compression="zstd"), encoding="utf-8-sig")
    return path.open(encoding="utf-8-sig")


def _parquet(path: Path, field: str) -> Iterator[str]:
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(path)
    if field not in file.schema_arrow.names:
        raise DataError(f"{path} has no field {field}; {nearest(field, file.schema_arrow.names)}")
    values = (value for batch in file.iter_batches(columns=[field]) for value in batch.column(0).to_pylist())
    for row, value in enumerate(values, 1):
        yield text_of({field: value}, field, f"{path} row {row}")
