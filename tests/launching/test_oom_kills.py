# SPDX-License-Identifier: Apache-2.0
"""The kernel's count of out-of-memory kills, and its rise within the last seconds. Needs nothing; a second."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace

import pytest

from harness.launching.process import oom_kills
from harness.launching.process.oom_kills import OomKillHistory, read_oom_kills
from harness.launching.process.processes import read_process
from harness.launching.setup.launch_context import LaunchContext
from harness.launching.setup.launch_plan import RunTarget, build_launch_plan
from harness.launching.setup.run_dir import write_run_dir
from harness.launching.supervise import monitor as monitoring
from harness.launching.supervise.monitor import RankMonitor
from harness.run.resolved_run import resolve_run
from harness.spec.run_spec import RunSpec
from harness.views.screen import Screen
from tests.launching.test_launch_plan import CONFIG, HERE


@pytest.mark.parametrize(
    ("text", "expected"), [("nr_free 7\noom_kill 12\nswap 1\n", 12), ("nr_free 7\n", None), ("oom_kill x\n", None)]
)
def test_the_count_is_read_where_there_is_one(tmp_path, monkeypatch, text, expected):
    monkeypatch.setattr(oom_kills, "VMSTAT", tmp_path / "vmstat")
    assert read_oom_kills() is None
    (tmp_path / "vmstat").write_text(text)
    assert read_oom_kills() == expected


def test_a_rise_counts_for_some_seconds(monkeypatch):
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    history = OomKillHistory()
    assert history.has_risen() is None
    for now, count, expected in [(100, 3, None), (101, 3, False), (105, 4, True), (130, 4, True), (140, 4, False)]:
        history.add(count)
        assert history.has_risen() is expected, now


def test_a_host_without_a_count_does_not_know():
    history = OomKillHistory()
    for count in (None, None, 5):
        history.add(count)
    assert history.has_risen() is None


def test_a_kill_after_the_count_of_a_poll_is_the_kernels(tmp_path, monkeypatch):
    """The kernel may kill a rank between the count that a poll reads and its look at the processes."""
    run = resolve_run(RunSpec.model_validate({}), name="demo")
    documents = {"spec.resolved.json": "{}", "ds_config.json": "{}"}
    plan = build_launch_plan(run, CONFIG, HERE, RunTarget(tmp_path / "demo-7", documents, None))
    plan = replace(plan, argv=(sys.executable, "-c", "import time; time.sleep(60)"), cwd=tmp_path)
    write_run_dir(plan)
    monitor = RankMonitor(plan, run.spec.launch, LaunchContext(tmp_path, Screen("quiet"), None), "log", lambda: None)
    monitor.start()
    pid = monitor.child.pid

    def find_exits() -> None:
        monitor.child.kill()
        while not read_process(pid).has_exited:
            time.sleep(0.01)
        look()

    status = {"rank": 0, "pid": pid, "state": "running", "step": 1, "host": "h", "time": 0.0}
    (plan.run_dir / "status" / "rank-00000.json").write_text(json.dumps(status))
    monkeypatch.setattr(monitoring, "read_oom_kills", lambda: 4 if read_process(pid).has_exited else 3)
    monitor.poll(force=True)
    look = monitor._find_rank_exits
    monkeypatch.setattr(monitor, "_find_rank_exits", find_exits)
    monitor.poll()
    monitor.child.wait()
    assert [rank_exit.ran_out_of_memory for rank_exit in monitor.rank_exits] == [True]
