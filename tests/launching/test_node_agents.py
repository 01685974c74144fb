# SPDX-License-Identifier: Apache-2.0
"""`node_agent.py` alone, as ssh would start it: who it counts, when it ends them, whom it spares. Needs nothing; seconds."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.hostinfo.machine import host_identity
from harness.launching.process.oom_kills import read_oom_kills
from harness.launching.setup.launch_plan import HostPlan, LaunchPlan
from harness.launching.supervise import node_agents
from harness.launching.supervise.node_agents import NodeAgent, NodeAgents
from harness.run_records.rank_statuses import RankStatus

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "harness" / "workers" / "node_agent.py"
SLEEPER = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(flush=True)\ntime.sleep(60)"
"""A rank that does not end when it is asked to."""
PORT = 23999


def pretend_rank(run_dir: Path) -> subprocess.Popen[str]:
    environ = dict(os.environ) | {"HARNESS_RUN_DIR": str(run_dir)}
    command = [sys.executable, "-S", "-c", SLEEPER]
    made = subprocess.Popen(command, env=environ, text=True, stdout=subprocess.PIPE, start_new_session=True)
    assert made.stdout is not None
    made.stdout.readline()
    return made


@pytest.fixture
def ranks(tmp_path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Makes ranks; whoever is left is ended."""
    made: list[subprocess.Popen[str]] = []

    def make(run_dir: Path = tmp_path / "run") -> subprocess.Popen[str]:
        made.append(pretend_rank(run_dir))
        return made[-1]

    yield make
    for rank in made:
        rank.kill()
        rank.wait()


class Told:
    """A guard and what it says."""

    def __init__(self, run_dir: Path, silence: float = 30.0, session: int = -1, supervisor: str = "") -> None:
        request = {"run_dir": str(run_dir), "port": PORT, "silence": silence, "path": [str(ROOT)]}
        request |= {"session": session, "supervisor": supervisor}
        asked = base64.urlsafe_b64encode(json.dumps(request).encode()).decode()
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.child = subprocess.Popen([sys.executable, str(SCRIPT), asked], **pipes)  # type: ignore[call-overload]

    def alive(self) -> list[int]:
        return list(json.loads(self.child.stdout.readline())["alive"])

    def say(self, line: str) -> None:
        self.child.stdin.write(line)
        self.child.stdin.flush()

    def last(self, seconds: float = 20) -> dict[str, list[int]]:
        """Its last word, once it has ended."""
        lines = self.child.communicate(timeout=seconds)[0].splitlines()
        return dict(json.loads(lines[-1]))


def test_it_names_who_lives_and_ends_them_when_told(tmp_path, ranks):
    rank, other = ranks(), ranks(tmp_path / "another")
    guard = Told(tmp_path / "run")
    assert guard.alive() == [rank.pid]
    guard.say("beat\nend\n")
    assert guard.last() == {"left": []}
    assert (guard.child.returncode, rank.wait(5), other.poll()) == (0, -9, None)


def test_it_tells_the_signal_of_a_rank_whose_parent_has_not_asked_yet(tmp_path, ranks):
    rank, guard = ranks(), Told(tmp_path / "run")
    assert guard.alive() == [rank.pid]
    rank.kill()
    said = [json.loads(guard.child.stdout.readline()) for _ in range(4)]
    assert (said[-1]["alive"], said[-1]["signals"]) == ([], {str(rank.pid): 9})
    assert said[-1]["oom_kills"] == read_oom_kills()
    guard.say("end\n")
    guard.last()


def test_it_ends_them_when_the_connection_breaks(tmp_path, ranks):
    rank, guard = ranks(), Told(tmp_path / "run")
    guard.alive()
    guard.child.stdin.close()
    assert rank.wait(20) == -9


def test_it_ends_them_when_nobody_is_there_to_read_it(tmp_path, ranks):
    """ssh that was killed takes stdout away; stdin may stay."""
    rank, guard = ranks(), Told(tmp_path / "run")
    guard.alive()
    guard.child.stdout.close()
    assert rank.wait(20) == -9
    guard.child.stdin.close()
    guard.child.wait(20)


def test_silence_is_the_end_and_a_word_is_not(tmp_path, ranks):
    rank, guard = ranks(), Told(tmp_path / "run", silence=2.0)
    for _ in range(7):
        guard.say("beat\n")
        time.sleep(0.5)
    assert rank.poll() is None
    assert rank.wait(20) == -9
    assert guard.last() == {"left": []}


