# SPDX-License-Identifier: Apache-2.0
"""`report --watch` against other sites, other users and hostile clients, and the pages that a report writes."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.views.report.live_server import LiveServer
from tests.security.attempts import Attempt, attempt_param
from tests.support.sample_run import head, step, tiny, write_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "r", tiny(), [head(tiny()), step(1)], ("running",))


@pytest.fixture
def server(folder: Path) -> Iterator[LiveServer]:
    made = LiveServer([folder], 0)
    threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def ask(server: LiveServer, text: str, *, seconds: float = 5.0) -> str:
    """The answer to the bytes of a request, where PORT and TOKEN are replaced."""
    port = server.server_address[1]
    request = text.replace("PORT", str(port)).replace("TOKEN", server.token).replace("\n", "\r\n")
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as client:
        answer = b""
        with contextlib.suppress(OSError):  # it answers and closes before it has read a long request
            client.sendall(request.encode("latin-1"))
            client.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            while chunk := client.recv(65536):
                answer += chunk
    return answer.decode("utf-8", "replace")


GET = "GET /TOKEN/ HTTP/1.1\nHost: 127.0.0.1:PORT\n"


def test_the_page_is_served(server: LiveServer) -> None:
    assert " 200 " in ask(server, GET + "\n").splitlines()[0]
    assert " 200 " in ask(server, "GET /TOKEN/version HTTP/1.1\nHost: localhost:8042\nSec-Fetch-Site: same-origin\n\n")


@pytest.mark.parametrize(
    ("request_text", "code"),
    [
        attempt_param(
            Attempt("W1", "another user of the host opens the port", "reads the run", "403: the address has a secret"),
            "GET / HTTP/1.1\nHost: 127.0.0.1:PORT\n\n",
            403,
        ),
        attempt_param(
            Attempt("W2", "a wrong secret", "there was none", "403"),
            "GET /AAAAAAAAAAAAAAAAAAAAAA/ HTTP/1.1\nHost: 127.0.0.1:PORT\n\n",
            403,
        ),
        attempt_param(
            Attempt("W3", "DNS rebinding: `Host: evil.com`", "403", "403"),
            "GET /TOKEN/ HTTP/1.1\nHost: evil.com:PORT\n\n",
            403,
        ),
        attempt_param(
            Attempt("W4", "`Host: localhost:evil.com`", "200", "403"),
            "GET /TOKEN/ HTTP/1.1\nHost: localhost:evil.com\n\n",
            403,
        ),
        attempt_param(
            Attempt("W5", "two Host lines", "200", "403"),
            "GET /TOKEN/ HTTP/1.1\nHost: 127.0.0.1:PORT\nHost: evil.com\n\n",
            403,
        ),
        attempt_param(Attempt("W6", "no Host line", "403", "403"), "GET /TOKEN/ HTTP/1.0\n\n", 403),
        attempt_param(
            Attempt("W7", "the fetch of another site's page", "200", "403: Origin"),
            GET + "Origin: http://evil.com\n\n",
            403,
        ),
        attempt_param(
            Attempt("W8", "an image or a script tag of another site", "200", "403: Sec-Fetch-Site"),
            GET + "Sec-Fetch-Site: cross-site\n\n",
            403,
        ),
        attempt_param(
            Attempt("W9", "`/../../etc/passwd` below the secret", "404", "404"),
            "GET /TOKEN/../../etc/passwd HTTP/1.1\nHost: 127.0.0.1:PORT\n\n",
            404,
        ),
        attempt_param(
            Attempt("W10", "a file of the run: `spec.yaml`", "404", "404"),
            "GET /TOKEN/spec.yaml HTTP/1.1\nHost: 127.0.0.1:PORT\n\n",
            404,
        ),
        attempt_param(
            Attempt("W11", "an absolute address in the request", "404", "403"),
            "GET http://evil.com/TOKEN/ HTTP/1.1\nHost: 127.0.0.1:PORT\n\n",
            403,
        ),
        attempt_param(
            Attempt("W12", "POST", "501, which quotes the method", "501, which quotes nothing"),
            "POST /TOKEN/ HTTP/1.1\nHost: 127.0.0.1:PORT\n\n",
            501,
        ),
        attempt_param(
            Attempt("W13", "a method of HTML", "501, which escapes it", "501, which quotes nothing"),
            "<script>alert(1)</script> / HTTP/1.1\nHost: 127.0.0.1:PORT\n\n",
            501,
        ),
        attempt_param(
            Attempt("W14", "a header line of 100 kB", "431", "431"), GET + "X: " + "a" * 100_000 + "\n\n", 431
        ),
    ],
)
def test_requests(server: LiveServer, request_text: str, code: int) -> None:
    answer = ask(server, request_text)
    assert f" {code} " in answer.splitlines()[0]
    assert "<script" not in answer
    assert "tiny" not in answer


@Attempt("W15", "the page in a frame of another site", "shown: `<meta>` cannot forbid it", "a header forbids it")
def test_headers(server: LiveServer) -> None:
    headers = ask(server, GET + "\n").partition("\r\n\r\n")[0].lower()
    assert "content-security-policy: frame-ancestors 'none'" in headers
    assert "x-content-type-options: nosniff" in headers
    assert "cross-origin-resource-policy: same-origin" in headers
    assert "referrer-policy: no-referrer" in headers
    assert "access-control-allow-origin" not in headers


@Attempt("W16", "1,500 half-open connections", "1,501 threads stay, 4 minutes to open them", "64 at a time, 10 s each")
def test_half_open_connections(server: LiveServer) -> None:
    clients = []
    before = threading.active_count()
    started = time.monotonic()
    for _ in range(300):
        client = socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=60)
        client.sendall(b"GET / HT")
        clients.append(client)
    assert time.monotonic() - started < 60
    assert threading.active_count() - before <= 65
    for client in clients:
        client.close()
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert " 200 " in ask(server, GET + "\n").splitlines()[0]


@Attempt("W17", "a client that sends nothing", "its thread stays for ever", "the connection ends by itself")
def test_silent_client(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.RequestHandlerClass, "timeout", 0.2)
    with socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=5) as client:
        assert client.recv(10) == b""


@Attempt("W18", "the port from another host", "closed: it listens on 127.0.0.1", "closed: it listens on 127.0.0.1")
def test_listens_on_the_loopback_alone(server: LiveServer) -> None:
    assert server.server_address[0] == "127.0.0.1"


@Attempt("W19", "a file of the watched run becomes a link to `/etc/passwd`", "its text is shown", "it is not followed")
def test_links_in_the_run(server: LiveServer, folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("marmalade")
    for name in ("sample.txt", "spec.yaml", "ds_config.json", "restarts.json"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(secret)
    assert "marmalade" not in ask(server, GET + "\n")


@Attempt(
    "W27",
    "70 half-open connections that are kept open",
    "the page, and 70 threads that stay",
    "the page, and 64 threads",
)
def test_the_user_is_not_kept_out(server: LiveServer) -> None:
    clients = []
    for _ in range(70):
        client = socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=5)
        client.sendall(b"GET / HT")
        clients.append(client)
    try:
        assert " 200 " in ask(server, GET + "\n").splitlines()[0]
    finally:
        for client in clients:
            client.close()


@Attempt(
    "W28", "the watched run directory becomes a link to another one", "the other run is shown", "410 with a sentence"
)
def test_swapped_run_directory(server: LiveServer, folder: Path, tmp_path: Path) -> None:
    assert " 200 " in ask(server, GET + "\n").splitlines()[0]
    other = write_run(tmp_path / "other", tiny(), [head(tiny()), step(1)], ("running",))
    folder.rename(tmp_path / "gone")
    folder.symlink_to(other)
    for path in ("", "version"):
        answer = ask(server, GET.replace("TOKEN/", f"TOKEN/{path}") + "\n")
        assert " 410 " in answer.splitlines()[0]
        assert "replaced by another one" in answer


@Attempt("W29", "a second request behind the first one (smuggling)", "one answer", "one answer: it closes after each")
def test_second_request(server: LiveServer) -> None:
    answer = ask(server, GET + "Connection: keep-alive\nContent-Length: 9\n\n" + GET + "\n")
    assert answer.count("HTTP/1.0 ") == 1


TAB = """
const asked = [], intervals = [];
let reloads = 0, cleared = 0;
const answers = JSON.parse(process.argv[2]);
globalThis.document = {
  getElementById: (id) => (["charts", "axes"].includes(id) ? { textContent: "[]" } : null),
  querySelectorAll: () => [], addEventListener: () => {}, hidden: false,
  body: { dataset: { live: answers.shift() }, classList: { add: () => {}, remove: () => {} } },
};
globalThis.matchMedia = () => ({ addEventListener: () => {} });
globalThis.addEventListener = () => {};
globalThis.ResizeObserver = class { observe() {} };
globalThis.sessionStorage = { getItem: () => null, setItem: () => {} };
globalThis.location = { reload: () => { reloads += 1; } };
globalThis.setInterval = (tick) => { intervals.push(tick); return 7; };
globalThis.clearInterval = () => { cleared += 1; intervals.length = 0; };
globalThis.fetch = async (url) => {
  asked.push(url);
  const text = answers.shift();
  if (text === null) throw new TypeError("refused");
  return { ok: true, text: async () => text };
};
require(process.argv[1]);
(async () => {
  while (answers.length && intervals.length) await intervals[0]();
  console.log(JSON.stringify([asked.length, reloads, cleared]));
})();
"""
SCRIPT = Path(__file__).parents[2] / "harness/views/assets/report.js"


@Attempt(
    "W40",
    "another user takes the port after Ctrl-C, and the open tab asks him for news",
    "the tab asks him every 2 s, with the secret, and loads his page in place of the report",
    "an answer holds what the first server wrote into the page, and no request does: without it the tab asks no more",
)
def test_next_server_of_the_port(server: LiveServer, folder: Path) -> None:
    def version(of: LiveServer) -> str:
        return ask(of, GET.replace("TOKEN/", "TOKEN/version") + "\n").partition("\r\n\r\n")[2]

    proof = version(server).split(" ")[1]
    assert len(proof) >= 20
    assert f'data-live="{version(server)}"' in ask(server, GET + "\n")
    assert proof not in server.url
    other = LiveServer([folder], 0)
    assert other.live.version().split(" ")[0] == version(server).split(" ")[0]
    assert other.live.version() != version(server)
    other.server_close()


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (["a proof", "a proof", "b proof"], [2, 1, 0]),
        attempt_param(
            Attempt("W41", "his answer is another version", "the tab loads his page", "it asks no more"),
            ["a proof", "b", "b", "b"],
            [1, 0, 1],
        ),
        attempt_param(
            Attempt("W42", "he waits until the tab has got no answer once", "it asks again", "it asks no more"),
            ["a proof", None, "a proof", "b proof"],
            [1, 0, 1],
        ),
    ],
)
def test_tab(answers: list[str | None], expected: list[int]) -> None:
    command = ["node", "-e", TAB, str(SCRIPT), json.dumps(answers)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == expected
