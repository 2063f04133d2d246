"""The Hugging Face hub: the commit of a revision, and why a request failed, in one line.

huggingface_hub itself retries failed downloads. Only the first question, for the commit, is
retried here.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from http.client import responses
from pathlib import Path
from time import monotonic, sleep
from typing import Literal, NamedTuple, TypeVar

import httpx2

from thinkalike.digests import remembered_digest
from thinkalike.errors import ModelError, chain

RepositoryKind = Literal["model", "dataset"]
Answer = TypeVar("Answer")

# small files that most repositories have
USUAL_FILE: dict[RepositoryKind, str] = {"model": "config.json", "dataset": "README.md"}
ANSWER_SECONDS = 8  # how long to wait for the first answer of the hub
PAUSES = (1.0, 4.0, 15.0)  # seconds between questions to a busy hub
# HTTP statuses
TOO_MANY_REQUESTS = 429
BUSY = (408, TOO_MANY_REQUESTS, 500, 502, 503, 504)
FORBIDDEN = (401, 403)
FIRST_SERVER_ERROR = 500
# After so many seconds, a download must have had so many bytes per second.
PATIENCE = 20.0
LEAST_RATE = 2000.0
SHA256 = re.compile(r"[0-9a-f]{64}")  # names of cached files whose digest the hub states
COMMIT_SHA = re.compile(r"[0-9a-f]{40}")


class Commit(NamedTuple):
    """A commit of a repository.

    Attributes:
        sha: its 40 hexadecimal digits.
        files: the paths of its files; for a cached copy, those that the cache has.
        trouble: why the hub did not answer, if the commit is that of a cached copy.
        repository: its present name, to which the hub redirects from an older one; empty if
            unknown.
    """

    sha: str
    files: tuple[str, ...]
    trouble: Exception | None = None
    repository: str = ""


@contextlib.contextmanager
def _sending_steadily() -> Iterator[None]:
    """End downloads of the hub's library that would take for ever, while this is open.

    The library limits the time between two bytes, and not the time of all bytes.
    """
    from huggingface_hub.utils import get_session

    session = get_session()
    earlier_hooks = session.event_hooks

    def watch(response: httpx2.Response) -> None:
        if isinstance(response.stream, httpx2.SyncByteStream):
            response.stream = _SteadyStream(response.stream)

    response_hooks = [*earlier_hooks.get("response", ()), watch]
    session.event_hooks = {**earlier_hooks, "response": response_hooks}
    try:
        yield
    finally:
        session.event_hooks = earlier_hooks


class _SteadyStream(httpx2.SyncByteStream):
    """A stream of bytes that raises an error if too few arrive."""

    def __init__(self, stream: httpx2.SyncByteStream):
        self.stream = stream

    def __iter__(self) -> Iterator[bytes]:
        began = monotonic()
        received = 0
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
def resolved(kind: RepositoryKind, repository: str, revision: str | None) -> Commit:
    """Return the commit that a revision stands for: the hub's answer, or that of a cached copy.

    The hub is asked once in a process, until `resolved.cache_clear()`.

    Raises:
        Exception: the hub does not answer or refuses, and there is no copy; `cause_of` explains
            it.
    """
    import huggingface_hub
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    huggingface_hub.logging.set_verbosity_error()  # the cause is told once, in one line
    api = huggingface_hub.HfApi(endpoint=huggingface_hub.constants.ENDPOINT)

    def ask() -> object:
        if kind == "model":
            return api.model_info(repository, revision=revision, timeout=ANSWER_SECONDS)
        return api.dataset_info(repository, revision=revision, timeout=ANSWER_SECONDS)

    try:
        info = patiently(ask)
    except (RepositoryNotFoundError, RevisionNotFoundError):
        raise
    except Exception as error:  # no network, a time-out, offline mode, an HTML page
        commit = _cached_commit(kind, repository, revision, error)
        if commit is None:
            raise
        return commit

    newest = getattr(info, "sha", None)
    if newest and newest != revision:
        _remember_branch(kind, repository, revision)
    siblings = getattr(info, "siblings", None) or []
    files = tuple(sibling.rfilename for sibling in siblings)
    name = getattr(info, "id", "")
    return Commit(newest or revision or "main", files, repository=name)


def _cached_commit(kind: RepositoryKind, repository: str, revision: str | None, trouble: Exception) -> Commit | None:
    """Return the commit of a revision in the cache; None if the cache does not know it."""
    reference = cached(kind, repository) / "refs" / (revision or "main")
    sha = str(revision)
    if reference.is_file():
        sha = reference.read_text().strip()
    if not COMMIT_SHA.fullmatch(sha):
        return None
    copy = cached(kind, repository) / "snapshots" / sha
    if kind == "model" and not copy.is_dir():
        return None
    files = []
    for path in sorted(copy.rglob("*")):
        if path.is_file():
            files.append(str(path.relative_to(copy)))
    return Commit(sha, tuple(files), trouble)


def _remember_branch(kind: RepositoryKind, repository: str, revision: str | None) -> None:
    """Let the cache know the commit of a branch for when there is no hub, by downloading a file."""
    import huggingface_hub
    from huggingface_hub.errors import RemoteEntryNotFoundError

    with contextlib.suppress(RemoteEntryNotFoundError):
        huggingface_hub.hf_hub_download(repository, USUAL_FILE[kind], repo_type=kind, revision=revision)


@contextlib.contextmanager
def reading(kind: str, repository: str, commit: str) -> Iterator[None]:
    """Read files of a commit through the hub's library, and check their content at the end.

    Raises:
        ModelError: a file in the cache does not have the SHA-256 that the hub states for it.
        httpx2.ReadError: the hub sends hardly any bytes.
    """
    try:
        with _sending_steadily():
            yield
    except Exception as error:  # often of a library that could not read the altered file
        altered = _altered(kind, repository, commit)
        if altered is not None:
            raise ModelError(altered) from error
        raise
    altered = _altered(kind, repository, commit)
    if altered is not None:
        raise ModelError(altered)


def _altered(kind: str, repository: str, commit: str) -> str | None:
    """Return which cached file of a commit differs from what the hub states, with the remedy."""
    copy = cached(kind, repository) / "snapshots" / commit
    if not copy.is_dir():
        return None
    for path in sorted(copy.rglob("*")):
        # It is a link to a file of the cache, which is named by the digest that the hub states.
        stated_digest = path.resolve().name
        if not SHA256.fullmatch(stated_digest) or not path.is_file():
            continue
        if remembered_digest(path) != stated_digest:
            return (
                f"{path.relative_to(copy)} of {repository} does not have the SHA-256 that the hub "
                "states: it was changed or damaged on its way; "
                f"delete {path.resolve()} and load it again"
            )
    return None


def cached(kind: str, repository: str) -> Path:
    """Return the folder of a repository in the cache of the hub's library."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE, f"{kind}s--{repository.replace('/', '--')}")


