"""Data sets of the hub, row by row."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from thinkalike.errors import DataError
from thinkalike.hub import cause_of, resolved

LOCAL = "use local files (data=text 'data.files=[...]') or data=stdlib"


def commit_of(repository: str, revision: str | None, label: str = "a data set", remedy: str = LOCAL) -> str:
    """Return the commit of a data set of the hub, 40 hexadecimal digits, so that a branch that moved is another one.

    Args:
        label, remedy: as in `stream_records`.

    Raises:
        DataError: the hub does not say it, and the cache has no copy.
    """
    if revision and re.fullmatch(r"[0-9a-f]{40}", revision):
        return revision
    try:
        return resolved("dataset", repository, revision).sha
    except Exception as error:
        reason = _reason(error, repository, revision)
        raise DataError(f"cannot stream {label} ({repository}): {reason}; {remedy}") from error


def stream_records(
    label: str, repository: str, subset: str | None = None, *, revision: str | None, remedy: str, **options: Any
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a data set of the hub without downloading all of it.

    Args:
        label: what the message of an error calls the set.
        remedy: what the message of an error suggests.
        options: those of `datasets.load_dataset`, such as split.

    Raises:
        DataError: the hub cannot be reached, there is no such set or split, or a part of it is damaged.
    """
    import datasets
    from huggingface_hub.utils import logging as hub_logging

    datasets.disable_progress_bars()
    hub_logging.set_verbosity_error()
    try:
        # This call fails at once where there is no hub; load_dataset would try for minutes.
        commit = resolved("dataset", repository, revision)
        if commit.trouble:
            raise commit.trouble  # a copy of some files does not make a data set
        yield from datasets.load_dataset(repository, subset, streaming=True, revision=commit.sha, **options)
    except Exception as error:  # no hub, no such split, a damaged shard
        reason = _reason(error, repository, revision)
        raise DataError(f"cannot stream {label} ({repository}): {reason}; {remedy}") from error


def _reason(error: Exception, repository: str, revision: str | None) -> str:
    line = next((line for line in str(error).splitlines() if line.strip()), "")[:200]
    return cause_of(error, repository, revision) or f"{type(error).__name__}: {line}"
