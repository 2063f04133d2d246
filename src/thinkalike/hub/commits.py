"""Which commit a revision of a repository is, asked once in a process."""

from __future__ import annotations

import contextlib
import functools
import re
from pathlib import Path
from typing import Any, Literal, NamedTuple

from thinkalike.errors import HubError, listed, nearest
from thinkalike.hub.client import be_patient

ALWAYS_THERE = {"model": "config.json", "dataset": "README.md"}  # small files that most repositories have
FEW = 8  # names that a message can list
ANSWER_SECONDS = 8  # how long to wait for the first answer of the hub


class Commit(NamedTuple):
    """A commit of a repository.

    Attributes:
        sha: its 40 hexadecimal digits.
        trouble: why the hub did not say so, where the commit is that of a cached copy.
        files: the paths of its files, as far as the hub says.
    """

    sha: str
    trouble: Exception | None = None
    files: tuple[str, ...] = ()


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
    except RepositoryNotFoundError as error:
        if _is_other(api, kind, repository):
            other, own = ("data set", "model") if kind == "model" else ("model", "data set")
            raise HubError(f"{repository} is a {other} of the hub and no {own}; name a {own}") from error
        raise
    except RevisionNotFoundError as error:
        if there := _revisions(api, kind, repository):
            near = nearest(str(revision), there)
            near = near if len(there) <= FEW or near.startswith("did you") else f"there is: {listed(there)}"
            raise HubError(f"{repository} has no revision {revision}; {near}") from error
        raise
    except Exception as error:  # no route, no name, a time-out, offline mode: what is cached may be enough
        if sha := _cached(kind, repository, revision or "main", Path(cache)):
            return Commit(sha, error)
        raise
    sha = getattr(info, "sha", None)
    if sha and sha != revision:  # a file of the branch lets the cache know the commit, for when there is no hub
        with contextlib.suppress(RemoteEntryNotFoundError):
            huggingface_hub.hf_hub_download(repository, ALWAYS_THERE[kind], repo_type=kind, revision=revision)
    files = [each.rfilename for each in getattr(info, "siblings", None) or []]
    return Commit(sha or revision or "main", files=tuple(files))


def _is_other(api: Any, kind: str, repository: str) -> bool:
    """Return whether a model is sought where a data set of this name is, or the other way round."""
    try:
        (api.dataset_info if kind == "model" else api.model_info)(repository, timeout=ANSWER_SECONDS)
    except Exception:  # it is private, or the hub says nothing any more
        return False
    return True


def _revisions(api: Any, kind: str, repository: str) -> list[str]:
    """Return the names of all branches and tags, or nothing if the hub does not say them."""
    try:
        refs = api.list_repo_refs(repository, repo_type=kind)
    except Exception:
        return []
    return [each.name for each in (*refs.branches, *refs.tags)]


def _cached(kind: str, repository: str, revision: str, cache: Path) -> str | None:
    """Return the commit that the cache knows; of a model it must have files, too."""
    folder = cache / f"{kind}s--{repository.replace('/', '--')}"
    reference = folder / "refs" / revision
    sha = reference.read_text().strip() if reference.is_file() else revision
    there = kind == "dataset" or (folder / "snapshots" / sha).is_dir()
    return sha if there and re.fullmatch(r"[0-9a-f]{40}", sha) else None
