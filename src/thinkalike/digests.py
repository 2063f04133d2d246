"""Digests of files; those of large ones are remembered, so that gigabytes of weights are not read for each job."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from pathlib import Path

from thinkalike.caches import cache_home

LARGE = 2**24  # bytes of a file from which on reading it takes longer than asking the cache
SETTLED = 5.0  # seconds after a change; before, one more change may leave the same time of change

_known: dict[str, str] = {}  # digests by what identifies the state of a file, in this process


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file, read piece by piece."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def remembered_digest(path: Path) -> str:
    """Return the SHA-256 of a file, read once for each state of it: place, size and times of change to the nanosecond.

    A file that was changed in the last seconds is read anew each time. A cache that cannot be read, is damaged, or
    cannot be written is as none.
    """
    before = _state_of(path)
    if before in _known:
        return _known[before]
    stat = path.stat()
    changed = max(stat.st_mtime, stat.st_ctime)
    settled = time.time() - SETTLED - changed >= 0
    entry = cache_home() / "digests" / f"{hashlib.sha256(before.encode()).hexdigest()[:32]}.json"
    kept = _read(entry, before) if settled and stat.st_size >= LARGE else None
    digest = kept or digest_of(path)
    if settled and before == _state_of(path):
        _known[before] = digest
        if kept is None and stat.st_size >= LARGE:
            _write(entry, before, digest)
    return digest


def _state_of(path: Path) -> str:
    stat = path.stat()
    return json.dumps([str(path.resolve()), stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns])


def _read(entry: Path, state: str) -> str | None:
    try:
        kept = json.loads(entry.read_text())
        digest = str(kept["sha256"])
        return digest if kept == _content(state, digest) else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _write(entry: Path, state: str, digest: str) -> None:
    with contextlib.suppress(OSError):
        entry.parent.mkdir(parents=True, exist_ok=True)
        aside = entry.with_suffix(f".{os.getpid()}")
        aside.write_text(json.dumps(_content(state, digest)))
        os.replace(aside, entry)


def _content(state: str, digest: str) -> dict[str, str]:
    """Return what is kept of a digest: also a check of itself, as one wrong bit would be another model."""
    return {"file": state, "sha256": digest, "check": hashlib.sha256(f"{state}{digest}".encode()).hexdigest()}
