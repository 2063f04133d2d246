"""A cache of tensors on disk, whose entries are safetensors files with a checksum.

A damaged entry is computed again. A cache that cannot be written is not used.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from filelock import FileLock
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from thinkalike.config import DataConfig
from thinkalike.digests import cache_home
from thinkalike.errors import in_home

log = logging.getLogger(__name__)


class CacheEntry(NamedTuple):
    """Tensors by name, and facts about them that JSON can hold."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]

    def digest(self) -> str:
        """Return the SHA-256 of the facts and the tensors, with their names, shapes and dtypes."""
        digest = hashlib.sha256(json.dumps(self.facts, sort_keys=True).encode())
        for name, tensor in sorted(self.tensors.items()):
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


def cache_folder(config: DataConfig) -> Path:
    """Return the folder of all caches: the setting `data.cache`, or else the default folder."""
    if config.cache:
        return in_home(config.cache)
    return cache_home()


def read_or_compute(
    path: Path, compute: Callable[[], CacheEntry], largest_folder: int | None = None
) -> CacheEntry:
    """Return the cache entry at a path; on a miss, compute it and store it there.

    Other processes that want the entry wait for it. In a folder that cannot be written, nothing is
    stored.

    Args:
        path: The file of the entry, which ends in .safetensors.
        compute: Returns the entry; it is called on a miss.
        largest_folder: The most bytes that all entries of the folder may have together. The least
            recently read ones are removed first. None sets no limit.
    """
    lock = path.with_suffix(".lock")
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(lock))
            stack.callback(lock.unlink, missing_ok=True)
        except OSError as error:
            # The folder is read-only. Without a lock, two processes may compute the same entry.
            log.debug("no lock on %s: %s", path, error)

        stored = _read_entry(path)
        if stored is not None:
            return stored
        computed = compute()
        _write_entry(path, computed, largest_folder)
    return computed


def _read_entry(path: Path) -> CacheEntry | None:
    """Return the entry at a path; None if there is none, or a damaged one, which is removed."""
    if not path.exists():
        return None
    try:
        with safe_open(path, "pt") as file:
            # The text "about" holds {"about": facts of the entry, "digest": digest of the entry}.
            description = json.loads(file.metadata()["about"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        entry = CacheEntry(tensors, description["about"])
        if entry.digest() != description["digest"]:
            raise ValueError("checksum mismatch")
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        log.warning("%s cannot be used (%s) and is made anew", path, error)
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # the time of the last read decides which entry makes room
    return entry


def _write_entry(path: Path, entry: CacheEntry, largest_folder: int | None) -> None:
    """Write an entry in one step; log a warning if that is impossible.

    Args:
        path: The file of the entry.
        entry: The entry.
        largest_folder: The most bytes of all entries of the folder. Older entries are removed to
            make room, and an entry that is larger itself is not written. None sets no limit.
    """
    temporary = path.with_suffix(".aside")
    # A single metadata entry, because safetensors writes several entries in no fixed order.
    metadata = {"about": json.dumps({"about": entry.facts, "digest": entry.digest()})}
    try:
        if largest_folder is not None:
            room = largest_folder - sum(tensor.nbytes for tensor in entry.tensors.values())
            if room < 0:
                return
            _make_room(path.parent, room)
        tensors = {name: tensor.contiguous() for name, tensor in entry.tensors.items()}
        save_file(tensors, temporary, metadata=metadata)
        os.replace(temporary, path)
    except (OSError, SafetensorError) as error:
        message = "the cache %s cannot be written (%s); the job runs without it"
        log.warning(message, path.parent, error)
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _make_room(folder: Path, room: int) -> None:
    """Remove the least recently read entries of a folder until the rest has at most `room` bytes.

    The time of the last reading is the modification time of the file, which each reading sets.
    """
    entries = list(folder.glob("*.safetensors"))
    entries.sort(key=lambda path: path.stat().st_mtime, reverse=True)  # latest first
    bytes_so_far = 0
    for path in entries:
        bytes_so_far += path.stat().st_size
        if bytes_so_far > room:
            path.unlink(missing_ok=True)
