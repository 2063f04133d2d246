"""Which commit a revision of a repository is, asked once in a process."""

from __future__ import annotations

import contextlib
import functools
import re
from pathlib import Path
from typing import Literal, NamedTuple

from thinkalike.hub.client import be_patient

ALWAYS_THERE = {"model": "config.json", "dataset": "README.md"}  # small files that most repositories have
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
    import huggingface_hub
    from huggingface_hub.errors import RemoteEntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError

    be_patient()
    api = huggingface_hub.HfApi(endpoint=endpoint)
    try:
        info = (api.model_info if kind == "model" else api.dataset_info)(
            repository, revision=revision, timeout=ANSWER_SECONDS
        )
    except (RepositoryNotFoundError, RevisionNotFoundError):
        raise
    except Exception as error:  # no route, no name, a time-out, offline mode: what is cached may be enough
        if sha := _cached(kind, repository, revision or "main", Path(cache)):
            return Commit(sha, error)
        raise
    sha = getattr(info, "sha", None)
    if sha and sha != revision:  # a file of the branch lets the cache know the commit, for when there is no hub
        with contextlib.suppress(RemoteEntryNotFoundError):
            huggingface_hub.hf_hub_download(repository, ALWAYS_THERE[kind], repo_type=kind, revision=revision)
    return Commit(sha or revision or "main")


def _cached(kind: str, repository: str, revision: str, cache: Path) -> str | None:
    """Return the commit that the cache knows; of a model it must have files, too."""
    folder = cache / f"{kind}s--{repository.replace('/', '--')}"
    reference = folder / "refs" / revision
    sha = reference.read_text().strip() if reference.is_file() else revision
    there = kind == "dataset" or (folder / "snapshots" / sha).is_dir()
    return sha if there and re.fullmatch(r"[0-9a-f]{40}", sha) else None
