"""Files of users, read by their ending, and data sets of the hub; errors name the file or the set."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from thinkalike.digests import digest_of
from thinkalike.errors import DataError, first_line
from thinkalike.hub import cause_of, resolved

LOCAL = "use local files (data=text 'data.files=[...]') or data=stdlib"


def read_with(path: Path, readers: Mapping[str, Callable[[Path], Any]]) -> Any:
    """Return what the reader of a file's ending makes of it.

    Args:
        readers: functions of a path, by ending (".csv").

    Raises:
        DataError: no reader is for this ending, or the file cannot be read.
    """
    if path.suffix.lower() not in readers:
        raise DataError(f"{path} is of no known kind; give a file of {' or '.join(readers)}")
    if path.exists() and not path.is_file():
        raise DataError(f"cannot read {path}: it is no regular file; give one")
    try:
        return readers[path.suffix.lower()](path)
    except DataError:
        raise
    except Exception as error:  # missing, damaged, in another encoding: each library has errors of its own
        raise DataError(f"cannot read {path}: {type(error).__name__}: {first_line(error)}") from error


def recording_fingerprint(path: str) -> str:
    """Return a fingerprint of a file of recorded states and of its name, by which tables call it.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        return f"{Path(path).stem} {digest_of(Path(path))[:16]}"
    except OSError as error:
        raise DataError(f"cannot read activations={path}: {error.strerror}") from error


def commit_of(repository: str, revision: str | None, label: str = "a data set", remedy: str = LOCAL) -> str:
    """Return the commit of a data set of the hub, 40 hexadecimal digits, so that a branch that moved is another one.

    Args:
        label, remedy: as in `stream_records`.

    Raises:
        DataError: the hub does not say it, and the cache has no copy.
    """
    if revision and re.fullmatch(r"[0-9a-f]{40}", revision):
        return revision
    with _explained(label, repository, revision, remedy):
        return resolved("dataset", repository, revision).sha


def stream_records(
    label: str, repository: str, subset: str | None = None, *, revision: str | None, remedy: str = LOCAL, **options: Any
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a data set of the hub without downloading all of it.

    Args:
        label: the name of the set in the message of an error.
        remedy: the suggestion in the message of an error.
        options: those of `datasets.load_dataset`, such as split.

    Raises:
        DataError: the hub cannot be reached, there is no such set or split, or a part of it is damaged.
    """
    import datasets
    from huggingface_hub.utils import logging as hub_logging

    datasets.disable_progress_bars()
    hub_logging.set_verbosity_error()
    with _explained(label, repository, revision, remedy):
        # This call fails at once where there is no hub; load_dataset would try for minutes.
        commit = resolved("dataset", repository, revision)
        if commit.trouble:
            raise commit.trouble  # a copy of some files does not make a data set
        yield from datasets.load_dataset(repository, subset, streaming=True, revision=commit.sha, **options)


@contextlib.contextmanager
def _explained(label: str, repository: str, revision: str | None, remedy: str) -> Iterator[None]:
    """Turn errors of the libraries that ask the hub into one line."""
    try:
        yield
    except Exception as error:  # no hub, no such split, a damaged shard
        line = next((line for line in str(error).splitlines() if line.strip()), "")[:200]
        reason = cause_of(error, repository, revision) or f"{type(error).__name__}: {line}"
        raise DataError(f"cannot stream {label} ({repository}): {reason}; {remedy}") from error
