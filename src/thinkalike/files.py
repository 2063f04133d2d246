"""Files that a stranger may have written: whoever reads them neither waits for ever nor leaves their folder.

A pipe or a device may never end, a link leads elsewhere, and a few lines of YAML stand for billions of values. Each of
these is a `ForeignFileError`, which says what is wrong with the file.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

import yaml

DEEPEST = 50  # collections inside each other
MOST_NODES = 100_000  # of a YAML file, once its aliases stand for what they repeat


class ForeignFileError(ValueError):
    """A file cannot be read, or should not be; the message says why."""


def open_regular(path: Path, follow: bool = True) -> BinaryIO:
    """Open a regular file for reading.

    Args:
        follow: whether the last part of the path may be a link.

    Raises:
        ForeignFileError: a folder, a pipe, a device or a link is there.
        OSError: the file is not there, or may not be read.
    """
    if not follow and path.is_symlink():
        raise ForeignFileError(f"{path} is a link, and links are not followed here")
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # else opening a pipe waits for a writer
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ForeignFileError(f"{path} is not a regular file")
    return os.fdopen(handle, "rb")


def read_bytes(path: Path, most: int, follow: bool = True) -> bytes:
    """Return the content of a regular file of `most` bytes at most."""
    with open_regular(path, follow) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ForeignFileError(f"{path} has more than {most:,} bytes")
    return content


def read_yaml(path: Path, most: int, follow: bool = True) -> dict[str, Any]:
    """Return the mapping of a YAML file of `most` bytes at most; it can make no other objects than plain values."""
    content = read_bytes(path, most, follow)
    check_yaml(content, str(path))
    found = yaml.load(content, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    if not isinstance(found, dict):
        raise ForeignFileError(f"{path} holds no mapping")
    return found


def check_yaml(content: bytes, name: str) -> None:
    """Check how much a YAML text stands for, from its events alone, which never repeat what an alias stands for.

    Raises:
        ForeignFileError: it is nested too deeply, or has too many values.
        yaml.YAMLError: it is no YAML.
    """
    sizes: dict[str, int] = {}  # values of each anchor's content
    opened: list[tuple[str | None, int]] = [(None, 0)]  # anchor and values so far of each open collection
    for event in yaml.parse(content, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        if isinstance(event, yaml.CollectionStartEvent):
            opened.append((event.anchor, 1))
            if len(opened) > DEEPEST:
                raise ForeignFileError(f"{name} is nested more than {DEEPEST} deep")
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, size = opened.pop()
        elif isinstance(event, yaml.ScalarEvent):
            anchor, size = event.anchor, 1
        elif isinstance(event, yaml.AliasEvent):
            # an alias inside of what it stands for has no end
            anchor, size = None, sizes.get(event.anchor, MOST_NODES + 1)
        else:
            continue
        if anchor is not None:
            sizes[anchor] = size
        outer, count = opened[-1]
        opened[-1] = (outer, count + size)
        if count + size > MOST_NODES:
            raise ForeignFileError(f"{name} stands for more than {MOST_NODES:,} values, or repeats itself without end")
