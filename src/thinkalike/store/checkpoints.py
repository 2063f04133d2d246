"""The states from which an interrupted job resumes: files of tensors and plain values.

The file of a state is `<name>-<number>-<digest>.pt`: a running number, and the first digits of the
SHA-256 of its content, by which damage is noticed.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from thinkalike.digests import digest_of
from thinkalike.errors import StoreError, one_line
from thinkalike.files import is_sparse, open_regular
from thinkalike.store.manifest import sync_to_disk

log = logging.getLogger(__name__)

STATE_FILE = re.compile(r"(?P<name>.+)-(?P<number>\d+)-(?P<digest>[0-9a-f]{16})\.pt")
# How many hexadecimal digits of the digest a file name has.
DIGEST_LENGTH = 16

# The entry of a state that says which state of which job it is.
OWNER = "thinkalike_owner"


def newest_state(folder: Path, name: str) -> Path | None:
    """Return the file of the newest undamaged state of this name, or None if there is none.

    A damaged state is renamed, with a warning, so that it is not looked at again.
    """
    for _, path in sorted(_states(folder, name), reverse=True):
        # A sparse state is not read, because that may take minutes.
        if not is_sparse(path) and path.stem.endswith(f"-{digest_of(path)[:DIGEST_LENGTH]}"):
            return path
        with contextlib.suppress(FileNotFoundError):  # another process of the job renamed it first
            os.replace(path, path.with_suffix(".damaged"))
        log.warning(
            "the state %s is damaged (it is sparse, or its checksum differs) and is not used", path
        )
    return None


def write_state(folder: Path, name: str, state: Mapping[str, object]) -> Path:
    """Write a state of tensors and plain values in place of the one before; return its file.

    It is written to a temporary file and renamed, and the state before it is removed only then, so
    a whole state exists at any moment. The file is named by its number and its digest, and says
    which state of which job it is.
    """
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    earlier_states = _states(folder, name)

    temporary = folder / f"{name}.aside"
    with temporary.open("wb") as file:  # torch.save(path) would not raise OSError on a full disk
        try:
            torch.save({**state, OWNER: _owner_of(folder, name)}, file)
        except RuntimeError as error:
            # torch closes its archive after a failed write, and the error of that hides the
            # OSError
            reason = f"the state cannot be written ({one_line(error)})"
            raise OSError(errno.EFBIG, reason, str(temporary)) from error
    sync_to_disk(temporary)

    number = max((number for number, _ in earlier_states), default=0) + 1
    digest = digest_of(temporary)[:DIGEST_LENGTH]
    path = folder / f"{name}-{number}-{digest}.pt"
    os.replace(temporary, path)
    sync_to_disk(folder)

    for _, earlier_state in earlier_states:
        earlier_state.unlink()
    return path


def read_state(path: Path) -> dict[str, Any]:
    """Read a state onto the CPU; nothing in it can run code.

    Raises:
        StoreError: the file holds no state, or a state of another job. The tensors of two jobs may
            have the same shapes, so neither they nor the digest would show whose state it is.
    """
    import torch

    try:
        with open_regular(path, follow=False) as file:
            _check_unpacked_size(file)
            state = torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # torch, zipfile and pickle raise errors of many types
        reason = one_line(error)
        raise StoreError(f"{path} holds no state of a job ({reason}); remove it") from error
    if not isinstance(state, dict):
        state_type = type(state).__name__
        raise StoreError(f"{path} holds no state of a job (it is a {state_type}); remove it")

    match = STATE_FILE.fullmatch(path.name)
    name = path.name
    if match:
        name = match["name"]
    stated_owner = state.pop(OWNER, None)
    if stated_owner != _owner_of(path.parent, name):
        writer = "an older version"
        if isinstance(stated_owner, str):
            writer = stated_owner
        raise StoreError(f"{path} is the state of another job, or of {writer}; remove it")
    return state


def _check_unpacked_size(file: BinaryIO) -> None:
    """Check that the archive of a state takes no more memory than the file has bytes.

    torch writes archives without compression, and reads archives with it, too: a short file could
    fill the memory.

    Raises:
        ValueError: It takes more.
        BadZipFile: It is no archive.
    """
    unpacked_size = sum(member.file_size for member in zipfile.ZipFile(file).infolist())
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if unpacked_size > size:
        raise ValueError(f"its {size:,} bytes are {unpacked_size:,} after decompression")


def _owner_of(folder: Path, name: str) -> str:
    """Return what a state says of itself: the kind and the key of its job, and its own name.

    The folder of a job is `<kind>/<key>.partial`. A job keeps some of its states in folders
    further below; the path from the job's folder to theirs then belongs to the owner, too.
    """
    folder_names = folder.absolute().parts
    kind_position = len(folder_names) - 3
    for position, folder_name in enumerate(folder_names):
        if folder_name.endswith(".partial"):
            kind_position = position - 1
    owner = folder_names[max(kind_position, 0) : -1]
    return "/".join([*owner, name])


def _states(folder: Path, name: str) -> list[tuple[int, Path]]:
    """Return the number and the file of each state of this name."""
    states = []
    for path in folder.glob(f"{name}-*.pt"):
        match = STATE_FILE.fullmatch(path.name)
        if match and match["name"] == name:
            states.append((int(match["number"]), path))
    return states
