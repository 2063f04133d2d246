"""Data sets of the hub, row by row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from thinkalike.errors import DataError

HUB_SECONDS = 8  # how long to wait for an answer of the hub


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
    from huggingface_hub import HfApi
    from huggingface_hub.utils import logging as hub_logging

    datasets.disable_progress_bars()
    hub_logging.set_verbosity_error()
    try:
        # This call fails at once where there is no hub; load_dataset would try for minutes.
        HfApi().dataset_info(repository, revision=revision, timeout=HUB_SECONDS)
        yield from datasets.load_dataset(repository, subset, streaming=True, revision=revision, **options)
    except Exception as error:  # no hub, no such split, a damaged shard
        reason = next((line for line in str(error).splitlines() if line.strip()), "")[:200]
        raise DataError(f"cannot stream {label} ({repository}): {type(error).__name__}: {reason}; {remedy}") from error
