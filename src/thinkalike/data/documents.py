"""Documents of a source, and the side of each: to fit on, or for the report.

Sources are Python's library or manual, a grammar, local files, or a streamed set of the hub. A .txt file is one
document, or several if marks such as `<|endoftext|>` divide it, see `thinkalike.data.marks`. A text of fewer than `FEW`
documents, such as one book, is cut into pieces at its paragraphs, and each piece is a document from then on: it has a
side and counts as one in intervals.

A hash of its content decides the side of a document, so sides do not move when files are added. Two more rules ensure
that nothing in the report was fitted on, up to small changes:

- A copy of an earlier document of its side is left out. Copies differ in white space and case alone.
- A document of the report is left out if one document to fit on holds more than half of it (see `near_duplicates`).

Of local sources and of the grammar, all documents to fit on count, whether a job reads them or not, because the minis
read them. Of a set of the hub only those that were read count, wherever they are: the report may lose a document to a
later one, so it is settled only at the end. The report loses none with `same_split`, which fits on its own documents,
and none of the user's text where a job fits nothing.
"""

from __future__ import annotations

import contextlib
import datetime
import decimal
import glob
import hashlib
import logging
import math
import os
import re
import sysconfig
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thinkalike.config import DataConfig
from thinkalike.config.in_memory import TextInMemory
from thinkalike.data.marks import divided
from thinkalike.data.sources import (
    Record,
    commit_of,
    json_lines,
    parquet_rows,
    reading,
    stream_records,
    whole_characters,
)
from thinkalike.errors import DataError, nearest, short
from thinkalike.files import is_there
from thinkalike.processes import counted
from thinkalike.shards.index import states_fingerprint

log = logging.getLogger(__name__)

# changed together with any sentence of the grammar; this value is made of the source code of the first grammar
GRAMMAR = bytes.fromhex(
    "7079bcf53ba375a91b3667b8fd37998962759fe9d7a0d7240493331a740e2d2ed02c7079af9d334811527b934f01f8ec0cc8"
    "7458d1de73eb26eb52c42eae7cddbc27b0767079cc1d3032135300c7592f0b95fb509faaba5c3571a369865c6badcd6b26c5"
    "f9fa70799010f92b72f325adcdba6edb2c086a44d970d3a838c0a4294de754f67e2983647079bd6c4a1968b7e83cb59cd310"
    "3b5e79a853ba3f56fc36fc403b0bab9ed5e8265e"
)
SPLIT_VERSION = 2  # raised where a change moves documents to or from a side; 2: near-duplicates leave the report
PIECES_VERSION = 1  # raised where a change cuts documents elsewhere
USERS_VERSION = 1  # raised where a change divides users' files elsewhere, or moves their documents or those of the hub
REPORT_SHARE = 0.1  # of the documents, where `data.report_share` is not set
USERS = ("text", "hub")  # sources of which the minis have read nothing
FEW = 200  # documents; a report of a tenth of fewer would hold fewer than twenty
DOCUMENTS = 100  # that a report should hold
BYTES = 2  # of text, which most tokens have at least
FEWEST_BYTES = 1000  # of a document that is cut
PIECE = 4096  # characters of a piece at most, some thousand tokens of English

Shingles = NDArray[np.uint64]  # the hashes of a document's shingles, sorted, each once

WORDS = 8  # of a shingle
LEAST = 16  # a document of fewer shingles than this is one shingle
AT_ONCE = 128  # documents whose shingles are looked up in one call
# Thai, Khmer, kana, Han, ...
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
WORD = re.compile(rf"[^\W{UNSPACED}]+|[{UNSPACED}]")
FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no bit of a word's hash is lost


NAMES_OF_GROUPS = (str, int, float, bool, datetime.date, decimal.Decimal)  # values that name a group


class Document(str):
    """A text, and the name of its source: documents of one group are on one side, and count as one in intervals."""

    group: str | None = None

    def __new__(cls, text: str, group: str | None = None) -> Document:
        found = super().__new__(cls, text)
        found.group = group
        return found


def group_of(text: str) -> str | None:
    """Return the name of the source of a document; None: it is of no group."""
    return getattr(text, "group", None)


