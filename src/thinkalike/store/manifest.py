"""The manifest of a result: size and SHA-256 of every file, by which damage is noticed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from thinkalike.digests import digest_of
from thinkalike.errors import StoreError, one_line
from thinkalike.files import MOST_BYTES_IN_HOLES, bytes_in_holes
from thinkalike.store.record import MOST_JSON_BYTES, read_json_of_result

MANIFEST = "manifest.json"
RECORD = "result.json"

# The bytes of larger files are not compared where results are listed: a page that shows a table
# refuses these by their size.
MOST_LISTED_BYTES = 2**24

# The most bytes of a table, which needs several times as much in memory.
MOST_TABLE_BYTES = 2**33

# Smaller files are not searched for holes: a hole is a whole block of a file system, and a file of
# one block is read at once.
SMALLEST_WITH_HOLES = 4096

# The most characters of a file name in a manifest.
LONGEST_NAME = 1000

# The most folders in a file name of a manifest; files of results have one.
DEEPEST_NAME = 8


class FileEntry(NamedTuple):
    """What a manifest says of a file: its size in bytes, and its SHA-256 as hexadecimal digits."""

    size: int
    digest: str


@contextlib.contextmanager
def _unreadable_is_not_damaged() -> Iterator[None]:
    """Turn an error of the file system, such as a missing permission, into a StoreError."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{error.filename} cannot be read: {error.strerror}") from error


