"""Files that a stranger may have written: reading them ends, and stays in their folder.

A pipe or a device may never end, a link leads elsewhere, and a few lines of YAML can stand for
billions of values. Each of these is a `ForeignFileError`, which says what is wrong with the file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shlex
import stat
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from thinkalike.errors import ConfigError, short

# The loader in C is faster and has the same interface.
YAML_LOADER: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
POINTER = b"version https://git-lfs.github.com/spec/"  # the beginning of a pointer of Git LFS
DEEPEST = 50  # collections inside each other
MOST_NODES = 100_000  # of a YAML file, once its aliases stand for what they repeat
REFERENCE_SIZE = 100  # values that a ${...} counts for, as OmegaConf takes as long to read it
MOST_NUMBERED_KEYS = 1000  # of a YAML file; settings have names
# What YAML 1.1 reads as a number of base 8 or 60. Every writer of YAML puts such a text in quotes.
OLD_NUMBER = re.compile(r"[-+]?(0[0-7_]+|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?)")
# The suffixes of files of a configuration and of a tokenizer, which libraries read as a whole, ...
READ_WHOLE = (".json", ".txt", ".model", ".spm", ".tiktoken", ".codes", ".tokenizer")
# ... and the most bytes of one: four times the largest published tokenizer.json, that of Gemma 3.
LARGEST_READ_WHOLE = 2**27
NUMBER_TAGS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
NUMBER_SIGNS = "+-.0123456789"  # how a number may begin
# Bytes of sparse files that are read. Some file systems make holes of zeros that a program wrote.
MOST_BYTES_IN_HOLES = 2**28


class ForeignFileError(ValueError):
    """A file cannot be read, or should not be; the message says why."""


def absolute(path: Path) -> Path:
    """Return the absolute path of a file or a folder, whether it exists or not.

    Raises:
        ConfigError: The path is relative, and the working folder was deleted.
    """
    try:
        return path.absolute()
    except FileNotFoundError as error:
        raise ConfigError("the working folder was deleted; cd to one that exists") from error


def is_there(path: str | os.PathLike[str]) -> bool:
    """Return whether a file or a folder exists; a name that no file can have names nothing.

    Raises:
        ConfigError: nobody may look there, or links lead round in a circle.
    """
    return _answer(Path(path), Path.exists)


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Return whether a folder exists; for names and errors see `is_there`."""
    return _answer(Path(path), Path.is_dir)


def _answer(path: Path, question: Callable[[Path], bool]) -> bool:
    try:
        return question(path)
    except ValueError:  # the character NUL, which no file has in its name
        return False
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return False
        raise ConfigError(f"{short(str(path))} cannot be looked at: {error.strerror}; name another place") from error


def is_pointer(path: Path) -> bool:
    """Return whether a file is a pointer of Git LFS, as in a clone without LFS."""
    with contextlib.suppress(OSError, ForeignFileError), open_regular(path) as file:
        return file.read(len(POINTER)) == POINTER
    return False


def what_pulls(path: Path) -> str:
    """Return the message that a file is a pointer of Git LFS, with the remedy."""
    folder = shlex.quote(str(path.parent))
    return f"{path} is a pointer of Git LFS and not the file itself; run: cd {folder} && git lfs pull"


def too_large(file: str, size: int) -> str:
    """Return the message that a file is too large to be read as a whole."""
    return (
        f"{file} has at least {size:,} bytes, and {LARGEST_READ_WHOLE:,} are the most that are "
        "read as a whole; give the checkpoint's own file"
    )


def open_regular(path: Path, follow: bool = True) -> BinaryIO:
    """Open a regular file for reading.

    Args:
        follow: whether the last component of the path may be a link.

    Raises:
        ForeignFileError: it is a folder, a pipe, a device or a link.
        OSError: the file does not exist, or may not be read.
    """
    if not follow and path.is_symlink():
        raise ForeignFileError(f"{path} is a link, and links are not followed here")
    try:
        # Without O_NONBLOCK, opening a pipe waits for a writer.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise ForeignFileError(f"{path} is not a regular file") from error
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ForeignFileError(f"{path} is not a regular file")
    return os.fdopen(handle, "rb")


