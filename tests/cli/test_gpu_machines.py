# SPDX-License-Identifier: Apache-2.0
"""gpu_machines.md: what doctor and a launch say on each made-up machine. Needs nothing; seconds, for a child that asks torch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from harness.facts.deepspeed_version import installed_source_folder
from harness.findings import Finding, LinesOf
from harness.hostinfo import deepspeed_accelerator
from harness.launching.programs.doctor_checks import run_checks
from harness.launching.setup.launch_request import LaunchRejected, LaunchRequest, LaunchSetup
from harness.launching.setup.prepare import prepare
from tests.support.fake_gpu import CPU_BUILD, NO_DRIVER, ONE_H200, ROCM, XPU, cuda_torch, made_up_gpu
from tests.support.fake_nvml import build_fake_nvml, fake_nvml_variables

ROOT = Path(__file__).parents[2]
SPEC = """\
name: tiny
model: {config: {model_type: llama, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 1, num_attention_heads: 2}, tokenizer: bytes}
data: {train: "builtin:python-docs", max_length: 32}
train: {max_steps: 2, per_device_train_batch_size: 1}
optimizer: {type: adamw}
"""
IN_HOST_MEMORY = "zero: {stage: 3, offload_optimizer: {device: cpu}}\n"
QUANTIZED = IN_HOST_MEMORY + "deepspeed: {zero_optimization: {zero_quantized_weights: true}}\n"
ON_NVME = "zero: {stage: 3, offload_optimizer: {device: nvme, nvme_path: .}}\n"
SLICE = cuda_torch(1, "NVIDIA H200 MIG 1g.18gb")


@dataclass(frozen=True)
class Machine:
    """A made-up machine, and the spec that is launched there."""

    torch: str = ONE_H200
    count: int = 1
    driver: str = "580.65.06"
    nvcc: str | None = "13.0"
    env: dict[str, str] = field(default_factory=dict)
    package: str = ""
    amd_gpus: int = 0
    spec: str = IN_HOST_MEMORY
    ranks: int = 1
    health: str = ""
    """The states of its GPUs for a made-up NVML; without one there is none."""


TWO_GPUS = Machine(cuda_torch(2), 2, ranks=2, health="idle idle")
NO_GPU = Machine(CPU_BUILD, 0)
MACHINES = {
    "one GPU": Machine(),
    "eight GPUs": Machine(cuda_torch(8), 8, ranks=8),
    "eight GPUs, nine ranks": Machine(cuda_torch(8), 8, ranks=9),
    "driver too old": Machine(NO_DRIVER, driver="535.104.05"),
    "CPU build of torch": Machine(CPU_BUILD),
    "container without compute": Machine(NO_DRIVER),
    "no CUDA toolkit, Adam in host memory": Machine(nvcc=None),
    "no CUDA toolkit, Adam on the GPU": Machine(nvcc=None, spec=""),
    "no CUDA toolkit, offload to nvme": Machine(nvcc=None, spec=ON_NVME),
    "no CUDA toolkit, quantized weights": Machine(nvcc=None, spec=QUANTIZED),
    "an architecture that DeepSpeed cannot read": Machine(spec="", env={"TORCH_CUDA_ARCH_LIST": "9.0a"}),
    "the same, Adam in host memory": Machine(env={"TORCH_CUDA_ARCH_LIST": "9.0a"}),
    "toolkit of another CUDA": Machine(nvcc="12.4", spec=""),
    "two GPUs, read by NVML": TWO_GPUS,
    "a GPU with errors of its memory": replace(TWO_GPUS, health="idle ecc"),
    "such a GPU that no rank takes": replace(TWO_GPUS, health="idle ecc", ranks=1),
    "a GPU that is too hot": replace(TWO_GPUS, health="thermal idle"),
    "a GPU with an NVLink down": replace(TWO_GPUS, health="idle nvlink"),
    "a GPU that is lost": replace(TWO_GPUS, health="idle fallen"),
    "a GPU with 4 of 16 lanes": replace(TWO_GPUS, health="idle narrow"),
    "a GPU with half of its power": replace(TWO_GPUS, health="power-cap idle"),
    "MIG, one rank": Machine(SLICE, 8),
    "MIG, two ranks": Machine(SLICE, 8, ranks=2),
    "a slice in CUDA_VISIBLE_DEVICES": Machine(SLICE, env={"CUDA_VISIBLE_DEVICES": "MIG-6e4a"}),
    "a UUID in CUDA_VISIBLE_DEVICES": Machine(env={"CUDA_VISIBLE_DEVICES": "GPU-0"}),
    "CUDA_VISIBLE_DEVICES is empty": Machine(NO_DRIVER, env={"CUDA_VISIBLE_DEVICES": ""}),
    "CUDA_VISIBLE_DEVICES is -1": Machine(NO_DRIVER, env={"CUDA_VISIBLE_DEVICES": "-1"}),
    "a Slurm job without GPUs": Machine(NO_DRIVER, env={"CUDA_VISIBLE_DEVICES": "NoDevFiles"}),
    "DS_ACCELERATOR is cpu": Machine(env={"DS_ACCELERATOR": "cpu"}),
    "DS_ACCELERATOR is empty": Machine(env={"DS_ACCELERATOR": ""}),
    "DS_ACCELERATOR is cuda, no GPU": replace(NO_GPU, env={"DS_ACCELERATOR": "cuda"}),
    "AMD GPUs, torch for ROCm": Machine(ROCM, 0, amd_gpus=1),
    "AMD GPUs, CPU build of torch": replace(NO_GPU, amd_gpus=2),
    "Intel GPUs, torch for XPU": Machine(XPU, 0),
    "Gaudi, Habana's packages": replace(NO_GPU, package="habana_frameworks"),
    "Ascend, torch_npu": replace(NO_GPU, package="torch_npu"),
    "DS_ACCELERATOR is mps": replace(NO_GPU, env={"DS_ACCELERATOR": "mps"}),
    "no GPU, spec for an H100": replace(NO_GPU, spec=IN_HOST_MEMORY + "cluster: {gpu: H100}\n"),
}


class SaidInALaunch:
    """Everything that a launch says, line by line."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_note(self, text: str) -> None:
        self.lines.append(text)

    def on_findings(self, findings: Sequence[Finding], lines_of: LinesOf | None) -> None:  # noqa: ARG002
        self.lines += [f"{f.severity} {f.gate} {f.message}" for f in findings]


