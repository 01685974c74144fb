# SPDX-License-Identifier: Apache-2.0
"""Real jobs that fail under `--max-restarts`: no retry of what fails again, none lost that cures. HARNESS_NIGHTLY=1 runs
all of them, about half a minute each, else the bad key. A killed rank, a hung one and the scheduler's SIGTERM are in
test_recovery.py, a lost host in tests/hosts/test_host_returns.py, a sick one in test_returning_hosts.py (its ranks are
made up). The full disk needs root.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.verdicts import read_verdict
from tests.launching.test_signals import SPEC
from tests.support.disk_faults import FOREVER, build_disk_faults, describe_fault
from tests.support.launch_process import PORT, Launched, clean_up
from tests.support.restarts import read_restarts

pytestmark = pytest.mark.training
RESTARTS = ("--max-restarts", "3", "--set", "launch.restart_delay_seconds=0.2", "--set", "train.max_steps=12")


def run_to_end(folder: Path, *options: str, spec: str = SPEC) -> tuple[int, str, Launched]:
    run = Launched(folder, spec, *RESTARTS, *options)
    try:
        return *run.end(600), run
    finally:
        clean_up([run])


def test_a_bad_key_starts_nothing(tmp_path):
    code, text, run = run_to_end(tmp_path, "--set", "zero.stagge=1")
    assert code == 1, text
    assert not run.output.exists()


@pytest.mark.nightly
def test_a_bad_record_is_not_tried_again(tmp_path):
    data = tmp_path / "data.jsonl"
    data.write_text(json.dumps({"text": "x " * 4000}) + "\n{broken\n")
    code, text, run = run_to_end(tmp_path, "--set", f"data.train={data}")
    assert code != 0, text
    assert read_restarts(run.run_dir) == []


@pytest.mark.nightly
def test_a_wrong_checkpoint_is_not_tried_again(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    code, text, run = run_to_end(first, "--set", "checkpoint.save_steps=5")
    assert code == 0, text
    checkpoint = (run.run_dir / "checkpoints" / "latest").resolve()
    wider = SPEC.replace("hidden_size: 32", "hidden_size: 64")
    code, text, run = run_to_end(second, "--resume", str(checkpoint), spec=wider)
    assert code != 0, text
    assert not run.output.exists() or read_restarts(run.run_dir) == []


@pytest.mark.nightly
def test_a_loss_that_is_no_number_is_not_tried_again(tmp_path):
    options = ("optimizer.learning_rate=1e30", "train.on_nonfinite=stop")
    code, text, run = run_to_end(tmp_path, *[word for option in options for word in ("--set", option)])
    assert code != 0, text
    assert len(read_restarts(run.run_dir)) <= 1, text


@pytest.mark.nightly
def test_a_port_that_is_taken_is_tried_again(tmp_path):
    with socket.create_server(("0.0.0.0", PORT)) as taken:  # noqa: S104
        run = Launched(tmp_path, SPEC, *RESTARTS)
        try:
            assert run.wait_until(
                lambda: "restarting in" in run.text.read_text() or run.process.poll() is not None, 300
            )
            taken.close()
            code, text = run.end(600)
        finally:
            clean_up([run])
    if "restarting in" in text:  # else the harness had found the port in use before it started ranks
        assert code == 0, text
    else:
        assert "port" in text


@pytest.mark.nightly
def test_a_slow_disk_costs_time_and_no_restart(tmp_path, monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", str(build_disk_faults(tmp_path)))
    for name, value in describe_fault("*", "*/checkpoints/*", 1, "SLOW", FOREVER).items():
        monkeypatch.setenv(name, value)
    code, text, run = run_to_end(tmp_path, "--set", "checkpoint.save_steps=6")
    assert code == 0, text
    assert len(read_restarts(run.run_dir)) <= 1, text
    assert read_verdict(run.run_dir).state == "completed"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    if (
        shutil.which("mount") is None
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96m", "none", disk], check=False).returncode
    ):
        pytest.skip("needs root")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


@pytest.mark.nightly
def test_a_full_disk_that_somebody_empties_costs_one_restart(small_disk, tmp_path):
    options = (
        "--set",
        "checkpoint.save_steps=4",
        "--set",
        "checkpoint.save_total_limit=2",
        "--set",
        "train.max_steps=4000",
    )
    run = Launched(small_disk, SPEC, *RESTARTS, *options)
    ballast = small_disk / "ballast"
    try:
        run.wait_training()
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while file.write(bytes(1 << 12)):
                pass
        assert run.wait_until(lambda: "of free space in" in run.text.read_text(), 300), run.text.read_text()
        ballast.unlink()
        assert run.wait_until(lambda: "attempt 2 resumes from" in run.text.read_text(), 300), run.text.read_text()
        (run.run_dir / "stop").touch()
        _, text = run.end(300)
    finally:
        clean_up([run])
    assert [row["state"] for row in read_restarts(run.run_dir)] == ["failed", "stopped"], text
    assert read_verdict(run.run_dir).state == "stopped"
