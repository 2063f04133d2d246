"""The Hugging Face hub: the commit of a revision, and why a request failed, in one line.

huggingface_hub itself retries failed downloads. Only the first question, for the commit, is
retried here.
"""

from __future__ import annotations

import contextlib
import functools
import re
import warnings
from collections.abc import Callable, Iterator
from http.client import responses
from pathlib import Path, PurePosixPath
from time import monotonic, sleep
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeVar

import httpx2

from thinkalike.digests import remembered_digest
from thinkalike.errors import ConfigError, ModelError, chain, short
from thinkalike.files import LARGEST_READ_WHOLE, READ_WHOLE, too_large

if TYPE_CHECKING:
    from huggingface_hub import DatasetInfo, ModelInfo

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
RANGE_NOT_SATISFIABLE = 416
FIRST_SERVER_ERROR = 500
# After so many seconds, a download must have had so many bytes per second.
PATIENCE = 20.0
LEAST_RATE = 2000.0
# So many seconds after a file has last come further, it is not asked for again.
LONGEST_STANDSTILL = 15.0
# So many seconds after the hub was first busy for a file, it is not asked for it again. Its library
# alone would ask for half a minute, and other libraries would then begin anew.
LONGEST_BUSY = 14.0
# of an answer that is no file: what the hub says of 100,000 files takes a third of it
LARGEST_ANSWER = 2**25
SHA256 = re.compile(r"[0-9a-f]{64}")  # names of cached files whose digest the hub states
COMMIT_SHA = re.compile(r"[0-9a-f]{40}")

# What git refuses in the name of a branch or a tag (git help check-ref-format). The hub's library
# makes paths of these names, which "../x" and "/x" would lead out of its cache.
NO_REVISION = re.compile(
    r"[\x00-\x20\x7f~^:?*\[\\]"  # a control character, a space, or a sign of git's own
    r"|\.\.|@\{|//|^@$"
    r"|(^|/)\."  # a part that begins with a dot
    r"|^/|/$|\.$|\.lock($|/)"
)

# An ETag, of which the library makes the name of a file: a digest, or a mirror's word for one.
ETAG = re.compile(r'(W/)?"?[\w+=-]+"?')

# Where the answer to a resumed download begins.
RESUMED_FROM = re.compile(r"bytes (?P<start>\d+)-")

# A file of a certain commit, in the address of a request.
FILE_OF_COMMIT = re.compile(r"/(?P<repository>[^/]+/[^/]+)/resolve/(?P<commit>[0-9a-f]{40})/(?P<file>.+)")

# A file of any revision, such as main.
FILE_OF_REVISION = re.compile(r"/(?P<repository>[^/]+/[^/]+)/resolve/[^/]+/(?P<file>.+)")

# the code of the hub for a repository whose terms must be accepted
GATED = "GatedRepo"
SET_TOKEN = "set HF_TOKEN to the token of an account that may read it"

# codes of the hub of which its library makes errors that no other library passes over
OF_REPOSITORY = ("RepoNotFound", "RevisionNotFound")

# the files that the hub lists, by repository and commit
_listed_files: dict[tuple[str, str], frozenset[str]] = {}

# What the hub's library says of downloads that failed. Its remedies are arguments of its own.
WRONG_SIZE = re.compile(r"file should be of size (?P<stated>\S+) but has size (?P<received>\S+) \((?P<file>.*)\)")
FULL_DISK = re.compile(
    r"Not enough free disk space .* size is: (?P<needed>\S+) MB.*"
    r"location (?P<folder>.*) only has (?P<free>\S+) MB"
)
TOO_LARGE_WITHOUT_XET = "too large to be downloaded using the regular download method"


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
def sending_steadily() -> Iterator[None]:
    """End downloads of the hub's library that would take for ever, while this is open.

    The library limits the time between two bytes, and not the time of all bytes. It also makes
    paths of what the hub states, and reads answers of any size; see `_check_answer`.
    """
    from huggingface_hub.utils import get_session

    session = get_session()
    earlier_hooks = session.event_hooks
    watch = _Watch()
    session.event_hooks = {
        "request": [*earlier_hooks.get("request", ()), watch.ask],
        "response": [*earlier_hooks.get("response", ()), watch.begin],
    }
    try:
        with warnings.catch_warnings():
            # It is certain that the download would fail.
            warnings.filterwarnings("error", message="Not enough free disk space")
            yield
    except Exception as error:
        if watch.refusals and error is not watch.refusals[0]:
            raise watch.refusals[0] from error  # transformers calls the file missing
        raise
    finally:
        session.event_hooks = earlier_hooks
    if watch.refusals:
        raise watch.refusals[0]
    for message in watch.busy_files.values():
        raise ModelError(message)  # its library gave up, and another one took it for missing


