"""The Hugging Face hub: the commit that a revision stands for, and why a request failed, in one line.

huggingface_hub itself retries failed downloads. Only the first question, for the commit, is retried here.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from http.client import responses
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Literal, NamedTuple

import httpx2

from thinkalike.digests import remembered_digest
from thinkalike.errors import ModelError, chain

ALWAYS_THERE = {"model": "config.json", "dataset": "README.md"}  # small files that most repositories have
ANSWER_SECONDS = 8  # how long to wait for the first answer of the hub
PAUSES = (1.0, 4.0, 15.0)  # seconds between questions to a busy hub
BUSY = (408, 429, 500, 502, 503, 504)
PATIENCE, LEAST_RATE = 20.0, 2000.0  # seconds after which a download must have had this many bytes per second
SHA256 = re.compile(r"[0-9a-f]{64}")  # the names of files of the cache whose content the hub states by it


class Commit(NamedTuple):
    """A commit of a repository."""

    sha: str  # its 40 hexadecimal digits
    files: tuple[str, ...]  # the paths of its files; of a cached copy, those that the cache has
    trouble: Exception | None = None  # why the hub did not answer, where the commit is that of a cached copy
    repository: str = ""  # its present name, to which the hub leads from an older one; "": not known


@contextlib.contextmanager
def _sending_steadily() -> Iterator[None]:
    """End downloads of the hub's library that would take for ever, while this is open.

    The library limits the time between two bytes, and not that of all of them.
    """
    from huggingface_hub.utils import get_session

    session = get_session()
    before = session.event_hooks

    def watch(response: httpx2.Response) -> None:
        if isinstance(response.stream, httpx2.SyncByteStream):
            response.stream = _Steady(response.stream)

    session.event_hooks = {**before, "response": [*before.get("response", ()), watch]}
    try:
        yield
    finally:
        session.event_hooks = before


class _Steady(httpx2.SyncByteStream):
    """A stream of bytes that ends with an error where too few come."""

    def __init__(self, stream: httpx2.SyncByteStream):
        self.stream = stream

    def __iter__(self) -> Iterator[bytes]:
        began, received = monotonic(), 0
        for chunk in self.stream:
            received += len(chunk)
            seconds = monotonic() - began
            if seconds > PATIENCE and received < LEAST_RATE * seconds:
                raise httpx2.ReadError(f"it sent {received:,} bytes in {seconds:.0f} s")
            yield chunk

    def close(self) -> None:
        self.stream.close()


@functools.cache
@_sending_steadily()
def resolved(kind: Literal["model", "dataset"], repository: str, revision: str | None) -> Commit:
    """Return the commit that a revision stands for: the hub's answer, or else that of the copy in the cache.

    The hub is asked once in a process, until `resolved.cache_clear()`.

    Raises:
        Exception: the hub does not answer or refuses, and there is no copy; `cause_of` puts it in words.
    """
    import huggingface_hub
    from huggingface_hub.errors import RemoteEntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError

    huggingface_hub.logging.set_verbosity_error()  # the cause is told once, in one line
    api = huggingface_hub.HfApi(endpoint=huggingface_hub.constants.ENDPOINT)
    ask = api.model_info if kind == "model" else api.dataset_info
    try:
        info = patiently(lambda: ask(repository, revision=revision, timeout=ANSWER_SECONDS))
    except (RepositoryNotFoundError, RevisionNotFoundError):
        raise
    except Exception as error:  # no network, a time-out, offline mode, an HTML page: the cache may be enough
        reference = cached(kind, repository) / "refs" / (revision or "main")
        sha = reference.read_text().strip() if reference.is_file() else str(revision)
        copy = cached(kind, repository) / "snapshots" / sha
        if not re.fullmatch(r"[0-9a-f]{40}", sha) or not (kind == "dataset" or copy.is_dir()):
            raise
        there = (str(path.relative_to(copy)) for path in sorted(copy.rglob("*")) if path.is_file())
        return Commit(sha, tuple(there), error)
    newest = getattr(info, "sha", None)
    if newest and newest != revision:  # a file of the branch tells the cache its commit, for when there is no hub
        with contextlib.suppress(RemoteEntryNotFoundError):
            huggingface_hub.hf_hub_download(repository, ALWAYS_THERE[kind], repo_type=kind, revision=revision)
    files = tuple(each.rfilename for each in getattr(info, "siblings", None) or [])
    return Commit(newest or revision or "main", files, repository=getattr(info, "id", ""))


@contextlib.contextmanager
def reading(kind: str, repository: str, commit: str) -> Iterator[None]:
    """Read files of a commit through the hub's library: soon, and with the content that the hub states.

    Raises:
        ModelError: a file in the cache has not the SHA-256 that the hub states for it.
        httpx2.ReadError: the hub sends hardly any bytes.
    """
    try:
        with _sending_steadily():
            yield
    except Exception as error:  # often of a library that could not read the altered file
        if altered := _altered(kind, repository, commit):
            raise ModelError(altered) from error
        raise
    if altered := _altered(kind, repository, commit):
        raise ModelError(altered)


def _altered(kind: str, repository: str, commit: str) -> str | None:
    """Return which file of a cached commit has not the content that the hub states, and what to do, or None."""
    copy = cached(kind, repository) / "snapshots" / commit
    for path in sorted(copy.rglob("*")) if copy.is_dir() else ():
        stated = path.resolve().name  # a link to a file of the cache, which has the name that the hub gives its content
        if SHA256.fullmatch(stated) and path.is_file() and remembered_digest(path) != stated:
            name, content = path.relative_to(copy), path.resolve()
            return (
                f"{name} of {repository} has not the SHA-256 that the hub states: it was changed or damaged on its "
                f"way; delete {content} and load it again"
            )
    return None


def cached(kind: str, repository: str) -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE, f"{kind}s--{repository.replace('/', '--')}")


def patiently(ask: Callable[[], Any]) -> Any:
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


def cause_of(error: BaseException, asked: str, revision: str | None = None) -> str | None:
    """Return the cause of an error that a library raised for a repository, and what to do, or None if it is unknown."""
    from huggingface_hub import constants, errors

    token = "set HF_TOKEN to the token of an account that may read it"
    for each in chain(error):
        repository = getattr(each, "repo_id", None) or asked  # such as that of a tokenizer, which the model names
        match each:
            case errors.GatedRepoError():
                return f"{repository} is gated: accept its terms at {constants.ENDPOINT}/{repository}, and {token}"
            case errors.RepositoryNotFoundError():
                return f"there is no repository {repository} on the hub, or it is private; {token}"
            case errors.RevisionNotFoundError():
                return f"{repository} has no revision {revision or 'main'}; name a branch, a tag or a commit"
            case errors.RemoteEntryNotFoundError():
                name = str(each.response.url.path).partition("/resolve/")[2].partition("/")[2]
                return f"{repository} has no file {name} at revision {revision or 'main'}; check both"
            case errors.HfHubHTTPError() if each.response.status_code in (401, 403):
                return f"the hub forbids reading {repository} ({each.response.status_code}): {token}"
            case errors.HfHubHTTPError():
                status = each.response.status_code
                return f"the hub answers {status} ({responses.get(status, 'error')}) for {repository}; try again later"
            case httpx2.RequestError():
                why = "in time" if isinstance(each, httpx2.TimeoutException) else f"({each})"
                return f"the hub does not answer {why}; check the network, HF_ENDPOINT and proxies"
    return None


def refused(error: BaseException) -> bool:
    """Return whether the hub answered, and said no: then a cached copy or a better network would not help."""
    from huggingface_hub.errors import HfHubHTTPError

    answers = [each.response.status_code for each in chain(error) if isinstance(each, HfHubHTTPError)]
    return bool(answers) and answers[0] < 500 and answers[0] != 429
