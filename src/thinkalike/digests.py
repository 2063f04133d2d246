"""Digests of files and tokenizers, versions of packages, and what is remembered of a machine.

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
from types import FunctionType
from typing import TYPE_CHECKING, Any

from thinkalike.code_text import (
    added_entries,
    code_text,
    functions_reached,
    is_of_user,
    runs_code_of_user,
)
from thinkalike.errors import in_home, short

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LARGE = 2**24  # bytes; a smaller file is read as fast as the cache
# bytes; a smaller file is read as fast as its path is resolved, and some folders have ten
# thousands
SMALL = 2**12
LARGEST_JSON = 2**25  # bytes; the largest published index of weights has half of it
DEEPEST_JSON = 64  # objects and lists inside one another; readers recurse several times for each
SETTLED = 5.0  # seconds after a change in which another change may leave the same time stamp
FINGERPRINT_LENGTH = 16  # hexadecimal digits

# The stages of a tokenizer of the `tokenizers` library that decide the ids of a text; its decoder,
# padding and truncation do not.
STAGES = {
    "normalizer": "normaliser",
    "pre_tokenizer": "pre-tokeniser",
    "post_processor": "post-processor",
}

# How byte-level tokenizers write the bytes of a text: printable ones as themselves, and the others
# as the letters from 256 on.
PRINTABLE_BYTES = [*range(33, 127), *range(161, 173), *range(174, 256)]
OTHER_BYTES = [byte for byte in range(256) if byte not in PRINTABLE_BYTES]
BYTE_OF = {chr(byte): byte for byte in PRINTABLE_BYTES}
BYTE_OF |= {chr(256 + position): byte for position, byte in enumerate(OTHER_BYTES)}

# texts that show what a normaliser does
PROBES = ("Case", "É", "e\u0301", "Straße", "ñ", "Ω", "й", "ﬁ", "ａ", "漢字", "ガ", "한", "1½")
# special tokens whose ids count; padding is masked, so it may be any id
MARKS = ("bos", "eos", "unk", "cls", "sep", "mask")

# settings of a tokenizer
WITHOUT_EFFECT_ON_IDS = (
    "name_or_path",
    "padding_side",
    "truncation_side",
    "model_max_length",
    "pad_token",
)

TOO_DEEP = f"it holds more than {DEEPEST_JSON} objects and lists inside one another"

# digests by what identifies the state of a file or tokenizer, in this process
_known_digests: dict[str, str] = {}


def cache_home() -> Path:
    """Return the folder of all caches: $THINKALIKE_CACHE, or one in the home folder."""
    return in_home(os.environ.get("THINKALIKE_CACHE") or "~/.cache/thinkalike")


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of the installed ones among some packages."""
    versions = {}
    for package in packages:
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


def remembered(name: str, find: Callable[[], float]) -> float:
    """Return a number of this machine, such as its speed; `find` finds it once for the cache."""
    digest = hashlib.sha256(f"{platform.node()} {name}".encode()).hexdigest()
    entry = cache_home() / "machine" / f"{digest[:FINGERPRINT_LENGTH]}.json"
    with contextlib.suppress(OSError, ValueError, TypeError):
        return float(json.loads(entry.read_text()))
    number = find()
    with contextlib.suppress(OSError):
        entry.parent.mkdir(parents=True, exist_ok=True)
        entry.write_text(json.dumps(number))
    return number


def regular(path: Path) -> Path:
    """Return the path of a regular file.

    Raises:
        OSError: it is a pipe, a device or a folder; reading some of these would never end.
    """
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is not a regular file")
    return path


def read_json(path: Path, largest: int = LARGEST_JSON) -> dict[str, Any]:
    """Return the JSON object of a regular file of at most `largest` bytes.

    Raises:
        ValueError: the file is larger, or see `json_object`.
    """
    with regular(path).open("rb") as file:
        content = file.read(largest + 1)
    if len(content) > largest:
        raise ValueError(f"it has more than {largest:,} bytes")
    return json_object(content, path.name)


