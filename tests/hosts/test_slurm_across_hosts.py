# SPDX-License-Identifier: Apache-2.0
"""A launch as a job of a real Slurm on two hosts in a box. Needs root, sshd, pdsh, slurmctld, slurmd, munged; two minutes.

CI does not install Slurm; `apt install slurmctld slurmd slurm-client munge` makes this run.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.boxes import NEEDS_ROOT, TheBox, made_box

LACKING = [p for p in ("slurmctld", "slurmd", "sbatch", "munged") if not shutil.which(p, path="/usr/sbin:/usr/bin")]
pytestmark = [pytest.mark.hosts, *NEEDS_ROOT, pytest.mark.skipif(bool(LACKING), reason="needs slurm")]
CONF = """\
ClusterName=box
SlurmctldHost=box-1({address})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SlurmctldParameters=idle_on_node_suspend
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
SPEC = """\
name: queued
model:
  config: {{model_type: llama, vocab_size: 320, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2,
           num_attention_heads: 4, num_key_value_heads: 2, max_position_embeddings: 128}}
  tokenizer: bytes
data: {{train: {folder}/text.jsonl, max_length: 64, eval_fraction: 0}}
train: {{max_steps: 1000000, per_device_train_batch_size: 2, seed: 1}}
optimizer: {{type: adamw, learning_rate: 0.001}}
zero: {{stage: 2}}
launch: {{output_dir: {folder}/runs, master_port: 29581, launcher: {launcher}, env: {{OMP_NUM_THREADS: "1"}}}}
"""


@pytest.fixture
def box() -> Iterator[TheBox]:
    with made_box(2, "s") as made:
        yield made


@pytest.fixture
def slurm(box, tmp_path) -> Iterator[Callable[..., str]]:
    """Daemons on both hosts; runs a command of Slurm on host 1. Files are shared, and with them one munged's socket."""
    tmp_path.chmod(0o755)
    folder = tmp_path / "slurm"
    (folder / "state").mkdir(parents=True)
    nodes = "\n".join(f"NodeName=box-{h} NodeAddr={box.address(h)} CPUs=1 State=UNKNOWN" for h in (1, 2))
    (folder / "slurm.conf").write_text(CONF.format(address=box.address(1), folder=folder, nodes=nodes))
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)
    places = {
        f"--{k}": f"{folder}/munge.{v}"
        for k, v in {
            "key-file": "key",
            "socket": "socket",
            "pid-file": "pid",
            "log-file": "log",
            "seed-file": "seed",
        }.items()
    }
    munge = [f"{option}={place}" for option, place in places.items()]
    environ = box.environ(SLURM_CONF=str(folder / "slurm.conf"))
    said = (folder / "said").open("wb")
    pipes = {"env": environ, "stdout": said, "stderr": said}
    daemons = [box.start_on(1, "munged", "--foreground", "--force", *munge, **pipes)]
    daemons.append(box.start_on(1, "slurmctld", "-D", **pipes))
    daemons += [box.start_on(host, "slurmd", "-D", "-N", f"box-{host}", **pipes) for host in (1, 2)]

    def run(*words: str) -> str:
        return box.on(1, *words, env=environ, check=False, cwd=tmp_path).stdout

    try:
        until(
            lambda: run("sinfo", "-h", "-o", "%D %t").split() == ["2", "idle"],
            60,
            (folder / "said").read_text,
        )
        yield run
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            with_limit(daemon)
        said.close()


def with_limit(daemon: subprocess.Popen[str]) -> None:
    try:
        daemon.wait(10)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


def until(condition: Callable[[], object], seconds: float, words: Callable[[], str]) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, words()[-3000:]
        time.sleep(0.3)


def steps(folder: Path) -> list[int]:
    found = [f.read_text().splitlines() for f in folder.glob("runs/queued-*/metrics.jsonl")]
    rows = [json.loads(line) for lines in found for line in lines if line.endswith("}")]
    return [row["step"] for row in rows if row["type"] == "step"]


@pytest.mark.parametrize("launcher", ["pdsh", "slurm"])
def test_a_job_trains_on_its_hosts_and_is_queued_again_when_it_is_told_to_make_room(slurm, tmp_path, launcher):
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": f"{i} " * 30}) + "\n" for i in range(200)))
    (tmp_path / "spec.yaml").write_text(SPEC.format(folder=tmp_path, launcher=launcher))
    words = ["--sbatch=--nodes=2", "--sbatch=--ntasks-per-node=1", "--sbatch=--time=30"]
    told = slurm(sys.executable, "-m", "harness", "launch", "spec.yaml", "--slurm", *words)
    job = re.search(r"Submitted job (\d+)", told)
    assert job, told

    def log() -> str:
        return "\n".join(f.read_text() for f in tmp_path.glob("runs/slurm/*.log"))

    until(lambda: any(step >= 3 for step in steps(tmp_path)), 300, log)
    (run_dir,) = tmp_path.glob("runs/queued-*")
    hosts = {json.loads(f.read_text())["host"] for f in (run_dir / "status").glob("rank-*.json")}
    assert hosts == {"box-1", "box-2"}
    slurm("scancel", "--batch", "--signal=USR1", job[1])
    until(lambda: "Restarts=1" in slurm("scontrol", "show", "job", job[1]), 120, log)
    assert "JobState=PENDING" in slurm("scontrol", "show", "job", job[1])
    assert len(list((run_dir / "checkpoints").glob("step-*/manifest.json"))) == 1
    slurm("scancel", job[1])
