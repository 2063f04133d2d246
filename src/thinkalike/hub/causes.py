"""Why the hub did not give something, in one line that names the remedy."""

from __future__ import annotations

import os

import httpx2

from thinkalike.errors import HubError, chain
from thinkalike.hub.client import BUSY, busy, seconds_asked, unanswered

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
