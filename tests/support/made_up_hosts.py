# SPDX-License-Identifier: Apache-2.0
"""Thousands of made-up hosts behind one `ssh` (`relay_ssh.c`): a server that answers for all of them, as the probe and
the node agent of a host would, with latencies, failures and lies from a seed. No tests here.

    python -m tests.support.made_up_hosts SOCKET OPTIONS     OPTIONS: JSON of `Options`; ends with its stdin
"""

from __future__ import annotations

import base64
import contextlib
import functools
import heapq
import json
import os
import random
import selectors
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_SOURCE = Path(__file__).with_name("relay_ssh.c")
_BEAT_SECONDS = 0.5
"""As `node_agent.py` sends them."""


@dataclass(frozen=True)
class Options:
    """How the hosts answer. `seconds`: the latency of an answer; the shares of hosts that are dead, silent, or say
    something wrong; `host_pids`: the processes that each host's agent reports as alive.
    """

    seconds: float = 0.0
    dead: float = 0.0
    silent: float = 0.0
    liars: float = 0.0
    seed: int = 1
    ranks_per_host: int = 8
    hosts: tuple[str, ...] = ()
    """The names in rank order, for the pids of their ranks."""


def first_pid(host_index: int, ranks_per_host: int) -> int:
    """The pid of the first rank of a made-up host; the next ones follow."""
    return 100_000 + host_index * ranks_per_host


def address_of(host_index: int) -> str:
    """An address for a made-up host, which can be its name: no name server is asked for it."""
    return f"10.{host_index >> 14}.{(host_index >> 6) & 255}.{(host_index & 63) + 1}"


@dataclass(eq=False)
class _Session:
    """One `ssh` that is connected: its socket, and its pipes that are still open."""

    sock: socket.socket
    pipes: list[int]
    host: str = ""
    request: str = ""
    is_closed: bool = False

    def write(self, text: str) -> bool:
        try:
            os.write(self.pipes[1], text.encode())
        except (OSError, IndexError):
            return False
        return True

    def close(self, code: int | None = None) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        for pipe in self.pipes:
            os.close(pipe)
        with contextlib.suppress(OSError):
            if code is not None:
                self.sock.send(bytes([code]))
        self.sock.close()


class Server:
    """Answers all sessions in one thread. `counts` has the messages by kind."""

    def __init__(self, path: Path, options: Options) -> None:
        self.options, self.counts = options, Counter[str]()
        self._index = {name: index for index, name in enumerate(options.hosts)}
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._num_timers = 0
        self._facts = _own_facts()
        self._common: dict[str, str] = {}
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(4096)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def run(self, until: Callable[[], bool]) -> None:
        """Serve until the condition is true."""
        while not until():
            wait = min(0.2, max(0.0, self._timers[0][0] - time.monotonic())) if self._timers else 0.2
            for key, _ in self._selector.select(wait):
                key.data()
            while self._timers and self._timers[0][0] <= time.monotonic():
                heapq.heappop(self._timers)[2]()

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        self._num_timers += 1
        heapq.heappush(self._timers, (time.monotonic() + seconds, self._num_timers, action))

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                sock, _ = self._listener.accept()
                sock.setblocking(True)
                head, pipes, _, _ = socket.recv_fds(sock, 4, 3)
                size, body = int.from_bytes(head, sys.byteorder), b""
                while len(body) < size:
                    body += sock.recv(size - len(body))
                arguments = body.decode().split("\0")[:-1]
                place = arguments.index("--")
                request = arguments[place + 2].rpartition(" ")[2].strip("'")
                session = _Session(sock, pipes, arguments[place + 1], request)
                self._selector.register(sock, selectors.EVENT_READ, lambda s=session: self._drop(s))
                self._answer(session)

    def _drop(self, session: _Session, code: int | None = None) -> None:
        sources: list[socket.socket | int] = [session.sock, *session.pipes[:1]]
        for source in sources:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(source)
        session.close(code)

    def _answer(self, session: _Session) -> None:
        draw = random.Random(f"{self.options.seed} {session.host}").random()  # noqa: S311
        options = self.options
        request = _decode_request(session.request)
        job = str(request.get("job", "agent"))
        self.counts[job] += 1
        if job == "listen":  # the first host, whatever the seed says
            ports = [port or 40000 for port in request["ports"]]
            session.write(f'HARNESS-PROBE {{"listening": {json.dumps(ports)}}}\n')
            return
        if draw < options.silent:
            return
        if draw < options.silent + options.dead:
            self._after(options.seconds, lambda: self._refuse(session))
            return
        is_liar = draw < options.silent + options.dead + options.liars
        if job == "agent":
            self._after(options.seconds, lambda: self._start_agent(session, is_liar=is_liar))
            return

        def send() -> None:
            text = self._facts_of(session, request, is_liar=is_liar) if job == "facts" else _links(request)
            session.write(f"motd\nHARNESS-PROBE {text}\n")
            self._drop(session, 0)

        self._after(options.seconds, send)

    def _refuse(self, session: _Session) -> None:
        if not session.is_closed:
            with contextlib.suppress(OSError):  # who asked may be gone
                os.write(session.pipes[2], f"ssh: connect to host {session.host} port 22: No route to host\n".encode())
            self._drop(session, 255)

    def _facts_of(self, session: _Session, request: Mapping[str, Any], *, is_liar: bool) -> str:
        index = self._index.get(session.host, 0)
        address = address_of(index)
        own = {
            "hostname": session.host,
            "machine": f"boot-{index}",
            "took": 0.1,
            "time": time.time(),
            "code": dict.fromkeys(request["code"], "0" * 64 if is_liar else "a" * 64),
            "interfaces": [{"name": "eth0", "address": address, "prefix": 8, "loopback": False}],
            "own_addresses": [address],
        }
        return json.dumps(own)[:-1] + ", " + self._common_facts(session.request, request)[1:]

    def _common_facts(self, text: str, request: Mapping[str, Any]) -> str:
        """What all hosts say to the request with this text, as JSON."""
        if text not in self._common:
            common = self._facts | {
                "packages": dict.fromkeys(request["packages"], "1.0"),
                "folders": {
                    key: {"path": path, "exists": True, "writable": True, "free": 2**40, "filesystem": "nfs"}
                    for key, path in request["folders"].items()
                },
                "marks": dict.fromkeys(request["marks"], True),
                "ports": {str(port): "free" for port in request["ports"]},
            }
            own = ("hostname", "machine", "took", "time", "code", "interfaces", "own_addresses")
            self._common[text] = json.dumps({name: value for name, value in common.items() if name not in own})
        return self._common[text]

    def _start_agent(self, session: _Session, *, is_liar: bool) -> None:
        if session.is_closed:
            return
        os.set_blocking(session.pipes[0], False)
        self._selector.register(session.pipes[0], selectors.EVENT_READ, lambda: self._read_supervisor(session))
        first = first_pid(self._index.get(session.host, 0), self.options.ranks_per_host)
        alive = list(range(first, first + self.options.ranks_per_host))
        line = json.dumps({"alive": [-1] if is_liar else alive, "signals": {}, "oom_kills": 0}) + "\n"
        self._beat(session, "{liar\n" + line if is_liar else line)

    def _beat(self, session: _Session, line: str) -> None:
        if not session.is_closed and session.write(line):
            self.counts["beats of agents"] += 1
            self._after(_BEAT_SECONDS, lambda: self._beat(session, line))

    def _read_supervisor(self, session: _Session) -> None:
        try:
            data = os.read(session.pipes[0], 65536)
        except BlockingIOError:
            return
        self.counts["beats of the supervisor"] += data.count(b"beat")
        if not data or b"end" in data:
            session.write('{"left": []}\n')
            self._drop(session, 0)


