"""A hub on loopback: serves folders as model and data set repositories, as far as the loading libraries ask."""

import contextlib
import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from thinkalike.hub import resolved

NOWHERE = "http://127.0.0.1:9"  # an address where nothing answers
READER = "hf_reader"  # a token
COMMIT = "0123456789abcdef0123456789abcdef01234567"
REVISIONS = ("main", COMMIT, "refs%2Fconvert%2Fparquet")


@dataclass
class Fault:
    """What goes wrong with the requests whose path contains some text.

    Attributes:
        status: the answer.
        code: what the hub says of the cause.
        times: how many requests go wrong before all is well.
        silence: seconds before the answer.
        pause: seconds before each byte of a file.
        altered: whether the content of a file is not the one that its ETag states.
        answer: the body of an answer of the API, with its headers, in place of the true one.
        states: headers of a file or of a refusal, or facts of a repository, in place of the true ones.
    """

    status: int | None = None
    code: str = ""
    times: int | None = None
    silence: float = 0
    pause: float = 0
    altered: bool = False
    answer: tuple[bytes, dict[str, str]] | None = None
    states: dict[str, Any] = field(default_factory=dict)


class _Handler(BaseHTTPRequestHandler):
    """`root/<owner>/<name>/...` are repositories; names without an owner are `root/<name>`.

    `root/<owner>/<name>@<branch>/...` are the files of a branch that has files of its own.
    """

    root: Path
    asked: list[str]
    faults: dict[str, Fault]
    commit: str
    gated: tuple[str, ...] = ()
    private: tuple[str, ...] = ()
    revisions: tuple[str, ...] = ()

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
        fault = self._fault()
        time.sleep(fault.silence)
        if fault.status:
            return self._missing(fault.code, fault.status, fault.states)
        if fault.answer is not None:
            content, headers = fault.answer
            return self._send(200, {"Content-Type": "application/json", **headers}, content)
        if refusal := self._refusal(path):
            return self._missing(*refusal)
        if match := re.fullmatch(r"/api/(?:models|datasets)/(.+?)/refs", path):
            own = [folder.name.rpartition("@")[2] for folder in self.root.glob(f"{match[1]}@*")]
            names = ("main", *self.revisions, *own)
            branches = [{"name": name, "ref": f"refs/heads/{name}", "targetCommit": self.commit} for name in names]
            return self._json({"branches": branches, "tags": [], "converts": []})
        if match := re.fullmatch(r"/api/(?:models|datasets)/(.+?)/tree/[^/]+(?:/(.*))?", path):
            folder, inside = self.root / match[1], self.root / match[1] / (match[2] or "")
            deep = "recursive=true" in self.path.lower()
            if not folder.is_dir():
                return self._missing("RepoNotFound")
            found = sorted(inside.rglob("*") if deep else inside.glob("*"))
            return self._json([self._entry(folder, item) for item in found])
        if match := re.fullmatch(r"/api/(models|datasets)/(.+?)(?:/revision/([^/]+))?", path):
            return self._repository(match[1], match[2], match[3], fault)
        if match := re.fullmatch(r"/(?:datasets/)?(.+)/resolve/([^/]+)/(.+)", path):
            folder, self.commit = self._at(self._present(match[1]), match[2])  # of this request alone
            return self._file(folder, match[3], body, fault)
        return self._missing("EntryNotFound")

    def _refusal(self, path: str) -> tuple[str, int] | None:
        """What the hub answers to those who may not read: it does not say that there is a private repository."""
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token == READER:
            return None
        if any(f"/{name}/" in f"{path}/" for name in self.private):
            return ("RepoNotFound", 404 if token else 401)
        if "/resolve/" in path and any(f"/{name}/" in path for name in self.gated):
            return ("GatedRepo", 403 if token else 401)
        return None

    def _present(self, name: str) -> str:
        """The name with an owner that an old name without one leads to, if there is one."""
        is_old = "/" not in name and not (self.root / name).is_dir()
        found = self.root.glob(f"*/{name}") if is_old else ()
        return next((str(each.relative_to(self.root)) for each in found), name)

    def _repository(self, kind: str, name: str, revision: str | None, fault: Fault) -> None:
        name = self._present(name)
        folder, commit = self._at(name, revision)
        if not folder.is_dir() or not _files(folder) or _is_set(folder) != (kind == "datasets"):
            return self._missing("RepoNotFound")
        known = (None, *REVISIONS, *self.revisions, self.commit)
        if revision not in known and folder == self.root / name:
            return self._missing("RevisionNotFound")
        files = [{"rfilename": str(path.relative_to(folder))} for path in _files(folder)]
        facts = {"id": name, "sha": commit, "siblings": files, "tags": [], "private": False}
        return self._json({**facts, **fault.states})

    def _at(self, name: str, revision: str | None) -> tuple[Path, str]:
        """The folder of a revision, NAME@REVISION if it has files of its own, and its commit."""
        for own in self.root.glob(f"{name}@*"):
            branch = own.name.rpartition("@")[2]
            commit = hashlib.sha1(branch.encode()).hexdigest()
            if revision in (branch, commit):
                return own, commit
        return self.root / name, self.commit

    def _file(self, folder: Path, name: str, body: bool, fault: Fault) -> None:
        path = folder / name
        if not path.is_file():
            return self._missing("EntryNotFound" if folder.is_dir() else "RepoNotFound")
        data = path.read_bytes()
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        start = int(wanted[1]) if wanted else 0
        part = data[start : int(wanted[2]) + 1 if wanted and wanted[2] else None]
        self.send_response(206 if wanted else 200)
        headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": self.commit}
        for header, value in {**headers, "Content-Length": str(len(part)), **fault.states}.items():
            self.send_header(header, value)
        self.send_header("Accept-Ranges", "bytes")
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{start + len(part) - 1}/{len(data)}")
        self.end_headers()
        if fault.altered:
            part = part[:-1] + bytes([part[-1] ^ 1])
        if body:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                for byte in part if fault.pause else ():
                    time.sleep(fault.pause)
                    self.wfile.write(bytes([byte]))
                if not fault.pause:
                    self.wfile.write(part)
        return None

    def _fault(self) -> Fault:
        """What goes wrong with this request; each call counts for a status or a silence."""
        for text, fault in self.faults.items():
            if text in self.path and fault.times != 0:
                if fault.times is not None:
                    fault.times -= 1
                return fault
        return Fault()

    def _entry(self, folder: Path, path: Path) -> dict:
        name = str(path.relative_to(folder))
        if path.is_dir():
            return {"type": "directory", "path": name, "oid": "0", "size": 0}
        oid = hashlib.sha1(name.encode()).hexdigest()
        return {"type": "file", "path": name, "size": path.stat().st_size, "oid": oid}

    def _json(self, value: object) -> None:
        self._say(200, {"Content-Type": "application/json"}, json.dumps(value))

    def _missing(self, code: str, status: int = 404, states: dict[str, Any] | None = None) -> None:
        # the commit lets the client remember that there is no such file
        self._say(status, {"X-Error-Code": code, "X-Repo-Commit": self.commit, **(states or {})}, "")

    def _say(self, status: int, headers: dict[str, str], body: str) -> None:
        self._send(status, headers, body.encode())

    def _send(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.wfile.write(content)


def _is_set(folder: Path) -> bool:
    data = (".jsonl", ".parquet", ".csv", ".tsv")
    return not (folder / "config.json").exists() and any(path.suffix in data for path in _files(folder))


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@contextlib.contextmanager
def serve(
    root: Path,
    faults: dict[str, Fault] | None = None,
    commit: str = COMMIT,
    gated: tuple[str, ...] = (),
    private: tuple[str, ...] = (),
    revisions: tuple[str, ...] = (),
) -> Iterator[tuple[str, list[str]]]:
    """Serve until closed; yields the address for HF_ENDPOINT and the list of what is asked.

    Args:
        faults: what goes wrong, by a part of the path that is asked for.
        commit: what the branch `main` is.
        gated: repositories of which only the token READER may read files.
        private: repositories that only the token READER may know of.
        revisions: branches beside `main`, of the same commit.
    """
    asked: list[str] = []
    facts = {"root": root, "asked": asked, "faults": faults or {}, "commit": commit}
    facts |= {"gated": gated, "private": private, "revisions": revisions}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), facts))
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


def redirect(monkeypatch: Any, endpoint: str, cache: Path) -> None:
    """Send this process's requests to a hub on loopback."""
    files = f"{endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    places = {
        "huggingface_hub.constants.ENDPOINT": endpoint,
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE": files,
        "huggingface_hub.constants.HF_HUB_CACHE": str(cache),
        "huggingface_hub.hf_api.api.endpoint": endpoint,
        "huggingface_hub.constants.HF_HUB_DISABLE_XET": True,  # large files by git-lfs, which the hub takes, too
        "datasets.config.HF_ENDPOINT": endpoint,
        "transformers.utils.hub._hf_api": None,  # a client with the address of the first hub that it was asked for
    }
    for name, value in places.items():
        monkeypatch.setattr(name, value, raising=False)
    resolved.cache_clear()
