"""The other half of the hub on loopback: what huggingface_hub asks for when it makes a repository and commits files."""

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

LARGE = (".safetensors", ".bin")  # kept by git-lfs, as the hub's .gitattributes say


class Uploads:
    """A mixin of the handler: repositories are made under `root`, and large files come by themselves before the commit.

    Needs `root`, `asked`, `writer`, `stored`, `commit`, `_fault`, `_json` and `_missing` of the handler.
    """

    root: Path
    writer: str  # the token that may write
    stored: dict[str, bytes]  # large files by their SHA-256
    commit: str

    def upload(self, path: str) -> bool:
        """Answer a request that uploads something; returns whether it was one."""
        routes = {
            r"/api/repos/create": self._create,
            r"/api/validate-yaml": lambda: self._json({"errors": [], "warnings": []}),
            r"/api/models/(.+)/preupload/[^/]+": self._modes,
            r"/(.+)\.git/info/lfs/objects/batch": self._places,
            r"/lfs/([0-9a-f]{64})": self._store,
            r"/api/models/(.+)/commit/[^/]+": self._commit,
        }
        for pattern, answer in routes.items():
            if match := re.fullmatch(pattern, path):
                self.asked.append(path)
                self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if status := self._fault().status:
                    self._missing("", status)
                elif path.startswith("/lfs/") or self._may_write():
                    answer(*match.groups())
                return True
        return False

    def _may_write(self) -> bool:
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token != self.writer:
            self._missing("", 403 if token else 401)
        return token == self.writer

    def _create(self) -> None:
        asked = json.loads(self.body)
        name = f"{asked['organization'] or 'writer'}/{asked['name']}"
        (self.root / name).mkdir(parents=True, exist_ok=True)
        self._json({"url": f"{self._address()}/{name}", "id": name})

    def _modes(self, _: str) -> None:
        paths = [each["path"] for each in json.loads(self.body)["files"]]
        modes = {path: "lfs" if path.endswith(LARGE) else "regular" for path in paths}
        told = [{"path": path, "uploadMode": mode, "shouldIgnore": False} for path, mode in modes.items()]
        self._json({"files": told})

    def _places(self, _: str) -> None:
        objects = json.loads(self.body)["objects"]
        upload = [{**each, "actions": {"upload": {"href": f"{self._address()}/lfs/{each['oid']}"}}} for each in objects]
        self._json({"transfer": "basic", "objects": upload})

    def _store(self, oid: str) -> None:
        assert hashlib.sha256(self.body).hexdigest() == oid, "an upload is what it was announced to be"
        self.stored[oid] = self.body
        self._json({})

    def _commit(self, name: str) -> None:
        for line in self.body.decode().splitlines():
            entry: dict[str, Any] = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                self._write(name, value["path"], base64.b64decode(value["content"]))
            elif entry["key"] == "lfsFile":
                self._write(name, value["path"], self.stored[value["oid"]])
        self._json({"commitUrl": f"{self._address()}/{name}/commit/{self.commit}", "commitOid": self.commit})

    def _write(self, name: str, path: str, content: bytes) -> None:
        place = self.root / name / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)

    def _address(self) -> str:
        return f"http://{self.headers['Host']}"