class _Watch:
    """Watches the answers of the hub.

    Attributes:
        refusals: The errors of answers that were refused; after one, nothing more is asked.
        progress: By address, how far the file has come that is being downloaded.
        busy_since: By path, when the hub was first busy for a file that it has not given since.
        busy_files: By path, what to say of a listed file whose last answer was that the hub is
            busy.
    """

    def __init__(self) -> None:
        self.refusals: list[ModelError] = []
        self.progress: dict[str, _Progress] = {}
        self.busy_since: dict[str, float] = {}
        self.busy_files: dict[str, str] = {}

    def ask(self, request: httpx2.Request) -> None:
        """Check that a question makes sense after the answers to earlier ones."""
        if self.refusals:
            raise self.refusals[0]
        if request.method == "GET":
            self.check_moves(_address(request))

    def check_moves(self, address: str) -> None:
        """Check that the download of a file still moves, over all of its attempts.

        The library repeats an attempt without end as long as each brings a byte, also an old one.
        """
        progress = self.progress.setdefault(address, _Progress())
        now = monotonic()
        standstill = now - progress.last_moved
        seconds = now - progress.began
        is_slow = seconds > PATIENCE and progress.bytes < LEAST_RATE * seconds
        if standstill > LONGEST_STANDSTILL or is_slow:
            raise self.refuse(
                f"{_file_of_host(address)} was interrupted after {progress.bytes:,} bytes, again "
                f"and again for {seconds:.0f} s; check the network, HF_ENDPOINT and proxies"
            )

    def begin(self, response: httpx2.Response) -> None:
        """Check an answer, and let its content be checked as it is read."""
        if response.is_error:  # the library pauses before it asks again
            self.progress.pop(_address(response.request), None)
        try:
            _check_answer(response)
            _check_is_given(response)
            self.note_busy_file(response)
        except ModelError as error:
            self.refusals.append(error)
            raise
        if not isinstance(response.stream, httpx2.SyncByteStream):
            return

        response.stream = _SteadyStream(response, response.stream, self)
        decoder = _CountingDecoder(response, self)
        response._decoder = decoder  # type: ignore[assignment]
        read_whole = response.read

        def read() -> bytes:
            decoder.most = LARGEST_ANSWER
            return read_whole()

        # Files go to the disk by chunks; all else is read by this function.
        response.read = read  # type: ignore[method-assign]

    def note_busy_file(self, response: httpx2.Response) -> None:
        """Note whether the last answer for a file was that the hub is busy.

        Raises:
            ModelError: The hub has been busy for too long, or asks to wait for too long.
        """
        path = response.request.url.path
        asked = FILE_OF_COMMIT.search(path)
        self.busy_files.pop(path, None)
        is_of_file = not path.startswith("/api/")  # such questions are for `patiently`
        if response.status_code not in BUSY or not is_of_file:
            self.busy_since.pop(path, None)
            return
        file = _file_of_host(_address(response.request))  # where the hub redirects to
        of_revision = FILE_OF_REVISION.search(path)
        if of_revision is not None:
            file = f"{of_revision['file']} of {of_revision['repository']}"
        message = _message_of_status(response.status_code, file)
        now = monotonic()
        busy_since = self.busy_since.setdefault(path, now)
        if now + _pause_asked_for(response) > busy_since + LONGEST_BUSY:
            raise ModelError(message)
        if asked is not None and _is_listed(asked):
            self.busy_files[path] = message

    def refuse(self, message: str) -> ModelError:
        """Return the error of an answer whose content is refused."""
        error = ModelError(message)
        self.refusals.append(error)
        return error


