"""The cache of values that many jobs share: packed rows of tokens, and states of stimuli.

An entry is one safetensors file with a checksum. Damaged files are computed anew, jobs run without a cache that cannot
be written, and where all entries together have a limit, the least recently read are removed.
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

log = logging.getLogger(__name__)


class Entry(NamedTuple):
    """Tensors by name, and facts about them."""

    tensors: dict[str, Tensor]
    about: dict[str, Any]


def cache_folder(config: DataConfig) -> Path:
    """Return the folder of all caches: the configured one, or that of the environment."""
    return Path(config.cache).expanduser() if config.cache else cache_home()


def kept(path: Path, compute: Callable[[], Entry], most: int | None = None) -> Entry:
    """Return an entry from the cache, or compute it and put it there; other processes wait meanwhile.

    All entries of the folder together have at most `most` bytes.
    """
    if found := _read(path):
        return found
    lock = path.with_suffix(".lock")
    with contextlib.ExitStack() as held:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            held.enter_context(FileLock(lock))
            held.callback(lock.unlink, missing_ok=True)
        except OSError as error:  # a folder that can only be read: processes may compute the same
            log.debug("no lock on %s: %s", path, error)
        if found := _read(path):  # of the process that had the lock before
            return found
        computed = compute()
        _write(path, computed, most)
    return computed


def _read(path: Path) -> Entry | None:
    """Return an entry, or None if there is none; one that is damaged is removed."""
    if not path.exists():
        return None
    try:
        with safe_open(path, "pt") as file:
            written = json.loads(file.metadata()["about"])
            entry = Entry({key: file.get_tensor(key) for key in file.keys()}, written["about"])  # noqa: SIM118
        if _digest(entry) != written["digest"]:
            raise ValueError("checksum mismatch")
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        log.warning("%s cannot be used (%s) and is made anew", path, error)
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        return None
    with contextlib.suppress(OSError):
        os.utime(path)
        for left in (".lock", ".aside"):  # by a process that died
            path.with_suffix(left).unlink(missing_ok=True)
    return entry


def _write(path: Path, entry: Entry, most: int | None) -> None:
    """Write an entry in one step; warn where that is impossible."""
    size = sum(part.numel() * part.element_size() for part in entry.tensors.values())
    aside = path.with_suffix(".aside")
    written = {"about": entry.about, "digest": _digest(entry)}
    try:
        if most is not None and not _make_room(path.parent, size, most):
            return
        arrays = {name: part.contiguous() for name, part in entry.tensors.items()}
        save_file(arrays, aside, metadata={"about": json.dumps(written)})  # one entry: several have no order
        os.replace(aside, path)
    except (OSError, SafetensorError) as error:
        log.warning("the cache %s cannot be written (%s); the job runs without it", path.parent, error)
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)


def _make_room(folder: Path, size: int, most: int) -> bool:
    """Remove the least recently read entries until there is room for one more, and return whether there is."""
    if size > most:
        return False
    entries = []
    for path in folder.glob("*.safetensors"):
        with contextlib.suppress(OSError):  # another process removed it
            entries.append((path.stat().st_mtime, path.stat().st_size, path))
    total = size + sum(own for _, own, _ in entries)
    for _, own, path in sorted(entries):
        if total > most:
            path.unlink(missing_ok=True)
            total -= own
    return True


def _digest(entry: Entry) -> str:
    digest = hashlib.sha256(json.dumps(entry.about, sort_keys=True).encode())
    for name, part in sorted(entry.tensors.items()):
        digest.update(f"{name} {tuple(part.shape)} {part.dtype}".encode())
        digest.update(part.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
