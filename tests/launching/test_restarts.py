# SPDX-License-Identifier: Apache-2.0
"""Starting again after a failure and ending what hangs, with real processes that pretend to be ranks. A second or three each."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.launching.setup.environment import Variable
from harness.launching.setup.launch_plan import HostPlan, LaunchPlan
from harness.launching.supervise import hang_detector, space_wait
from harness.launching.supervise.launch_runner import run_launch
from harness.launching.supervise.termination import grace_seconds
from harness.locks import RUN_LOCK
from harness.run.resolved_run import resolve_run
from harness.run_records.run_record import read_run_record
from harness.run_records.summary import summarise_run
from harness.spec.run_spec import RunSpec
from harness.spec.sections.launch_spec import LaunchSpec
from harness.verdicts import read_verdict
from harness.views.screen import Screen
from tests.support.restarts import read_restarts

RANK = Path(__file__).parents[1] / "support" / "pretend_rank.py"


@pytest.fixture(autouse=True)
def short_floors(monkeypatch):
    monkeypatch.setattr(hang_detector, "MIN_PHASE_SECONDS", {"start": 60.0})


def launch(tmp_path, *attempts, **settings):
    """Run what each attempt is to do; returns the outcome and the run directory."""
    run_dir = tmp_path / "runs" / "a-1"
    for folder in ("status", "logs", "checkpoints"):
        (run_dir / folder).mkdir(parents=True)
    argv = (sys.executable, str(RANK), str(run_dir), json.dumps(attempts))
    root = str(RANK.parents[2])
    variables = (
        Variable("HARNESS_RUN_DIR", str(run_dir), ""),
        Variable("PATH", os.environ.get("PATH", os.defpath), ""),
        Variable("PYTHONPATH", root, ""),
    )
    plan = LaunchPlan("a", run_dir, tmp_path, argv, (HostPlan("here", (0,), variables),), True, 1, (), {})
    settings = {"restart_delay_seconds": 0.1, "hang_timeout_seconds": None} | settings
    sections = {"launch": settings, "checkpoint": {"save_at_end": False}}
    run = resolve_run(RunSpec.model_validate(sections), world_size=1)
    return run_launch(plan, run, tmp_path, Screen("quiet")), run_dir


def wait_for(is_so):
    deadline = time.monotonic() + 60
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.05)


def rows(run_dir):
    found = []
    for line in (run_dir / "metrics.jsonl").read_text().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            found.append(None)
    return found


def test_a_killed_rank_is_started_again_from_its_last_checkpoint(tmp_path):
    outcome, run_dir = launch(
        tmp_path, ["step:1", "save:1", "step:2", "half-a-line", "killed"], ["step:2", "complete"], max_restarts=2
    )
    assert (outcome.verdict.state, outcome.verdict.code, outcome.attempts) == ("completed", 0, 2)
    assert "restarted 1 time: attempt 1 ended at step 2" in outcome.verdict.notes[-1]
    assert (run_dir / "resumed-2").read_text() == "step-00000001"
    first, second = read_restarts(run_dir)
    assert (first["state"], first["step"], first["code"]) == ("failed", 2, 137)
    assert (second["state"], Path(second["resumed_from"]).name) == ("completed", "step-00000001")
    found = rows(run_dir)
    assert [r and r["type"] for r in found] == ["step", "step", None, "restart", "step"]
    assert (found[3]["attempt"], found[3]["lost_step"], found[3]["step"]) == (2, 2, 1)
    assert json.loads((run_dir / "status" / "attempt-1" / "rank-00000.json").read_text())["step"] == 2
    lost = read_verdict(run_dir / "status" / "attempt-1")
    assert (lost.state, lost.code, lost.rank, lost.step, lost.attempt) == ("failed", 137, 0, 2, 1)
    assert read_verdict(run_dir) == outcome.verdict
    assert outcome.verdict.attempt == 2
    assert sorted(p.name for p in (run_dir / "logs").glob("launcher*")) == ["launcher-2.log", "launcher.log"]
    assert not (run_dir / RUN_LOCK).exists()


def test_without_max_restarts_nothing_is_started_again(tmp_path):
    outcome, run_dir = launch(tmp_path, ["step:1", "killed"])
    assert (outcome.verdict.state, outcome.verdict.code, outcome.attempts) == ("failed", 137, 1)
    assert read_restarts(run_dir) == []
    assert read_verdict(run_dir) == outcome.verdict
    assert outcome.verdict.time == pytest.approx(time.time(), abs=60)


def test_the_step_of_a_verdict_is_the_last_one_that_was_recorded(tmp_path):
    """A status is up to a second old, and metrics.jsonl is not."""
    outcome, run_dir = launch(tmp_path, ["step:1", "line:4", "killed"])
    assert outcome.verdict.step == read_verdict(run_dir).step == summarise_run(read_run_record(run_dir)).step == 4


def test_a_refusal_is_not_started_again(tmp_path):
    outcome, run_dir = launch(tmp_path, ["refuse"], max_restarts=5)
    assert (outcome.verdict.code, outcome.attempts) == (1, 1)
    assert read_verdict(run_dir) == outcome.verdict
    assert outcome.verdict.refused
    assert "would be refused again" in outcome.verdict.notes[-1]


def test_the_same_error_at_the_same_step_is_not_tried_a_third_time(tmp_path):
    attempt = ["step:1", "raise"]
    outcome, _ = launch(tmp_path, attempt, attempt, attempt, max_restarts=5)
    assert (outcome.verdict.state, outcome.attempts) == ("failed", 2)
    assert "fails the same way at step 1" in outcome.verdict.notes[-1]


def fails_with(error):
    """The words of a rank that prints its traceback and fails."""
    return [
        f'print:Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n{error}',
        f"fail:{error}",
    ]


@pytest.mark.parametrize(
    ("error", "action"),
    [
        ("AssertionError: Micro batch size per gpu: 0 has to be greater than 0", "change and retry"),
        ("Exception: Skipped 20 iterations in a row due to Overflow - Exiting training.", "change and retry"),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 15.66 GiB. GPU 0 has a total",
            "change and retry",
        ),
    ],
)
def test_a_deterministic_failure_is_not_started_again(tmp_path, error, action):
    outcome, _ = launch(tmp_path, fails_with(error), ["complete"], max_restarts=3)
    assert (outcome.verdict.state, outcome.attempts) == ("failed", 1)
    assert f"not restarted: {action}: the same" in outcome.verdict.notes[-1]


@pytest.mark.parametrize(
    "error",
    [
        "torch.distributed.DistNetworkError: The server socket has failed to bind to [::]:29500. EADDRINUSE",
        "RuntimeError: DataLoader worker (pid 812) is killed by signal: Killed.",
        "ValueError: what nobody has seen",
    ],
)
def test_a_failure_that_a_restart_may_cure_is_started_again(tmp_path, error):
    outcome, _ = launch(tmp_path, fails_with(error), ["complete"], max_restarts=1)
    assert (outcome.verdict.state, outcome.attempts) == ("completed", 2)


def test_memory_that_ran_out_after_progress_is_tried_again(tmp_path):
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 15.66 GiB. GPU 0 has a total"
    outcome, _ = launch(tmp_path, ["step:1", "save:1", *fails_with(error)], ["complete"], max_restarts=1)
    assert (outcome.verdict.state, outcome.attempts) == ("completed", 2)


def test_a_sick_host_that_the_run_needs_ends_it(tmp_path):
    error = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
    outcome, _ = launch(tmp_path, fails_with(error), ["complete"], max_restarts=2)
    assert (outcome.verdict.state, outcome.attempts) == ("failed", 1)
    assert "retry elsewhere" in outcome.verdict.notes[-1]
    assert "cannot do without here" in outcome.verdict.notes[-1]


@pytest.mark.parametrize("is_own", [True, False])
def test_a_full_disk_is_waited_for(tmp_path, monkeypatch, is_own):
    free = iter([1 << 10, 1 << 10, 1 << 40])
    asked = []
    monkeypatch.setattr(space_wait, "MAX_SPACE_SECONDS", 30.0)
    monkeypatch.setattr(
        space_wait.shutil, "disk_usage", lambda folder: asked.append(folder) or SimpleNamespace(free=next(free))
    )
    own = f"it needs 1.50 GiB and a margin of 4.00 MiB, 3.00 MiB are free in `{tmp_path}`"
    error = f"no space left on device; {own}" if is_own else f"[Errno 28] No space left on device: '{tmp_path}/x/y'"
    outcome, _ = launch(tmp_path, ["step:1", f"fail:{error}"], ["complete"], max_restarts=1)
    assert (outcome.verdict.state, outcome.attempts) == ("completed", 2)
    assert asked == [tmp_path] * 3


def test_a_disk_that_nobody_empties_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(space_wait, "MAX_SPACE_SECONDS", 0.5)
    monkeypatch.setattr(space_wait.shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    outcome, _ = launch(tmp_path, ["fail:OSError: [Errno 28] No space left on device"], ["complete"], max_restarts=1)
    assert (outcome.verdict.state, outcome.attempts) == ("failed", 1)
    assert "nobody freed space" in outcome.verdict.notes[-1]


@pytest.mark.parametrize("how", ["stopped", "interpreter", "deadlock"])
def test_a_hung_rank_is_ended_with_its_stack_and_started_again(tmp_path, how):
    began = time.monotonic()
    outcome, run_dir = launch(
        tmp_path, ["step:1", "save:1", how], ["complete"], max_restarts=1, hang_timeout_seconds=2.5
    )
    assert time.monotonic() - began < 30
    assert outcome.verdict.state == "completed"
    first = read_restarts(run_dir)[0]
    assert first["code"] == 124
    assert "hung in a step" in first["cause"]
    assert read_verdict(run_dir / "status" / "attempt-1").cause == "LG076"
    stack = (run_dir / "logs" / "stacks-00000.txt").read_text()
    assert "pretend_rank.py" in stack
    assert {"stopped": "act", "interpreter": "hold_the_interpreter", "deadlock": "wait_for_oneself"}[how] in stack
    if how == "stopped":
        assert "is stopped by a signal" in first["cause"]


def test_a_hang_while_nothing_is_watched_goes_on(tmp_path):
    status = tmp_path / "runs" / "a-1" / "status" / "rank-00000.json"

    def interrupt() -> None:
        wait_for(lambda: status.exists() and '"running"' in status.read_text())
        time.sleep(2.5)
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Thread(target=interrupt, daemon=True)
    timer.start()
    outcome, _ = launch(tmp_path, ["step:1", "wait"], max_restarts=3, stop_grace_seconds=0.5)
    timer.join()
    assert (outcome.verdict.state, outcome.verdict.code, outcome.attempts) == ("stopped", 130, 1)
    assert outcome.verdict.notes == (
        "no step and save had ended 500 ms after the signal, so nothing was saved: raise `launch.stop_grace_seconds`",
    )


def test_the_default_grace_is_enough_for_the_steps_that_were_measured():
    assert grace_seconds(LaunchSpec(), [], 0.0) == 8.0
    assert grace_seconds(LaunchSpec(), [0.2, 0.3], 1.0) == 8.0
    assert grace_seconds(LaunchSpec(), [8.4, 8.0], 2.0) == pytest.approx(27.2)
    assert grace_seconds(LaunchSpec(), [3600.0], 0.0) == 120.0
    assert grace_seconds(LaunchSpec(stop_grace_seconds=5.0), [8.4], 2.0) == 5.0


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGUSR1, 138), (signal.SIGTERM, 143)])
def test_a_stop_is_no_reason_to_start_again(tmp_path, signum, code):
    timer = threading.Timer(2.5, os.kill, (os.getpid(), signum))
    timer.start()
    outcome, run_dir = launch(tmp_path, ["step:1", "obey"], max_restarts=3)
    timer.join()
    assert (outcome.verdict.state, outcome.verdict.code, outcome.attempts) == ("stopped", code, 1)
    assert (run_dir / "stop").read_text().startswith(signal.Signals(signum).name)
    assert read_verdict(run_dir) == outcome.verdict
    assert outcome.verdict.signal == signal.Signals(signum).name


def test_a_stop_between_two_attempts(tmp_path):
    run_dir = tmp_path / "runs" / "a-1"

    def ask() -> None:
        wait_for(lambda: read_verdict(run_dir) is not None)
        time.sleep(1.0)
        (run_dir / "stop").touch()

    timer = threading.Thread(target=ask, daemon=True)
    timer.start()
    outcome, _ = launch(tmp_path, ["step:1", "killed"], max_restarts=3, restart_delay_seconds=600)
    timer.join()
    assert (outcome.verdict.state, outcome.verdict.code, outcome.attempts) == ("stopped", 130, 1)
    assert "between two attempts" in outcome.verdict.reason
    assert read_verdict(run_dir) == outcome.verdict
    assert (outcome.verdict.rank, outcome.verdict.signal) == (None, "")
