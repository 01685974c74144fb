# SPDX-License-Identifier: Apache-2.0
"""A host of a run that says what no agent and no builder says: of other ranks, without end, or no JSON. Milliseconds."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from harness.launching.ops.build_events import BuildProgress
from harness.launching.setup.launch_plan import HostPlan
from harness.launching.supervise import node_agents
from harness.launching.supervise.node_agents import NodeAgent
from harness.launching.supervise.own_disks import write_statuses
from harness.launching.supervise.run_verdict import RankExit, decide_verdict
from harness.run_records.rank_statuses import read_statuses
from tests.security.attempts import Attempt

FAILED = {"host": "evil", "pid": 1, "state": "failed", "step": 9, "time": 1.0, "error": "all is lost"}


@Attempt(
    "S90",
    "with own disks a host sends statuses of ranks of other hosts, under names of its own rank",
    "a thousand files of names such as `rank-000001.json`; the verdict named rank 0",
    "only `rank-00001.json` is written, and counts only if it speaks of rank 1",
)
def test_a_host_speaks_for_its_own_ranks_alone(tmp_path: Path) -> None:
    (tmp_path / "status").mkdir()
    text = json.dumps(FAILED | {"rank": 0})
    names = [
        "rank-00001.json",
        "rank-00000.json",
        "rank-000001.json",
        "rank-0000\u0661.json",
        "../launch.json",
        "rank-00002.json",
    ]
    write_statuses(tmp_path, (1,), dict.fromkeys(names, text))
    assert [path.name for path in (tmp_path / "status").iterdir()] == ["rank-00001.json"]
    assert not (tmp_path / "launch.json").exists()
    assert read_statuses(tmp_path) == {}
    write_statuses(tmp_path, (1,), {"rank-00001.json": json.dumps(FAILED | {"rank": 1})})
    assert set(read_statuses(tmp_path)) == {1}


@Attempt(
    "S91",
    "a host reports signals that do not exist, and of ever more processes",
    "a traceback of the launch where it names the signal; memory without end",
    "left out; each heartbeat replaces the one before",
)
@pytest.mark.parametrize("signum", [0, -9, 65, 10**9, signal.SIGRTMIN + 3])
def test_signals_that_do_not_exist(signum: int) -> None:
    agent = NodeAgent(HostPlan("evil", (0,), ()), SimpleNamespace())
    for first in range(0, 3000, 1000):
        signals = {str(pid): int(signal.SIGKILL) for pid in range(first, first + 1000)}
        line = {"alive": [1], "signals": signals | {"7": signum}}
        node_agents._handle_line(agent, json.dumps(line).encode(), None)
    assert len(agent.exit_signals) <= 1001
    assert agent.exit_signals.get(7) == (signum if signum in signal.valid_signals() else None)
    verdict = decide_verdict({}, 1, 1, [RankExit(0, 7, 1.0, agent.exit_signals.get(7), reported_by_launcher=True)])
    assert verdict.state == "failed"


@Attempt(
    "S92",
    "the builder on another host prints events that are no JSON, lack keys, or have no end",
    "a traceback of the launch; memory without end",
    "left out",
)
def test_events_of_a_builder_that_is_none() -> None:
    progress = BuildProgress("evil")
    deep = b'{"event": ' + b"[" * 10**5
    lines = [b'{"event": "start"}', b'{"event"', b'{"event": "planted"}', b'{"event": "lock"}', deep, b'{"event"}']
    for line in (*lines, b'{"event": "unwritable"}', b"\xff\xfe"):
        progress.feed(line + b"\n", Mock())
    for _ in range(20):
        progress.feed(b"x" * 65536, Mock())
    assert len(progress._rest) <= 1 << 17
    progress.feed(b'\n{"event": "failed", "op": "cpu_adam", "error": "no"}\n', Mock())
    assert progress.failed_op == "cpu_adam"
