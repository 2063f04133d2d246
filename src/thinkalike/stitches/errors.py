"""Errors of files and of the hub, in one line that says what was attempted."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from thinkalike.errors import StitchError, ThinkalikeError, one_line
from thinkalike.hub import cause_of


@contextlib.contextmanager
def explaining_file_errors(
    attempt: str, repository: str = "", revision: str | None = None
) -> Iterator[None]:
    """Turn an error of files or of the hub into a StitchError of one line.

    Args:
        attempt: the beginning of the error, such as "cannot read FILE".
        repository: that of the hub; empty for files.
        revision: its branch, tag or commit.
    """
    try:
        yield
    except ThinkalikeError:
        raise
    except Exception as error:  # of the hub's library, and of those that it is built on
        reason = None
        if repository:
            reason = cause_of(error, repository, revision)
        if reason is None:
            reason = f"{type(error).__name__}: {one_line(error)}"
        raise StitchError(f"{attempt}: {reason}") from error


@contextlib.contextmanager
def in_file(file: str | os.PathLike[str]) -> Iterator[None]:
    """Let the error of a stitch begin with the file that it comes from, unless that is ""."""
    try:
        yield
    except StitchError as error:
        if file:
            raise StitchError(f"{file}: {error}") from error
        raise
