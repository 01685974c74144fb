# SPDX-License-Identifier: Apache-2.0
"""Watching over a launcher and what comes after it, with small real processes. Needs nothing; seconds."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from harness.checkpoints import manifest
from harness.hostinfo import machine
from harness.launching.process.processes import read_process
from harness.launching.setup.environment import Variable
from harness.launching.setup.launch_plan import HostPlan, LaunchPlan
from harness.launching.supervise import launch_runner, monitor, verdict_files
from harness.launching.supervise.launch_runner import run_launch
from harness.run.resolved_run import resolve_run
from harness.spec.run_spec import RunSpec
from harness.verdicts import VERDICT, read_verdict
from harness.views.screen import Screen

RANK = """
import json, sys, time
file, state, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
open(file, "w").write(json.dumps({"rank": 0, "host": "here", "pid": 0, "state": state, "step": 7, "time": 1.0}))
time.sleep(seconds)
"""
RANK_THAT_OBEYS_SIGTERM = """
import json, os, signal, sys, time
def say(state):
    body = {"rank": 0, "host": "here", "pid": os.getpid(), "state": state, "step": 7, "time": time.time()}
    open(sys.argv[1] + ".new", "w").write(json.dumps(body))
    os.rename(sys.argv[1] + ".new", sys.argv[1])
def stop(*_):
    say("stopped")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
say("running")
time.sleep(600)
"""
EXPORT = (
    "import pathlib, sys; pathlib.Path(sys.argv[4]).mkdir(); pathlib.Path(sys.argv[4], 'from').write_text(sys.argv[2]);"
    "pathlib.Path(sys.argv[4], 'words').write_text(' '.join(sys.argv[5:]))"
)
SLOW_EXPORT = (
    "import os, pathlib, sys, time; pathlib.Path(sys.argv[4] + '.pid').write_text(str(os.getpid())); time.sleep(600)"
)


EXPORT_WITH_A_SAMPLE = (
    "import os, pathlib, signal, sys, time; from harness.progress import GENERATING_SAMPLE;"
    "run = pathlib.Path(sys.argv[4]).parent; (run / 'was-locked').write_text(str((run / 'lock').exists()));"
    "pathlib.Path(sys.argv[4]).mkdir(); print(GENERATING_SAMPLE, flush=True); time.sleep(0.5);"
    "os.kill(os.getppid(), signal.SIGINT) if 'interrupt' in sys.argv else sys.exit(3); time.sleep(600)"
)


NO_SAVES = RunSpec.model_validate({"checkpoint": {"save_at_end": False}})


@pytest.fixture
def plan(tmp_path):
    """A launch of one process that says it has completed step 7 and exits."""
    run_dir = tmp_path / "runs" / "a-1"
    for folder in ("status", "logs", "checkpoints"):
        (run_dir / folder).mkdir(parents=True)
    argv = (sys.executable, "-c", RANK, str(run_dir / "status" / "rank-00000.json"), "completed", "0")
    variables = (
        Variable("HARNESS_RUN_DIR", str(run_dir), ""),
        Variable("PATH", os.environ.get("PATH", os.defpath), ""),
    )
    return LaunchPlan("a", run_dir, tmp_path, argv, (HostPlan("here", (0,), variables),), True, 1, (), {})


def run_with(plan, trusts=False, program=EXPORT, mode="quiet", saves=False, script=None, **export):
    sections = {"model": {"trust_remote_code": trusts}, "checkpoint": {"save_at_end": saves}, "export": export}
    sections["plugins"] = {"script": script}
    spec = RunSpec.model_validate(sections)
    scripts = plan.cwd / "launch"
    scripts.mkdir(exist_ok=True)
    (scripts / "export_worker.py").write_text(program)
    return run_launch(plan, resolve_run(spec, world_size=1), scripts, Screen(mode))


def checkpoint(folder: Path, step: int) -> Path:
    folder.mkdir(parents=True)
    body = {"state": {"step": step}, "tag": f"global_step{step}", "world": 1, "zero_stage": 0, "dtype": "float32"}
    manifest.write_manifest(folder, body | {"files": {}})
    return folder


def test_a_process_that_hangs_after_its_last_word_is_ended(plan, monkeypatch):
    monkeypatch.setattr(monitor, "_EXIT_HANG_SECONDS", 1.0)
    began = time.monotonic()
    outcome = run_with(replace(plan, argv=(*plan.argv[:-1], "600")))
    assert time.monotonic() - began < 30
    assert (outcome.verdict.state, outcome.verdict.code, outcome.verdict.step) == ("completed", 0, 7)
    assert outcome.verdict.notes == ()  # the supervisor ended it


def test_an_export_without_any_checkpoint_is_a_failure(plan):
    outcome = run_with(plan, at_end=True)
    assert (outcome.verdict.state, outcome.verdict.code) == ("failed", 1)
    assert "nothing to export" in outcome.verdict.reason
    assert "training is complete" in outcome.verdict.reason
    assert run_with(plan).verdict.state == "completed"


def test_a_run_that_was_at_its_end_already_exports_what_it_was_resumed_from(plan, tmp_path):
    last = checkpoint(tmp_path / "earlier" / "step-00000007", 7)
    outcome = run_with(replace(plan, resume=last), at_end=True)
    assert outcome.verdict.state == "completed"
    assert (outcome.export / "from").read_text() == str(last)


@pytest.mark.parametrize(
    ("prompt", "state", "code", "end"),
    [
        ("interrupt", "stopped", 130, "its sample was interrupted"),
        ("fail", "failed", 3, "its sample ended with code 3"),
    ],
)
def test_an_export_is_complete_without_its_sample(plan, monkeypatch, capsys, prompt, state, code, end):
    """The run is locked, and therefore `running` for `harness runs`, until the export has ended."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))
    checkpoint(plan.run_dir / "checkpoints" / "step-00000007", 7)
    outcome = run_with(plan, program=EXPORT_WITH_A_SAMPLE, mode="plain", at_end=True, sample_prompt=prompt)
    assert (outcome.verdict.state, outcome.verdict.code) == (state, code)
    assert f"training is complete and saved, so is the export; {end}" in outcome.verdict.reason
    assert outcome.export == plan.run_dir / "export"
    assert (plan.run_dir / "was-locked").read_text() == "True"
    assert not (plan.run_dir / "lock").exists()
    shown = capsys.readouterr().err
    assert shown.index("exporting step-00000007") < shown.index("generating the sample")