def patiently(ask: Callable[[], Answer]) -> Answer:
    """Ask the hub, and ask again after a pause while it answers that it is busy."""
    from huggingface_hub.errors import HfHubHTTPError

    for pause in PAUSES:
        try:
            return ask()
        except HfHubHTTPError as error:
            if error.response.status_code not in BUSY:
                raise
        sleep(pause)
    return ask()


def cause_of(error: BaseException, asked_for: str, revision: str | None = None) -> str | None:
    """Return the cause of a library's error, and the remedy, in one line; None if it is unknown.

    Args:
        asked_for: the repository.
        revision: its branch, tag or commit.
    """
    for cause in chain(error):
        # It may be another one, such as that of a tokenizer, which the model names.
        repository = getattr(cause, "repo_id", None) or asked_for
        message = _message_of(cause, repository, revision or "main")
        if message is not None:
            return message
    return None


def _message_of(error: BaseException, repository: str, revision: str) -> str | None:
    """Return what an error of the hub's library means, in one line; None for other errors."""
    from huggingface_hub import constants, errors

    set_token = "set HF_TOKEN to the token of an account that may read it"
    match error:
        case errors.GatedRepoError():
            address = f"{constants.ENDPOINT}/{repository}"
            return f"{repository} is gated: accept its terms at {address}, and {set_token}"
        case errors.RepositoryNotFoundError():
            return f"there is no repository {repository} on the hub, or it is private; {set_token}"
        case errors.RevisionNotFoundError():
            return f"{repository} has no revision {revision}; name a branch, a tag or a commit"
        case errors.RemoteEntryNotFoundError():
            path = str(error.response.url.path).partition("/resolve/")[2]
            file = path.partition("/")[2]
            return f"{repository} has no file {file} at revision {revision}; check both"
        case errors.HfHubHTTPError():
            return _message_of_status(error.response.status_code, repository, set_token)
        case httpx2.TimeoutException():
            return "the hub does not answer in time; check the network, HF_ENDPOINT and proxies"
        case httpx2.RequestError():
            return f"the hub does not answer ({error}); check the network, HF_ENDPOINT and proxies"
    return None


def _message_of_status(status: int, repository: str, set_token: str) -> str:
    if status in FORBIDDEN:
        return f"the hub forbids reading {repository} ({status}): {set_token}"
    meaning = responses.get(status, "error")
    return f"the hub answers {status} ({meaning}) for {repository}; try again later"


def refused(error: BaseException) -> bool:
    """Return whether the hub answered "no": a cached copy or a better network would not help."""
    from huggingface_hub.errors import HfHubHTTPError

    for cause in chain(error):
        if isinstance(cause, HfHubHTTPError):
            status = cause.response.status_code
            return status < FIRST_SERVER_ERROR and status != TOO_MANY_REQUESTS
    return False
