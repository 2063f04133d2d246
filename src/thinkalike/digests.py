"""Digests of files, versions of packages, and the folder of all caches.

Digests of large files are remembered, so that gigabytes of weights are not read for each job.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

LARGE = 2**24  # bytes; a smaller file is read as fast as the cache is asked
SETTLED = 5.0  # seconds after a change during which one more change may leave the same time of change

_known: dict[str, str] = {}  # digests by what identifies the state of a file, in this process


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


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def remembered_digest(path: Path) -> str:
    """Return the SHA-256 of a file, read once for each state of it: place, size and times of change to the nanosecond.

    A file that was changed in the last seconds is read anew each time. An entry of the cache that cannot be read or
    written is ignored.
    """
    before = _state_of(path)
    if before in _known:
        return _known[before]
    stat = path.stat()
    settled = time.time() - max(stat.st_mtime, stat.st_ctime) >= SETTLED
    is_cached = settled and stat.st_size >= LARGE
    entry = cache_home() / "digests" / f"{hashlib.sha256(before.encode()).hexdigest()[:32]}.json"
    kept = _read(entry, before) if is_cached else None
    digest = kept or digest_of(path)
    if settled and before == _state_of(path):
        _known[before] = digest
        if is_cached and not kept:
            _write(entry, before, digest)
    return digest


def _state_of(path: Path) -> str:
    stat = path.stat()
    return json.dumps([str(path.resolve()), stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns])


def _read(entry: Path, state: str) -> str | None:
    try:
        kept = json.loads(entry.read_text())
        return str(kept["sha256"]) if kept["file"] == state else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _write(entry: Path, state: str, digest: str) -> None:
    with contextlib.suppress(OSError):
        entry.parent.mkdir(parents=True, exist_ok=True)
        aside = entry.with_suffix(f".{os.getpid()}")
        aside.write_text(json.dumps({"file": state, "sha256": digest}))
        os.replace(aside, entry)
