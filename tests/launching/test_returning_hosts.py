# SPDX-License-Identifier: Apache-2.0
"""The hosts that a run lost, with an `ssh` that reaches those whose file is there. Needs nothing; a second."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.diagnosis.decision import Decision
from harness.launching.setup.launch_plan import HostPlan, LaunchPlan
from harness.launching.supervise import returning_hosts, supervisor
from harness.launching.supervise.restart_policy import Attempt
from harness.launching.supervise.returning_hosts import MAX_LOSSES, LostHosts
from harness.launching.supervise.supervisor import _fit_hosts, _Supervisor, _wait_for_hosts
from harness.spec.sections.launch_spec import LaunchSpec
from harness.verdicts import Verdict


@pytest.fixture
def lost(tmp_path, monkeypatch) -> LostHosts:
    program = tmp_path / "ssh"
    program.write_text(
        f'#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\n[ -e {tmp_path}/up-$2 ] && exec sh -c "$3"\nexit 255\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(returning_hosts, "CHECK_SECONDS", 0.02)
    (tmp_path / "launch.json").touch()
    return LostHosts(tmp_path)


def poll_until_answering(lost: LostHosts, names: set[str], saves: int = 0) -> None:
    end = time.monotonic() + 20
    while lost.answering != names and time.monotonic() < end:
        assert not lost.poll(saves)
        time.sleep(0.01)
    assert lost.answering == names


def test_a_host_that_answers_again_is_taken_back_after_the_next_save(lost, tmp_path):
    lost.add(["a", "b"], ["a", "b", "c"])
    assert lost.names == {"a", "b"}
    for _ in range(20):
        assert not lost.poll(3)
        time.sleep(0.01)
    assert lost.answering == set()
    (tmp_path / "up-b").touch()
    poll_until_answering(lost, {"b"}, 3)
    assert not lost.poll(3)
    assert lost.poll(4)
    assert lost.take_back() == ["b"]
    assert lost.names == {"a"}
    lost.close()


def test_a_host_that_does_not_see_the_run_directory_is_not_back(lost, tmp_path):
    (tmp_path / "launch.json").unlink()
    (tmp_path / "up-a").touch()
    lost.add(["a"], ["a", "b"])
    for _ in range(30):
        assert not lost.poll(0)
        time.sleep(0.01)
    assert lost.take_back() == []


def test_a_host_that_is_lost_again_and_again_is_left_out(lost, tmp_path):
    (tmp_path / "up-a").touch()
    for losses in range(1, MAX_LOSSES):
        lost.add(["a"], ["a", "b"])
        poll_until_answering(lost, {"a"})
        assert lost.take_back() == ["a"], losses
    lost.add(["a"], ["a", "b"])
    assert (lost.left_out, lost.names) == ({"a"}, {"a"})
    for _ in range(20):
        assert not lost.poll(99)
        time.sleep(0.01)
    assert lost.take_back() == []


def test_hosts_with_which_the_run_cannot_continue_wait_for_others(lost, tmp_path):
    lost.add(["a", "b"], ["a", "b", "c"])
    (tmp_path / "up-a").touch()
    poll_until_answering(lost, {"a"})
    lost.refuse(lost.take_back())
    poll_until_answering(lost, {"a"})
    assert not lost.poll(1)
    assert not lost.poll(2)
    (tmp_path / "up-b").touch()
    saves, end = 3, time.monotonic() + 20
    while not lost.poll(saves) and time.monotonic() < end:
        saves += 1
        time.sleep(0.01)
    assert lost.take_back() == ["a", "b"]


def test_a_host_that_was_used_without_a_loss_counts_as_there(lost):
    lost.add(["a"], ["a", "b"])
    lost.add([], ["a", "b"])
    assert lost.names == set()


def test_no_question_is_left(lost, tmp_path):
    (tmp_path / "ssh").write_text("#!/bin/sh\nsleep 60\n")
    lost.add(["a"], ["a"])
    end = time.monotonic() + 10
    while not lost._checks and time.monotonic() < end:
        lost.poll(0)
    (child, _) = lost._checks["a"]
    lost.close()
    assert child.returncode == -9
    assert not Path(f"/proc/{child.pid}").exists()


class Fitted:
    """A supervisor of hosts a, b, c that makes plans of names alone."""

    def __init__(self, lost: LostHosts, min_hosts: int | None, refused: Collection[str] = ()) -> None:
        self.lines: list[str] = []
        self.refused = refused
        context = cast("Any", SimpleNamespace(observer=SimpleNamespace(on_note=self.lines.append)))
        self.plan = self.plan_on("abc")
        launch = LaunchSpec(min_hosts=min_hosts)
        self.supervisor = _Supervisor(launch, context, lambda: None, frozenset("abc"), lost, self.replan)

    def plan_on(self, names: Collection[str]) -> LaunchPlan:
        hosts = tuple(HostPlan(name, (rank,), ()) for rank, name in enumerate(sorted(names)))
        return LaunchPlan("r", Path("/runs/r"), Path("/"), (), hosts, False, 1, (), {})

    def replan(self, lost: Collection[str]) -> LaunchPlan | str:
        names = "".join(name for name in "abc" if name not in lost)
        return "its batch" if names in self.refused else self.plan_on(names)

    def fit(self) -> str:
        self.plan = _fit_hosts(self.plan, self.supervisor)
        return "".join(host.name for host in self.plan.hosts)


def answer(lost: LostHosts, *names: str) -> None:
    for name in names:
        lost._answers[name] = 2


def test_the_next_attempt_has_the_hosts_that_are_there(lost):
    fitted = Fitted(lost, 1)
    lost.add(["b", "c"], "abc")
    assert fitted.fit() == "a"
    answer(lost, "c")
    lost.add([], "a")
    assert fitted.fit() == "ac"
    answer(lost, "b")
    lost.add(["c"], "ac")
    assert fitted.fit() == "ab"
    assert fitted.lines == [
        "continuing without b, c: 1 ranks on 1 of the hosts",
        "continuing with c again: 2 ranks on 2 of the hosts",
        "continuing without c and with b again: 2 ranks on 2 of the hosts",
    ]


def test_a_host_that_is_left_out_has_a_line(lost):
    fitted = Fitted(lost, 1)
    for _ in range(MAX_LOSSES):
        lost.add(["b"], "abc")
        assert fitted.fit() == "ac"
        answer(lost, "b")
        lost.add([], "ac")
        fitted.fit()
    assert fitted.lines[-1] == f"b was lost {MAX_LOSSES} times: it is left out from now on"
    assert fitted.fit() == "ac"


def test_with_too_few_hosts_left_all_are_tried_again(lost):
    fitted = Fitted(lost, 2)
    lost.add(["b", "c"], "abc")
    assert fitted.fit() == "abc"
    assert Fitted(lost, None).fit() == "abc"


def test_hosts_with_which_it_cannot_run_stay_lost(lost):
    fitted = Fitted(lost, 1, refused=["ab"])
    lost.add(["b", "c"], "abc")
    assert fitted.fit() == "a"
    answer(lost, "b")
    lost.add([], "a")
    assert fitted.fit() == "a"
    assert fitted.lines[-1] == "it cannot continue with b again: its batch"
    assert not lost.poll(1)
    assert not lost.poll(2)


@pytest.mark.parametrize("refused", [(), ("ac",)])
def test_a_sick_host_is_never_started_again(lost, tmp_path, monkeypatch, refused):
    """Without a plan that leaves it out the run ends: the old plan would start its ranks on broken hardware."""
    fitted = Fitted(lost, 1, refused)
    verdict = Verdict("failed", 1, "CUDA error: uncorrectable ECC error", rank=0, host="a", crashed=True)
    advice = Decision("retry elsewhere", "b is at fault", ("b",), is_certain=True)
    monkeypatch.setattr(supervisor, "advise_restart", lambda *_: advice)
    monkeypatch.setattr(supervisor, "_plan_next_attempt", lambda plan, *_: plan)
    run = fitted.supervisor
    run.launch = LaunchSpec(min_hosts=1, max_restarts=2, restart_delay_seconds=0.01)
    run.context.signals = SimpleNamespace(received=[], first=None)
    run.attempts.append(Attempt(1, 0, 1, None, 0, 1, 2, "failed", 1, verdict.reason))
    plan = replace(fitted.plan, run_dir=tmp_path)
    after = supervisor._decide_next_attempt(plan, run, verdict, stopped_for=())
    if refused:
        assert isinstance(after, Verdict)
        assert after.notes[-1] == "not restarted: the hardware of b failed, and the run has no plan without it"
    else:
        assert isinstance(after, LaunchPlan)
        assert [host.name for host in after.hosts] == ["a", "c"]  # of the log, not of the verdict


def test_a_restart_that_needs_a_lost_host_waits_for_it(lost, tmp_path, monkeypatch):
    """A link that is down for a minute costs one restart."""
    fitted = Fitted(lost, None)
    lost.add(["b"], "abc")
    assert fitted.fit() == "abc"
    asked: list[int] = []

    def come_back() -> bool:
        asked.append(1)
        if len(asked) == 3:
            (tmp_path / "up-b").touch()
        return False

    assert _wait_for_hosts(fitted.plan, fitted.supervisor, come_back)
    assert len(asked) >= 3
    assert fitted.lines == ["waiting for b to answer, for 3 min 00 s"]
    assert not lost._checks
    lost.add(["a"], "abc")
    assert not _wait_for_hosts(fitted.plan, fitted.supervisor, lambda: True), "it is being stopped"
    monkeypatch.setattr(supervisor, "_LOST_HOST_SECONDS", 0.2)
    assert _wait_for_hosts(fitted.plan, fitted.supervisor, lambda: False), "then it is tried without an answer"
