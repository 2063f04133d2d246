"""Errors of files and of the hub, in one line that says what was attempted."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from thinkalike.errors import StitchError, ThinkalikeError, reason_in_words
from thinkalike.hub import cause_of


@contextlib.contextmanager
def explaining_file_errors(
    attempt: str, repository: str = "", revision: str | None = None
) -> Iterator[None]:
    """Turn any error of the body into a StitchError of one line that says what was attempted.

    Errors of this package pass unchanged.

    Args:
        attempt: The beginning of the message, such as "cannot read FILE".
        repository: The repository of the hub that the body reads; empty for local files.
        revision: The branch, tag or commit of the repository.
    """
    try:
        yield
    except ThinkalikeError:
        raise
    except Exception as error:  # the hub's library and those below it raise many classes
        reason = None
        if repository:
            reason = cause_of(error, repository, revision)
        if reason is None:
            reason = reason_in_words(error)
        raise StitchError(f"{attempt}: {reason}") from error


@contextlib.contextmanager
def in_file(file: str | os.PathLike[str]) -> Iterator[None]:
    """Put the name of a file in front of a StitchError of the body, unless the name is ""."""
    try:
        yield
    except StitchError as error:
        if file:
            raise StitchError(f"{file}: {error}") from error
        raise