@_unreadable_is_not_damaged()
def is_sealed(folder: Path) -> bool:
    """Return whether a folder has a manifest, as the folder of every finished result has."""
    try:
        return stat.S_ISREG(os.lstat(folder / MANIFEST).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def manifest_entries(folder: Path) -> dict[str, FileEntry]:
    """Return what the manifest of a folder says of each file, by the file's name.

    Every name leads to a place inside the folder, whatever the manifest says.

    Raises:
        StoreError: the manifest is damaged.
    """
    file = folder / MANIFEST
    try:
        stored_digest, entries = _read_manifest(file)
    except OSError:
        raise
    except Exception as error:
        reason = type(error).__name__
        if isinstance(error, ValueError):
            reason = one_line(error).removeprefix(f"{file} ")
        raise StoreError(f"{file} is damaged ({reason})") from error
    if stored_digest != digest_of_entries(entries):
        raise StoreError(f"{file} is damaged")

    for name in entries:
        _check_file_name(file, name)
    return entries


def _read_manifest(file: Path) -> tuple[str, dict[str, FileEntry]]:
    """Return the digest of the entries that a manifest states, and its entries.

    Raises:
        Exception: Whatever a damaged file causes, such as a KeyError or ValueError.
    """
    manifest = read_json_of_result(file)
    files = manifest["files"]
    if not isinstance(files, dict):
        raise ValueError("its files are not a JSON object")
    entries = {}
    for name, (size, digest) in files.items():
        entries[str(name)] = FileEntry(int(size), str(digest))
    return str(manifest["digest"]), entries


def _check_file_name(manifest: Path, name: str) -> None:
    """Check that a name in a manifest can only be that of a file inside the manifest's folder.

    The length is checked first: a name of a megabyte may have a million folders.

    Raises:
        StoreError: The name may be that of anything else.
    """
    folder_count = name.count("/")
    if len(name) > LONGEST_NAME or folder_count > DEEPEST_NAME:
        raise StoreError(
            f"{manifest} is damaged: no file of a result has the name {name[:20]!r}..., "
            f"of {len(name):,} characters and {folder_count:,} folders"
        )
    components = name.split("/")
    if name.startswith("/") or ".." in components or "\0" in name:
        raise StoreError(f"{manifest} is damaged: it names a file outside of its folder")
    # With empty components or ".", one file could have two names.
    if name == MANIFEST or "" in components or "." in components:
        raise StoreError(f"{manifest} is damaged: no file of a result has the name {name!r}")


def digest_of_entries(entries: Mapping[str, FileEntry]) -> str:
    """Return the SHA-256 of the entries of a manifest, which write each file as [size, digest]."""
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


@_unreadable_is_not_damaged()
def damage(folder: Path, endings: Collection[str] | None = None) -> str | None:
    """Return what is wrong with the files of a sealed folder, or None if nothing is.

    The sizes of all files are compared with the manifest, and the digests of some.

    Args:
        folder: the folder.
        endings: the file name endings whose digests are compared, in addition to that of
            result.json; None compares all. With `endings`, the digest of a file that is too large
            for a list is not compared: whoever reads such a file for a list refuses its size.
    """
    try:
        entries = manifest_entries(folder)
    except StoreError as error:
        return str(error)
    if RECORD not in entries:
        return f"{folder / MANIFEST} is damaged: it names no {RECORD}"

    # A store may have 100,000 files, and making a Path takes as long as looking at the file.
    prefix = f"{folder}/"
    linked_folders = []
    for inner_folder in _folders_of(entries):
        if os.path.islink(f"{prefix}{inner_folder}"):
            linked_folders.append(f"{prefix}{inner_folder}/")

    total_in_holes = 0  # bytes, of all files so far
    # By device and inode, because one file may have thousands of names.
    digests: dict[tuple[int, int], str] = {}

    for name, entry in entries.items():
        path = f"{prefix}{name}"
        try:
            status = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return f"{path} is missing"
        if not stat.S_ISREG(status.st_mode) or path.startswith(tuple(linked_folders)):
            return f"{path} is not a regular file"
        if status.st_size != entry.size:
            sizes = f"it has {status.st_size:,} bytes and should have {entry.size:,}"
            return f"{path} is damaged: {sizes}"

        most = _most_bytes_of(name)
        if most is not None and entry.size > most:
            sizes = f"it has {entry.size:,} bytes, and such a file has at most {most:,}"
            return f"{path} is damaged: {sizes}"
        if not _is_digest_compared(name, entry.size, endings):
            continue

        # Holes are counted before the digest: a sparse file of 200 GB takes no room on the disk,
        # and minutes to read.
        if entry.size > SMALLEST_WITH_HOLES:
            total_in_holes += bytes_in_holes(Path(path), MOST_BYTES_IN_HOLES)
        if total_in_holes > MOST_BYTES_IN_HOLES:
            return (
                f"{path} is damaged: it is a sparse file of {entry.size:,} bytes, most of which "
                "are not on the disk"
            )
        inode = (status.st_dev, status.st_ino)
        if inode not in digests:
            digests[inode] = digest_of(Path(path))
        if digests[inode] != entry.digest:
            return f"{path} is damaged: its checksum is not that of what was written"
    return None


def _folders_of(names: Iterable[str]) -> set[str]:
    """Return all folders that lead to files of these names: a and a/b for the file a/b/c."""
    folders: set[str] = set()
    for name in names:
        components = name.split("/")
        for length in range(1, len(components)):
            folders.add("/".join(components[:length]))
    return folders


def _is_digest_compared(name: str, size: int, endings: Collection[str] | None) -> bool:
    """Return whether the content of a file is compared with its digest.

    With `endings` it is so for the record, and for files with these endings that are not too
    large.
    """
    if endings is None or name == RECORD:
        return True
    return os.path.splitext(name)[1] in endings and size <= MOST_LISTED_BYTES


def _most_bytes_of(name: str) -> int | None:
    """Return the most bytes of a file of a result; None if it may have any number."""
    ending = os.path.splitext(name)[1]
    if ending in (".json", ".yaml"):
        return MOST_JSON_BYTES
    if ending == ".csv":
        return MOST_TABLE_BYTES
    return None


def seal(folder: Path) -> None:
    """Write the manifest of a folder, and make sure that all of the folder is on the disk."""
    files = []
    folders = []
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            folders.append(path)
        elif path.is_file() and path.name != MANIFEST:
            files.append(path)

    entries = {}
    for path in files:
        name = str(path.relative_to(folder))
        entries[name] = FileEntry(path.stat().st_size, digest_of(path))
    manifest = {"files": entries, "digest": digest_of_entries(entries)}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")

    for path in [*files, folder / MANIFEST, *folders, folder]:
        sync_to_disk(path)


def sync_to_disk(path: Path) -> None:
    """Make sure that the content of a file, or the file list of a folder, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
