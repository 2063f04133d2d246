"""Digests of files and tokenizers, versions of packages, what a machine is known for, and the folder of all caches.

Digests of large files are remembered, so that gigabytes of weights are not read for each job.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from thinkalike.errors import short

LARGE = 2**24  # bytes; a smaller file is read as fast as the cache is asked
SMALL = 2**12  # bytes; a smaller file is read as fast as its place is found, and some folders have ten thousands
LARGEST_JSON = 2**25  # bytes; the largest index of weights that is published has half of it
DEEPEST_JSON = 64  # objects and lists inside one another; those who read them recurse several times for each
SETTLED = 5.0  # seconds after a change during which one more change may leave the same time of change

# the stages of a tokenizer of the `tokenizers` library; its decoder, padding and truncation leave the ids of text alone
STAGES = {"normalizer": "normaliser", "pre_tokenizer": "pre-tokeniser", "post_processor": "post-processor"}

PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]
# how byte-level tokenizers write the bytes of a text: printable ones as themselves, the others as letters from 256 on
BYTE_OF = {chr(byte): byte for byte in PRINTABLE} | {chr(256 + i): byte for i, byte in enumerate(OTHERS)}

PROBES = ("Case", "É", "e\u0301", "Straße", "ñ", "Ω", "й", "ﬁ", "ａ", "漢字", "ガ", "한", "1½")  # for normalisers
MARKS = ("bos", "eos", "unk", "cls", "sep", "mask")  # padding is masked, so it may be any id

_known: dict[str, str] = {}  # digests by what identifies the state of a file or tokenizer, in this process


def cache_home() -> Path:
    """Return the folder of all caches: $THINKALIKE_CACHE, or one in the home folder."""
    return Path(os.environ.get("THINKALIKE_CACHE") or "~/.cache/thinkalike").expanduser()


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    found = {}
    for package in packages:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def remembered(what: str, find: Callable[[], float]) -> float:
    """Return a number of this machine that is found once, and kept in the cache by what it is of."""
    name = hashlib.sha256(f"{platform.node()} {what}".encode()).hexdigest()[:16]
    entry = cache_home() / "machine" / f"{name}.json"
    with contextlib.suppress(OSError, ValueError, TypeError):
        return float(json.loads(entry.read_text()))
    found = find()
    with contextlib.suppress(OSError):
        entry.parent.mkdir(parents=True, exist_ok=True)
        entry.write_text(json.dumps(found))
    return found


def regular(path: Path) -> Path:
    """Return a path unless a pipe, a device or a folder is there, which is an OSError: some would never end."""
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is not a regular file")
    return path


def read_json(path: Path, largest: int = LARGEST_JSON, unique: bool = False) -> dict[str, Any]:
    """Return the JSON object of a regular file of at most so many bytes; anything else in it is a ValueError.

    So is an object that is too deep for those who read what it says, so that nobody after this has to look.

    Args:
        unique: whether a name that an object has twice is an error; else the last of its values is read.
    """
    with regular(path).open("rb") as file:
        content = file.read(largest + 1)
    if len(content) > largest:
        raise ValueError(f"it has more than {largest:,} bytes")
    try:
        found = json.loads(content.decode("utf-8"), object_pairs_hook=_with_unique_names if unique else None)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} holds no JSON object")
    _check_depth(found)
    return found


def _with_unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        repeated = next(name for name, count in counts.items() if count > 1)
        raise ValueError(f"it has the name {short(repeated)} twice in one object")
    return content


_TOO_DEEP = f"it holds more than {DEEPEST_JSON} objects and lists inside one another"


def _check_depth(value: Any) -> None:
    """Raise a ValueError for objects and lists that are too deep, without recursion."""
    level = [value]
    for _ in range(DEEPEST_JSON):
        inner: list[Any] = []
        for container in level:
            members = container.values() if isinstance(container, dict) else container
            inner += [member for member in members if isinstance(member, dict | list)]
        if not inner:
            return
        level = inner
    raise ValueError(_TOO_DEEP)


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a regular file; anything else is an OSError."""
    with regular(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remembered_digest(path: Path) -> str:
    """Return the SHA-256 of a file, read once for each state of it: place, size and times of change to the nanosecond.

    A file that was changed in the last seconds is read anew each time, and so is a small one. An entry of the cache
    that cannot be read or written is ignored.
    """
    stat = path.stat()
    if stat.st_size < SMALL:
        return digest_of(path)
    state, digest = _state_of(path), ""
    if state in _known:
        return _known[state]
    settled = time.time() - max(stat.st_mtime, stat.st_ctime) >= SETTLED
    is_cached = settled and stat.st_size >= LARGE
    entry = cache_home() / "digests" / f"{hashlib.sha256(state.encode()).hexdigest()[:32]}.json"
    if is_cached:
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            kept = json.loads(entry.read_text())
            digest = str(kept["sha256"]) if kept["file"] == state else ""
    is_new, digest = not digest, digest or digest_of(path)
    if settled and state == _state_of(path):
        _known[state] = digest
        if is_cached and is_new:
            with contextlib.suppress(OSError):
                entry.parent.mkdir(parents=True, exist_ok=True)
                aside = entry.with_suffix(f".{os.getpid()}")
                aside.write_text(json.dumps({"file": state, "sha256": digest}))
                os.replace(aside, entry)
    return digest


def content_key(path: str | os.PathLike[str] | None) -> str:
    """Return what a cache knows the content of a file by: its digest or, of a large file, its state.

    The time of its last change would not do, since anybody can set it. Without a file that can be read it is "".
    """
    if not path:
        return ""
    file = Path(path).expanduser()
    try:
        if not file.is_file():
            return ""
        if file.stat().st_size < LARGE:
            return digest_of(file)
        return _state_of(file)
    except (OSError, ValueError):  # whoever reads the file says what is wrong with it
        return ""


def _state_of(path: Path) -> str:
    stat = path.stat()
    return json.dumps([str(path.resolve()), stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns])


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of all that decides which ids a text becomes."""
    backend = getattr(tokenizer, "backend_tokenizer", None)  # which says all of itself in a tenth of the time of parts
    told = [getattr(tokenizer, key, None) for key in ("split_special_tokens", *(f"{e}_token_id" for e in MARKS))]
    state = hashlib.sha256(f"{told} {backend.to_str()}".encode()).hexdigest() if backend else ""
    if state not in _known or not state:
        _known[state] = _digest({name: _digest(part) for name, part in tokenizer_facts(tokenizer).items()})
    return _known[state]


def tokenizer_facts(tokenizer: Any) -> dict[str, Any]:
    """Return what decides which ids a text becomes, by names such as "vocabulary", "merges" or "normaliser"."""
    parts: dict[str, Any] = {
        "vocabulary": tokenizer.get_vocab(),
        "special tokens": {mark: getattr(tokenizer, f"{mark}_token_id", None) for mark in MARKS},
        "treatment of special tokens": bool(getattr(tokenizer, "split_special_tokens", False)),
    }
    if backend := getattr(tokenizer, "backend_tokenizer", None):
        whole = json.loads(backend.to_str())
        model = whole["model"]
        parts["merges"] = model.get("merges")
        parts["scores"] = model.get("vocab") if isinstance(model.get("vocab"), list) else None  # of Unigram
        parts["model"] = {name: value for name, value in model.items() if name not in ("vocab", "merges")}
        parts |= {word: whole.get(stage) for stage, word in STAGES.items()}
        parts["added tokens"] = whole.get("added_tokens")
    else:
        parts |= _of_python(tokenizer)
    return parts


def _of_python(tokenizer: Any) -> dict[str, Any]:
    """Return what can be known of a tokenizer whose rules are Python code: its class, its settings and its files."""
    names = getattr(tokenizer, "vocab_files_names", {})
    paths = [Path(path) for name in sorted(names) if isinstance(path := getattr(tokenizer, name, None), str)]
    files = [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths if path.is_file()]
    settings = {name: repr(value) for name, value in getattr(tokenizer, "init_kwargs", {}).items() if name not in names}
    for name in ("name_or_path", "padding_side", "truncation_side", "model_max_length", "pad_token"):
        settings.pop(name, None)
    return {"class": type(tokenizer).__name__, "settings": settings, "files": files}


def _digest(part: Any) -> str:
    return hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()[:16]
