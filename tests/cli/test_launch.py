# SPDX-License-Identifier: Apache-2.0
"""`harness launch` up to the moment where ranks would start. Needs the base dependencies alone; seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fake_gpu import CPU_BUILD, ONE_H200, made_up_gpu

SPEC = """\
name: tiny
model: {config: {model_type: llama, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 1, num_attention_heads: 2}, tokenizer: bytes}
data: {train: "builtin:python-docs", max_length: 32}
train: {max_steps: 2, per_device_train_batch_size: 1}
optimizer: {type: sgd}
launch: {num_gpus: 2}
"""


def harness(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness", *arguments]
    return subprocess.run(
        command, cwd=cwd, text=True, capture_output=True, check=False, env={**os.environ, **env}, timeout=120
    )


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tiny.yaml").write_text(SPEC)
    return tmp_path


def test_a_dry_run_shows_everything_and_does_nothing(folder):
    done = harness("launch", "tiny.yaml", "--dry-run", cwd=folder)
    assert done.returncode == 0, done.stderr
    for expected in ("spec.resolved.json", "HARNESS_RUN_DIR", "--num_gpus 2", "ranks 0-1", "train_worker.py"):
        assert expected in done.stdout
    assert "HARNESS_SUPERVISOR" not in done.stdout, "it names the process of this dry run"
    assert done.stdout.rstrip().endswith("Nothing was written or started")
    assert [p.name for p in folder.iterdir()] == ["tiny.yaml"]


@pytest.mark.parametrize("command", ["launch", "tune", "rehearse"])
def test_code_that_the_environment_chooses_needs_leave(folder, command):
    evil = folder / "evil"
    evil.mkdir()
    (evil / "sitecustomize.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\n")
    spec = SPEC.replace("num_gpus: 2", "num_gpus: 2, env: {PYTHONPATH: ./evil}") + "ignore: {SE008: trust me}\n"
    (folder / "tiny.yaml").write_text(spec)
    refused = harness(command, "tiny.yaml", cwd=folder)
    assert refused.returncode == 1
    assert "error[SE008]" in refused.stderr
    assert "--allow-local-code" in refused.stderr
    assert sorted(p.name for p in folder.iterdir()) == ["evil", "tiny.yaml"], "nothing was written or started"
    if command == "launch":
        allowed = harness(command, "tiny.yaml", "--dry-run", "--allow-local-code", cwd=folder)
        assert allowed.returncode == 0, allowed.stderr
        assert "PYTHONPATH=./evil" in allowed.stdout
        given = harness(command, "tiny.yaml", "--dry-run", "--set", "launch.env={CXX: ./evil.sh}", cwd=folder)
        assert given.returncode == 1
        assert harness("plan", "tiny.yaml", cwd=folder).returncode == 0, "which runs nothing of it"


def test_a_dry_run_for_programs(folder):
    done = harness("launch", "tiny.yaml", "--dry-run", "--format", "json", cwd=folder)
    body = json.loads(done.stdout)
    assert (body["format_version"], body["world"], body["hosts"][0]["ranks"]) == (1, 2, [0, 1])
    assert body["argv"][body["argv"].index("--run") + 1] == body["run_dir"]


def test_two_hosts_are_planned(folder):
    (folder / "hosts").write_text("worker-0 slots=8\nworker-1 slots=8\n")
    done = harness("launch", "tiny.yaml", "--dry-run", "--hostfile", "hosts", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "ranks 8-15" in done.stdout
    assert "every host mounts" in done.stdout
    assert "this machine has no ranks" in done.stdout


def test_a_file_of_variables_that_deepspeed_would_have_read_is_named(folder):
    (folder / "hosts").write_text("worker-0 slots=8\nworker-1 slots=8\n")
    (folder / "home").mkdir()
    (folder / "home" / ".deepspeed_env").write_text("NCCL_DEBUG=INFO\n")
    options = ("launch", "tiny.yaml", "--dry-run")
    done = harness(*options, "--hostfile", "hosts", cwd=folder, HOME=str(folder / "home"))
    assert f"{folder / 'home' / '.deepspeed_env'} is ignored" in done.stderr
    assert "`launch.env`" in done.stderr
    alone = harness(*options, cwd=folder, HOME=str(folder / "home"))
    assert ".deepspeed_env" not in alone.stderr


@pytest.mark.parametrize(
    ("options", "env", "gate", "code"),
    [
        (["--set", "zero.stage=7"], {}, "SP", 1),
        (["--hostfile", "no-such-hosts"], {}, "HO001", 2),
        ([], {"PYTHONOPTIMIZE": "1"}, "EN001", 4),
        (["--resume", "nowhere"], {}, "CK001", 1),
        (["--set", "launch.env={PYTHONOPTIMIZE: '2'}"], {}, "HO010", 1),
    ],
)
def test_what_is_refused_writes_nothing(folder, options, env, gate, code):
    done = harness("launch", "tiny.yaml", "--dry-run", *options, cwd=folder, **env)
    assert f"[{gate}" in done.stderr
    assert done.returncode == code
    assert "Nothing was written or started" in done.stderr
    assert "Traceback" not in done.stderr
    assert [p.name for p in folder.iterdir()] == ["tiny.yaml"]


@pytest.mark.parametrize(
    ("options", "gate", "code"),
    [
        ("--hostfile nosuch.txt --num-gpus 2", "HO001", 2),
        ("--hosts a:x --num-gpus 2", "HO025", 1),
        ("--include a", "HO024", 1),
        ("--include a --num-gpus 2", "HO024", 1),
        ("--num-nodes 3", "HO024", 1),
    ],
)
def test_hosts_that_cannot_be_found_are_not_replaced_by_this_machine(folder, options, gate, code):
    (folder / "tiny.yaml").write_text(SPEC.replace("launch: {num_gpus: 2}\n", ""))
    done = harness("launch", "tiny.yaml", "--dry-run", *options.split(), cwd=folder)
    assert f"error[{gate}]" in done.stderr
    assert done.returncode == code
    assert done.stderr.endswith("Nothing was written or started.\n")
    assert done.stdout == ""


def test_num_gpus_without_hosts_are_ranks_of_this_machine(folder):
    (folder / "tiny.yaml").write_text(SPEC.replace("launch: {num_gpus: 2}\n", ""))
    done = harness("launch", "tiny.yaml", "--dry-run", "--num-gpus", "3", "--format", "json", cwd=folder)
    assert done.returncode == 0, done.stderr
    body = json.loads(done.stdout)
    assert body["hosts"][0]["ranks"] == [0, 1, 2]
    assert "overrides.txt" in body["files"]


def test_a_deepspeed_json_cannot_be_launched(folder):
    (folder / "ds.json").write_text('{"train_batch_size": 2, "zero_optimization": {"stage": 1}}')
    done = harness("launch", "ds.json", "--dry-run", cwd=folder)
    assert done.returncode == 1
    assert "SP020" in done.stderr
    assert "`harness adopt ds.json -o spec.yaml` makes a run spec of it" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_export_of_nothing(folder):
    for wrong in ("nowhere", str(folder)):
        done = harness("export", wrong, "out", cwd=folder)
        assert done.returncode == 2
        assert "CK001" in done.stderr
        assert "Nothing was written" in done.stderr


NO_ANSWER = """\
import socket, sys, time
from harness.hostinfo import machine
socket.getaddrinfo = lambda *a, **k: time.sleep(600)
machine.NAME_LOOKUP_SECONDS = 2.0
from harness.__main__ import start
sys.argv = ["harness", "launch", "tiny.yaml", "--dry-run", "--hostfile", "hosts"]
start()
"""


def test_a_name_server_that_does_not_answer_holds_up_no_dry_run_on_4096_hosts(folder):
    (folder / "hosts").write_text("".join(f"node-{n:04d} slots=1\n" for n in range(4096)))
    done = subprocess.run(
        [sys.executable, "-c", NO_ANSWER], cwd=folder, text=True, capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("node-4095") == 1
    assert done.stderr.count("could not be looked up") == 1
    assert "note: `node-0000` and 4,095 more could not be looked up within 2 s" in done.stderr


ONE_RANK = ("launch", "tiny.yaml", "--dry-run", "--set", "launch.num_gpus=1")


def test_a_gpu_that_torch_cannot_use_is_refused(folder, tmp_path):
    gpu = made_up_gpu(tmp_path / "gpu", CPU_BUILD, "2.13.0+cpu")
    done = harness(*ONE_RANK, cwd=folder, **gpu)
    assert done.returncode == 4
    assert "error[EN015]: torch 2.13.0+cpu is a CPU build, and this machine has 1 NVIDIA H200" in done.stderr
    assert "for CUDA 13, which driver 580.65.06 runs" in done.stderr
    assert "DS_ACCELERATOR=cpu" in done.stderr
    assert "Nothing was written or started" in done.stderr


@pytest.mark.parametrize("way", ["shell", "launch.env"])
def test_the_cpu_of_a_machine_with_a_gpu_is_taken_where_that_is_asked_for(folder, tmp_path, way):
    gpu = made_up_gpu(tmp_path / "gpu", CPU_BUILD, "2.13.0+cpu")
    more = ["--set", "launch.env={DS_ACCELERATOR: cpu}"] if way == "launch.env" else []
    env = gpu | ({"DS_ACCELERATOR": "cpu"} if way == "shell" else {})
    done = harness(*ONE_RANK, "--set", "launch.num_gpus=2", *more, "--format", "json", cwd=folder, **env)
    assert done.returncode == 0, done.stderr
    assert "note: DS_ACCELERATOR=cpu: the ranks run on the CPU, not on 1 NVIDIA H200" in done.stderr
    assert not (tmp_path / "gpu" / "imported").exists()
    body = json.loads(done.stdout)
    assert (body["accelerated"], body["ops"][0]) == (False, "deepspeed_shm_comm")


def test_a_gpu_that_torch_can_use_is_counted(folder, tmp_path):
    gpu = made_up_gpu(tmp_path / "gpu", ONE_H200)
    done = harness(*ONE_RANK, "--format", "json", cwd=folder, **gpu)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["accelerated"] is True
    assert (tmp_path / "gpu" / "imported").exists()


def test_torch_is_not_asked_where_there_is_no_gpu(folder, tmp_path, monkeypatch):
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    gpu = made_up_gpu(tmp_path / "gpu", CPU_BUILD)
    del gpu["DS_ACCELERATOR"]
    (tmp_path / "gpu" / "bin" / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    done = harness(*ONE_RANK, cwd=folder, **gpu)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "gpu" / "imported").exists()