def _check_answer(response: httpx2.Response) -> None:
    """Refuse an answer of the hub that would lead its library astray.

    Raises:
        ModelError: a commit or an ETag cannot be one, so that files would be written outside the
            cache; the file is of another commit than was asked for; or it is too large to be read
            as a whole.
    """
    from huggingface_hub import constants

    address = response.request.url.path
    commit = response.headers.get(constants.HUGGINGFACE_HEADER_X_REPO_COMMIT)
    if commit is not None:
        if not COMMIT_SHA.fullmatch(commit):
            raise ModelError(
                f"{constants.ENDPOINT} states the commit {short(commit)} for {address}, which is "
                "not 40 hexadecimal digits; check HF_ENDPOINT and proxies"
            )
        asked = FILE_OF_COMMIT.search(address)
        if asked is not None and not response.is_error and asked["commit"] != commit:
            raise ModelError(
                f"{constants.ENDPOINT} has {address} of the commit {commit} alone, so that files "
                "of two commits would be mixed; check HF_ENDPOINT, and load it again"
            )
        for header in (constants.HUGGINGFACE_HEADER_X_LINKED_ETAG, "ETag"):
            etag = response.headers.get(header)
            if etag is not None and not ETAG.fullmatch(etag):
                raise ModelError(
                    f"{constants.ENDPOINT} states the {header} {short(etag)} for {address}, which "
                    "is no digest of a file; check HF_ENDPOINT and proxies"
                )

    most = _most_bytes(response)
    for header in (constants.HUGGINGFACE_HEADER_X_LINKED_SIZE, "Content-Length"):
        size = response.headers.get(header, "")
        if most is not None and size.isdecimal() and int(size) > most:
            raise ModelError(too_large(address, int(size)))


def _pause_asked_for(response: httpx2.Response) -> float:
    """Return for how many seconds a busy hub asks not to be asked again; 0 if it does not say."""
    from huggingface_hub.utils import parse_ratelimit_headers

    limit = parse_ratelimit_headers(response.headers)
    if limit is not None and limit.remaining == 0:
        return float(limit.reset_in_seconds)
    stated = response.headers.get("Retry-After", "")
    return float(stated) if stated.isdecimal() else 0.0


def _is_listed(asked: re.Match[str]) -> bool:
    """Return whether the hub lists a file, of a match of FILE_OF_COMMIT, for its commit."""
    return asked["file"] in _listed_files.get((asked["repository"], asked["commit"]), ())


def _check_is_given(response: httpx2.Response) -> None:
    """Raise a ModelError if the hub does not give a file that it lists for the commit.

    Libraries take such a file for one that is missing, and read another one in its place, such as
    an older file of weights. What the hub answers when it is busy is left to its library, which
    asks again.
    """
    asked = FILE_OF_COMMIT.search(response.request.url.path)
    status = response.status_code
    is_refusal = response.is_client_error and status not in (*BUSY, RANGE_NOT_SATISFIABLE)
    if asked is None or not is_refusal:
        return
    repository = asked["repository"]
    code = response.headers.get("X-Error-Code")
    if not _is_listed(asked) or code in OF_REPOSITORY:
        return
    if code == GATED:
        raise ModelError(_message_of_gate(repository))
    raise ModelError(_message_of_status(status, f"{asked['file']} of {repository}"))


def _most_bytes(response: httpx2.Response) -> int | None:
    """Return the most bytes that the file of an answer may have; None if there is no limit."""
    if response.request.url.path.endswith(READ_WHOLE):
        return LARGEST_READ_WHOLE
    return None


def _address(request: httpx2.Request) -> str:
    """Return the address of a request without its query, which may hold a signature."""
    return str(request.url.copy_with(query=None))


def _file_of_host(address: str) -> str:
    """Return the last name of an address, and its host, as messages show them."""
    url = httpx2.URL(address)
    return f"{short(PurePosixPath(url.path).name)} of {short(url.host)}"


class _Decoder(Protocol):
    """Makes the content of an answer from the bytes that were sent."""

    def decode(self, data: bytes) -> Iterator[bytes]: ...
    def flush(self) -> Iterator[bytes]: ...