@pytest.mark.parametrize(
    ("trusts", "where", "allowed"),
    [
        (True, "runs/a-1/checkpoints", True),
        (True, "runs/a-0", True),
        (True, "elsewhere", False),
        (False, "runs/a-0", False),
    ],
)
def test_the_runs_own_spec_allows_the_code_of_what_it_saved_alone(plan, tmp_path, trusts, where, allowed):
    last = checkpoint(tmp_path / where / "step-00000007", 7)
    outcome = run_with(replace(plan, resume=last), trusts, at_end=True)
    assert ("--allow-local-code" in (outcome.export / "words").read_text()) is allowed


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_export_ends_with_its_launch(plan, signum):
    checkpoint(plan.run_dir / "checkpoints" / "step-00000007", 7)
    launch = multiprocessing.get_context("fork").Process(
        target=run_with, args=(plan,), kwargs={"program": SLOW_EXPORT, "at_end": True}
    )
    launch.start()
    pid_file = plan.run_dir / "export.pid"
    assert wait_until(lambda: pid_file.exists() and pid_file.read_text() != "")
    export = int(pid_file.read_text())
    try:
        assert read_process(export) is not None
        os.kill(launch.pid, signum)
        launch.join(20)
        assert wait_until(lambda: (left := read_process(export)) is None or left.has_exited)
        assert launch.exitcode == (-signal.SIGKILL if signum == signal.SIGKILL else 0)
    finally:
        launch.kill()
        if (left := read_process(export)) is not None and not left.has_exited:
            os.kill(export, signal.SIGKILL)
    if signum != signal.SIGKILL:
        verdict = read_verdict(plan.run_dir)
        assert (verdict.state, verdict.code) == ("stopped", 128 + signum)


def test_ranks_are_asked_by_a_signal_where_the_file_stop_cannot_be_written(plan):
    """A folder in its place, as root may write to a folder that is read-only."""
    (plan.run_dir / "stop").mkdir()
    status = plan.run_dir / "status" / "rank-00000.json"
    argv = (sys.executable, "-c", RANK_THAT_OBEYS_SIGTERM, str(status))
    launch = multiprocessing.get_context("fork").Process(target=run_with, args=(replace(plan, argv=argv),))
    launch.start()
    assert wait_until(status.exists)
    time.sleep(1.0)  # the supervisor looks at statuses twice a second
    os.kill(launch.pid, signal.SIGINT)
    launch.join(20)
    assert launch.exitcode == 0
    verdict = read_verdict(plan.run_dir)
    assert (verdict.state, verdict.code, verdict.reason) == ("stopped", 130, "every rank finished its step")


def wait_until(done, seconds=20.0):
    end = time.monotonic() + seconds
    while not done() and time.monotonic() < end:
        time.sleep(0.05)
    return done()


def test_older_weights_are_not_exported_as_the_new_ones(plan, tmp_path):
    older = checkpoint(tmp_path / "earlier" / "step-00000003", 3)
    assert run_with(replace(plan, resume=older), at_end=True).verdict.state == "failed"


def test_older_weights_of_this_run_are_neither_exported_nor_reported_as_the_last_ones(plan):
    checkpoint(plan.run_dir / "checkpoints" / "step-00000003", 3)
    verdict = run_with(plan, at_end=True).verdict
    assert (verdict.state, verdict.code) == ("failed", 1)
    assert "there is no checkpoint of step 7, the newest is step-00000003" in verdict.reason
    assert not (plan.run_dir / "export").exists()
    verdict = run_with(plan, saves=True).verdict
    assert (verdict.state, verdict.code) == ("failed", 1)
    assert "its weights are not saved: there is no checkpoint of step 7" in verdict.reason
    assert read_verdict(plan.run_dir).state == "failed"
    checkpoint(plan.run_dir / "checkpoints" / "step-00000007", 7)
    assert run_with(plan, saves=True).verdict.state == "completed"


