"""Where documents come from: the standard library, a grammar, local files, or a streamed set of the hub."""

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
from thinkalike.data import grammar
from thinkalike.errors import DataError, nearest

HUB_SECONDS = 8  # how long to wait for an answer of the hub


def documents(config: DataConfig) -> Iterator[str]:
    """The documents of a source, in an order that does not change.

    Raises:
        DataError: files are missing, damaged or of an unknown kind; a field is missing; the hub cannot be reached.
    """
    if config.source == "stdlib":
        return _by_content(path.read_text(encoding="utf-8", errors="replace") for path in _stdlib_files())
    if config.source == "grammar":
        return _sentences(config)
    if config.source == "text":
        return _texts(config)
    return _hub(config)


def identity(config: DataConfig) -> str:
    """A digest of what `documents` yields: the content of local files, the name and revision of a hub data set."""
    if config.source == "hub":
        parts = (config.hub_id, config.subset, config.split, config.revision, config.hub_files, config.field)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
    if config.source == "grammar":
        paths = [Path(grammar.__file__)]
    else:
        paths = _stdlib_files() if config.source == "stdlib" else _files(config)
    digest = hashlib.sha256(repr(config.sentences or config.field).encode())
    for path in paths:
        digest.update(path.name.partition(".")[2].encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def content_hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", errors="replace")).hexdigest()


def _by_content(texts: Iterable[str]) -> Iterator[str]:
    """Sorted by content hash: an order that mixes topics and that no file name decides."""
    return iter(sorted(texts, key=content_hash))


def _stdlib_files() -> list[Path]:
    root = Path(sysconfig.get_paths()["stdlib"])
    left_out = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
    return sorted(path for path in root.rglob("*.py") if not left_out & set(path.relative_to(root).parts))


def _sentences(config: DataConfig) -> Iterator[str]:
    """Sentences of the large grammar; those of words of the small one alone, which probe models, are left out."""
    probing = {word.form for pattern in grammar.patterns("small") for slot in pattern.slots for word in slot}
    for sentence in grammar.controlled_sentences(config.sentences or 60_000, size="large"):
        if not probing.issuperset(word.form for word in sentence.words):
            yield sentence.text


def _files(config: DataConfig) -> list[Path]:
    found: list[Path] = []
    for pattern in config.files or []:
        matches = sorted(glob.glob(os.path.expanduser(pattern), recursive=True))
        if not matches:
            raise DataError(f"data.files: nothing matches {pattern}")
        found += [Path(match) for match in matches]
    for path in found:
        if path.is_dir():
            raise DataError(f"data.files: {path} is a folder; give files or a glob such as '{path}/*.txt'")
    return found


def _texts(config: DataConfig) -> Iterator[str]:
    for path in _files(config):
        try:
            yield from _read(path, str(config.field or "text"))
        except DataError:
            raise
        except Exception as error:  # each format's library has errors of its own
            raise DataError(f"cannot read {path}: {type(error).__name__}: {error}") from error


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
                    yield _value(json.loads(line), field, f"{path} line {number}")
    else:
        raise DataError(f"{path}: of the kinds .txt, .jsonl, .jsonl.gz, .jsonl.zst and .parquet it is none")


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
    for batch in file.iter_batches(columns=[field]):
        for value in batch.column(0).to_pylist():
            yield _value({field: value}, field, str(path))


def _value(record: dict[str, Any], field: str, place: str) -> str:
    if not isinstance(record.get(field), str):
        raise DataError(f"{place} has no text in field {field}; {nearest(field, map(str, record))}")
    return record[field]


def _hub(config: DataConfig) -> Iterator[str]:
    files: dict[str, Any] = {"data_files": list(config.hub_files)} if config.hub_files else {}
    remedy = "use local files (data=text 'data.files=[...]') or data=stdlib"
    split, name = config.split or "train", f"data={config.name}"
    records = streamed(name, str(config.hub_id), split, config.revision, remedy, config.subset, **files)
    for number, record in enumerate(records):
        yield _value(record, str(config.field or "text"), f"{config.hub_id} row {number}")


def streamed(
    name: str, repository: str, split: str, revision: str | None, remedy: str, subset: str | None = None, **options: Any
) -> Iterator[dict[str, Any]]:
    """The records of a data set of the hub.

    Args:
        name, remedy: what the error calls the set, and what it says to do.

    Raises:
        DataError: the hub cannot be reached, there is no such set or split, or a shard is damaged.
    """
    import datasets
    from huggingface_hub import HfApi
    from huggingface_hub.utils import logging as hub_logging

    datasets.disable_progress_bars()
    hub_logging.set_verbosity_error()
    options |= {"split": split, "streaming": True, "revision": revision}
    try:
        HfApi().dataset_info(repository, revision=revision, timeout=HUB_SECONDS)  # fails at once, or never
        yield from datasets.load_dataset(repository, subset, **options)
    except Exception as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), "")[:200]
        raise DataError(f"cannot stream {name} ({repository}): {type(error).__name__}: {reason}; {remedy}") from error
