"""Sources of documents: Python's library or manual, a grammar, local files, or a streamed set of the hub.

A text of fewer than `FEW` documents, such as one book, is cut into pieces at its paragraphs, and each piece is a
document from then on: it has a side and counts as one in intervals.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import sysconfig
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

from thinkalike.config import DataConfig
from thinkalike.data.sources import Record, commit_of, json_lines, parquet_rows, reading, stream_records
from thinkalike.errors import DataError, nearest

# changed together with any sentence of the grammar; this value is made of the source code of the first grammar
GRAMMAR = bytes.fromhex(
    "7079bcf53ba375a91b3667b8fd37998962759fe9d7a0d7240493331a740e2d2ed02c7079af9d334811527b934f01f8ec0cc8"
    "7458d1de73eb26eb52c42eae7cddbc27b0767079cc1d3032135300c7592f0b95fb509faaba5c3571a369865c6badcd6b26c5"
    "f9fa70799010f92b72f325adcdba6edb2c086a44d970d3a838c0a4294de754f67e2983647079bd6c4a1968b7e83cb59cd310"
    "3b5e79a853ba3f56fc36fc403b0bab9ed5e8265e"
)
SPLIT_VERSION = 2  # raised where a change moves documents to or from a side; 2: near-duplicates leave the report
PIECES_VERSION = 1  # raised where a change cuts documents elsewhere
FEW = 200  # documents; a report of a tenth of fewer would hold fewer than twenty
PIECE = 4096  # characters of a piece at most, some thousand tokens of English


def documents(config: DataConfig) -> Iterator[str]:
    """Return the documents of a source in an order that never changes, in pieces where they are fewer than `FEW`.

    Raises:
        DataError: files are missing, damaged or of an unknown kind; a field is missing; the hub cannot be reached.
    """
    whole = _whole_documents(config)
    first = list(islice(whole, FEW))
    if len(first) == FEW:
        return chain(first, whole)
    pieces = [piece for text in first for piece in in_pieces(text)]
    # neighbours resemble each other, so that the first of many must not be one stretch
    return iter(pieces if len(pieces) == len(first) else sorted(pieces, key=document_fingerprint))


def in_pieces(text: str) -> Iterator[str]:
    """Yield a document in pieces of about equal length, at most `PIECE` characters.

    A piece ends after the last paragraph, line or word of its second half, in this order, if one ends there.
    """
    start = 0
    while (left := len(text) - start) > PIECE:
        stop = start + -(-left // -(-left // PIECE))
        ends = (text.rfind(end, (start + stop) // 2, stop) + len(end) for end in ("\n\n", "\n", " "))
        start, begin = next((end for end in ends if end > start + 1), stop), start
        yield text[begin:start]
    yield text[start:]


def _whole_documents(config: DataConfig) -> Iterator[str]:
    if config.source == "stdlib":  # an order that mixes topics and does not depend on the names of files
        texts = (path.read_text(encoding="utf-8", errors="replace") for path in _stdlib_files())
        yield from sorted(texts, key=document_fingerprint)
    elif config.source == "pydoc":
        yield from _topics()
    elif config.source == "grammar":
        yield from _sentences(config)
    elif config.source == "text":
        for path in files_of(config):
            yield from _read(path, config.field or "text")
    else:
        options: dict[str, Any] = {"data_files": list(config.hub_files)} if config.hub_files else {}
        options |= {"split": config.split or "train", "revision": config.revision}
        records = stream_records(f"data={config.name}", str(config.hub_id), config.subset, **options)
        for number, record in enumerate(records):
            yield _text_of(record, config.field or "text", f"{config.hub_id} row {number}")


def text_fingerprint(config: DataConfig) -> str:
    """Return the SHA-256 of everything that decides the documents of a source and their sides, as 16 digits.

    This is the content of local files, the version of the grammar, or the name and commit of a set of the hub; and
    the versions of the rules that keep the sides apart and cut documents, which those of the minis never are.

    Raises:
        DataError: files are missing or not regular, or the hub does not tell the commit.
    """
    if config.source == "hub":
        commit = commit_of(str(config.hub_id), config.revision, f"data={config.name}")
        choice = (config.hub_id, config.subset, config.split, commit, config.hub_files, config.field)
        return hashlib.sha256(repr((SPLIT_VERSION, PIECES_VERSION, *choice)).encode()).hexdigest()[:16]
    digest = hashlib.sha256(repr((SPLIT_VERSION, config.sentences or config.field)).encode())
    if config.source == "grammar":
        digest.update(GRAMMAR)
        return digest.hexdigest()[:16]
    if config.source != "stdlib":
        digest.update(bytes([PIECES_VERSION]))
    if config.source == "pydoc":
        digest.update("\0".join(_topics()).encode())
    for path in _stdlib_files() if config.source == "stdlib" else files_of(config):
        with reading(path):
            digest.update(path.name.partition(".")[2].encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def document_fingerprint(text: str) -> str:
    """Return the SHA-256 of a document, as 64 hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8", errors="replace")).hexdigest()


def canonical(text: str) -> str:
    """Return a text in lower case with single spaces: texts that differ in nothing else are copies of each other."""
    return " ".join(text.split()).casefold()


def _stdlib_files() -> list[Path]:
    left_out = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
    files: list[Path] = []
    for folder, inner, names in os.walk(sysconfig.get_paths()["stdlib"]):
        inner[:] = set(inner) - left_out
        files += [Path(folder, name) for name in names if name.endswith(".py")]
    return sorted(files)


def _topics() -> list[str]:
    """Return the topics of the reference of Python, without lines of signs; each paragraph once, as topics overlap."""
    from pydoc_data.topics import topics

    found, seen = [], set[str]()
    for _, topic in sorted(topics.items()):
        paragraphs = {canonical(each): each for each in re.sub(r"(?m)^\W{4,}\n", "", topic).split("\n\n")}
        found.append("\n\n".join(each for key, each in paragraphs.items() if key not in seen))
        seen.update(paragraphs)
    return found


def _sentences(config: DataConfig) -> Iterator[str]:
    """Yield sentences of the large grammar, except those of words of the small one alone, which probe models."""
    from thinkalike.data import grammar

    probing = {word.form for pattern in grammar.patterns("small") for slot in pattern.slots for word in slot}
    for sentence in grammar.controlled_sentences(config.sentences or 60_000, size="large"):
        if not probing.issuperset(word.form for word in sentence.words):
            yield sentence.text


def files_of(config: DataConfig) -> list[Path]:
    """Return the files that `data.files` names: in its order, and sorted within a glob, which must match some."""
    paths: list[Path] = []
    for pattern in config.files or []:
        matches = sorted(glob.glob(os.path.expanduser(pattern), recursive=True))
        if not matches:
            raise DataError(f"data.files: nothing matches {pattern}")
        paths += map(Path, matches)
    return paths


def _read(path: Path, field: str) -> Iterator[str]:
    name = path.name.lower()
    with reading(path):
        if name.endswith(".txt"):
            yield path.read_text(encoding="utf-8")
        elif name.endswith((".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")):
            records = parquet_rows(path, field) if name.endswith(".parquet") else json_lines(path)
            yield from (_text_of(record, field, place) for place, record in records)
        else:
            raise DataError(f"{path}: the ending must be .txt, .jsonl, .jsonl.gz, .jsonl.zst or .parquet")


def _text_of(record: Record, field: str, place: str) -> str:
    text = record.get(field)
    if not isinstance(text, str):
        found = f"it holds a {type(text).__name__}" if field in record else nearest(field, map(str, record))
        raise DataError(f"{place} has no text in field {field}; {found}")
    return text
