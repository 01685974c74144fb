# SPDX-License-Identifier: Apache-2.0
"""The writes of a rank's status, alone and with many thousand others. A second."""

from __future__ import annotations

import json
import time
from pathlib import Path

from harness.run_records.rank_statuses import StatusReader
from harness.runtime.rank_status import RankStatusWriter, write_interval
from harness.runtime.run_config import RunDir


def written_step(folder: Path) -> int:
    return int(json.loads((folder / "status" / "rank-00000.json").read_text())["step"])


def test_all_ranks_together_write_a_bounded_number_of_files():
    assert (write_interval(1), write_interval(1024), write_interval(32768)) == (1.0, 1.0, 32.0)


def test_the_last_progress_is_written_though_the_rank_hangs_after_it(tmp_path, monkeypatch):
    monkeypatch.setattr("harness.runtime.rank_status._WRITE_INTERVAL_SECONDS", 0.1)
    status = RankStatusWriter(RunDir(tmp_path), 0, interval_seconds=0.3)
    status.update("running", step=1)
    for step in (2, 3):
        status.update("running", step=step)
    assert written_step(tmp_path) == 1
    end = time.monotonic() + 20
    while written_step(tmp_path) != 3 and time.monotonic() < end:
        time.sleep(0.05)
    assert written_step(tmp_path) == 3


def test_a_final_status_is_never_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr("harness.runtime.rank_status._WRITE_INTERVAL_SECONDS", 0.01)
    status = RankStatusWriter(RunDir(tmp_path), 0, interval_seconds=0.02)
    status.update("running", step=1)
    status.heartbeat()
    status.update("failed", error="out of memory")
    time.sleep(0.2)
    assert json.loads((tmp_path / "status" / "rank-00000.json").read_text())["error"] == "out of memory"


def test_a_disk_that_takes_no_status_ends_no_rank_and_the_supervisor_reads_the_output(tmp_path, monkeypatch, capsys):
    """A file where the folder should be, as root may write to a folder that is read-only."""
    monkeypatch.setenv("HARNESS_SUPERVISOR", "here:1:1")
    (tmp_path / "status").write_text("")
    status, reader = RankStatusWriter(RunDir(tmp_path), 0), StatusReader(tmp_path, 1)
    for step in range(1, 9):
        status.update("running", step=step)
    status.update("failed", error="out of memory", is_user_error=True)
    lines = capsys.readouterr().out.splitlines()
    assert 2 <= len(lines) <= 4
    assert all(reader.read_line(line) for line in lines)
    assert (reader.statuses[0].state, reader.statuses[0].step, reader.statuses[0].refused) == ("failed", 8, True)
    (tmp_path / "status").unlink()
    status.update("completed", step=9)
    assert written_step(tmp_path) == 9
    monkeypatch.delenv("HARNESS_SUPERVISOR")
    (tmp_path / "status" / "rank-00000.json").unlink()
    (tmp_path / "status").rmdir()
    (tmp_path / "status").write_text("")
    status.update("failed")
    assert capsys.readouterr().out == ""
