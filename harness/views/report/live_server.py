# SPDX-License-Identifier: Apache-2.0
"""`harness report --watch`: the report over HTTP on this machine alone, rendered again when a run has new files.

Nothing is written. Other users of the machine can open the port too, so the address has a secret. They can also take
the port when this server has ended, so the page asks no server twice that does not know what this one wrote into it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import socket
import sys
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from harness.errors import ExitCode, UserError
from harness.findings import Finding, Fix
from harness.locks import RUN_LOCK
from harness.run_records.run_record import read_run_record
from harness.views.report.page import render_report

HOST = "127.0.0.1"
_WATCHED_FILES = ("metrics.jsonl", "restarts.json", "sample.txt")
_MIN_REFRESH_SECONDS = 2.0
_MAX_CONNECTIONS = 64
_SECONDS_TO_CLOSE = 1.0
_OWN_HOST = re.compile(r"(127\.0\.0\.1|localhost):\d{1,5}")
"""With any port: `ssh -L` may have taken another one."""
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""No page shows this one in a frame, nor loads it as something else. The page brings the rest of its policy."""


class LivePage:
    """The page of some runs, kept until one of their files changes. Safe to ask from several threads."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = list(folders)
        self._places = [os.path.realpath(folder) for folder in folders]
        self._lock = threading.Lock()
        self._version, self._page, self._rendered_at = "", "", 0.0
        self._proof = secrets.token_urlsafe(16)
        """Only this server and its page know it: no request holds it, other than the secret in the address."""

    def is_in_place(self) -> bool:
        """Do the paths of the runs still lead where they led at the start?"""
        return self._places == [os.path.realpath(folder) for folder in self._folders]

    def version(self) -> str:
        """A text that changes when a file of a run does, and then what proves that this server wrote it; locks and
        heartbeats are left out.
        """
        parts = []
        for folder in self._folders:
            parts.append(str((folder / RUN_LOCK).exists()))
            for name in _WATCHED_FILES:
                try:
                    stat = (folder / name).stat()
                    parts.append(f"{stat.st_mtime_ns}:{stat.st_size}")
                except OSError:
                    parts.append("-")
        return f"{hashlib.sha256(' '.join(parts).encode()).hexdigest()[:16]} {self._proof}"

    def render_page(self) -> str:
        """The report, rendered again where files are new, but not at every step of a run with short ones."""
        with self._lock:
            version = self.version()
            if not self._page or (
                version != self._version and time.monotonic() - self._rendered_at > _MIN_REFRESH_SECONDS
            ):
                self._version = version
                self._page = render_report([read_run_record(folder) for folder in self._folders], live=version)
                self._rendered_at = time.monotonic()
            return self._page


class LiveServer(ThreadingHTTPServer):
    """Serves a page on this machine alone, below an address that only the user knows. It does not serve yet.

    `port` 0 picks a free one. A connection ends after 10 s without a request. Of more than 64 at a time, the oldest
    without a request is closed, so that nobody can keep the user's browser out. Raises OSError when the port is
    taken.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, folders: Sequence[Path], port: int) -> None:
        self.live = LivePage(folders)
        self.token = secrets.token_urlsafe(16)
        self._free_connections = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        self._waiting: dict[socket.socket, None] = {}
        self._waiting_lock = threading.Lock()
        super().__init__((HOST, port), _Handler)

    @property
    def url(self) -> str:
        """The address of the page. Whoever has it can read the runs."""
        return f"http://{HOST}:{self.server_address[1]}/{self.token}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread. If too many connections are open, first close the oldest one without a request."""
        is_free = self._free_connections.acquire(blocking=False)
        if not is_free:
            self._end_oldest()
            is_free = self._free_connections.acquire(timeout=_SECONDS_TO_CLOSE)
        if not is_free:
            self.shutdown_request(request)
            return
        with self._waiting_lock:
            self._waiting[request] = None
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer the requests of a connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.keep_connection(request)
            self._free_connections.release()

    def keep_connection(self, request: socket.socket) -> None:
        """Close this connection for no other: it asked with the secret, or has ended."""
        with self._waiting_lock:
            self._waiting.pop(request, None)

    def _end_oldest(self) -> None:
        with self._waiting_lock:
            oldest = next(iter(self._waiting), None)
            if oldest is not None:
                del self._waiting[oldest]
                with contextlib.suppress(OSError):  # it has gone by itself
                    oldest.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing about a connection that broke."""


class _Handler(BaseHTTPRequestHandler):
    """Two addresses: the page and its version."""

    server: LiveServer
    server_version, sys_version = "harness", ""
    timeout = 10.0
    """Seconds for a request to arrive."""

    def do_GET(self) -> None:
        """Answer one request. Pages of other sites, and other names of this machine, get no content."""
        if not self._is_from_here():
            self._refuse(403, "Only a browser on this machine may read the report, and no other site.")
            return
        token, _, name = self.path.removeprefix("/").partition("/")
        if not secrets.compare_digest(token.encode("utf-8", "replace"), self.server.token.encode()):
            self._refuse(403, "The address lacks the secret that `harness report --watch` printed.")
            return
        self.server.keep_connection(self.connection)
        if not self.server.live.is_in_place():
            self._refuse(410, "The run's folder was replaced by another one. Start `harness report --watch` again.")
        elif name == "":
            self._send(200, self.server.live.render_page(), "text/html; charset=utf-8")
        elif name == "version":
            self._send(200, self.server.live.version(), "text/plain; charset=utf-8")
        else:
            self._refuse(404, "Not found.")

    def _is_from_here(self) -> bool:
        """Has the request a host name of this machine, against DNS rebinding, and did no other site's page make it?"""
        hosts = self.headers.get_all("Host") or [""]
        if len(hosts) != 1 or not _OWN_HOST.fullmatch(hosts[0]):
            return False
        origin, site = self.headers.get("Origin"), self.headers.get("Sec-Fetch-Site")
        return origin in (None, f"http://{hosts[0]}") and site in (None, "none", "same-origin")

    def _refuse(self, code: int, sentence: str) -> None:
        self._send(code, f"{sentence}\n", "text/plain; charset=utf-8")

    def _send(self, code: int, text: str, kind: str) -> None:
        body = text.encode()
        self.send_response(code)
        headers = {"Content-Type": kind, "Content-Length": str(len(body)), **_HEADERS}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:  # whoever asked has gone
            self.close_connection = True

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Answer a request that is no GET, or no HTTP, without quoting it."""
        self.close_connection = True
        self._refuse(code, "This server answers only GET.")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (its name in http.server)
        """Log no request."""


def serve_reports(folders: Sequence[Path], port: int) -> None:
    """Serve until Ctrl-C. Raises UserError when the port is not available."""
    try:
        made = LiveServer(folders, port)
    except OSError as error:
        fix = Fix("choose another with `--port`, or `--port 0` for a free one")
        reason = (error.strerror or str(error)).lower()
        finding = Finding("SP030", "error", f"port {port} of this machine is not available: {reason}", fix=fix)
        raise UserError([finding], ExitCode.USAGE) from None
    print(made.url, flush=True)
    print("Ctrl-C ends it. From elsewhere: ssh -L with the same port.", file=sys.stderr)
    try:
        made.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        pass
    finally:
        made.server_close()
