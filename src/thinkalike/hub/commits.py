"""Which commit a revision of a repository is, asked once in a process."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Literal, NamedTuple

from thinkalike.hub.client import be_patient

ANSWER_SECONDS = 8  # how long to wait for the first answer of the hub


class Commit(NamedTuple):
    """A commit of a repository.

    Attributes:
        sha: its 40 hexadecimal digits.
        trouble: why the hub did not say so, where the commit is that of a cached copy.
    """

    sha: str
    trouble: Exception | None = None


def resolved(kind: Literal["model", "dataset"], repository: str, revision: str | None) -> Commit:
    """Return the commit that a revision stands for: as the hub says, or else that of the copy in the cache.

    Raises:
        Exception: the hub does not say it and there is no copy; `cause_of` puts it in words.
    """
    from huggingface_hub import constants

    return _resolved(kind, repository, revision, constants.ENDPOINT, constants.HF_HUB_CACHE)


def forget_commits() -> None:
    """Ask the hub anew from now on."""
    _resolved.cache_clear()


@functools.cache
def _resolved(kind: str, repository: str, revision: str | None, endpoint: str, cache: str) -> Commit:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    be_patient()
    ask = HfApi(endpoint=endpoint).model_info if kind == "model" else HfApi(endpoint=endpoint).dataset_info
    try:
        return Commit(str(ask(repository, revision=revision, timeout=ANSWER_SECONDS).sha))
    except (RepositoryNotFoundError, RevisionNotFoundError):
        raise
    except Exception as error:  # no route, no name, a time-out, offline mode: what is cached may be enough
        if sha := _cached(kind, repository, revision or "main", Path(cache)):
            return Commit(sha, error)
        raise


def _cached(kind: str, repository: str, revision: str, cache: Path) -> str | None:
    """Return the commit of a copy in the cache."""
    folder = cache / f"{kind}s--{repository.replace('/', '--')}"
    reference = folder / "refs" / revision
    sha = reference.read_text().strip() if reference.is_file() else revision
    return sha if re.fullmatch(r"[0-9a-f]{40}", sha) and (folder / "snapshots" / sha).is_dir() else None
