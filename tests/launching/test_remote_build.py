# SPDX-License-Identifier: Apache-2.0
"""Ops of other hosts: asked for before ranks start, awaited, refused by name; with a stand-in for ssh. Needs nothing; seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import UserError
from harness.launching.hosts.ssh import encode_request
from harness.launching.ops import build_cache, remote_build
from harness.launching.ops.remote_build import build_on_hosts
from harness.launching.process.signals import SignalInterrupt, Signals
from harness.launching.setup.environment import Variable
from harness.launching.setup.launch_context import LaunchContext
from harness.launching.setup.launch_plan import HostPlan, LaunchPlan
from harness.views.screen import Screen

ROOT = Path(__file__).parents[2]
BUILDER = """\
import base64, json, os, sys, time
asked = json.loads(base64.urlsafe_b64decode(sys.argv[sys.argv.index("--request") + 1]))
with open(os.environ["SAID"] + os.environ["HOST"], "w") as file:
    json.dump(asked, file)
print("motd")
if os.environ["HOST"] == "ready":
    sys.exit(0)
if os.environ["HOST"] == "left":
    print('{"event": "lock", "file": "/cache/cpu_adam/lock", "removed": true}')
print('{"event": "start", "op": "cpu_adam"}', flush=True)
if os.environ["HOST"] == "left":
    print('{"event": "unloadable", "op": "cpu_adam", "error": "file too short"}')
time.sleep(60 if os.environ["HOST"] == "slow" else 0.2)
if os.environ["HOST"] == "broken":
    print("g++: error: no such thing.", file=sys.stderr)
    print('{"event": "failed", "op": "cpu_adam"}')
    sys.exit(1)
print('{"event": "done", "op": "cpu_adam", "compiled": true}')
"""


class Told(Screen):
    def __init__(self) -> None:
        super().__init__("quiet")
        self.ready: list[str] = []

    def on_op_built(self, op: str, seconds: float) -> None:
        assert seconds >= 0
        self.ready.append(op)


@pytest.fixture
def services(tmp_path, monkeypatch) -> LaunchContext:
    """An `ssh` that runs the command here and tells it which host it is on; `dead` is not reached."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "ssh"
    program.write_text(
        '#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\n[ $2 = dead ] && { echo "no route to host" >&2; exit 255; }\n'
        'HOST=$2 exec sh -c "$3"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SAID", f"{tmp_path}/said-")
    (tmp_path / "launch").mkdir()
    (tmp_path / "launch" / "op_builder.py").write_text(BUILDER)
    return LaunchContext(tmp_path / "launch", Told(), Signals())


def plan(tmp_path: Path, *hosts: str, ops: tuple[str, ...] = ("cpu_adam",)) -> LaunchPlan:
    (tmp_path / "run" / "logs").mkdir(parents=True)
    variables = (Variable("PATH", "/venv/bin:$PATH", ""), Variable("HARNESS_SUPERVISOR", "x", ""))
    made = tuple(HostPlan(name, (rank,), variables, name == "here") for rank, name in enumerate(hosts))
    return LaunchPlan("a", tmp_path / "run", tmp_path, (), made, False, 1, ops, {})


def test_all_hosts_but_this_one_are_asked_and_awaited(tmp_path, services):
    with build_on_hosts(plan(tmp_path, "here", "a", "ready", "b"), services):
        pass
    assert {p.name for p in tmp_path.glob("said-*")} == {"said-a", "said-ready", "said-b"}
    assert sorted(services.observer.ready) == ["cpu_adam on a", "cpu_adam on b"]
    asked = json.loads((tmp_path / "said-a").read_text())
    assert asked["environ"] == {"PATH": "/venv/bin:$PATH"}
    assert asked["ops"] == ["cpu_adam"]
    assert list((tmp_path / "run" / "logs").iterdir()) == []


def test_every_host_that_cannot_is_named_with_its_words(tmp_path, services):
    with pytest.raises(UserError) as refused, build_on_hosts(plan(tmp_path, "broken", "a", "dead"), services):
        pass
    first, second = refused.value.findings
    assert (first.gate, "cannot be compiled on broken" in first.message) == ("EN010", True)
    assert first.notes[0] == "g++: error: no such thing"
    assert "on dead" in second.message
    assert second.notes[0] == "no route to host"


def test_what_a_killed_compilation_left_on_a_host_is_told_in_a_line(tmp_path, services, capsys):
    told = replace(services, observer=Screen("plain"))
    with build_on_hosts(plan(tmp_path, "left"), told):
        pass
    said = capsys.readouterr().err
    assert "removed /cache/cpu_adam/lock on left: a compilation was killed there and no process holds it" in said
    assert "the compiled cpu_adam on left does not load (file too short); compiling it again" in said


def test_a_signal_ends_the_waiting_and_every_ssh(tmp_path, services):
    services.signals.received.append(2)
    with pytest.raises(SignalInterrupt), build_on_hosts(plan(tmp_path, "slow"), services):
        pass
    left = subprocess.run(["pgrep", "-f", str(tmp_path / "launch")], text=True, capture_output=True, check=False)
    assert left.stdout == ""


def test_no_more_connections_at_a_time_than_of_preflight(tmp_path, services, monkeypatch):
    """The second host begins when the first has ended; each has its own log and finding."""
    monkeypatch.setattr(remote_build, "FAN_OUT", 1)
    with pytest.raises(UserError) as refused, build_on_hosts(plan(tmp_path, "broken", "a", "dead"), services):
        assert (tmp_path / "said-a").exists() is False
    assert [finding.message.split()[-1] for finding in refused.value.findings] == ["broken", "dead"]
    assert services.observer.ready == ["cpu_adam on a"]
    assert {p.name for p in (tmp_path / "run" / "logs").iterdir()} == {"ops-broken.log", "ops-dead.log"}
    first, second = ((tmp_path / f"said-{host}").stat().st_mtime for host in ("broken", "a"))
    assert second - first >= 0.2, "the builder of the first host takes so long"


def test_nothing_to_compile_asks_nobody(tmp_path, services):
    with build_on_hosts(plan(tmp_path, "a", ops=()), services):
        pass
    assert list(tmp_path.glob("said-*")) == []


def test_the_real_script_finds_its_stamp_and_says_nothing_when_all_is_ready(tmp_path):
    """Without importing torch, which the base dependencies do not have."""
    op = tmp_path / "cpu_adam.so"
    op.write_text("")
    stat = op.stat()
    environ = {"TORCH_EXTENSIONS_DIR": str(tmp_path), "PATH": "/first:$PATH"}
    merged = dict(os.environ) | environ | {"PATH": f"/first:{os.environ['PATH']}"}
    record = {"file": str(op), "mtime_ns": stat.st_mtime_ns, "size": stat.st_size}
    build_cache.build_stamp_file(tmp_path).write_text(
        json.dumps({build_cache.build_stamp_key(merged): {"cpu_adam": record}})
    )
    asked = encode_request({"path": [str(ROOT)], "environ": environ, "ops": ["cpu_adam"]})
    command = [sys.executable, str(ROOT / "harness" / "workers" / "op_builder.py"), "--request", asked]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