@functools.lru_cache(maxsize=64)
def _decode_request(text: str) -> dict[str, Any]:
    return dict(json.loads(base64.urlsafe_b64decode(text)))


def _links(request: Mapping[str, Any]) -> str:
    return json.dumps({"links": [{"address": a, "port": p, "state": "ok"} for a, p in request["targets"]]})


def _own_facts() -> dict[str, Any]:
    """What the real probe says of this machine, so that its form is the probe's."""
    script = (ROOT / "harness" / "workers" / "host_probe.py").read_bytes()
    request = base64.urlsafe_b64encode(json.dumps({"job": "facts"}).encode()).decode()
    done = subprocess.run([sys.executable, "-", request], input=script, capture_output=True, check=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith(b"HARNESS-PROBE "))
    return dict(json.loads(line.removeprefix(b"HARNESS-PROBE ")))


@dataclass
class MadeUpHosts:
    """A server that runs, and the environment in which `ssh` means its hosts."""

    environ: dict[str, str]
    _server: subprocess.Popen[str]
    _counts: Path

    def counts(self) -> dict[str, int]:
        """Messages so far, by kind; at most a fifth of a second old."""
        return dict(json.loads(self._counts.read_text()))


@contextlib.contextmanager
def made_up_hosts(folder: Path, options: Options) -> Iterator[MadeUpHosts]:
    """While entered, a server answers for the hosts of `options`. Compiles the `ssh` in a fraction of a second."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cc", "-O1", "-w", "-o", str(folder / "ssh"), str(_SOURCE)], check=True)
    path, counts, given = folder / "socket", folder / "counts.json", folder / "options.json"
    given.write_text(json.dumps(asdict(options)))
    for file in (path, counts):  # of an earlier server
        file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "tests.support.made_up_hosts", str(path), str(given), str(counts)]
    server = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, text=True)
    try:
        while not counts.exists():
            assert server.poll() is None
            time.sleep(0.02)
        inherited = os.environ.get("PYTHONPATH", "")
        environ = dict(os.environ) | {
            "PATH": f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT}:{inherited}".rstrip(":"),
            "MADE_UP_HOSTS": str(path),
        }
        yield MadeUpHosts(environ, server, counts)
    finally:
        assert server.stdin is not None
        server.stdin.close()
        server.wait(20)


def main() -> None:
    """Serve until stdin ends; the counts are a file."""
    path, given, counts = map(Path, sys.argv[1:4])
    read = json.loads(given.read_text())
    server = Server(path, Options(**{**read, "hosts": tuple(read["hosts"])}))
    os.set_blocking(0, False)
    last_written = 0.0

    def has_ended() -> bool:
        nonlocal last_written
        if time.monotonic() - last_written > 0.2:
            last_written = time.monotonic()
            scratch = counts.with_suffix(".new")
            scratch.write_text(json.dumps(server.counts))
            scratch.replace(counts)
        try:
            return os.read(0, 1) == b""
        except BlockingIOError:
            return False

    server.run(has_ended)


if __name__ == "__main__":
    main()
