"""Digests of the files of a finished result, written last, so that what is damaged later is noticed and named."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from thinkalike.digests import digest_of
from thinkalike.errors import StoreError

NAME = "manifest.json"
NUMBERS = {".csv", ".npz", ".safetensors"}  # the endings of files that hold what was computed


def seal(folder: Path) -> None:
    """Write the manifest of a folder, and make sure that all of it is on the disk."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != NAME)
    entries = {str(path.relative_to(folder)): [path.stat().st_size, digest_of(path)] for path in files}
    (folder / NAME).write_text(json.dumps({"files": entries, "digest": _digest_of_entries(entries)}, indent=1) + "\n")
    for path in (*files, folder / NAME, *(path for path in folder.rglob("*") if path.is_dir()), folder):
        sync(path)


def is_sealed(folder: Path) -> bool:
    """Return whether a folder has a manifest, as that of a finished result does."""
    return (folder / NAME).is_file()


def damage(folder: Path, content: bool = True) -> str | None:
    """Return what is wrong with a sealed folder, as half a sentence, or None.

    Args:
        content: compare digests too, and not sizes alone.
    """
    try:
        manifest = json.loads((folder / NAME).read_text())
        entries = manifest["files"]
        if manifest["digest"] != _digest_of_entries(entries):
            return f"{folder / NAME} is damaged"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{folder / NAME} is missing or damaged ({type(error).__name__})"
    for name, (size, digest) in entries.items():
        path = folder / name
        if not path.is_file():
            return f"{path} is missing"
        if path.stat().st_size != size:
            return f"{path} is damaged: it has {path.stat().st_size:,} bytes and should have {size:,}"
        if content and digest_of(path) != digest:
            return f"{path} is damaged: its checksum is not that of what was written"
    return None


def check(folder: Path) -> None:
    """Check the digests of all files of a sealed folder.

    Raises:
        StoreError: a file is missing or damaged; the message names it.
    """
    if wrong := damage(folder):
        raise StoreError(f"{wrong}; delete {folder} or do the job again with force=true")


def content_digest(folder: Path) -> str:
    """Return the SHA-256 of what a sealed folder says was computed: tables, arrays and stitches; no figures, curves."""
    entries = json.loads((folder / NAME).read_text())["files"]
    numbers = {name: entry for name, entry in entries.items() if Path(name).suffix in NUMBERS and "/" not in name}
    return _digest_of_entries(numbers)[:16]


def sync(path: Path) -> None:
    """Make sure that a file, or the list of a folder's files, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _digest_of_entries(entries: dict[str, list]) -> str:
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()
