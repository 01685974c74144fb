# SPDX-License-Identifier: Apache-2.0
"""Sick GPUs of hosts are named before a job, with stand-ins for ssh, torch and NVML. Needs a C compiler; seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.fake_gpu import cuda_torch, made_up_gpu
from tests.support.fake_nvml import build_fake_nvml, fake_nvml_variables

SPEC = """\
name: tiny
model: {config: {model_type: llama, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 1, num_attention_heads: 2}, tokenizer: bytes}
data: {train: "builtin:python-docs", max_length: 32}
train: {max_steps: 2, per_device_train_batch_size: 1}
optimizer: {type: adamw}
"""
SSH = """\
#!/bin/sh
while [ "$1" != -- ]; do shift; done
case $2 in
  well) FAKE_NVML="idle idle ecc";;
  hot) FAKE_NVML="idle thermal";;
  broken) FAKE_NVML="ecc nvlink";;
  slow) FAKE_NVML="narrow narrow";;
esac
export FAKE_NVML
exec sh -c "$3"
"""


def preflight(folder: Path, hosts: str, *options: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **made_up_gpu(folder / "made", cuda_torch(2), count=3)}
    env |= fake_nvml_variables(build_fake_nvml(folder / "driver"), "")
    del env["CUDA_VISIBLE_DEVICES"]
    program = folder / "made" / "bin" / "ssh"
    program.write_text(SSH)
    program.chmod(0o755)
    (folder / "tiny.yaml").write_text(SPEC)
    command = [sys.executable, "-m", "harness", "preflight", "tiny.yaml", "--hosts", hosts, *options]
    return subprocess.run(command, cwd=folder, env=env, text=True, capture_output=True, check=False, timeout=120)


def test_each_sick_gpu_that_a_rank_takes_is_named_with_its_host(tmp_path: Path) -> None:
    done = preflight(tmp_path, "well:2,hot:2,broken:2,slow:2", "--format", "json")
    body: dict[str, Any] = json.loads(done.stdout)
    found = {f["gate"]: f for f in body["findings"] if "EN080" <= f["gate"] <= "EN089"}
    assert {gate: (f["severity"], f["message"]) for gate, f in found.items()} == {
        "EN080": ("error", "GPU 0 (0000:1b:00.0) of `broken` has 2 uncorrected ECC errors since its driver was loaded"),
        "EN082": ("error", "GPU 1 (0000:1c:00.0) of `hot` is slowed down by heat: 93 C, SM clock 750 of 1980 MHz"),
        "EN083": ("error", "GPU 1 (0000:1c:00.0) of `broken` has 17 NVLinks up, others of its model 18"),
        "EN084": ("warning", "GPU 0 (0000:1b:00.0) of `slow` has 4 lanes of PCIe, 16 are possible"),
    }
    assert found["EN080"]["notes"] == ["its UUID is GPU-0"]
    assert found["EN084"]["notes"][1] == "GPU 1 (0000:1c:00.0) of `slow` has 4 lanes of PCIe, 16 are possible"
    assert done.returncode != 0


def test_healthy_gpus_without_work_have_no_finding_and_a_row(tmp_path: Path) -> None:
    done = preflight(tmp_path, "well:2,alike:2")
    assert "EN08" not in done.stdout
    row = next(line for line in done.stdout.splitlines() if line.startswith("GPU health"))
    assert row.split()[2:] == ["ok", "not", "read*"]
