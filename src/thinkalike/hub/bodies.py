"""What comes of a file of the hub, over all requests for it: fast enough, whole, and with the hash that the hub states.

The hub states the hash of a file in the headers of a HEAD request: SHA-256 for large files, and git's SHA-1 of a blob
for others. A body that differs never reaches the cache.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote, urljoin

import httpx2

from thinkalike.errors import HubError
from thinkalike.progress import doing

WINDOW = 15.0  # seconds of waiting over which the speed is taken
SLOWEST = 1024.0  # bytes per second
BREAKS = 3  # breaks that a body may have in every
STRETCH = 2**20  # bytes


class Stated:
    """The hash and the size that the hub states for a file."""

    def __init__(self, etag: str, size: int | None):
        self.etag, self.size = etag, size

    def hasher(self) -> Any:
        """Return what computes the hash, or None for a kind that is not known."""
        if re.fullmatch(r"[0-9a-f]{64}", self.etag):
            return hashlib.sha256()
        if re.fullmatch(r"[0-9a-f]{40}", self.etag) and self.size is not None:
            return hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False)
        return None


class Body:
    """One file on its way."""

    def __init__(self, name: str, stated: Stated | None):
        self.name, self.stated = name, stated
        self.waited, self.recent = 0.0, 0  # seconds and bytes in this window
        self.breaks, self.since_break = 0, 0
        self.hasher: Any = None
        self.position = 0

    def begin(self, start: int, plain: bool) -> None:
        """Note that bytes come from this place on; a compressed body has no hash."""
        if start == 0:
            self.hasher, self.position = self.stated.hasher() if self.stated and plain else None, 0
        elif start != self.position:
            self.hasher = None

    def add(self, piece: bytes, waited: float) -> None:
        """Note bytes that came, and for how long they were waited for.

        Raises:
            HubError: the body comes too slowly.
        """
        self.position += len(piece)
        self.since_break += len(piece)
        if self.hasher is not None:
            self.hasher.update(piece)
        self.wait(waited, len(piece))

    def wait(self, waited: float, count: int = 0) -> None:
        """Note a time of waiting.

        Raises:
            HubError: the body comes too slowly.
        """
        self.waited, self.recent = self.waited + waited, self.recent + count
        if self.waited < WINDOW:
            return
        if self.recent < SLOWEST * self.waited:
            speed = self.recent / self.waited
            raise HubError(
                f"the hub sends {self.name} too slowly ({speed:.0f} bytes per second over {self.waited:.0f} s); "
                "try again later"
            )
        self.waited, self.recent = 0.0, 0

    def broke(self) -> None:
        """Note that the connection broke, and that the rest will be asked for.

        Raises:
            HubError: that happened too often.
        """
        self.breaks = 1 if self.since_break >= STRETCH else self.breaks + 1
        self.since_break = 0
        if self.breaks >= BREAKS:
            raise HubError(
                f"the hub breaks {self.name} off after {self.position:,} bytes, again and again; try again later"
            )

    def end(self) -> None:
        """Check the hash of a whole body.

        Raises:
            HubError: it is not the one that the hub states.
        """
        stated = self.stated
        if self.hasher is None or stated is None or stated.size not in (None, self.position):
            return  # a part of the file, whose length huggingface_hub checks
        if self.hasher.hexdigest() != stated.etag:
            raise HubError(
                f"{self.name} came damaged: its {self.position:,} bytes have not the hash that the hub states "
                f"({stated.etag[:12]}...); nothing was kept, so try again, or take another revision"
            )


class Bodies:
    """All files on their way, by address."""

    def __init__(self) -> None:
        self._stated: dict[str, Stated] = {}
        self._bodies: dict[str, Body] = {}

    def watched(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.SyncByteStream:
        """Return the stream of a response, watched; headers of a HEAD request are kept for the file itself."""
        address = str(request.url)
        if request.method == "HEAD":
            self._state(address, response)
        if request.method != "GET" or not response.is_success or "/api/" in request.url.path:
            return _Watched(response.stream, Body(unquote(request.url.path).rpartition("/")[2], None))
        if address not in self._bodies:
            name = unquote(request.url.path).partition("/resolve/")[2].partition("/")[2] or request.url.path
            self._bodies[address] = Body(name, self._stated.get(address))
        body = self._bodies[address]
        start = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
        body.begin(int(start[1]) if start else 0, response.headers.get("Content-Encoding", "identity") == "identity")
        return _Watched(response.stream, body, lambda: self._bodies.pop(address, None))  # done, or given up

    def _state(self, address: str, response: httpx2.Response) -> None:
        headers = response.headers
        etag = headers.get("X-Linked-Etag") or headers.get("ETag") or ""
        size = headers.get("X-Linked-Size") or headers.get("Content-Length") or ""
        if response.is_success or response.has_redirect_location:
            place = urljoin(address, headers.get("Location") or address)
            self._stated[place] = Stated(etag.removeprefix("W/").strip('"'), int(size) if size.isdigit() else None)


class _Watched(httpx2.SyncByteStream):
    """A stream of bytes that tells a Body of them."""

    def __init__(self, inner: Any, body: Body, forget: Callable[[], Any] = lambda: None):
        self._inner, self._body, self._forget = inner, body, forget

    def __iter__(self) -> Iterator[bytes]:
        try:
            stated = self._body.stated
            size = stated.size if stated and stated.size and stated.size >= STRETCH else None
            with doing(f"downloading {self._body.name}", size, self._body.position, in_bytes=True) as activity:
                for piece in self._pieces():
                    yield piece
                    activity.reach(self._body.position)
            self._body.end()
        except HubError:
            self._forget()
            raise
        self._forget()

    def _pieces(self) -> Iterator[bytes]:
        began = time.monotonic()
        try:
            for piece in self._inner:
                self._body.add(piece, time.monotonic() - began)
                yield piece
                began = time.monotonic()  # what the reader does with a piece is not the hub's time
        except httpx2.TimeoutException:
            self._body.wait(time.monotonic() - began)
            raise
        except httpx2.TransportError:
            self._body.broke()
            raise

    def close(self) -> None:
        """Close the stream."""
        self._inner.close()