def read_table() -> dict[str, tuple[str, str]]:
    """The rows of gpu_machines.md: what doctor and a launch say, by machine."""
    text = Path(__file__).with_name("gpu_machines.md").read_text(encoding="utf-8")
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")]
    return {name.strip(): (doctor.strip(), launch.strip()) for name, doctor, launch in rows[2:]}


TABLE = read_table()


def start(machine: Machine, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process and its children see that machine, in an empty folder."""
    made = made_up_gpu(folder / "made", machine.torch, driver=machine.driver, count=machine.count)
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)
    monkeypatch.setenv("CUDA_HOME", str(folder / "cuda"))
    if machine.nvcc:
        nvcc = folder / "cuda" / "bin" / "nvcc"
        nvcc.parent.mkdir(parents=True)
        nvcc.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {machine.nvcc}, V0'\n")
        nvcc.chmod(0o755)
    health = fake_nvml_variables(build_fake_nvml(folder / "driver"), machine.health) if machine.health else {}
    for name, value in {"PATH": made["PATH"], "PYTHONPATH": made["PYTHONPATH"], **health, **machine.env}.items():
        monkeypatch.setenv(name, value)
    nodes = folder / "sys" / "class" / "kfd" / "kfd" / "topology" / "nodes"
    for number in range(machine.amd_gpus + 1):  # node 0 is the processor
        (nodes / str(number)).mkdir(parents=True)
        (nodes / str(number) / "properties").write_text(f"cpu_cores_count 8\nsimd_count {304 if number else 0}\n")
    (folder / "dev").mkdir()
    if machine.amd_gpus:
        (folder / "dev" / "kfd").touch()
    if machine.package:
        (folder / "made" / "site" / machine.package).mkdir()
    monkeypatch.setattr(deepspeed_accelerator, "_DEV", folder / "dev")
    monkeypatch.setattr(deepspeed_accelerator, "_SYS", folder / "sys")
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.syspath_prepend(str(folder / "made" / "site"))
    monkeypatch.chdir(folder)
    Path("tiny.yaml").write_text(SPEC + machine.spec + f"launch: {{num_gpus: {machine.ranks}}}\n")


def launch(*, dry_run: bool) -> tuple[str, bool]:
    """What is said, and whether ranks would start."""
    said = SaidInALaunch()
    result = prepare(LaunchRequest("tiny.yaml", dry_run=dry_run), said)
    assert isinstance(result, LaunchRejected | LaunchSetup)
    if isinstance(result, LaunchRejected):
        said.on_findings(result.findings, None)
        assert result.closing == "Nothing was written or started"
    elif result.plan.accelerated is False:
        said.lines.append("on the CPU")
    return "\n".join(said.lines), isinstance(result, LaunchSetup)


def assert_said(words: str, output: str) -> None:
    """Every phrase in quotes and every id is a part of the output."""
    for phrase in [*re.findall(r'"([^"]+)"', words), *re.findall(r"\bEN\d{3}\b", words)]:
        assert phrase in output, (phrase, output)


@pytest.mark.skipif(installed_source_folder() is None, reason="needs DeepSpeed's files")
@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_says_what_the_page_says(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start(MACHINES[name], tmp_path, monkeypatch)
    of_doctor, of_launch = TABLE[name]
    rows = [row for row in run_checks() if row.area in ("accelerators", "compiling")]
    state = next((state for state in ("missing", "note") if of_doctor.startswith(f"{state}:")), "ok")
    assert_said(of_doctor, "\n".join(f"{row.value}\n{row.means}" for row in rows if row.state == state))
    if state == "ok":
        assert not [row for row in rows if row.state == "missing"]
    said, starts = launch(dry_run=False)
    assert_said(of_launch, said)
    assert starts is of_launch.startswith("starts")
    assert ("on the CPU" in said.splitlines()) is of_launch.startswith("starts on the CPU")
    said, starts = launch(dry_run=True)
    assert_said(of_launch, said)
    assert starts is (of_launch.startswith("starts") or any(code in of_launch for code in ("EN023", "EN026", "EN027")))
    assert sorted(path.name for path in tmp_path.iterdir() if path.name == "runs") == []


def test_the_page_has_each_machine() -> None:
    assert list(TABLE) == list(MACHINES)


def link_programs(path: str, folder: Path, without: str) -> str:
    """A PATH with the same programs but one, which this machine may have."""
    folder.mkdir()
    programs = [file for each in path.split(os.pathsep) if Path(each).is_dir() for file in Path(each).iterdir()]
    for file in {file.name: file for file in reversed(programs) if file.name != without}.values():
        (folder / file.name).symlink_to(file)
    return str(folder)


@pytest.mark.parametrize(
    ("count", "options", "torch"),
    [
        (0, "", "torch==2.13.0"),
        (1, "--set launch.num_gpus=1 --set train.gradient_accumulation_steps=2", "torch>=2.10"),
        (8, "", "torch>=2.10"),
    ],
)
def test_make_demo_fits_the_number_of_gpus(count: int, options: str, torch: str, tmp_path: Path) -> None:
    path = made_up_gpu(tmp_path / "made", ONE_H200, count=count)["PATH"]
    if not count:
        path = link_programs(path, tmp_path / "programs", without="nvidia-smi")
    command = ["make", "-n", "demo", f"VENV={tmp_path / 'venv'}"]
    done = subprocess.run(command, cwd=ROOT, env={"PATH": path}, text=True, capture_output=True, check=True)
    setup, demo = done.stdout.splitlines()[-2:]
    assert setup.split('"')[3] == torch
    assert demo.split("launch ds_configs/demo.yaml")[1].strip() == options
