"""The Hugging Face hub: the commit that a revision stands for, and why a request failed, in one line.

huggingface_hub itself retries failed downloads. Only the first question, for the commit, is retried here.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable
from http.client import responses
from json import JSONDecodeError
from pathlib import Path
from time import sleep
from typing import Any, Literal, NamedTuple

import httpx2

from thinkalike.errors import HubError, chain, natural_order

ALWAYS_THERE = {"model": "config.json", "dataset": "README.md"}  # small files that most repositories have
ANSWER_SECONDS = 8  # how long to wait for the first answer of the hub
PAUSES = (1.0, 4.0, 15.0)  # seconds between questions to a busy hub
BUSY = (408, 429, 500, 502, 503, 504)


class Commit(NamedTuple):
    """A commit of a repository.

    Attributes:
        sha: its 40 hexadecimal digits.
        files: the paths of its files; of a cached copy, those that the cache has.
        trouble: why the hub did not answer, where the commit is that of a cached copy.
        repository: the present name of the repository, to which the hub leads from an older one; "": not known.
    """

    sha: str
    files: tuple[str, ...]
    trouble: Exception | None = None
    repository: str = ""


def resolved(kind: Literal["model", "dataset"], repository: str, revision: str | None) -> Commit:
    """Return the commit that a revision stands for: the hub's answer, or else that of the copy in the cache.

    The hub is asked once in a process.

    Raises:
        Exception: the hub does not answer or refuses, and there is no copy; `cause_of` puts it in words.
    """
    from huggingface_hub import constants

    return _resolved(kind, repository, revision, constants.ENDPOINT, constants.HF_HUB_CACHE)


def revisions(kind: Literal["model", "dataset"], repository: str) -> list[str]:
    """Return the branches and tags of a repository in natural order: the hub's answer, or else those in the cache.

    Raises:
        Exception: see `resolved`.
    """
    from huggingface_hub import HfApi, constants

    try:
        refs = _patiently(lambda: HfApi(endpoint=constants.ENDPOINT).list_repo_refs(repository, repo_type=kind))
        names = [each.name for each in (*refs.branches, *refs.tags)]
    except Exception as error:
        known = Path(constants.HF_HUB_CACHE, f"{kind}s--{repository.replace('/', '--')}", "refs")
        names = [str(path.relative_to(known)) for path in known.rglob("*") if path.is_file()]
        if refused(error) or not names:
            raise
    return sorted(names, key=natural_order)


def forget_commits() -> None:
    """Ask the hub anew from now on."""
    _resolved.cache_clear()


@functools.cache
def _resolved(kind: str, repository: str, revision: str | None, endpoint: str, cache: str) -> Commit:
    import huggingface_hub
    from huggingface_hub.errors import RemoteEntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError

    huggingface_hub.logging.set_verbosity_error()  # the cause is told once, in one line
    api = huggingface_hub.HfApi(endpoint=endpoint)
    ask = api.model_info if kind == "model" else api.dataset_info
    try:
        info = _patiently(lambda: ask(repository, revision=revision, timeout=ANSWER_SECONDS))
    except (RepositoryNotFoundError, RevisionNotFoundError):
        raise
    except Exception as error:  # no network, a time-out, offline mode: the cache may be enough
        if isinstance(error, (KeyError, JSONDecodeError)):  # an HTML page, or JSON without an id
            error = HubError(f"{endpoint} does not answer as a hub does; check HF_ENDPOINT and proxies")
        if copy := _cached(kind, repository, revision or "main", Path(cache)):
            there = (str(path.relative_to(copy)) for path in sorted(copy.rglob("*")) if path.is_file())
            return Commit(copy.name, tuple(there), error)
        raise error
    sha = getattr(info, "sha", None)
    if sha and sha != revision:  # a file of the branch tells the cache its commit, for when there is no hub
        with contextlib.suppress(RemoteEntryNotFoundError):
            huggingface_hub.hf_hub_download(repository, ALWAYS_THERE[kind], repo_type=kind, revision=revision)
    files = tuple(each.rfilename for each in getattr(info, "siblings", None) or [])
    return Commit(sha or revision or "main", files, repository=getattr(info, "id", ""))


def _patiently(ask: Callable[[], Any]) -> Any:
    """Ask the hub, and again after a pause while it answers that it is busy."""
    from huggingface_hub.errors import HfHubHTTPError

    for pause in PAUSES:
        try:
            return ask()
        except HfHubHTTPError as error:
            if error.response.status_code not in BUSY:
                raise
        sleep(pause)
    return ask()


def _cached(kind: str, repository: str, revision: str, cache: Path) -> Path | None:
    """Return the folder of the commit that the cache knows; of a model it must have files, too."""
    folder = cache / f"{kind}s--{repository.replace('/', '--')}"
    reference = folder / "refs" / revision
    copy = folder / "snapshots" / (reference.read_text().strip() if reference.is_file() else revision)
    there = kind == "dataset" or copy.is_dir()
    return copy if there and re.fullmatch(r"[0-9a-f]{40}", copy.name) else None


def cause_of(error: BaseException, repository: str, revision: str | None = None) -> str | None:
    """Return the cause of an error of huggingface_hub and what to do, or None if its own words must do.

    Args:
        error: what a library raised; its causes are looked through.
        repository, revision: what was asked for, for the message.
    """
    for each in chain(error):
        asked = getattr(each, "repo_id", None) or repository  # such as that of a tokenizer, which the model names
        if cause := _cause(each, asked, revision or "main"):
            return cause
    return None


def refused(error: BaseException) -> bool:
    """Return whether the hub answered, and said no: then a cached copy or a better network would not help."""
    from huggingface_hub.errors import HfHubHTTPError

    answers = [each.response.status_code for each in chain(error) if isinstance(each, HfHubHTTPError)]
    return bool(answers) and answers[0] < 500 and answers[0] != 429


def _cause(error: BaseException, repository: str, revision: str) -> str | None:
    from huggingface_hub import errors

    token = "set HF_TOKEN to the token of an account that may read it"
    match error:
        case HubError():
            return str(error)
        case errors.GatedRepoError():
            page = f"{os.environ.get('HF_ENDPOINT', 'https://huggingface.co')}/{repository}"
            return f"{repository} is gated: accept its terms at {page}, and {token}"
        case errors.RepositoryNotFoundError():
            return f"there is no repository {repository} on the hub, or it is private; {token}"
        case errors.RevisionNotFoundError():
            return f"{repository} has no revision {revision}; name a branch, a tag or a commit"
        case errors.RemoteEntryNotFoundError():
            name = str(error.response.url.path).partition("/resolve/")[2].partition("/")[2]
            return f"{repository} has no file {name} at revision {revision}; check the repository and the revision"
        case errors.HfHubHTTPError():
            status = error.response.status_code
            if status in (401, 403):
                return f"the hub forbids reading {repository} ({status}): {token}"
            return f"the hub answers {status} ({responses.get(status, 'error')}) for {repository}; try again later"
        case httpx2.RequestError():
            why = "in time" if isinstance(error, httpx2.TimeoutException) else f"({error})"
            return f"the hub does not answer {why}; check the network, HF_ENDPOINT and proxies"
    return None
