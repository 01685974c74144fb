# SPDX-License-Identifier: Apache-2.0
"""The end of a launch in ten lines. Needs nothing; seconds."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from harness.launching.supervise.launch_runner import LaunchResult
from harness.run_records.run_record import read_run_record
from harness.verdicts import Verdict
from harness.views.launch import launch_as_json, render_summary
from harness.views.style import Style
from tests.support.sample_run import eventful, tiny, write_run


def outcome(run_dir: Path, verdict: Verdict, *, resume: Path | None = None, **more: Any) -> Any:
    plan = SimpleNamespace(run_dir=run_dir, name="large", resume=resume)
    return LaunchResult(plan, verdict, 1300.0, **more)  # type: ignore[arg-type]


def test_a_completed_run_is_told_in_ten_lines(tmp_path: Path) -> None:
    folder = eventful(tmp_path / "large-20260921-120000", 60)
    kept = {"checkpoint": folder / "checkpoints/step-00000060", "export": folder / "export"}
    done = outcome(folder, Verdict("completed", 0, step=60), **kept)
    lines = render_summary(done, read_run_record(folder), "", folder / "report.html", Style()).splitlines()
    assert all(len(line) <= 120 for line in lines if str(tmp_path) not in line)
    assert sum(line.startswith(" " * 18) for line in lines) == 2  # the rest of `loss` and `slow`
    lines = [line for line in lines if not line.startswith(" " * 18)]
    assert len(lines) == 10
    assert lines[0] == "completed: large trained 60 steps in 21 min 40 s"
    starts = [line.split()[0] for line in lines[1:]]
    assert starts == ["loss", "speed", "a", "memory", "slow", "checkpoint", "export", "report", "Next:"]
    text = render_summary(done, read_run_record(folder), "", None, Style())
    text = " ".join(text.split())
    for expected in (
        "held-out loss 6.1",
        "unigram entropy 7.200",
        "MFU 3",
        "optimizer 33%",
        "GPU 33.00 GiB (planned 36.47 GiB)",
    ):
        assert expected in text
    assert "the optimizer on the CPU: 33% of the step; try without `zero.offload_optimizer`; the plan: a step" in text


def test_a_resumed_run_has_not_trained_all_steps_in_its_time(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "r", tiny(), None)
    done = outcome(folder, Verdict("completed", 0, step=60), resume=tmp_path / "step-00000040")
    text = render_summary(done, read_run_record(folder), "", None, Style())
    assert text.startswith("completed: large resumed and reached step 60 in 21 min 40 s")


def test_a_run_that_failed_before_a_step(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "r", tiny(), None, ("failed",))
    verdict = Verdict("failed", 1, "RuntimeError: boom", rank=0, step=3)
    text = render_summary(outcome(folder, verdict), read_run_record(folder), "", None, Style())
    assert text.startswith("failed on rank 0 at step 3: RuntimeError: boom")
    assert "none was completed" in text
    assert str(folder) in text
    assert "launcher.log" in text


def test_a_resumed_run_that_failed_before_a_save_names_the_checkpoint_it_resumed_from(tmp_path: Path) -> None:
    folder, resume = write_run(tmp_path / "r", tiny(), None, ("failed",)), tmp_path / "q/checkpoints/step-00000010"
    verdict = Verdict("failed", 137, "killed by SIGKILL", rank=1, step=13, signal="SIGKILL")
    text = render_summary(outcome(folder, verdict, resume=resume), read_run_record(folder), "", None, Style())
    assert f"none was completed; resumed from {resume}" in text
    assert f"To resume: the same command with `--resume {resume}`" in text
    own = outcome(folder, verdict, resume=resume, checkpoint=folder / "checkpoints/step-00000012")
    assert f"with `--resume {folder}`" in render_summary(own, read_run_record(folder), "", None, Style())


def test_for_programs(tmp_path: Path) -> None:
    folder = eventful(tmp_path / "r", 60)
    body = json.loads(launch_as_json(outcome(folder, Verdict("completed", 0, step=60)), read_run_record(folder), None))
    assert body["last"]["step"]["step"] == 60
    assert [cause["cause"] for cause in body["slow"]] == ["cpu-optimizer", "communication"]
    assert body["slow"][0]["settings"][0]["planned_gain"] > 0.1
    assert body["slow"][0]["planned"] is False


def test_a_run_that_was_killed_is_not_told_how_to_be_quicker(tmp_path: Path) -> None:
    folder = eventful(tmp_path / "r", 60)
    killed = outcome(folder, Verdict("failed", 137, "killed by SIGKILL", 1, "node1", 60, signal="SIGKILL"))
    text = render_summary(killed, read_run_record(folder), "", None, Style())
    assert text.startswith("failed on rank 1 (node1) at step 60: killed by SIGKILL")
    assert "slow" not in text
    body = json.loads(launch_as_json(killed, read_run_record(folder), None))
    assert (body["signal"], body["rank"], body["slow"]) == ("SIGKILL", 1, [])


def test_rows_without_tokens_have_a_rate_of_rows(tmp_path: Path) -> None:
    folder = eventful(tmp_path / "large-20260921-120000", 60)
    file = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    changed = [line | {"tokens_per_second": 0.0} if "tokens_per_second" in line else line for line in lines]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in changed))
    done = outcome(folder, Verdict("completed", 0, step=60))
    text = render_summary(done, read_run_record(folder), "", None, Style())
    assert "rows/s" in text
    assert "tokens/s" not in text
