# SPDX-License-Identifier: Apache-2.0
"""`--here` and a launch compare the plan with this machine: its GPUs, memory, disks and weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.check.check_file import CheckedFile, check_file
from harness.check.machine_findings import check_for_plan
from harness.check.planned_machine import check_sizes, check_weights, plan_here
from harness.cli.app import main
from harness.hostinfo import machine
from harness.hostinfo.machine import Accelerator, HostMemory

SPEC = """\
name: large
model: {name_or_path: meta-llama/Llama-3.1-70B}
data: {train: "builtin:python-docs", max_length: 2048}
train: {max_steps: 10, per_device_train_batch_size: 1, gradient_checkpointing: true}
optimizer: {learning_rate: 1e-5}
precision: {bf16: true}
zero: {stage: 3, offload_optimizer: {device: cpu}}
cluster: {gpu: H100-80GB, gpus_per_node: 8, host_memory: 2TB}
launch: {num_gpus: 8}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "large.yaml").write_text(SPEC, encoding="utf-8")
    (tmp_path / "disk").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    monkeypatch.setattr(machine, "accelerators", lambda: ())
    monkeypatch.setattr(machine, "host_memory", lambda: HostMemory(24 << 30, 20 << 30))
    monkeypatch.setattr(machine, "package_version", lambda _: "1")
    monkeypatch.setattr("harness.check.machine_findings.missing_packages_finding", lambda: None)
    return tmp_path


def _gpus(monkeypatch: pytest.MonkeyPatch, count: int, gib: int) -> None:
    devices = tuple(Accelerator(index, "NVIDIA H100 80GB HBM3", gib << 30) for index in range(count))
    monkeypatch.setattr(machine, "accelerators", lambda: devices)


def _errors(checked: CheckedFile) -> list[str]:
    return [f"{f.gate} {f.message}" for f in checked.report.findings if f.is_error]


def _plan(*options: str, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr("sys.argv", ["harness", "plan", "large.yaml", "--here", *options])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_without_a_gpu_nothing_is_planned(folder, monkeypatch):
    monkeypatch.setattr(machine, "host_memory", lambda: HostMemory(24 << 30, 24 << 30))
    memory, devices = sorted(_errors(check_for_plan("large.yaml", None, None, None, here=True)), key=len)
    assert devices == "EN027 the run is planned for H100-80GB, and its ranks would find no GPU on this machine"
    assert memory.startswith("EN027 this host needs 1.")
    assert _plan(monkeypatch=monkeypatch) == 1


def test_a_spec_may_ignore_what_a_plan_says_of_this_machine(folder, monkeypatch):
    (folder / "large.yaml").write_text(SPEC + "ignore: {EN027: measured on such a machine}\n", encoding="utf-8")
    assert _errors(check_for_plan("large.yaml", None, None, None, here=True)) == []
    _gpus(monkeypatch, 4, 8)
    checked = check_for_plan("large.yaml", None, None, None, here=True)
    assert not {"EN027", "GT002"} & {f.gate for f in checked.report.findings}
    assert checked.run is not None
    assert list(check_sizes(checked.run, plan_here(checked.run))) == []


def test_with_fewer_gpus_than_ranks_nothing_is_planned(folder, monkeypatch):
    _gpus(monkeypatch, 4, 80)
    (error,) = _errors(check_for_plan("large.yaml", None, None, None, here=True))
    assert error == "EN027 the run has 8 ranks, and this machine has 4 GPUs"


@pytest.mark.parametrize(("gib", "host", "says"), [(80, 24, "host memory"), (24, 2000, "GPU memory"), (80, 2000, "")])
def test_the_plan_has_the_memory_of_this_machine(gib, host, says, folder, monkeypatch, capsys):
    """`cluster:` says 80 GB a GPU and 2 TB a host."""
    _gpus(monkeypatch, 8, gib)
    monkeypatch.setattr(machine, "host_memory", lambda: HostMemory(host << 30, host << 30))
    code, out = _plan(monkeypatch=monkeypatch), capsys.readouterr().out
    assert code == (1 if says else 0)
    assert (f"{says} is too small" in out) if says else "Fits" in out


def test_a_cpu_is_planned_where_the_spec_names_it(folder, monkeypatch, capsys):
    assert _plan("--set", "cluster=null", monkeypatch=monkeypatch) == 1
    assert "of 24.0 GiB" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("gib", "host", "free", "message"),
    [
        (20, 2000, 5000, "a rank needs"),
        (80, 24, 5000, "this host needs"),
        (80, 2000, 100, "the states on NVMe need"),
        (80, 2000, 5000, ""),
    ],
)
def test_a_launch_stops_where_the_plan_needs_more(gib, host, free, message, folder, monkeypatch):
    _gpus(monkeypatch, 8, gib)
    monkeypatch.setattr(machine, "host_memory", lambda: HostMemory(host << 30, host << 30))
    monkeypatch.setattr(machine, "free_bytes", lambda _: free << 30)
    nvme = SPEC.replace("{device: cpu}", f"{{device: nvme, nvme_path: {folder}/disk}}")
    run = check_file("large.yaml", text=nvme.replace("max_length: 2048", "max_length: 8192"), world_size=8).run
    assert run is not None
    found = list(check_sizes(run, plan_here(run)))
    assert [(f.gate, f.severity) for f in found] == ([("EN027", "error")] if message else [])
    assert all(f.message.startswith(message) for f in found)


@pytest.mark.parametrize("reason", ["unreachable", "offline", "cached", "random", "reachable"])
def test_weights_that_no_rank_could_fetch(reason, folder, monkeypatch):
    monkeypatch.setattr("harness.check.planned_machine.is_hub_unreachable", lambda: reason == "unreachable")
    if reason == "offline":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    if reason == "cached":
        snapshot = folder / "hub" / "hub" / "models--meta-llama--Llama-3.1-70B" / "snapshots" / "main"
        snapshot.mkdir(parents=True)
        for name in ("config.json", "model.safetensors"):  # a plan fetches the first alone
            (snapshot / name).write_text("{}", encoding="utf-8")
    text = SPEC.replace("70B}", "70B, random_init: true}") if reason == "random" else SPEC
    run = check_file("large.yaml", text=text, world_size=8).run
    assert run is not None
    found = list(check_weights(run, planned=False))
    assert [f.gate for f in found if f.is_error] == (["EN027"] if reason in ("unreachable", "offline") else [])
    assert all("Llama-3.1-70B" in f.message for f in found)
    severities = [f.severity for f in check_weights(run, planned=True)]
    assert severities == ([] if reason in ("cached", "random") else ["info"])
