"""The Hugging Face hub: requests that wait no longer than they should, causes of failures in one line, and commits."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
from collections.abc import Iterator, Mapping
from http.client import responses
from json import JSONDecodeError
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote

import httpx2

from thinkalike.errors import HubError, chain, listed, nearest
from thinkalike.progress import doing

__all__ = ["ANSWER_SECONDS", "Commit", "be_patient", "cause_of", "forget_commits", "refused", "resolved", "trouble"]


# ------------------------------------------------------------
# Which commit a revision of a repository is, asked once in a process.

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
        if isinstance(error, (KeyError, JSONDecodeError)):  # an HTML page, or JSON without an id
            error = HubError(f"{endpoint} does not answer as a hub does; check HF_ENDPOINT and proxies")
        if sha := _cached(kind, repository, revision or "main", Path(cache)):
            return Commit(sha, error)
        raise error
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


# ------------------------------------------------------------
# The client through which huggingface_hub, transformers and datasets ask the hub.
#
# It asks again where the hub is busy, as long as the hub says, but never much longer than PATIENCE. When it gives a
# request up, the library above sees the last answer, so that it may look into its cache, and the next request for the
# same address fails at once, because these libraries ask again on their own, for minutes.

log = logging.getLogger(__name__)

PATIENCE = 20.0  # seconds for which a busy hub is asked again
SILENCE = 8.0  # seconds without an answer, where the library above names no limit
TRIES = 2  # requests for one address that may fail without an answer
SHOWN = 2**20  # bytes from which a download shows its progress
BUSY = (408, 429, 500, 502, 503, 504)


class PatientClient(httpx2.Client):
    """A client that asks a busy hub again, and that ends requests which come to nothing with one clear error.

    Attributes:
        trouble: the last error about a file other than that there is none, because transformers says of every file that
            it cannot have that there is none.
    """

    def __init__(self, **options: Any):
        super().__init__(**options)
        self._failures: dict[str, list[HubError]] = {}
        self.trouble: Exception | None = None

    def send(self, request: httpx2.Request, *, stream: bool = False, **options: Any) -> httpx2.Response:
        """Send a request.

        Raises:
            HubError: earlier requests for this address came to nothing.
            httpx2.RequestError: there is no answer.
        """
        address = str(request.url.copy_with(query=None))
        if len(self._failures.get(address, [])) >= TRIES:
            self.trouble = self._failures.pop(address)[-1]
            raise self.trouble
        _limit(request)
        try:
            response = self._ask(request, address, options)
        except httpx2.RequestError as error:
            self.trouble = HubError(unanswered(error, request.url.host))
            self._failures.setdefault(address, []).append(self.trouble)
            raise
        response.stream = _Shown(request, response)
        if not stream or response.is_error:
            try:
                response.read()
            except BaseException:
                response.close()
                raise
        self._note(response)
        return response

    def _note(self, response: httpx2.Response) -> None:
        """Keep the error that an answer about a file stands for."""
        from huggingface_hub.errors import RemoteEntryNotFoundError
        from huggingface_hub.utils import hf_raise_for_status

        if not (response.is_error and "/resolve/" in response.url.path):
            return
        try:
            hf_raise_for_status(response)
        except RemoteEntryNotFoundError:
            return
        except Exception as error:
            self.trouble = error

    def _ask(self, request: httpx2.Request, address: str, options: Mapping[str, Any]) -> httpx2.Response:
        """Return the first answer of a hub that is not busy, or the last one after PATIENCE."""
        began, pause = monotonic(), 1.0
        while True:
            response = super().send(request, stream=True, **options)
            if response.status_code not in BUSY:
                self._failures.pop(address, None)
                return response
            asked = seconds_asked(response.headers)
            wait = pause if asked is None else asked
            if monotonic() - began + wait > PATIENCE:
                self._failures[address] = [HubError(busy(response.status_code, asked))] * TRIES
                return response
            response.close()
            log.info("the hub answers %s; asking again in %.0f s", response.status_code, wait)
            sleep(wait)
            pause *= 2


def trouble() -> Exception | None:
    """Return the last error about a file since `be_patient` was called, which a library may have kept to itself."""
    import huggingface_hub

    return getattr(huggingface_hub.get_session(), "trouble", None)


def be_patient() -> None:
    """Let huggingface_hub and all that use it ask through a PatientClient, and forget earlier trouble."""
    import huggingface_hub

    huggingface_hub.logging.set_verbosity_error()  # the causes are told in one line, here
    usual = huggingface_hub.get_session()
    if isinstance(usual, PatientClient):
        usual.trouble = None
    else:
        hooks = usual.event_hooks  # they forbid requests in offline mode, and name each one
        huggingface_hub.set_client_factory(
            lambda: PatientClient(event_hooks=hooks, follow_redirects=True, timeout=None)
        )


def seconds_asked(headers: Mapping[str, str]) -> float | None:
    """Return for how long a busy hub asks to wait, in seconds, or None if it does not say."""
    value = headers.get("Retry-After", "").strip()
    return float(value) if value.isdigit() else None


def busy(status: int, asked: float | None) -> str:
    """Return in words that the hub has an error or asks to wait."""
    when = f"try again in {asked:.0f} s" if asked else "try again later"
    token = ", and with HF_TOKEN set you may ask more often" if status == 429 else ""
    return f"the hub still answers {status} ({responses.get(status, 'error')}); {when}{token}"


def unanswered(error: Exception, host: str) -> str:
    """Return in words why there is no answer."""
    why = "in time" if isinstance(error, httpx2.TimeoutException) else f"({type(error).__name__}: {str(error)[:100]})"
    return f"{host} does not answer {why}; check the network, HF_ENDPOINT and proxies"


class _Shown(httpx2.SyncByteStream):
    """The body of an answer, whose progress is shown where it is large."""

    def __init__(self, request: httpx2.Request, response: httpx2.Response):
        self._inner: Any = response.stream
        self._name = unquote(request.url.path).rpartition("/")[2]
        size = response.headers.get("Content-Length", "")
        self._size = int(size) if size.isdigit() else 0

    def __iter__(self) -> Iterator[bytes]:
        if self._size < SHOWN:
            yield from self._inner
            return
        done = 0
        with doing(f"downloading {self._name}", self._size, in_bytes=True) as activity:
            for piece in self._inner:
                yield piece
                done += len(piece)
                activity.reach(done)

    def close(self) -> None:
        """Close the stream."""
        self._inner.close()


def _limit(request: httpx2.Request) -> None:
    """Set limits for the parts of a request that have none, and short ones where no body is waited for."""
    limits = {} if request.method == "HEAD" else request.extensions.get("timeout") or {}
    parts = ("connect", "read", "write", "pool")
    request.extensions["timeout"] = {part: limits.get(part) or SILENCE for part in parts}


# ------------------------------------------------------------
# Why the hub did not give something, in one line that names the remedy.

MAYBE_MORE = "set HF_TOKEN to the token of an account that may read it"


def cause_of(error: BaseException, repository: str, revision: str | None = None) -> str | None:
    """Return the cause of an error of huggingface_hub and what to do, or None if the hub is not the cause.

    Args:
        error: what a library raised; its causes are looked through.
        repository: what was asked for, for the message.
        revision: the branch, tag or commit of it.
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

    if isinstance(error, HubError):
        return str(error)
    if isinstance(error, errors.GatedRepoError):
        page = f"{os.environ.get('HF_ENDPOINT', 'https://huggingface.co')}/{repository}"
        return f"{repository} is gated: accept its terms at {page}, and {MAYBE_MORE}"
    if isinstance(error, errors.DisabledRepoError):
        return f"the hub has disabled {repository}; take another repository"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"there is no repository {repository} on the hub, or it is private: check its name, or {MAYBE_MORE}"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{repository} has no revision {revision}; name a branch, a tag or a commit that it has"
    if isinstance(error, errors.RemoteEntryNotFoundError):
        name = _file(error.response)
        return f"{repository} has no file {name} at revision {revision}; check the repository and the revision"
    if isinstance(error, errors.HfHubHTTPError):
        return _of_status(error.response, repository)
    if isinstance(error, httpx2.RequestError):
        return unanswered(error, _host(error))
    if isinstance(error, errors.OfflineModeIsEnabled):
        return "the hub is not asked, because HF_HUB_OFFLINE is set; unset it"
    if isinstance(error, OSError) and "Consistency check failed" in str(error):
        return f"a file of {repository} came with another size than the hub states; nothing was kept, so try again"
    return None


def _of_status(response: httpx2.Response, repository: str) -> str:
    status = response.status_code
    if status in (401, 403):
        return f"the hub forbids to read {repository} ({status}): {MAYBE_MORE}"
    if status in BUSY:
        return busy(status, seconds_asked(response.headers))
    return f"the hub answers {status} for {repository}; check HF_ENDPOINT, or try again later"


def _file(response: httpx2.Response) -> str:
    path = str(response.url.path)
    return path.partition("/resolve/")[2].partition("/")[2] or path


def _host(error: httpx2.RequestError) -> str:
    try:
        return error.request.url.host
    except RuntimeError:  # raised outside of a request
        return "the hub"
