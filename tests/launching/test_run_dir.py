"""The run directory on a real file system. Needs nothing; milliseconds."""

import json
import os
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from harness.errors import ExitCode, UserError
from harness.launching.ops.local_build import find_stale_locks
from harness.launching.setup.launch_plan import HostPlan, LaunchPlan
from harness.launching.setup.run_dir import (
    checkpoint_step,
    new_run_dir,
    read_ports,
    remove_unfinished_saves,
    write_run_dir,
)
from harness.launching.supervise.log_filter import is_noise
from harness.launching.supervise.log_streams import JsonlTail


def plan_in(run_dir, name="demo"):
    return LaunchPlan(
        name,
        run_dir,
        run_dir.parent,
        ("true",),
        (HostPlan("here", (0,), ()),),
        True,
        29001,
        (),
        {"spec.yaml": "a: 1\n"},
    )


def test_it_is_whole_and_latest_points_to_it(tmp_path):
    first = new_run_dir(tmp_path / "runs", "demo")
    write_run_dir(plan_in(first))
    second = new_run_dir(tmp_path / "runs", "demo")
    assert second != first
    write_run_dir(plan_in(second))
    assert (tmp_path / "runs" / "latest").resolve() == second
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == sorted(["latest", first.name, second.name])
    assert (first / "spec.yaml").read_text() == "a: 1\n"
    assert os.access(first / "launch.sh", os.X_OK)
    assert read_ports(tmp_path / "runs") == {29001}


def test_a_folder_called_latest_is_left_alone(tmp_path):
    (tmp_path / "latest").mkdir()
    write_run_dir(plan_in(tmp_path / "demo-1"))
    assert (tmp_path / "latest").is_dir()
    assert not (tmp_path / "latest").is_symlink()


def test_a_file_in_the_way_is_a_finding_and_leaves_nothing(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(UserError) as refused:
        write_run_dir(plan_in(tmp_path / "runs" / "demo-1"))
    assert refused.value.code == ExitCode.PREFLIGHT
    assert refused.value.findings[0].key == "launch.output_dir"
    assert [p.name for p in tmp_path.iterdir()] == ["runs"]


def checkpoint(run_dir, step, *, complete=True):
    folder = run_dir / "checkpoints" / f"step-{step:08d}"
    folder.mkdir(parents=True)
    if complete:
        (folder / "manifest.json").write_text("{}")
    return folder


def test_a_save_that_was_killed_leaves_nothing_and_complete_ones_stay(tmp_path):
    kept = [checkpoint(tmp_path, 10), checkpoint(tmp_path, 20, complete=False)]
    torn, whole = (tmp_path / "checkpoints" / f".tmp-step-{step:08d}" for step in (30, 40))
    for folder in (torn, whole):
        (folder / "global_step").mkdir(parents=True)
        (folder / "global_step" / "shard.pt").write_bytes(b"x")
    (whole / "manifest.json").write_text('{"state": {"step": 40}}')
    assert remove_unfinished_saves(tmp_path) == [torn]
    assert sorted((tmp_path / "checkpoints").iterdir()) == sorted([*kept, whole])
    assert checkpoint_step(whole) == 40
    assert checkpoint_step(kept[0]) is None
    assert remove_unfinished_saves(tmp_path / "nowhere") == []


def test_a_lock_is_stale_when_nobody_holds_it(tmp_path):
    held, left = tmp_path / "cpu_adam" / "lock", tmp_path / "py311_cpu" / "fused_adam" / "lock"
    for lock in (held, left):
        lock.parent.mkdir(parents=True)
        lock.write_text("")
    with held.open():
        assert find_stale_locks(tmp_path) == [left]
        assert find_stale_locks(tmp_path, ["cpu_adam"]) == []
    assert find_stale_locks(tmp_path, ["cpu_adam"]) == [held]


def test_tail_gives_whole_lines_once(tmp_path):
    tail = JsonlTail(tmp_path / "m.jsonl")
    assert tail.pop_rows() == []
    with (tmp_path / "m.jsonl").open("w") as file:
        file.write('{"type": "run"}\nnot json\n{"type": "st')
        file.flush()
        assert tail.pop_rows() == [{"type": "run"}]
        file.write('ep"}\n')
    assert tail.pop_rows() == [{"type": "step"}]
    assert tail.pop_rows() == []


@pytest.mark.parametrize(
    "line",
    [
        "[2026-11-21 10:00:00,000] [INFO] [launch.py:256:main] process 12 spawned with command: [...]",
        "[2026-11-21 10:00:00,000] [WARNING] [real_accelerator.py:213:get_accelerator] Setting accelerator to CPU.",
        "Loading extension module cpu_adam...",
        "ninja: no work to do.",
        "Time to load cpu_adam op: 2.5 seconds",
        "Adam Optimizer #0 is created with AVX512 arithmetic capability.",
        "[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1",
        "",
    ],
)
def test_what_is_noise(line):
    assert is_noise(line)


@pytest.mark.parametrize(
    "line",
    [
        "step 2/20  loss 5.729  20.68 k tokens/s  1.6 s left",
        "Traceback (most recent call last):",
        "RuntimeError: CUDA out of memory",
        "[2026-11-21 10:00:00,000] [ERROR] [launch.py:325:sigkill_handler] ... exits with return code = 3",
        "  File \"train.py\", line 3, in <module>",
    ],
)  # fmt: skip
def test_what_is_not(line):
    assert not is_noise(line)


def test_a_record_of_an_earlier_run_can_be_anything(tmp_path):
    for name, text in (("demo-1", "[]"), ("demo-2", "{"), ("demo-3", json.dumps({"name": "demo"}))):
        Path(tmp_path / name).mkdir()
        (tmp_path / name / "launch.json").write_text(text)
    assert read_ports(tmp_path) == set()


@pytest.mark.parametrize("kind", ["pipe", "device", "words", "infinite", "deep"])
def test_a_hostile_file_of_an_earlier_run_costs_that_run_alone(tmp_path, kind):
    """What `launch --resume auto` looks at: the names of earlier runs, their locks, their checkpoints."""
    texts = {
        "words": '{"name": "demo", "port": "many", "state": {"step": "x"}, "host": 1, "pid": "x"}',
        "infinite": '{"name": "demo", "port": Infinity, "state": {"step": Infinity}, "host": "h", "pid": Infinity}',
        "deep": "[" * 100_000,
    }
    write_run_dir(plan_in(tmp_path / "demo-1"))
    for name in ("launch.json", "manifest.json", "lock", "status/rank-00000.json"):
        file = tmp_path / "demo-2" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if kind == "pipe":
            os.mkfifo(file)
        elif kind == "device":
            file.symlink_to("/dev/zero")
        else:
            file.write_text(texts[kind])
    program = (
        "import sys; from pathlib import Path; from harness.launching.setup import run_dir; from harness.launching.supervise import run_verdict; from harness.locks import *;"
        "folder, evil = Path(sys.argv[1]), Path(sys.argv[1]) / 'demo-2';"
        "print(folder / 'demo-1' in run_dir.list_runs(folder, 'demo'), run_dir.read_ports(folder), run_dir.checkpoint_step(evil),"
        " current_holder(evil / 'lock'), read_holder(evil / 'lock'), run_verdict.read_statuses(evil))"
    )
    limit = partial(resource.setrlimit, resource.RLIMIT_AS, (2**31, 2**31))
    command = [sys.executable, "-P", "-c", program, str(tmp_path)]
    done = subprocess.run(command, text=True, capture_output=True, check=False, timeout=20, preexec_fn=limit)
    assert done.stdout == "True {29001} None None None {}\n", done.stderr