class _CountingDecoder:
    """Decodes an answer as its encoding wants it, and raises an error beyond `most` bytes.

    A compressed answer may become a thousand times as large as what was sent.
    """

    def __init__(self, response: httpx2.Response, watch: _Watch):
        self.most = _most_bytes(response)
        self._address = _address(response.request)
        self._decoder: _Decoder = response._get_content_decoder()
        self._watch = watch
        self._count = 0

    def decode(self, data: bytes) -> Iterator[bytes]:
        return self._counted(self._decoder.decode(data))

    def flush(self) -> Iterator[bytes]:
        return self._counted(self._decoder.flush())

    def _counted(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            self._count += len(chunk)
            if self.most is not None and self._count > self.most:
                raise self._watch.refuse(
                    f"{_file_of_host(self._address)} has more than {self.most:,} bytes, and would "
                    "be read as a whole; check HF_ENDPOINT and proxies"
                )
            yield chunk


class _Progress:
    """How far the download of a file has come, over all of its attempts.

    Attributes:
        bytes: The bytes from the beginning of the file that have arrived.
        began: The time at which the file was asked for.
        last_moved: The time at which the last of the bytes arrived.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self.began = monotonic()
        self.last_moved = self.began

    def move(self, position: int) -> None:
        """Note that the file has arrived up to a position."""
        if position > self.bytes:
            self.bytes = position
            self.last_moved = monotonic()


class _SteadyStream(httpx2.SyncByteStream):
    """A stream of bytes that raises an error if too few arrive, or only old ones."""

    def __init__(self, response: httpx2.Response, stream: httpx2.SyncByteStream, watch: _Watch):
        resumed = RESUMED_FROM.match(response.headers.get("Content-Range", ""))
        self._start = 0
        if resumed is not None:
            self._start = int(resumed["start"])
        self._address = _address(response.request)
        self._stream = stream
        self._watch = watch
        self._will_be_resumed = False

    def __iter__(self) -> Iterator[bytes]:
        progress = self._watch.progress.get(self._address, _Progress())
        try:
            yield from self._steady(progress)
        except (httpx2.TimeoutException, httpx2.RemoteProtocolError):
            self._will_be_resumed = True
            raise

    def _steady(self, progress: _Progress) -> Iterator[bytes]:
        began = monotonic()
        received = 0
        for chunk in self._stream:
            received += len(chunk)
            progress.move(self._start + received)
            seconds = monotonic() - began
            if seconds > PATIENCE and received < LEAST_RATE * seconds:
                raise httpx2.ReadError(f"it sent {received:,} bytes in {seconds:.0f} s")
            yield chunk

    def close(self) -> None:
        if not self._will_be_resumed:
            self._watch.progress.pop(self._address, None)
        self._stream.close()


@functools.cache
@sending_steadily()
def resolved(kind: RepositoryKind, repository: str, revision: str | None) -> Commit:
    """Return the commit that a revision stands for: the hub's answer, or that of a cached copy.

    The hub is asked once in a process, until `resolved.cache_clear()`.

    Raises:
        ConfigError: the revision cannot be one.
        Exception: the hub does not answer or refuses, and there is no copy; `cause_of` explains
            it.
    """
    import huggingface_hub
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    check_revision(revision, repository)

    huggingface_hub.logging.set_verbosity_error()  # the cause is told once, in one line
    api = huggingface_hub.HfApi(endpoint=huggingface_hub.constants.ENDPOINT)

    def ask() -> ModelInfo | DatasetInfo:
        if kind == "model":
            return api.model_info(repository, revision=revision, timeout=ANSWER_SECONDS)
        return api.dataset_info(repository, revision=revision, timeout=ANSWER_SECONDS)

    try:
        info = patiently(ask)
        sha = _stated_commit(info)
    except (RepositoryNotFoundError, RevisionNotFoundError):
        raise
    except Exception as error:  # no network, a time-out, offline mode, an HTML page
        commit = _cached_commit(kind, repository, revision, error)
        if commit is None:
            raise
        return commit

    if sha != revision:
        _remember_branch(kind, repository, revision)
    files = tuple(sibling.rfilename for sibling in info.siblings or [])
    for name in {repository, info.id}:
        _listed_files[name, sha] = frozenset(files)
    return Commit(sha, files, repository=info.id)


def check_revision(revision: object, repository: str) -> None:
    """Raise a ConfigError for what can be no branch, tag or commit of a repository."""
    if revision is None or revision == "":
        return
    if not isinstance(revision, str) or NO_REVISION.search(revision):
        raise ConfigError(
            f"revision={short(str(revision))} of {repository} can be no branch, tag or commit; name one, such as main"
        )


def _stated_commit(info: ModelInfo | DatasetInfo) -> str:
    """Return the commit that the hub states, which names a folder of the cache.

    Raises:
        ValueError: it is no commit, or the repository has a name of a folder of this machine.
    """
    from huggingface_hub.utils import validate_repo_id

    if not isinstance(info.sha, str) or not COMMIT_SHA.fullmatch(info.sha):
        raise ValueError(f"the hub states the commit {short(info.sha)}, which is not 40 hexadecimal digits")
    try:
        validate_repo_id(info.id)
    except ValueError:
        raise ValueError(f"the hub states the repository {short(info.id)}, which is none") from None
    return info.sha


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
        with sending_steadily():
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
    from huggingface_hub import errors

    match error:
        case errors.GatedRepoError():
            return _message_of_gate(repository)
        case errors.RepositoryNotFoundError():
            return f"there is no repository {repository} on the hub, or it is private; {SET_TOKEN}"
        case errors.RevisionNotFoundError():
            return f"{repository} has no revision {revision}; name a branch, a tag or a commit"
        case errors.RemoteEntryNotFoundError():
            path = str(error.response.url.path).partition("/resolve/")[2]
            file = path.partition("/")[2]
            return f"{repository} has no file {file} at revision {revision}; check both"
        case errors.HfHubHTTPError():
            return _message_of_status(error.response.status_code, repository)
        case httpx2.TimeoutException():
            return "the hub does not answer in time; check the network, HF_ENDPOINT and proxies"
        case httpx2.RequestError():
            return f"the hub does not answer ({error}); check the network, HF_ENDPOINT and proxies"
    return _message_of_download(str(error), repository)


def _message_of_download(reason: str, repository: str) -> str | None:
    """Return what the library says of a download that failed, with a remedy that exists here."""
    wrong_size = WRONG_SIZE.search(reason)
    if wrong_size is not None:
        return (
            f"{short(wrong_size['file'])} of {repository} came with {wrong_size['received']} bytes, "
            f"and the hub states {wrong_size['stated']}: it was damaged on its way, and nothing of "
            "it was kept; load it again, and check HF_ENDPOINT and proxies"
        )
    full_disk = FULL_DISK.search(reason)
    if full_disk is not None:
        return (
            f"the hub states a file of {full_disk['needed']} MB in {repository}, and "
            f"{full_disk['folder']} has {full_disk['free']} MB of free space; delete files there, "
            "or set HF_HOME to a folder on a larger disk"
        )
    if TOO_LARGE_WITHOUT_XET in reason:
        return (
            f"the hub states a file of more than 50 GB in {repository}, which comes by Xet alone; "
            "pip install hf_xet, and unset HF_HUB_DISABLE_XET"
        )
    return None


def _message_of_gate(repository: str) -> str:
    """Return the message that a repository is gated, with the remedy."""
    from huggingface_hub import constants

    address = f"{constants.ENDPOINT}/{repository}"
    return f"{repository} is gated: accept its terms at {address}, and {SET_TOKEN}"


def _message_of_status(status: int, what: str) -> str:
    """Return the message that the hub refuses a repository or a file, by the HTTP status."""
    if status in FORBIDDEN:
        return f"the hub forbids reading {what} ({status}): {SET_TOKEN}"
    meaning = responses.get(status, "error")
    return f"the hub answers {status} ({meaning}) for {what}; try again later"


def refused(error: BaseException) -> bool:
    """Return whether the hub answered "no": a cached copy or a better network would not help."""
    from huggingface_hub.errors import HfHubHTTPError

    for cause in chain(error):
        if isinstance(cause, HfHubHTTPError):
            status = cause.response.status_code
            return status < FIRST_SERVER_ERROR and status != TOO_MANY_REQUESTS
    return False
