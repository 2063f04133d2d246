"""A hub on loopback: serves folders as model and data set repositories, as far as the loading libraries ask."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

NOWHERE = "http://127.0.0.1:9"  # an address where nothing answers
COMMIT = "0123456789abcdef0123456789abcdef01234567"
REVISIONS = ("main", COMMIT, "refs%2Fconvert%2Fparquet")


class _Handler(BaseHTTPRequestHandler):
    """`root/<owner>/<name>/...` are repositories; names without an owner are `root/<name>`."""

    root: Path
    truncate: tuple[str, ...] = ()
    asked: list[str]

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        asked = json.loads(self.rfile.read(length) or b"{}") if length else {}
        path = self.path.split("?")[0]
        if match := re.fullmatch(r"/api/(?:models|datasets)/(.+)/paths-info/[^/]+", path):
            folder, paths = self.root / match[1], asked.get("paths", [])
            found = [self._entry(folder, folder / name) for name in paths if (folder / name).is_file()]
            return self._json(found)
        return self._missing("EntryNotFound")

    def _answer(self, *, body: bool) -> None:
        path = self.path.split("?")[0]
        self.asked.append(path)
        if match := re.fullmatch(r"/api/(?:models|datasets)/(.+?)/tree/[^/]+(?:/(.*))?", path):
            folder, inside = self.root / match[1], self.root / match[1] / (match[2] or "")
            deep = "recursive=true" in self.path.lower()
            found = inside.rglob("*") if deep else inside.glob("*")
            return (
                self._json([self._entry(folder, item) for item in sorted(found)])
                if folder.is_dir()
                else self._missing("RepoNotFound")
            )
        if match := re.fullmatch(r"/api/(?:models|datasets)/(.+?)(?:/revision/([^/]+))?", path):
            return self._repository(match[1], match[2])
        if match := re.fullmatch(r"/(?:datasets/)?(.+)/resolve/([^/]+)/(.+)", path):
            return self._file(self.root / match[1], match[3], body)
        return self._missing("EntryNotFound")

    def _repository(self, name: str, revision: str | None) -> None:
        folder = self.root / name
        if not folder.is_dir() or not _files(folder):
            return self._missing("RepoNotFound")
        if revision is not None and revision not in REVISIONS:
            return self._missing("RevisionNotFound")
        files = [{"rfilename": str(path.relative_to(folder))} for path in _files(folder)]
        return self._json({"id": name, "sha": COMMIT, "siblings": files, "tags": [], "private": False, "downloads": 0})

    def _file(self, folder: Path, name: str, body: bool) -> None:
        path = folder / name
        if not path.is_file():
            return self._missing("EntryNotFound" if folder.is_dir() else "RepoNotFound")
        data = path.read_bytes()
        start, status = 0, 200
        if wanted := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or ""):
            start, status = int(wanted[1]), 206
            data_end = int(wanted[2]) + 1 if wanted[2] else len(data)
            part = data[start:data_end]
        else:
            part = data
        self.send_response(status)
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Accept-Ranges", "bytes")
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{start + len(part) - 1}/{len(data)}")
        self.end_headers()
        if body:
            self.wfile.write(part[: len(part) // 2] if path.name in self.truncate else part)
        return None

    def _entry(self, folder: Path, path: Path) -> dict:
        name = str(path.relative_to(folder))
        if path.is_dir():
            return {"type": "directory", "path": name, "oid": "0", "size": 0}
        return {
            "type": "file",
            "path": name,
            "size": path.stat().st_size,
            "oid": hashlib.sha1(name.encode()).hexdigest(),
        }

    def _json(self, value: object) -> None:
        text = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def _missing(self, code: str) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Repo-Commit", COMMIT)  # lets the client remember that there is no such file
        self.send_header("Content-Length", "0")
        self.end_headers()


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@contextlib.contextmanager
def serve(root: Path, truncate: tuple[str, ...] = ()) -> Iterator[tuple[str, list[str]]]:
    """Serve until closed; yields the address for HF_ENDPOINT and the list of what is asked. `truncate` names files
    of which only the first half arrives."""
    asked: list[str] = []
    handler = type("Handler", (_Handler,), {"root": root, "truncate": truncate, "asked": asked})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
