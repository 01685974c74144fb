# SPDX-License-Identifier: Apache-2.0
"""`harness report --watch`: the report over HTTP on this machine alone, rendered again when a run has new files.

Nothing is written. Every user who can open a local port can read the runs.
"""

from __future__ import annotations

import hashlib
import sys
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from harness.errors import ExitCode, UserError
from harness.findings import Finding, Fix
from harness.locks import RUN_LOCK
from harness.run_records.run_record import read_run_record
from harness.views.report.page import render_report

HOST = "127.0.0.1"
_WATCHED_FILES = ("metrics.jsonl", "restarts.json", "sample.txt")
_MIN_REFRESH_SECONDS = 2.0


class LivePage:
    """The page of some runs, kept until one of their files changes. Safe to ask from several threads."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = list(folders)
        self._lock = threading.Lock()
        self._version, self._page, self._rendered_at = "", "", 0.0

    def version(self) -> str:
        """A text that changes when a file of a run does; locks and heartbeats are left out."""
        parts = []
        for folder in self._folders:
            parts.append(str((folder / RUN_LOCK).exists()))
            for name in _WATCHED_FILES:
                try:
                    stat = (folder / name).stat()
                    parts.append(f"{stat.st_mtime_ns}:{stat.st_size}")
                except OSError:
                    parts.append("-")
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]

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


def create_server(folders: Sequence[Path], port: int) -> ThreadingHTTPServer:
    """A server that does not serve yet; `port` 0 picks a free one. Raises OSError when the port is taken."""
    live = LivePage(folders)

    class Handler(BaseHTTPRequestHandler):
        """Two addresses: the page and its version."""

        server_version, sys_version = "harness", ""

        def do_GET(self) -> None:
            """Answer one request. Requests with another host name (DNS rebinding) get no content."""
            if (self.headers.get("Host") or "").rpartition(":")[0] not in (HOST, "localhost"):
                self.send_error(403)
            elif self.path == "/":
                self._send(live.render_page(), "text/html; charset=utf-8")
            elif self.path == "/version":
                self._send(live.version(), "text/plain")
            else:
                self.send_error(404)

        def _send(self, text: str, kind: str) -> None:
            body = text.encode()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            try:
                self.wfile.write(body)
            except OSError:  # whoever asked has gone
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (its name in http.server)
            """Log no request."""

    return ThreadingHTTPServer((HOST, port), Handler)


def serve_reports(folders: Sequence[Path], port: int) -> None:
    """Serve until Ctrl-C. Raises UserError when the port is not available."""
    try:
        made = create_server(folders, port)
    except OSError as error:
        fix = Fix("choose another with `--port`, or `--port 0` for a free one")
        reason = (error.strerror or str(error)).lower()
        finding = Finding("SP030", "error", f"port {port} of this machine is not available: {reason}", fix=fix)
        raise UserError([finding], ExitCode.USAGE) from None
    print(f"http://{HOST}:{made.server_address[1]}/", flush=True)
    print("Ctrl-C ends it. From elsewhere: ssh -L with the same port.", file=sys.stderr)
    try:
        made.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        pass
    finally:
        made.server_close()
