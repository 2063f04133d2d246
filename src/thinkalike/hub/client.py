"""The client through which huggingface_hub, transformers and datasets ask the hub.

It asks again where the hub is busy, as long as the hub says, but never much longer than PATIENCE; and it watches what
comes of every file (`thinkalike.hub.bodies`). When it gives a request up, the library above sees the last answer, so
that it may look into its cache, and the next request for the same address fails at once, because these libraries ask
again on their own, for minutes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from http.client import responses
from time import monotonic, sleep
from typing import Any

import httpx2

from thinkalike.errors import HubError
from thinkalike.hub.bodies import Bodies

log = logging.getLogger(__name__)

PATIENCE = 20.0  # seconds for which a busy hub is asked again
SILENCE = 8.0  # seconds without an answer, where the library above names no limit
TRIES = 2  # requests for one address that may fail without an answer
BUSY = (408, 429, 500, 502, 503, 504)


class PatientClient(httpx2.Client):
    """A client that asks a busy hub again, and that ends requests which come to nothing with one clear error.

    Attributes:
        trouble: the last error about a file other than that there is none, because transformers says of every file that
            it cannot have that there is none.
    """

    def __init__(self, **options: Any):
        super().__init__(**options)
        self._bodies = Bodies()
        self._failures: dict[str, list[HubError]] = {}
        self.trouble: Exception | None = None

    def send(self, request: httpx2.Request, *, stream: bool = False, **options: Any) -> httpx2.Response:
        """Send a request.

        Raises:
            HubError: earlier requests for this address came to nothing, or the body comes too slowly or damaged.
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
        response.stream = self._bodies.watched(request, response)
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
    """Return for how long a busy hub asks to wait, in seconds, or None if it does not say.

    Retry-After is a number of seconds or a date.
    """
    value = headers.get("Retry-After", "").strip()
    if value.isdigit():
        return float(value)
    try:
        return max((parsedate_to_datetime(value) - datetime.now(timezone.utc)).total_seconds(), 0.0)
    except (ValueError, TypeError):
        return None


def busy(status: int, asked: float | None) -> str:
    """Return in words that the hub has an error or asks to wait."""
    when = f"try again in {asked:.0f} s" if asked else "try again later"
    token = ", and with HF_TOKEN set you may ask more often" if status == 429 else ""
    return f"the hub still answers {status} ({responses.get(status, 'error')}); {when}{token}"


def unanswered(error: Exception, host: str) -> str:
    """Return in words why there is no answer."""
    words = str(error)
    if isinstance(error, httpx2.TimeoutException):
        why = "does not answer in time"
    elif "refused" in words:
        why = "does not answer (it refuses the connection)"
    elif any(part in words for part in ("Name or service", "Temporary failure in name", "nodename", "getaddrinfo")):
        why = "does not answer (its name is not known here)"
    elif "unreachable" in words or "No route" in words:
        why = "does not answer (there is no route to it)"
    else:
        why = f"does not answer ({type(error).__name__}: {words[:100]})"
    return f"{host} {why}; check the network, HF_ENDPOINT and proxies"


def _limit(request: httpx2.Request) -> None:
    """Set limits for the parts of a request that have none, and short ones where no body is waited for."""
    limits = {} if request.method == "HEAD" else request.extensions.get("timeout") or {}
    parts = ("connect", "read", "write", "pool")
    request.extensions["timeout"] = {part: limits.get(part) or SILENCE for part in parts}
