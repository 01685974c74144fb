# SPDX-License-Identifier: Apache-2.0
"""Hosts that start their own ranks: who is which, and whether they mean the same run. Needs nothing; seconds."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from harness.diagnosis.run_diagnosis import diagnose_run
from harness.errors import UserError
from harness.launching.setup.launch_plan import LaunchPlan, RunTarget, build_launch_plan
from harness.launching.setup.no_ssh import PerNodeLaunch, resolve_node_rank, shared_run_dir, wait_for_leader
from harness.launching.setup.run_dir import write_run_dir
from harness.launching.supervise.verdict_files import save_verdict, verdict_from_log, verdict_of_other_hosts
from harness.run.resolved_run import resolve_run
from harness.spec.hostfile import Cluster
from harness.spec.run_spec import RunSpec
from harness.verdicts import Verdict, read_verdict
from tests.launching.test_launch_plan import CONFIG, HERE

RUN = resolve_run(RunSpec.model_validate({}), name="demo", cluster=Cluster.from_pairs([("a", 1), ("b", 1)]))
DOCUMENTS = {"spec.resolved.json": "{}", "ds_config.json": "{}"}


def planned(run_dir: Path, node: int, resume: Path | None = None, **documents: str) -> LaunchPlan:
    return build_launch_plan(RUN, CONFIG, HERE, RunTarget(run_dir, {**DOCUMENTS, **documents}, resume, node_rank=node))


def refused(call) -> str:
    with pytest.raises(UserError) as caught:
        call()
    (finding,) = caught.value.findings
    assert finding.gate == "EN013"
    return finding.message


def test_a_host_is_found_by_its_name_or_told():
    assert resolve_node_rank(PerNodeLaunch("7"), RUN.cluster, replace(HERE, local_names=frozenset({"b"}))) == 1
    assert (
        resolve_node_rank(PerNodeLaunch("7", node_rank=0), RUN.cluster, replace(HERE, local_names=frozenset({"b"})))
        == 0
    )
    assert "is none of the given hosts" in refused(lambda: resolve_node_rank(PerNodeLaunch("7"), RUN.cluster, HERE))
    both = replace(HERE, local_names=frozenset({"a", "b"}))
    assert "is more than one" in refused(lambda: resolve_node_rank(PerNodeLaunch("7"), RUN.cluster, both))
    assert "counted from 0" in refused(lambda: resolve_node_rank(PerNodeLaunch("7", node_rank=2), RUN.cluster, HERE))


@pytest.mark.parametrize("run_id", ["", "../x", "a b", "-x", "x" * 65, "a/b"])
def test_an_id_is_a_part_of_a_name(run_id):
    assert "folder name" in refused(lambda: resolve_node_rank(PerNodeLaunch(run_id, 0), RUN.cluster, HERE))


def test_one_host_needs_nobody():
    alone = RUN._replace(cluster=Cluster.from_pairs([("a", 4)]))
    assert "several hosts" in refused(lambda: resolve_node_rank(PerNodeLaunch("7"), alone.cluster, HERE))


def test_the_name_of_a_job_is_used_once(tmp_path):
    assert shared_run_dir(PerNodeLaunch("7"), tmp_path, "demo", 0) == tmp_path / "demo-7"
    (tmp_path / "demo-7").mkdir()
    assert "exists" in refused(lambda: shared_run_dir(PerNodeLaunch("7"), tmp_path, "demo", 0))
    assert shared_run_dir(PerNodeLaunch("7"), tmp_path, "demo", 1) == tmp_path / "demo-7"


def test_the_others_wait_for_the_first_and_go_on_from_where_it_does(tmp_path):
    first = planned(tmp_path / "demo-7", 0, resume=tmp_path / "old" / "step-00000005")
    said: list[str] = []
    maker = threading.Timer(0.7, lambda: write_run_dir(first))
    maker.start()
    began = time.monotonic()
    plan = wait_for_leader(planned(tmp_path / "demo-7", 1), 30, said.append)
    maker.join()
    assert 0.5 < time.monotonic() - began < 10
    assert plan.resume == tmp_path / "old" / "step-00000005"
    assert plan.argv[-2:] == ("--resume", str(plan.resume))
    assert {v.name: v.value for v in plan.variables}["HARNESS_LEADER"] == HERE.supervisor_id
    assert said == [f"waiting for a to make {tmp_path / 'demo-7'}"]


def test_a_first_host_that_does_not_come_is_named(tmp_path):
    assert "a has not made" in refused(lambda: wait_for_leader(planned(tmp_path / "demo-7", 1), 0.2, lambda _: None))


def test_another_spec_is_refused(tmp_path):
    write_run_dir(planned(tmp_path / "demo-7", 0))
    other = planned(tmp_path / "demo-7", 1, **{"ds_config.json": '{"zero_optimization": {"stage": 2}}'})
    assert "renders a different `ds_config.json` than a" in refused(lambda: wait_for_leader(other, 1, lambda _: None))


def test_a_job_that_has_ended_is_not_joined(tmp_path):
    write_run_dir(planned(tmp_path / "demo-7", 0))
    (tmp_path / "demo-7" / "status" / "rank-00000.json").write_text(json.dumps({"rank": 0, "state": "completed"}))
    assert "has ended" in refused(lambda: wait_for_leader(planned(tmp_path / "demo-7", 1), 1, lambda _: None))


LOST = Verdict("failed", 1, "RuntimeError: Connection reset by peer", 0, "a", 24, crashed=True)
KILLED = Verdict("failed", 137, "killed by SIGKILL", 1, "b", 24, signal="SIGKILL", cause="LG003")


def test_the_host_of_a_killed_rank_tells_the_first_one(tmp_path):
    first, other = (planned(tmp_path / "demo-7", node) for node in (0, 1))
    write_run_dir(first)
    threading.Timer(0.5, save_verdict, (other, KILLED)).start()
    assert verdict_of_other_hosts(first, LOST, 20) == KILLED
    assert read_verdict(first.run_dir) is None  # the first host's to write


def test_what_the_first_host_knows_itself_stays(tmp_path):
    first, other = (planned(tmp_path / "demo-7", node) for node in (0, 1))
    write_run_dir(first)
    assert verdict_of_other_hosts(first, LOST, 0.3) == LOST  # nobody knows better
    save_verdict(other, LOST)
    assert verdict_of_other_hosts(first, LOST, 0.3) == LOST
    boom = replace(LOST, reason="ValueError: boom")
    save_verdict(other, KILLED)
    assert verdict_of_other_hosts(first, boom, 60) == boom
    assert verdict_of_other_hosts(other, LOST, 60) == LOST


def test_the_log_names_a_rank_that_wrote_no_status(tmp_path):
    """What the verdict says then is what the log says: else `harness runs` and `harness explain --log` would differ."""
    plan = planned(tmp_path / "demo-7", 0)
    write_run_dir(plan)
    assert verdict_from_log(plan, LOST) == LOST  # no log
    log = plan.run_dir / "logs" / "launcher.log"
    lines = ['  File "train.py", line 7, in step', "    raise ValueError", "ValueError: boom"]
    log.write_text("".join(f"[rank1]: {line}\n" for line in ["Traceback (most recent call last):", *lines]))
    found = verdict_from_log(plan, LOST)
    assert (found.rank, found.reason, found.step) == (1, "ValueError: boom", LOST.step)
    save_verdict(plan, found)
    assert diagnose_run(plan.run_dir).verdict == found
    killed = replace(LOST, reason="killed by SIGKILL", crashed=False)
    assert verdict_from_log(plan, killed) == killed
