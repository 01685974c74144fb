# SPDX-License-Identifier: Apache-2.0
"""`launch --notify` by a real server and a real command: what is told, and that nothing waits or fails. Seconds."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from harness.errors import UserError
from harness.findings import Finding
from harness.launching.setup.launch_plan import HostPlan, LaunchPlan
from harness.launching.setup.launch_request import LaunchRequest, LaunchSetup
from harness.launching.supervise import launch_runner, notifier
from harness.launching.supervise.launch_runner import run_setup
from harness.run.resolved_run import resolve_run
from harness.spec.run_spec import RunSpec
from harness.views.screen import Screen

RANK = """
import json, os, sys, time
state = sys.argv[2]
body = {"rank": 0, "host": "here", "pid": os.getpid(), "state": state, "step": 7, "time": time.time(), "error": "boom"}
open(sys.argv[1], "w").write(json.dumps(body))
time.sleep(60 if state == "running" else 0)
sys.exit(state == "failed")
"""


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    """Keeps what is posted to it in `told`; answers 500 below /broken, and not at all below /slow."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path.startswith("/slow"):
                time.sleep(3)
            made.told.append(json.loads(body))  # type: ignore[attr-defined]
            self.send_response(500 if self.path.startswith("/broken") else 200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    made = HTTPServer(("127.0.0.1", 0), Handler)
    made.told = []  # type: ignore[attr-defined]
    threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def launch(folder: Path, target: str, state: str = "completed", **spec: Any) -> tuple[Any, list[str]]:
    """The result of a launch of one process that ends in this state, and the lines of its log."""
    run_dir, lines = folder / "runs" / "a-1", list[str]()
    argv = (sys.executable, "-c", RANK, str(run_dir / "status" / "rank-00000.json"), state)
    plan = LaunchPlan("a", run_dir, folder, argv, (HostPlan("here", (0,), ()),), True, 1, (), {})
    run = resolve_run(RunSpec.model_validate({"checkpoint": {"save_at_end": False}, "launch": spec}), world_size=1)
    request = LaunchRequest("a.yaml", notify=target)
    setup = LaunchSetup(request, run, Mock(scripts=folder), plan, Mock())
    return run_setup(setup, Screen("quiet"), lines.append), lines


def test_the_end_of_a_run_is_posted(server: HTTPServer, tmp_path: Path) -> None:
    result, lines = launch(tmp_path, f"http://127.0.0.1:{server.server_port}/hook")
    assert (result.verdict.state, lines) == ("completed", [])
    (told,) = server.told  # type: ignore[attr-defined]
    assert (told["event"], told["state"], told["step"]) == ("end", "completed", 7)
    assert told["text"] == "a: completed at step 7"
    assert told["run_dir"] == str(tmp_path / "runs/a-1")


def test_each_failure_runs_the_command(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    command = f'cat >> {seen}; echo " $HARNESS_EVENT $HARNESS_TEXT" >> {seen}'
    result, lines = launch(tmp_path, command, "failed", max_restarts=1, restart_delay_seconds=0.1)
    assert (result.verdict.state, lines) == ("failed", [])
    text = seen.read_text()
    assert '"event": "failure"' in text
    assert "failure a: failed on rank 0 (here) at step 7: boom" in text


def test_a_stall_is_told_before_the_end(server: HTTPServer, tmp_path: Path) -> None:
    launch(tmp_path, f"http://127.0.0.1:{server.server_port}/hook", "running", hang_timeout_seconds=1)
    told = [(line["event"], line["text"]) for line in server.told]  # type: ignore[attr-defined]
    assert [event for event, _ in told] == ["stall", "failure"]
    assert "hung in a step" in told[0][1]


def test_a_launch_that_starts_no_rank_is_told(
    server: HTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finding = Finding("EN011", "error", "no op at s3://me:hunter2@host")
    monkeypatch.setattr(launch_runner, "run_launch", Mock(side_effect=UserError([finding])))
    launch(tmp_path, f"http://127.0.0.1:{server.server_port}/hook")
    (told,) = server.told  # type: ignore[attr-defined]
    assert told["event"] == "failure"
    assert "no rank was started" in told["text"]
    assert "hunter2" not in json.dumps(told)


@pytest.mark.parametrize("way", ["broken", "slow", "nobody", "exit 3", "sleep 60", "no-such-program"])
def test_what_fails_or_hangs_changes_nothing_and_shows_no_secret(
    way: str, server: HTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier, "_SECONDS", 0.5)
    port = 9 if way == "nobody" else server.server_port
    is_url = way in ("broken", "slow", "nobody")
    target = f"http://me:hunter2@127.0.0.1:{port}/{way}/secret-token" if is_url else way
    if way != "nobody":
        target = target.replace("me:hunter2@", "")
    start = time.monotonic()
    result, lines = launch(tmp_path, target)
    assert time.monotonic() - start < 30
    assert (result.verdict.state, result.verdict.code) == ("completed", 0)
    (line,) = lines
    assert line.startswith("warning: ")
    assert "secret-token" not in line
    assert "hunter2" not in line
    files = (path for path in (tmp_path / "runs").rglob("*") if path.is_file())
    assert not any(b"secret-token" in path.read_bytes() for path in files)


def test_events_are_sent_at_once(tmp_path: Path) -> None:
    sent = notifier.Notifier("sleep 2", "a", tmp_path)
    start = time.monotonic()
    sent.send("stall", "x")
    assert time.monotonic() - start < 0.5
    sent = replace(sent, target=None)
    assert sent.close() == []
