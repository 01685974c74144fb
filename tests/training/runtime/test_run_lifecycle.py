# SPDX-License-Identifier: Apache-2.0
"""Starts and ends of runs through `launch/train.py`, on forked ranks; one that is killed has the real launcher."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from harness.locks import Lock
from harness.verdicts import VERDICT, Verdict, read_verdict, write_verdict
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.runtime_helpers import (
    ROOT,
    free_port,
    launcher_command,
    metric_lines,
    rank_environment,
    remove_shared_buffers,
    write_run,
)
from tests.support.training.runtime_settings import config, spec

TRAIN = ROOT / "launch" / "train.py"


def make(folder: Path, model: Path, case: str = "zero3-cpu", **sections: dict[str, Any]) -> Path:
    whole = spec(case, model)
    for name, fields in sections.items():
        whole[name] = whole.get(name, {}) | fields
    return write_run(folder, whole, config(case))


def statuses(run: Path) -> list[dict[str, Any]]:
    return [json.loads(p.read_text()) for p in sorted((run / "status").glob("rank-*.json"))]


def wait_for(condition: Any, seconds: float = 600) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_run_from_start_to_end(tmp_path: Path, tiny_model: Path, forked: ForkedRanks) -> None:
    """Under the real launcher, with what it passes on: `tests/launching/test_launch_to_end.py`."""
    sections = {"checkpoint": {"save_steps": 2, "save_total_limit": 2}, "train": {"gradient_checkpointing": True}}
    run = make(tmp_path / "run", tiny_model, **sections)
    answer = forked.run(TRAIN, "--run", str(run))
    assert [(s["state"], s["step"], s["checkpoint"]) for s in statuses(run)] == [
        ("completed", 6, "checkpoints/step-00000006")
    ] * 2
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == [
        "evaluations.json",
        "latest",
        "step-00000004",
        "step-00000006",
    ]
    assert (run / "checkpoints" / "latest").read_text() == "step-00000006\n"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["type"] for line in lines if line["type"] != "memory"] == [
        "run",
        *"step step save step step save eval step ranks step save eval end".split(),
    ]
    assert [line["phase"] for line in lines if line["type"] == "memory"] == ["load", "step", "save"]
    steps = metric_lines(run, "step")
    assert [line["tokens"] for line in steps] == [8 * 32 * n for n in range(1, 7)]
    assert steps[0]["learning_rate"] == 0.0  # the first of two warm-up steps
    assert [line["learning_rate"] for line in steps[1:3]] == pytest.approx([1.5e-3, 3e-3])
    parts = ("data", "forward", "backward", "optimizer")
    for line in steps:
        assert 0 < sum(line[f"seconds_{part}"] for part in parts) <= line["seconds"]
        assert line["grad_norm"] > 0
        assert line["memory_host_bytes"] > 50_000_000
    assert metric_lines(run, "eval")[-1]["unigram_entropy"] == pytest.approx(3.29, abs=0.1)
    assert "step 6/6" in answer["output"][0]


def test_a_stop_file_ends_the_run_at_a_step_with_a_checkpoint(
    tmp_path: Path, tiny_model: Path, forked: ForkedRanks
) -> None:
    run = make(tmp_path / "run", tiny_model, "zero2", train={"max_steps": 100_000}, eval={"eval_steps": None})
    answer: dict[str, Any] = {}
    thread = threading.Thread(target=lambda: answer.update(forked.run(TRAIN, "--run", str(run), check=False)))
    thread.start()
    wait_for(lambda: len(statuses(run)) == 2 and all(s["step"] > 0 for s in statuses(run)))
    (run / "stop").write_text("SIGTERM")
    thread.join(60)
    assert answer["codes"] == [0, 0]
    first, second = statuses(run)
    assert first["state"] == second["state"] == "stopped"
    assert first["step"] == second["step"]
    assert (run / "checkpoints" / f"step-{first['step']:08d}" / "manifest.json").is_file()
    (stop,) = metric_lines(run, "stop")
    assert (stop["step"], stop["reason"]) == (first["step"], "SIGTERM")
    assert metric_lines(run, "end")[0]["state"] == "stopped"


def test_no_rank_outlives_a_killed_launcher(tmp_path: Path, tiny_model: Path) -> None:
    """By themselves: there is no supervisor (one that is killed: `launching/test_signals.py`)."""
    run = make(tmp_path / "run", tiny_model, "zero2", train={"max_steps": 100_000}, eval={"eval_steps": None})
    port = free_port()
    process = subprocess.Popen(launcher_command(port, TRAIN, "--run", str(run)), env=rank_environment(), cwd=ROOT)
    try:
        wait_for(lambda: len(statuses(run)) == 2 and all(s["step"] > 0 for s in statuses(run)))
        pids = [s["pid"] for s in statuses(run)]
        parent = int(Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(parent, signal.SIGKILL)
        wait_for(lambda: not any(map(alive, pids)), seconds=5)
    finally:
        process.kill()
        remove_shared_buffers(port)


def refused(run: Path, forked: ForkedRanks) -> tuple[list[str], str]:
    """The findings that all ranks end with, and all that they printed."""
    answer = forked.run(TRAIN, "--run", str(run), check=False)
    everything = "".join(answer["output"])
    assert answer["codes"] == [1, 1], everything
    assert "Traceback" not in everything
    assert [s["state"] for s in statuses(run)] == ["failed", "failed"]
    assert all(s["error"] and s["refused"] for s in statuses(run))
    return [line for line in everything.splitlines() if line.startswith("error[")], everything


def test_bad_input_is_refused_once_by_name_on_all_ranks(tmp_path: Path, tiny_model: Path, forked: ForkedRanks) -> None:
    run = make(tmp_path / "run", tiny_model, data={"train": str(tmp_path / "none-*.txt")})
    (line,), _ = refused(run, forked)
    assert line == f"error[MD111]: `{tmp_path}/none-*.txt` matches no file"


def test_a_run_directory_in_use_is_refused(tmp_path: Path, tiny_model: Path, forked: ForkedRanks) -> None:
    run = make(tmp_path / "run", tiny_model)
    lock = Lock.acquire(run / "lock", "somebody")
    write_verdict(run, Verdict("failed", 137))
    answer = forked.run(TRAIN, "--run", str(run), check=False)
    lock.release()
    assert answer["codes"] == [1, 1]
    assert f"error[EN120]: `{run}` is in use by process {os.getpid()} on " in "".join(answer["output"])
    assert statuses(run) == []  # nothing that the run which has it would be judged by
    assert read_verdict(run) is not None


def test_ranks_started_by_hand_remove_the_verdict_of_an_earlier_launch(
    tmp_path: Path, tiny_model: Path, forked: ForkedRanks
) -> None:
    run = make(tmp_path / "run", tiny_model, data={"train": str(tmp_path / "none-*.txt")})
    write_verdict(run, Verdict("completed", 0, step=60))
    refused(run, forked)
    assert not (run / VERDICT).exists()


def test_ranks_that_read_different_files_do_not_train(tmp_path: Path, tiny_model: Path, forked: ForkedRanks) -> None:
    run = make(tmp_path / "run", tiny_model)
    other = make(tmp_path / "other", tiny_model, "zero2")
    script = tmp_path / "two_directories.py"
    script.write_text(
        "import os, runpy, sys\n"
        f"sys.argv = ['train.py', '--run', {str(run)!r} if os.environ['RANK'] == '0' else {str(other)!r}]\n"
        f"runpy.run_path({str(TRAIN)!r}, run_name='__main__')\n"
    )
    answer = forked.run(script, check=False)
    assert answer["codes"] == [1, 1]
    errors = [line for line in "".join(answer["output"]).splitlines() if line.startswith("error[")]
    assert len(errors) == 1
    assert errors[0].startswith("error[EN102]: rank 1 reads other files")
    assert not (run / "data").exists()


@pytest.mark.parametrize("optimizer", [None, {"params": {"torch_adam": True}}])
def test_what_the_loop_cannot_run_is_refused(
    tmp_path: Path, tiny_model: Path, forked: ForkedRanks, optimizer: dict[str, Any] | None
) -> None:
    """DeepSpeed builds no optimizer without a type, and the engine has none."""
    run = make(tmp_path / "run", tiny_model)
    file = run / "ds_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"optimizer": optimizer}))
    (line,), printed = refused(run, forked)
    assert line.startswith("error[OP101]: ")
    assert "help: set `optimizer.type` in the run spec" in printed