def documents(config: DataConfig) -> Iterator[str]:
    """Return the documents of a source in an order that never changes, in pieces where they are fewer than `FEW`."""
    whole = _whole_documents(config)
    first = list(islice(whole, FEW))
    pieces = first
    if len(first) < FEW:
        pieces = [Document(piece, group_of(text)) for text in first for piece in in_pieces(text)]
    if len(pieces) > len(first):  # neighbours resemble each other, so that the first of many must not be one stretch
        pieces.sort(key=document_fingerprint)
    return chain(pieces, whole)


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
        from thinkalike.data.grammar import controlled_sentences, patterns

        # sentences of words of the small grammar alone probe models
        probing = {word.form for pattern in patterns("small") for slot in pattern.slots for word in slot}
        for sentence in controlled_sentences(config.sentences or 60_000, size="large"):
            if not probing.issuperset(word.form for word in sentence.words):
                yield sentence.text
    elif config.source == "states":
        raise DataError(
            f"data={config.name} has the rows of a folder of states, which measures of states alone compare; give text"
        )
    elif isinstance(config, TextInMemory):
        grouping = _Grouping(config.group)
        for number, record in enumerate(config.records.rows, 1):
            yield grouping.document(_text_of(record, config.field or "text", f"texts line {number}"), record)
    elif config.source == "text":
        paths = files_of(config)
        grouping = _Grouping(config.group, os.path.commonpath([path.parent.absolute() for path in paths]))
        for path in paths:
            for text, record in _read(path, config.field or "text", config.group):
                yield grouping.document(text, record, path)
    else:
        options: dict[str, Any] = {"data_files": list(config.hub_files)} if config.hub_files else {}
        options |= {"split": config.split or "train", "revision": config.revision}
        records = stream_records(f"data={config.name}", str(config.hub_id), config.subset, **options)
        grouping = _Grouping(config.group)
        for number, record in enumerate(records):
            text = _text_of(record, config.field or "text", f"{config.hub_id} row {number}")
            yield grouping.document(text, record)


def rows_folder(config: DataConfig) -> str:
    """Return the folder of states whose rows of text are read."""
    assert config.files is not None, "DataConfig checks that there is one"
    return config.files[0]


def text_fingerprint(config: DataConfig) -> str:
    """Return the SHA-256 of everything that decides the documents of a source and their sides, as 16 digits.

    This is the content of local files, the version of the grammar, or the name and commit of a set of the hub; and
    the versions of the rules that keep the sides apart and cut documents, which those of the minis never are.
    """
    if config.source == "states":
        return states_fingerprint(rows_folder(config))
    if config.source == "hub":
        commit = commit_of(str(config.hub_id), config.revision, f"data={config.name}")
        choice = config.hub_id, config.subset, config.split, commit, config.hub_files, config.field
        group = [config.group] if config.group else []
        versions = SPLIT_VERSION, PIECES_VERSION, USERS_VERSION
        return hashlib.sha256(repr((*versions, *choice, *group)).encode()).hexdigest()[:16]
    digest = hashlib.sha256(repr((SPLIT_VERSION, config.sentences or config.field)).encode())
    if config.source == "grammar":
        digest.update(GRAMMAR)
    elif config.source != "stdlib":
        digest.update(bytes([PIECES_VERSION]))
    if config.source == "text":
        digest.update(bytes([USERS_VERSION]))
    if config.source == "pydoc":
        digest.update("\0".join(_topics()).encode())
    is_own = config.source == "stdlib"  # of files that are sure to be there
    for path in _stdlib_files() if is_own else files_of(config):
        with contextlib.nullcontext() if is_own else reading(path):
            digest.update(path.name.partition(".")[2].encode() + hashlib.sha256(path.read_bytes()).digest())
    if isinstance(config, TextInMemory):  # as a file of JSON lines
        digest.update(b"jsonl" + config.records.digest)
    if config.group:
        paths = [str(path) for path in files_of(config)]
        digest.update(repr((config.group, paths if config.group in ("file", "folder") else [])).encode())
    return digest.hexdigest()[:16]


