# SPDX-License-Identifier: Apache-2.0
"""The log of a running job: its end, a failure after which nothing comes, a stall. Small processes; ten seconds."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from harness.cli.app import build_app
from harness.diagnosis.reader import followed_log
from harness.diagnosis.reader.followed_log import FollowedLog, find_writers
from harness.diagnosis.run_diagnosis import diagnose_followed
from harness.errors import ExitCode, UserError

ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(followed_log, "_POLL_SECONDS", 0.05)
    monkeypatch.setattr(followed_log, "QUIET_SECONDS", 0.5)


def start(file, code):
    with file.open("wb") as output:
        return subprocess.Popen([sys.executable, "-u", "-c", code], stdout=output, stderr=output)


def read_all(log):
    parts = []
    while data := log.read():
        parts.append(data)
    return b"".join(parts)


def test_it_ends_with_the_last_process_that_writes_it(tmp_path):
    file = tmp_path / "job.log"
    job = start(file, "import time\nfor i in range(4):\n print('step', i); time.sleep(.3)")
    log = FollowedLog(file, 60)
    assert read_all(log) == b"step 0\nstep 1\nstep 2\nstep 3\n"
    assert log.ending == "no writer"
    job.wait()


def test_an_error_after_which_nothing_comes_is_the_end_though_processes_live(tmp_path):
    file = tmp_path / "job.log"
    job = start(file, f"import time\nprint('step'); time.sleep(.2)\nprint({ECC!r}); time.sleep(60)")
    try:
        diagnosis = diagnose_followed(file, 60)
        assert diagnosis.cause == "LG016"
        assert list(find_writers(file)) == [job.pid]
    finally:
        job.kill()
        job.wait()


def test_an_error_that_the_job_survives_is_no_end(tmp_path):
    file = tmp_path / "job.log"
    code = f"import time\nprint({ECC!r})\nfor i in range(30):\n print('loss = 2.', i, sep=''); time.sleep(.05)"
    job = start(file, code + "\ntime.sleep(60)")
    try:
        log = FollowedLog(file, 2.0)
        assert read_all(log).count(b"loss") == 30
        assert log.ending == "stall"
    finally:
        job.kill()
        job.wait()


def test_an_error_that_the_job_only_reports_is_no_end(tmp_path):
    """Words such as `error: ` in a line of the script's own; a traceback leaves a process that lives more time."""
    file = tmp_path / "job.log"
    code = "import time\nprint('download error: trying the mirror')\ntime.sleep(1.2)\nprint('loss = 2.5')"
    start(file, code)
    log = FollowedLog(file, 30.0)
    assert read_all(log).endswith(b"loss = 2.5\n")
    assert log.ending == "no writer"
    start(file, "import time\nprint('Traceback (most recent call last)')\ntime.sleep(0.8)\nprint('retried')")
    assert read_all(FollowedLog(file, 30.0)).endswith(b"retried\n")


def test_what_the_last_writer_leaves_behind_the_last_look_is_read(tmp_path, monkeypatch):
    file = tmp_path / "job.log"
    file.write_text("Traceback (most recent call last)\n")
    last, begun = ["retried\n"], time.monotonic()

    def end_meanwhile(_):
        if last and time.monotonic() - begun > 1:
            with file.open("a") as log:
                log.write(last.pop())
        return [] if not last else [1]

    monkeypatch.setattr(followed_log, "find_writers", end_meanwhile)
    monkeypatch.setattr(followed_log, "QUIET_SECONDS", 0.1)
    monkeypatch.setattr(followed_log, "_LIVE_FACTOR", 20)
    assert read_all(FollowedLog(file, 2.0)).endswith(b"retried\n")


def test_a_writer_that_closes_other_files_meanwhile_still_writes(tmp_path):
    file = tmp_path / "job.log"
    code = f"files = [open({__file__!r}) for _ in range(40)]\nlog = open({str(file)!r}, 'ab')\nwhile True:\n"
    code += f" [each.close() for each in files]\n files = [open({__file__!r}) for _ in range(40)]"
    job = start(tmp_path / "other.log", code)
    try:
        while not file.exists():
            time.sleep(0.05)
        assert all(list(find_writers(file)) == [job.pid] for _ in range(20))
    finally:
        job.kill()
        job.wait()


def test_a_stalled_job_hangs_and_its_stopped_rank_is_named(tmp_path):
    file = tmp_path / "job.log"
    code = "import os, signal\nprint('loss = 2.5')\nos.kill(os.getpid(), signal.SIGSTOP)"
    with file.open("wb") as output:
        job = subprocess.Popen([sys.executable, "-u", "-c", code], stdout=output, env={"RANK": "3"})
    try:
        diagnosis = diagnose_followed(file, 3.0)
        assert (diagnosis.state, diagnosis.cause, diagnosis.confidence) == ("failed", "LG076", "likely")
        assert "printed nothing for 3.0 s" in diagnosis.title
        assert f"rank 3 (pid {job.pid}) is stopped by a signal" in diagnosis.notes
    finally:
        job.kill()
        job.wait()


def test_a_file_that_comes_later_and_one_that_is_replaced(tmp_path):
    file = tmp_path / "job.log"
    steps = iter(["first\n", "second, longer\n"])

    def sleep(seconds):
        text = next(steps, None)
        if text is not None:
            file.unlink(missing_ok=True)
            file.write_text(text)
        time.sleep(seconds)

    log = FollowedLog(file, 0.4, sleep)
    assert read_all(log) == b"first\nsecond, longer\n"


def test_the_command_answers_with_the_decision_and_runs_the_schedulers(tmp_path):
    file, said = tmp_path / "job.log", tmp_path / "said"
    file.write_text(f"{ECC}\n")
    command = f'echo "$HARNESS_DECISION,$HARNESS_CAUSE,$HARNESS_CHANGES" > {said}'
    options = ["explain", "--log", "-f", str(file), "--decide", "--exec", command, "--format", "json"]
    result = CliRunner().invoke(build_app(["explain"]), options)
    assert result.exit_code == 41, result.output
    assert said.read_text() == "retry elsewhere,LG016,{}\n"
    assert json.loads(result.stdout)["decision"]["action"] == "retry elsewhere"


@pytest.mark.parametrize("options", [["--decide"], ["--exec", "true"], ["-f"], ["--stall-after", "3"]])
def test_options_of_the_log_are_refused_without_one(options):
    assert CliRunner().invoke(build_app(["explain"]), ["explain", "PP001", *options]).exit_code == 2


def test_only_one_file_is_followed(tmp_path):
    names = [str(tmp_path / name) for name in ("a.log", "b.log")]
    for name in names:
        (tmp_path / name).write_text("x\n")
    result = CliRunner().invoke(build_app(["explain"]), ["explain", "-f", "--log", *names])
    assert isinstance(result.exception, UserError)
    assert result.exception.code == ExitCode.USAGE
