# SPDX-License-Identifier: Apache-2.0
"""A server on this machine that speaks as much of the Hub's protocol as a push needs: create a repository, look whether it
may be written to, preupload, the LFS batch, an upload and a commit. No tests.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

TOKEN = "hf_" + "a1B2" * 8
"""The only token that the server knows; it is of `me`."""


class HubServer(ThreadingHTTPServer):
    """The state of the Hub: repositories with their files, and objects by their sha256."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, dict[str, bytes]] = {"others/model": {}}
        self.private: dict[str, bool] = {}
        self.objects: dict[str, bytes] = {}
        self.messages: list[str] = []
        self.commit_status = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def hub_server() -> Iterator[HubServer]:
    """A Hub for the time of a test."""
    server = HubServer()
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        if not self._is_known():
            return
        path = self.path.partition("?")[0]
        repo = "/".join(path.split("/")[3:5])
        if path.endswith("/auth-check/write"):
            self._answer(200 if repo.startswith("me/") else 403, {})
        else:
            self._answer(200 if repo in self.server.repositories else 404, {"id": repo, "_id": "1", "siblings": []})

    def do_PUT(self) -> None:
        body = self._body()
        self.server.objects[hashlib.sha256(body).hexdigest()] = body
        self._answer(200, {})

    def do_POST(self) -> None:
        body = self._body()
        if not self._is_known():
            return
        path = self.path.partition("?")[0]
        if path == "/api/repos/create":
            self._create(json.loads(body))
        elif path == "/api/validate-yaml":
            self._answer(200, {"errors": [], "warnings": []})
        elif path.endswith("/preupload/main"):
            files = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                }
                for file in json.loads(body)["files"]
            ]
            self._answer(200, {"files": files})
        elif path.endswith("/info/lfs/objects/batch"):
            upload = {"upload": {"href": f"{self.server.url}/object"}}
            objects = [{**entry, "actions": upload} for entry in json.loads(body)["objects"]]
            self._answer(200, {"transfer": "basic", "objects": objects})
        elif path.endswith("/commit/main"):
            self._commit("/".join(path.split("/")[3:5]), body)
        else:
            self._answer(404, {"error": path})

    def _create(self, request: dict[str, Any]) -> None:
        repo = f"{request.get('organization') or 'me'}/{request['name']}"
        if not repo.startswith("me/"):
            self._answer(403, {"error": "no rights in this namespace"})
        elif repo in self.server.repositories:
            self._answer(409, {"error": "You already created this model repo", "url": f"{self.server.url}/{repo}"})
        else:
            self.server.repositories[repo] = {}
            self.server.private[repo] = request.get("visibility") == "private" or bool(request.get("private"))
            self._answer(200, {"url": f"{self.server.url}/{repo}", "name": repo})

    def _commit(self, repo: str, body: bytes) -> None:
        if self.server.commit_status != 200:
            self._answer(self.server.commit_status, {"error": "not now"})
            return
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "header":
                self.server.messages.append(value["summary"])
            elif line["key"] == "file":
                self.server.repositories[repo][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.server.repositories[repo][value["path"]] = self.server.objects[value["oid"]]
        commit = f"{self.server.url}/{repo}/commit/{'0' * 40}"
        self._answer(200, {"commitUrl": commit, "commitOid": "0" * 40, "pullRequestUrl": None})

    def _is_known(self) -> bool:
        if self.headers.get("Authorization") == f"Bearer {TOKEN}":
            return True
        self._answer(401, {"error": "Invalid username or password."})
        return False

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