def write_whole(path: Path, text: str) -> None:
    """Write a text file in UTF-8; if that fails, what was there before stays as it was.

    A regular file is written beside its place and renamed, also where a link leads to it. What else
    there is, such as a pipe, is written into. Halves of surrogate pairs become question marks.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8", errors="replace")
        return
    temporary = path.with_name(f".unfinished-{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8", errors="replace")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def bytes_in_holes(path: Path, most: int) -> int:
    """Return how many bytes of a file are holes, which take no room on the disk and minutes to read.

    Counting ends once there are more than `most`. A file system that knows no holes has none. The number of allocated
    blocks is no measure of them: file systems compress, and count the blocks of a new file only seconds later.
    """
    with open_regular(path, follow=False) as file:
        handle = file.fileno()
        size = os.fstat(handle).st_size
        holes = position = 0
        while position < size and holes <= most:
            try:
                hole = os.lseek(handle, position, os.SEEK_HOLE)
                position = os.lseek(handle, hole, os.SEEK_DATA) if hole < size else size
            except OSError as error:
                if error.errno != errno.ENXIO:  # it is no hole up to the end of the file
                    break
                position = size
            holes += position - hole
        return holes


def is_sparse(path: Path) -> bool:
    """Return whether so much of a file is holes that it is not read; links are followed."""
    return bytes_in_holes(path.resolve(), MOST_BYTES_IN_HOLES) > MOST_BYTES_IN_HOLES


def read_bytes(path: Path, most: int, follow: bool = True) -> bytes:
    """Return the content of a regular file of `most` bytes at most."""
    with open_regular(path, follow) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ForeignFileError(f"{path} has more than {most:,} bytes")
    return content


def read_yaml(path: Path, most: int, follow: bool = True) -> dict[str, Any]:
    """Return the mapping of a YAML file of `most` bytes at most; it can only hold plain values."""
    content = read_bytes(path, most, follow)
    check_yaml(content)
    value = yaml.load(content, Loader=YAML_LOADER)
    if not isinstance(value, dict):
        raise ForeignFileError(f"{path} holds no mapping")
    return value


def check_yaml(content: bytes) -> None:
    """Check what a YAML text stands for, by its events, which do not repeat aliased content.

    A text of a few kilobytes can stand for billions of values, for an integer of base 60 that
    takes minutes to compute, or for thousands of numbers with the same hash, which take as long in
    a dictionary. OmegaConf takes seconds for each thousand of nested ${...}.

    Raises:
        ForeignFileError: it is nested too deeply, has too many values, has a number that other
            programs read as another number, or has a key twice.
        yaml.YAMLError: it is not YAML.
    """
    anchor_sizes: dict[str, int] = {}  # how many values the content of each anchor stands for
    open_collections = [_Collection()]  # the innermost one is the last
    numbered_keys = 0
    for event in yaml.parse(content, Loader=YAML_LOADER):
        if isinstance(event, yaml.NodeEvent):
            numbered_keys += open_collections[-1].note_node(event)
            if numbered_keys > MOST_NUMBERED_KEYS:
                raise ForeignFileError(f"it has more than {MOST_NUMBERED_KEYS:,} keys that are numbers or aliases")

        if isinstance(event, yaml.CollectionStartEvent):
            is_mapping = isinstance(event, yaml.MappingStartEvent)
            open_collections.append(_Collection(event.anchor, 1, is_mapping))
            if len(open_collections) > DEEPEST:
                raise ForeignFileError(f"it is nested more than {DEEPEST} deep")
            continue

        if isinstance(event, yaml.CollectionEndEvent):
            closed = open_collections.pop()
            anchor = closed.anchor
            size = closed.size
        elif isinstance(event, yaml.ScalarEvent):
            _check_notation(event)
            anchor = event.anchor
            size = 1 + REFERENCE_SIZE * event.value.count("${")
        elif isinstance(event, yaml.AliasEvent):
            anchor = None
            _check_alias(event, anchor_sizes, open_collections)
            size = anchor_sizes[event.anchor]
        else:
            continue

        if anchor is not None:
            if anchor in anchor_sizes:
                raise ForeignFileError(f"it has the anchor {short(f'&{anchor}')} twice")
            anchor_sizes[anchor] = size
        open_collections[-1].size += size
        if open_collections[-1].size > MOST_NODES:
            raise ForeignFileError(
                f"it stands for more than {MOST_NODES:,} values (a ${{...}} counts for {REFERENCE_SIZE})"
            )


@dataclass
class _Collection:
    """A mapping or a list whose end has not come yet.

    Attributes:
        size: how many values it stands for so far.
        keys: of a mapping, with whether each may be a number: `1` and `"1"` are two keys.
        expects_key: whether the next node of a mapping is a key.
    """

    anchor: str | None = None
    size: int = 0
    is_mapping: bool = False
    keys: set[tuple[str, bool]] = field(default_factory=set)
    expects_key: bool = True

    def note_node(self, event: yaml.NodeEvent) -> bool:
        """Note the next node inside, and return whether it is a key that may be a number.

        Raises:
            ForeignFileError: it is a key that the mapping has already; readers drop one of them.
        """
        if not self.is_mapping:
            return False
        is_key = self.expects_key
        self.expects_key = not is_key
        if not is_key:
            return False
        if not isinstance(event, yaml.ScalarEvent):
            return True

        is_plain_number = event.implicit[0] and event.value[:1] in NUMBER_SIGNS
        may_be_number = is_plain_number or event.tag in NUMBER_TAGS
        key = (event.value, may_be_number)
        if key in self.keys:
            raise ForeignFileError(f"it has the key {short(event.value)} twice in one mapping")
        self.keys.add(key)
        return may_be_number


def _check_alias(event: yaml.AliasEvent, anchors: Collection[str], open_collections: Iterable[_Collection]) -> None:
    """Check that an alias stands for what comes before it, and not for what it is inside of.

    Args:
        anchors: those whose content has ended.
        open_collections: the mappings and lists that the alias is inside of.
    """
    alias = short(f"*{event.anchor}")
    if any(collection.anchor == event.anchor for collection in open_collections):
        raise ForeignFileError(f"{alias} is inside of what it stands for, and repeats it without end")
    if event.anchor not in anchors:
        name = short(f"&{event.anchor}")
        raise ForeignFileError(f"{alias} stands for nothing; write {name} before the value that it repeats")


def _check_notation(event: yaml.ScalarEvent) -> None:
    """Check that a number means the same elsewhere: YAML 1.1 reads 010 as 8, 1:30 as 90."""
    is_plain_number = event.implicit[0] and OLD_NUMBER.fullmatch(event.value)
    is_tagged_number = event.tag in NUMBER_TAGS and ":" in event.value
    if is_plain_number or is_tagged_number:
        raise ForeignFileError(
            f"{short(event.value)} is not a decimal number in YAML; write it without leading zeros "
            "and colons, or in quotes if it is a text"
        )