def test_an_export_that_ends_well_and_makes_nothing_or_is_killed_is_a_failure(plan):
    checkpoint(plan.run_dir / "checkpoints" / "step-00000007", 7)
    verdict = run_with(plan, program="", at_end=True).verdict
    assert (verdict.state, verdict.code) == ("failed", 1)
    assert "there is no " in verdict.reason
    killed = run_with(plan, program="import os; os.kill(os.getpid(), 9)", at_end=True).verdict
    assert (killed.state, killed.code) == ("failed", 137)
    assert "the export was killed by SIGKILL" in killed.reason


def test_a_run_whose_export_nobody_ended_is_not_completed(plan):
    """What the verdict says while the export runs is what it says for ever, should the supervisor be killed."""
    checkpoint(plan.run_dir / "checkpoints" / "step-00000007", 7)
    copy = "import pathlib, shutil, sys; out = pathlib.Path(sys.argv[4]); out.mkdir();"
    copy += "shutil.copy(out.parent / 'verdict.json', out)"
    assert run_with(plan, program=copy, at_end=True).verdict.code == 0
    meanwhile = read_verdict(plan.run_dir / "export")
    assert (meanwhile.state, meanwhile.code) == ("failed", 1)
    assert meanwhile.reason == "training is complete and saved; its export had not ended"
    assert read_verdict(plan.run_dir).state == "completed"


def test_a_verdict_that_the_run_directory_does_not_take_is_kept_elsewhere(plan, monkeypatch, tmp_path, capsys):
    """A folder in its place, as root may write to a folder that is read-only."""
    monkeypatch.setattr(verdict_files, "_DISK_SECONDS", 0.1)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (plan.run_dir / VERDICT).mkdir()
    outcome = run_with(plan, mode="plain")
    assert (outcome.verdict.state, outcome.verdict.code) == ("completed", 0)
    shown = capsys.readouterr().err
    (kept,) = tmp_path.glob(f"harness-{plan.run_dir.name}-*/{VERDICT}")
    assert f"verdict.json cannot be written to {plan.run_dir}: is a directory; it is {kept}" in shown
    assert read_verdict(kept.parent) == outcome.verdict
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    run_with(plan, mode="plain")
    assert '"state": "completed"' in capsys.readouterr().err


def test_a_launch_that_fails_itself_leaves_a_verdict(plan, monkeypatch):
    monkeypatch.setattr(launch_runner, "find_latest", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_with(plan)
    verdict = read_verdict(plan.run_dir)
    assert (verdict.state, verdict.code) == ("failed", 3)
    assert verdict.reason == "the harness itself failed: ZeroDivisionError: division by zero"
    assert not (plan.run_dir / "lock").exists()


def test_a_disk_that_is_full_for_a_while_at_the_end_takes_the_verdict(plan):
    (plan.run_dir / VERDICT).mkdir()
    threading.Timer(1.0, (plan.run_dir / VERDICT).rmdir).start()
    outcome = run_with(plan)
    assert read_verdict(plan.run_dir) == outcome.verdict
    assert outcome.verdict.state == "completed"


def test_a_torn_save_is_removed_once_the_run_is_over(plan):
    torn = plan.run_dir / "checkpoints" / ".tmp-step-00000009"
    torn.mkdir()
    whole = checkpoint(plan.run_dir / "checkpoints" / "step-00000007", 7)
    outcome = run_with(plan)
    assert outcome.checkpoint == whole
    assert not torn.exists()


def test_a_machine_without_ranks_compiles_nothing(plan, capsys):
    ops = ("no_such_op",)
    outcome = run_launch(
        replace(plan, ops=ops, has_local_ranks=False), resolve_run(NO_SAVES, world_size=1), plan.cwd, Screen()
    )
    assert outcome.verdict.state == "completed"
    assert "no_such_op" not in capsys.readouterr().err


def test_a_host_is_more_than_its_name():
    name, _, boot = machine.host_identity().partition(":")
    assert name
    assert boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_a_script_with_a_loop_of_its_own_saves_by_itself(plan, capsys):
    """It has no step of ours; one that called `harness.train` has, and must have saved the last one."""
    steps = replace(plan, argv=(*plan.argv[:2], RANK.replace('"step": 7', '"step": 0'), *plan.argv[3:]))
    assert run_with(steps, saves=True, script="own.py").verdict.state == "completed"
    assert run_with(plan, saves=True, script="own.py").verdict.state == "failed"
    outcome = run_with(steps, mode="plain", script="own.py", at_end=True)
    assert (outcome.verdict.state, outcome.export) == ("completed", None)
    assert "nothing is exported" in capsys.readouterr().err
