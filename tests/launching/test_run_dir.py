# SPDX-License-Identifier: Apache-2.0
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
from harness.launching.setup.launch_plan import HostPlan, LaunchPlan
from harness.launching.setup.run_dir import (
    acquire_lock,
    new_run_dir,
    read_ports,
    write_run_dir,
)
from harness.locks import RUN_LOCK


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
        "import sys; from pathlib import Path; from harness.launching.setup import run_dir; from harness.checkpoints.latest import saved_step; from harness.run_records.rank_statuses import read_statuses; from harness.locks import *;"
        "folder, evil = Path(sys.argv[1]), Path(sys.argv[1]) / 'demo-2';"
        "print(folder / 'demo-1' in run_dir.list_runs(folder, 'demo'), run_dir.read_ports(folder), saved_step(evil),"
        " current_holder(evil / 'lock'), read_holder(evil / 'lock'), read_statuses(evil))"
    )
    limit = partial(resource.setrlimit, resource.RLIMIT_AS, (2**31, 2**31))
    command = [sys.executable, "-P", "-c", program, str(tmp_path)]
    done = subprocess.run(command, text=True, capture_output=True, check=False, timeout=20, preexec_fn=limit)
    assert done.stdout == "True {29001} None None None {}\n", done.stderr


def test_a_run_directory_has_one_writer(tmp_path):
    first = acquire_lock(tmp_path)
    with pytest.raises(UserError) as refused:
        acquire_lock(tmp_path)
    assert refused.value.findings[0].gate == "EN120"
    assert f"process {os.getpid()} on " in refused.value.findings[0].message
    first.release()
    acquire_lock(tmp_path).release()
    assert not (tmp_path / RUN_LOCK).exists()
