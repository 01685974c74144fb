# SPDX-License-Identifier: Apache-2.0
"""One real run that loses a rank, hangs, and is asked to stop, in this order: it goes on by itself each time.

Needs the training extra; three starts of the ranks, about half a minute on 2 idle cores.
"""

from __future__ import annotations

import json
import os
import signal

import pytest

from harness.verdicts import read_verdict
from tests.launching.test_signals import SPEC
from tests.support.launch_process import Launched, clean_up, left_over_buffers
from tests.support.restarts import read_restarts

pytestmark = pytest.mark.training


def started(run: Launched, attempt: int) -> bool:
    """Whether this attempt has taken steps and saved."""
    try:
        lines = (run.run_dir / "metrics.jsonl").read_text().splitlines()
    except OSError:
        return False
    rows = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
    starts = [i for i, row in enumerate(rows) if row["type"] == "run"]
    last = rows[starts[-1] :] if len(starts) == attempt else []
    return sum(row["type"] == "save" for row in last) >= 2


def test_a_run_outlives_a_killed_rank_and_a_stopped_one(tmp_path):
    spec = SPEC + "checkpoint: {save_steps: 5, save_total_limit: 2}\n"
    options = ("--max-restarts", "5", "--set", "launch.hang_timeout_seconds=10")
    run = Launched(tmp_path, spec, *options, "--set", "launch.restart_delay_seconds=0.2")
    try:
        assert run.wait_until(lambda: started(run, 1), 900), run.text.read_text()
        os.kill(int(run.status(1)["pid"]), signal.SIGKILL)
        assert run.wait_until(lambda: started(run, 2), 300), run.text.read_text()
        os.kill(int(run.status(0)["pid"]), signal.SIGSTOP)
        assert run.wait_until(lambda: started(run, 3), 300), run.text.read_text()
        os.kill(int(run.status(1)["pid"]), signal.SIGTERM)
        ended, text = run.end(120)
        assert ended == 143, text
        assert run.living() == []
    finally:
        clean_up([run])
    first, second, third = read_restarts(run.run_dir)
    assert (first["code"], first["rank"]) == (137, 1)
    assert (second["code"], second["rank"]) == (124, 0)
    assert "is stopped by a signal" in second["cause"]
    assert third["state"] == "stopped"
    killed, hung = (read_verdict(run.run_dir / "status" / f"attempt-{n}") for n in (1, 2))
    assert (killed.rank, killed.signal, killed.attempt) == (1, "SIGKILL", 1)
    assert (hung.rank, hung.cause, hung.code) == (0, "LG076", 124)
    assert read_verdict(run.run_dir).state == "stopped"
    assert "<b>failed" not in (run.run_dir / "report.html").read_text()
    assert 0 < second["start_step"] <= first["step"]
    assert 0 < third["start_step"] <= second["step"]
    stacks = (run.run_dir / "logs" / "stacks-00001-2.txt").read_text()
    assert "train.py" in stacks
    assert "restarting in" in text
    assert left_over_buffers() == []