def beginning_bytes(report_tokens: int) -> int:
    """Return how many bytes in UTF-8 of each document a report reads, so that it holds `DOCUMENTS` of them.

    Bytes are counted and not tokens, so that models with different tokenizers read the same text.
    """
    return max(BYTES * report_tokens // DOCUMENTS, FEWEST_BYTES)


def tokens_of_report(config: DataConfig, report_tokens: int, vocabulary: int) -> int:
    """Return about how many tokens a report has: those that are asked for, or what a text on this machine has.

    A token of a vocabulary of v entries has about log2(v) / 4 bytes of English or code: 2.7 of the minis' 2,048, and
    3.9 of 49,152.
    """
    if config.source in ("hub", "states"):
        return report_tokens
    most = beginning_bytes(report_tokens)
    held_out = (text for text, _, for_report in _sided(config, config.report_share or REPORT_SHARE) if for_report)
    size = sum(min(len(text.encode("utf-8", errors="replace")), most) for text in held_out)
    return min(report_tokens, round(4 * size / math.log2(max(vocabulary, 2))))


def beginning(text: str, most: int | None) -> str:
    """Return the beginning of a document, of at most `most` bytes in UTF-8; None: all of it.

    It ends before a white space, unless there is none in its second half.
    """
    if most is None or len(encoded := text.encode("utf-8", errors="replace")) <= most:
        return text
    kept = encoded[:most].decode("utf-8", errors="ignore")
    words = re.match(r"(?s).*\S(?=\s)", kept)
    return words[0] if words and 2 * len(words[0]) > len(kept) else kept


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


def files_of(config: DataConfig) -> list[Path]:
    """Return the files that `data.files` names, in its order, and those of a glob sorted.

    A name is a glob only if there is no such file: `notes [v2].txt` may be either. A glob must match a file.
    """
    files = []
    for name in config.files or []:
        path = Path(name).expanduser()
        matches = [path] if is_there(path) else sorted(map(Path, glob.glob(str(path), recursive=True)))
        if not matches:
            raise DataError(f"data.files: nothing matches {name}")
        files.extend(matches)
    return files


class _Grouping:
    """Gives the documents of a source the names of their groups, by `data.group`.

    Args:
        field: A field of the records, or "file" or "folder" of local files; None: documents are of no group.
        root: The folder that all files have in common. Folders are those in it; a file that lies there is its own.
    """

    def __init__(self, field: str | None, root: str = ""):
        self.field = field
        self.root = root
        self.kind: type | None = None  # of the values of the field
        self.first: Any = None

    def document(self, text: str, record: Record, path: Path | None = None) -> str:
        if self.field is None:
            return text
        if self.field in ("file", "folder") and path:
            inside = path.absolute().relative_to(self.root)
            return Document(text, inside.parts[0] if self.field == "folder" else str(inside))
        if self.field not in record:
            there = nearest(self.field, map(str, record))
            raise DataError(f"data.group={self.field}: the records have no such field; {there}")
        return Document(text, self._name(record[self.field]))

    def _name(self, value: Any) -> str:
        """Return the name of a group; a DataError of what names none, or has the name of a value of another type."""
        if value is None or value != value or value == "":
            remedy = "fill it in, or leave these records out"
            raise DataError(f"data.group={self.field}: a record has no value in this field; {remedy}")
        if not isinstance(value, NAMES_OF_GROUPS):
            told = f"a record has a {type(value).__name__} in this field ({short(repr(value))})"
            raise DataError(f"data.group={self.field}: {told}; write a text or a number")
        if self.kind is None:
            self.kind = type(value)
            self.first = value
        elif type(value) is not self.kind:
            told = f"the field has {self.first!r}, a {self.kind.__name__}, and {value!r}, a {type(value).__name__}"
            raise DataError(f"data.group={self.field}: {short(told)}; write all of them alike")
        return str(value)


def _read(path: Path, field: str, group: str | None) -> Iterator[tuple[str, Record]]:
    name = path.name.lower()
    if not name.endswith((".txt", ".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")):
        raise DataError(f"{path}: the ending must be .txt, .jsonl, .jsonl.gz, .jsonl.zst or .parquet")
    with reading(path):
        if name.endswith(".txt"):
            found = divided(path.read_text(encoding="utf-8-sig"))
            if found.marks:
                marks = " and ".join(found.marks)
                _say_once(f"{path}: {len(found.documents):,} documents, divided at {marks}")
            yield from ((text, {}) for text in found.documents)
            return
        records = parquet_rows(path, None if group else field) if name.endswith(".parquet") else json_lines(path)
        for place, record in records:
            yield _text_of(record, field, place), record


@cache  # documents are read several times in a job
def _say_once(message: str) -> None:
    log.info(message)


def _text_of(record: Record, field: str, place: str) -> str:
    text = record.get(field)
    if not isinstance(text, str):
        found = f"it holds a {type(text).__name__}" if field in record else nearest(field, map(str, record))
        raise DataError(f"{place} has no text in field {field}; {found}")
    return whole_characters(text, place)


def shingles(text: str) -> Shingles:
    """Return the 64-bit hashes of a document's shingles, all its runs of `WORDS` words, the same in every process.

    Words are runs of letters and digits, without case and punctuation; in scripts without spaces between words, every
    character is a word. A document of fewer than `LEAST` shingles, such as one sentence of a grammar, is a single
    shingle, its canonical form.
    """
    words = WORD.findall(text.casefold())
    count = len(words) - WORDS + 1
    if count >= LEAST:
        encoded = "\n".join(words).encode("utf-8", errors="replace").split(b"\n")
        codes = np.fromiter(map(zlib.crc32, encoded), np.uint64, len(words))
        runs = np.zeros(count, np.uint64)
        for place in range(WORDS):
            runs = runs * FACTOR + codes[place : place + count]  # modulo 2 ** 64
        if len(distinct := np.unique(runs)) >= LEAST:
            return distinct
    return np.array([int(document_fingerprint(canonical(text))[:16], 16)], np.uint64)


def near_duplicates(documents: Sequence[Shingles], others: Iterable[Shingles]) -> NDArray[np.bool_]:
    """Return of each document whether one of the others holds more than half of its shingles (Broder 1997).

    The others are read once and not kept: memory grows with the shingles of the documents alone.
    """
    from scipy.sparse import csr_array

    sizes = np.array([len(each) for each in documents], np.int64)
    most = np.zeros(len(documents), np.int64)
    if not documents:
        return most > sizes
    hashes, owners = _joined(documents)
    keys, rows = np.unique(hashes, return_inverse=True)
    owned = csr_array((np.ones(len(rows), np.int64), (rows, owners)), (len(keys), len(documents)))
    reading = iter(others)
    while some := list(islice(reading, AT_ONCE)):
        hashes, numbers = _joined(some)
        places = np.minimum(np.searchsorted(keys, hashes), len(keys) - 1)
        found = np.flatnonzero(keys[places] == hashes)
        held = csr_array((np.ones(len(found), np.int64), (numbers[found], places[found])), (len(some), len(keys)))
        most = np.maximum(most, (held @ owned).max(axis=0).toarray().ravel())
    return 2 * most > sizes


def _joined(documents: Sequence[Shingles]) -> tuple[Shingles, NDArray[np.int64]]:
    return np.concatenate(documents), np.repeat(np.arange(len(documents)), [len(each) for each in documents])


class Sides:
    """The documents of a source and their sides, in order, without copies and empty documents.

    `settled` says whether all documents of the report that are given out stay. Where a set of the hub is streamed they
    may not, and `repeats` tells those that nearly repeat one of the documents read so far.

    Args:
        is_fitted: whether the job fits anything on documents. If not, the report is all of the user's text, or the
            share that is set, near-duplicates included. Documents of the sources that the minis were trained on are
            held out in any case.
    """

    def __init__(self, config: DataConfig, is_fitted: bool = True):
        self.config, self.counts = config, Counter(duplicate_documents=0, near_duplicates=0)
        self.is_apart = is_fitted or config.source not in USERS
        self.settled = config.source != "hub" or bool(config.same_split) or not self.is_apart
        self._report: list[Shingles] = []
        self._fit: list[Shingles] = []

    def __iter__(self) -> Iterator[tuple[str, bool]]:
        known = self.is_apart and self.settled and not self.config.same_split
        gone = _giving_way(self.config) if known else set()
        for text, fingerprint, for_report in _without_copies(self.config, self.counts, self.share):
            if fingerprint in gone:
                self.counts["near_duplicates"] += 1
                continue
            if not self.settled:
                (self._report if for_report else self._fit).append(shingles(text))
            yield text, for_report

    @property
    def share(self) -> float:
        """The share of the documents that are for the report: all of them, where nothing keeps some apart."""
        if self.config.report_share is None and not self.is_apart:
            return 1.0
        return self.config.report_share or REPORT_SHARE

    def repeats(self) -> NDArray[np.bool_]:
        """Return for each document of the report whether it is a near-duplicate of one to fit on."""
        return near_duplicates(self._report, self._fit)


def training_texts(config: DataConfig) -> Iterator[str]:
    """Yield the documents that may be fitted on, in order and without copies."""
    share = config.report_share or REPORT_SHARE
    return (text for text, _, for_report in _without_copies(config, Counter(), share) if not for_report)


def _without_copies(config: DataConfig, counts: Counter[str], share: float) -> Iterator[tuple[str, str, bool]]:
    """Yield each document, its fingerprint and whether it is for the report, without empty ones and copies."""
    seen: set[tuple[bool, str]] = set()
    for text, fingerprint, for_report in _sided(config, share):
        copy = for_report, document_fingerprint(canonical(text))
        if not text.strip() or copy in seen:
            counts["duplicate_documents"] += 1
        else:
            seen.add(copy)
            yield text, fingerprint, for_report


def _sided(config: DataConfig, share: float) -> Iterator[tuple[str, str, bool]]:
    for text in documents(config):
        fingerprint = document_fingerprint(text)
        side = fingerprint if (group := group_of(text)) is None else document_fingerprint(group)
        yield text, fingerprint, int(side[:8], 16) / 16**8 < share


def _giving_way(config: DataConfig) -> set[str]:
    """Return the fingerprints of the documents of the report that nearly repeat one to fit on, of the whole source."""
    share = config.report_share or REPORT_SHARE
    looked_at, compared = (counted(_sided(config, share), f"document {done}") for done in ("looked at", "compared"))
    held_out = {fingerprint: shingles(text) for text, fingerprint, for_report in looked_at if for_report}
    to_fit = (shingles(text) for text, _, for_report in compared if not for_report)
    gone = near_duplicates(list(held_out.values()), to_fit)
    return {fingerprint for fingerprint, repeats in zip(held_out, gone, strict=True) if repeats}