def json_object(content: bytes, name: str) -> dict[str, Any]:
    """Return the JSON object that a text in UTF-8 holds.

    Args:
        name: of the file, for messages.

    Raises:
        ValueError: the text holds no JSON object, one that has a name twice, of which readers take
            one, or one that is too deep for programs that read it by recursion.
    """
    try:
        value = json.loads(content.decode("utf-8"), object_pairs_hook=with_unique_names)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    if not isinstance(value, dict):
        raise ValueError(f"{name} holds no JSON object")
    _check_depth(value)
    return value


def with_unique_names(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return an object of JSON, for `json.loads(object_pairs_hook=...)`.

    Raises:
        ValueError: it has a name twice; readers of JSON drop all values but one.
    """
    content = dict(pairs)
    if len(content) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        repeated = next(name for name, count in counts.items() if count > 1)
        raise ValueError(f"it has the name {short(repeated)} twice in one object")
    return content


def _check_depth(value: dict[str, object]) -> None:
    """Raise a ValueError if objects and lists are nested too deeply; this does not recurse."""
    level: list[dict[str, object] | list[object]] = [value]
    for _ in range(DEEPEST_JSON):
        next_level = []
        for container in level:
            members: Iterable[object] = container
            if isinstance(container, dict):
                members = container.values()
            next_level += [member for member in members if isinstance(member, dict | list)]
        if not next_level:
            return
        level = next_level
    raise ValueError(TOO_DEEP)


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a regular file; anything else is an OSError."""
    with regular(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remembered_digest(path: Path) -> str:
    """Return the SHA-256 of a file, which is read once for each of its states.

    A state is the path, the size, and the times of change to the nanosecond. A file that was
    changed in the last seconds is read again each time, and so is a small one. An entry of the
    cache that cannot be read or written is ignored.
    """
    stat = path.stat()
    if stat.st_size < SMALL:
        return digest_of(path)
    state = _state_of(path)
    if state in _known_digests:
        return _known_digests[state]

    is_settled = time.time() - max(stat.st_mtime, stat.st_ctime) >= SETTLED
    is_cached = is_settled and stat.st_size >= LARGE
    cached_digest = None
    if is_cached:
        cached_digest = _read_cached_digest(state)
    digest = cached_digest or digest_of(path)

    did_not_change = state == _state_of(path)
    if is_settled and did_not_change:
        _known_digests[state] = digest
        if is_cached and not cached_digest:
            _write_cached_digest(state, digest)
    return digest


def content_key(path: str | os.PathLike[str] | None) -> str:
    """Return what a cache knows the content of a file by: its digest or, of a large file, its state.

    The time of its last change would not do, since anybody can set it. Without a file that can be read it is "".
    """
    if not path:
        return ""
    file = in_home(path)
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
    location = str(path.resolve())
    return json.dumps([location, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns])


def _cache_entry(state: str) -> Path:
    digest = hashlib.sha256(state.encode()).hexdigest()
    return cache_home() / "digests" / f"{digest[:32]}.json"


def _read_cached_digest(state: str) -> str | None:
    """Return the digest of the state of a file from the cache; None if it is not there."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        entry = json.loads(_cache_entry(state).read_text())
        if entry["file"] == state:
            return str(entry["sha256"])
    return None


def _write_cached_digest(state: str, digest: str) -> None:
    entry = _cache_entry(state)
    with contextlib.suppress(OSError):
        entry.parent.mkdir(parents=True, exist_ok=True)
        temporary = entry.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps({"file": state, "sha256": digest}))
        os.replace(temporary, entry)


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of all that decides which ids a text becomes."""
    state = _state_of_tokenizer(tokenizer)
    if state is not None and state in _known_digests:
        return _known_digests[state]
    digests = {}
    for name, fact in tokenizer_facts(tokenizer).items():
        digests[name] = _digest_of_value(fact)
    fingerprint = _digest_of_value(digests)
    if state is not None:
        _known_digests[state] = fingerprint
    return fingerprint


def _state_of_tokenizer(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Return what identifies a tokenizer in this process; None if its rules are Python code.

    The backend writes all of itself in a tenth of the time that its parts take.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not backend or runs_code_of_user(tokenizer):
        return None
    settings = [getattr(tokenizer, "split_special_tokens", None)]
    for mark in MARKS:
        settings.append(getattr(tokenizer, f"{mark}_token_id", None))
    return hashlib.sha256(f"{settings} {backend.to_str()}".encode()).hexdigest()


def tokenizer_facts(tokenizer: PreTrainedTokenizerBase) -> dict[str, object]:
    """Return what decides which ids a text becomes, by names such as "vocabulary" or "merges"."""
    facts: dict[str, object] = {
        "vocabulary": tokenizer.get_vocab(),
        "special tokens": {mark: getattr(tokenizer, f"{mark}_token_id", None) for mark in MARKS},
        "treatment of special tokens": bool(getattr(tokenizer, "split_special_tokens", False)),
    }
    if runs_code_of_user(tokenizer):
        facts |= _facts_of_own_code(tokenizer)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend:
        return facts | _facts_of_backend(json.loads(backend.to_str()))
    return facts | _facts_of_python_tokenizer(tokenizer)


def _own_functions(tokenizer: PreTrainedTokenizerBase) -> dict[str, list[FunctionType]]:
    """Return the functions of a tokenizer that are of no installed package, by their names.

    Each comes with the functions that it wraps.
    """
    functions = {}
    for owner, name, entry in added_entries(type(tokenizer)):
        functions[f"{owner.__qualname__}.{name}"] = functions_reached(entry)
    for name, value in vars(tokenizer).items():
        if is_of_user(value):
            functions[name] = functions_reached(value)
    return functions


def _facts_of_own_code(tokenizer: PreTrainedTokenizerBase) -> dict[str, object]:
    """Return the functions of a tokenizer that are of no installed package, and what it does.

    What it does are the ids of some texts.
    """
    codes = {}
    for name, functions in _own_functions(tokenizer).items():
        codes[name] = [code_text(function.__code__) for function in functions]
    encoded = tokenizer(list(PROBES), add_special_tokens=False, verbose=False)
    ids = [[int(token_id) for token_id in ids_of_text] for ids_of_text in encoded["input_ids"]]
    return {"code": codes, "ids of probes": ids}


def _facts_of_backend(backend: dict[str, Any]) -> dict[str, object]:
    """Return what decides the ids in the JSON of a tokenizer of the `tokenizers` library."""
    model = backend["model"]
    settings = {name: value for name, value in model.items() if name not in ("vocab", "merges")}
    scores = None
    if isinstance(model.get("vocab"), list):  # Unigram
        scores = model["vocab"]
    facts: dict[str, object] = {
        "merges": model.get("merges"),
        "scores": scores,
        "model": settings,
    }
    for stage, word in STAGES.items():
        facts[word] = backend.get(stage)
    facts["added tokens"] = backend.get("added_tokens")
    return facts


def _facts_of_python_tokenizer(tokenizer: PreTrainedTokenizerBase) -> dict[str, object]:
    """Return what can be known of a tokenizer whose rules are Python code.

    This is its class, its settings and its files.
    """
    file_settings = getattr(tokenizer, "vocab_files_names", {})
    file_digests = []
    for name in sorted(file_settings):
        value = getattr(tokenizer, name, None)
        if isinstance(value, str) and Path(value).is_file():
            file_digests.append(hashlib.sha256(Path(value).read_bytes()).hexdigest())

    settings = {}
    for name, value in getattr(tokenizer, "init_kwargs", {}).items():
        if name not in file_settings:
            settings[name] = repr(value)
    for name in WITHOUT_EFFECT_ON_IDS:
        settings.pop(name, None)
    return {"class": type(tokenizer).__name__, "settings": settings, "files": file_digests}


def _digest_of_value(value: object) -> str:
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:FINGERPRINT_LENGTH]