def test_where_the_supervisor_is_its_own_launcher_is_spared(tmp_path, ranks):
    launcher, rank = ranks(), ranks()
    guard = Told(tmp_path / "run", session=launcher.pid, supervisor=host_identity())
    assert guard.alive() == [rank.pid]
    guard.say("end\n")
    assert guard.last() == {"left": []}
    assert (rank.wait(5), launcher.poll()) == (-9, None)


@pytest.fixture
def guards(tmp_path, monkeypatch) -> Iterator[NodeAgents]:
    """The supervisor's side, with an `ssh` that runs the command here, or fails on the host `dead`."""
    program = tmp_path / "ssh"
    program.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\n[ $2 = dead ] && exit 255\nexec sh -c "$3"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    hosts = (HostPlan("a", (0,), ()), HostPlan("b", (1,), ()))
    plan = LaunchPlan("r", tmp_path / "run", tmp_path, (), hosts, False, PORT, (), {})
    made = NodeAgents(plan, SCRIPT.parent, str)
    yield made
    made.kill_all()


def until(condition: Callable[[], object], guards: NodeAgents, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        guards.poll()
        time.sleep(0.05)
    assert condition()


def test_a_rank_that_is_gone_is_a_death_and_a_silent_host_is_lost(guards, ranks, monkeypatch):
    rank = ranks()
    guards.start(0)
    until(lambda: all(g.last_heartbeat for g in guards.agents), guards)
    statuses = {r: RankStatus(r, host, rank.pid, "running", 1, 0.0) for r, host in enumerate("ab")}
    assert guards.find_rank_exits(statuses) == []
    assert guards.unreachable_hosts() == []
    rank.kill()
    rank.wait()
    until(lambda: guards.find_rank_exits(statuses), guards)
    assert {death.rank for death in guards.find_rank_exits(statuses)} <= {0, 1}
    os.killpg(guards.agents[1].child.pid, 9)
    until(guards.unreachable_hosts, guards)
    assert [host.name for host in guards.unreachable_hosts()] == ["b"]


def test_a_host_that_ssh_does_not_reach_is_lost(guards):
    guards.plan = LaunchPlan(
        "r", guards.plan.run_dir, guards.plan.cwd, (), (HostPlan("dead", (0,), ()),), False, PORT, (), {}
    )
    guards.start(0)
    until(guards.unreachable_hosts, guards)
    assert [host.name for host in guards.unreachable_hosts()] == ["dead"]


def test_silence_counts_from_the_last_word(tmp_path):
    guard = NodeAgent(HostPlan("a", (0,), ()), subprocess.Popen(["true"]))
    assert guard.seconds_since_heartbeat == 0.0
    guard.last_heartbeat = time.monotonic() - 25
    assert guard.seconds_since_heartbeat == pytest.approx(25, abs=1)
    guard.child.wait()


def test_hosts_that_fell_silent_together_are_found_together(guards):
    for name, silence in (("a", 21), ("b", 12), ("c", 1)):
        guard = NodeAgent(HostPlan(name, (0,), ()), subprocess.Popen(["true"]))
        guard.last_heartbeat = time.monotonic() - silence
        guards.agents.append(guard)
    assert [host.name for host in guards.unreachable_hosts()] == ["a"]
    assert [host.name for host in guards.unreachable_hosts(10.0)] == ["a", "b"]


def test_a_few_agents_connect_at_a_time(guards, monkeypatch):
    monkeypatch.setattr(node_agents, "_MAX_CONNECTING", 1)
    guards.start(0)
    assert [guard.host.name for guard in guards.agents] == ["a"]
    until(lambda: len(guards.agents) == 2 and all(guard.last_heartbeat for guard in guards.agents), guards)


def test_hosts_without_an_agent_are_named_up_to_a_few(guards, monkeypatch):
    lines: list[str] = []
    guards.log = lines.append
    hosts = tuple(HostPlan(f"h{i}", (i,), ()) for i in range(12))
    guards.plan = LaunchPlan("r", guards.plan.run_dir, guards.plan.cwd, (), hosts, False, PORT, (), {})
    guards.scripts = guards.plan.cwd  # where no node_agent.py is
    guards.start(0)
    until(lambda: guards._num_missing_agents == 12, guards)
    assert len(lines) == 9
    assert lines[-1] == "no node agent runs on further hosts, which are not listed"
