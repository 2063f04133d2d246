"""Where documents come from: the standard library, a grammar, local files, or a streamed set of the hub."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from thinkalike.config import DataConfig
from thinkalike.data.grammar import sentences as grammar
from thinkalike.data.hub import commit_of, stream_records
from thinkalike.data.text.formats import files_of, text_of, texts_of


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


SPLIT_VERSION = 2  # raised where a change moves documents to or from a side; 2: near-duplicates leave the report


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
        return sorted(Path(grammar.__file__).parent.glob("*.py"))
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
    probing = {word.form for pattern in grammar.patterns("small") for slot in pattern.slots for word in slot}
    for sentence in grammar.controlled_sentences(config.sentences or 60_000, size="large"):
        if not probing.issuperset(word.form for word in sentence.words):
            yield sentence.text


def _of_the_hub(config: DataConfig) -> Iterator[str]:
    options: dict[str, Any] = {"split": config.split or "train"}
    if config.hub_files:
        options["data_files"] = list(config.hub_files)
    records = stream_records(
        f"data={config.name}",
        str(config.hub_id),
        config.subset,
        revision=config.revision,
        remedy="use local files (data=text 'data.files=[...]') or data=stdlib",
        **options,
    )
    for number, record in enumerate(records):
        yield text_of(record, str(config.field or "text"), f"{config.hub_id} row {number}")
