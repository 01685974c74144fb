# SPDX-License-Identifier: Apache-2.0
"""`harness doctor` on this machine, whatever it is. Needs the base dependencies alone; seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from harness.errors import UserError
from harness.hostinfo import machine
from harness.launching.programs import aio_tuning, benchmark_runner, doctor_checks, hardware_checks
from harness.launching.programs.doctor_rows import DoctorCheck
from harness.views import doctor as view
from harness.views.style import Style
from tests.support.fake_gpu import CPU_BUILD, ONE_H200, made_up_gpu


def doctor(*options: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness", "doctor", *options]
    return subprocess.run(command, text=True, capture_output=True, check=False, env={**os.environ, **env}, timeout=120)


def test_its_exit_code_is_what_it_says():
    done = doctor("--format", "json")
    body = json.loads(done.stdout)
    assert done.returncode == (0 if body["can_train"] else 1)
    assert {row["name"] for row in body["rows"]} >= {
        "python",
        "torch",
        "deepspeed",
        "C++ compiler",
        "libaio",
        "host",
        "disk here",
    }
    assert all(row["fix"] for row in body["rows"] if row["state"] == "missing")


def test_without_torch_nothing_can_be_trained():
    done = doctor()
    if find_spec("torch") is None:
        assert done.returncode == 1
        assert "pip install" in done.stdout
    else:
        assert "torch" in done.stdout
    assert "Traceback" not in done.stderr


def test_assertions_that_are_off_are_missed():
    done = doctor("--format", "json", PYTHONOPTIMIZE="1")
    python = next(row for row in json.loads(done.stdout)["rows"] if row["name"] == "python")
    assert python["state"] == "missing"
    assert done.returncode == 1


def test_a_missing_compiler_is_named_with_its_remedy(tmp_path):
    done = doctor("--format", "json", PATH=str(tmp_path), CXX="")
    compiler = next(row for row in json.loads(done.stdout)["rows"] if row["name"] == "C++ compiler")
    assert (compiler["value"], compiler["state"], compiler["fix"]) == ("none", "missing", "apt install g++")


@pytest.mark.parametrize("has_nvcc", [True, False])
def test_a_gpu_without_a_cuda_compiler_is_said(tmp_path, has_nvcc):
    programs = {"nvidia-smi": "echo '0, NVIDIA X, 1000'"} | ({"nvcc": ""} if has_nvcc else {})
    (tmp_path / "bin").mkdir()
    for name, line in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    done = doctor("--format", "json", PATH=path, CUDA_HOME=str(tmp_path), DS_ACCELERATOR="cuda")
    row = next(row for row in json.loads(done.stdout)["rows"] if row["name"] == "nvcc")
    assert row["state"] == ("ok" if has_nvcc else "note")
    assert row["value"] == (str(tmp_path / "bin" / "nvcc") if has_nvcc else "none")
    assert ("CUDA toolkit" in (row["fix"] or "")) is not has_nvcc


@pytest.mark.parametrize(
    ("torch", "accelerator", "state", "value"),
    [
        (CPU_BUILD, "cuda", "missing", "torch 2.13.0 is a CPU build"),
        (ONE_H200, "cuda", "ok", "1, compute capability 9.0; torch 2.13.0 for CUDA 13.0, driver 580.65.06"),
        (CPU_BUILD, "cpu", None, ""),
    ],
)
def test_torch_is_asked_whether_it_can_use_the_gpu(tmp_path, torch, accelerator, state, value):
    env = made_up_gpu(tmp_path, torch) | {"DS_ACCELERATOR": accelerator}
    rows = {row["name"]: row for row in json.loads(doctor("--format", "json", **env).stdout)["rows"]}
    assert rows["device 0"]["value"].startswith("NVIDIA H200")
    found = rows.get("torch's devices")
    assert (found["state"], found["value"]) == (state, value) if state else found is None
    assert ("DS_ACCELERATOR" in rows) is (state is None)


def test_rows_are_grouped_and_counted():
    rows = (
        DoctorCheck("a", "x", "1"),
        DoctorCheck("a", "y", "2", "note", "so what"),
        DoctorCheck("b", "z", "none", "missing", "no", "do this"),
    )
    text = view.render_checks(rows, Style())
    assert text.splitlines()[0] == "a"
    assert "help: do this" in text
    assert text.endswith("Training cannot start here: z")
    assert json.loads(view.checks_as_json(rows))["totals"] == {"ok": 1, "note": 1, "missing": 1}


MEASURED = {
    "host_memory": 380e9,
    "cpu_adam": 13e9,
    "disk_read": 24.5e9,
    "disk_write": 12e9,
    "gpu_up": 55e9,
    "gpu_down": 52e9,
    "gpu_flops_16": 700e12,
    "cores": 96,
    "host_memory_bytes": 2 << 40,
    "failed": {},
}


def test_what_was_measured_is_a_cluster_section_that_the_planner_reads() -> None:
    from harness.facts.devices import find_device
    from harness.plan.time.rates import override_links, rates_of
    from harness.spec.run_spec import ClusterSpec

    cluster = ClusterSpec.model_validate(benchmark_runner.to_cluster_section(MEASURED))
    assert rates_of(cluster).host_memory == 380e9
    assert (rates_of(cluster).nvme_read, rates_of(cluster).nvme_write) == (24.5e9, 12e9)
    device = override_links(find_device("H100"), cluster)
    assert device is not None
    assert device.pcie * 0.8 == pytest.approx(52e9)


def test_every_figure_is_a_row_and_the_section_can_be_pasted() -> None:
    rows = benchmark_runner.to_doctor_checks(MEASURED)
    assert [row.name for row in rows][:2] == ["CPU cores", "host memory"]
    assert rows[0].value == "96 for this process"
    assert "13,000 M parameters/s" in rows[2].value
    text = view.render_checks(rows, Style(False), benchmark_runner.to_cluster_section(MEASURED))
    assert "cluster:\n  host_memory: 2097152MiB\n  host_memory_bandwidth: 380.00GB/s" in text


def test_what_could_not_be_measured_says_why() -> None:
    rows = benchmark_runner.to_doctor_checks({"failed": {"disk": "no libaio"}})
    assert [(row.state, row.means) for row in rows] == [("note", "no libaio")]
    assert benchmark_runner.to_cluster_section({"failed": {"disk": "no libaio"}}) == {}


def test_a_measurement_that_did_not_end_is_named_and_the_others_stay() -> None:
    lines = [
        {"name": "start"},
        {"name": "host_memory", "figures": {"host_memory": 9e9}, "seconds": 5.1},
        {"name": "cpu_adam", "failed": "RuntimeError: not built", "seconds": 0.1},
    ]
    figures = benchmark_runner.join_lines(lines, with_disk=True)
    assert figures["host_memory"] == 9e9
    assert figures["slow"]["host_memory"].startswith("it took 5.1 s")
    assert figures["failed"] == {
        "cpu_adam": "RuntimeError: not built",
        "disk": "did not end within 20 s in all",
        "gpu": "not reached within 20 s: disk did not end",
    }
    assert [row.state for row in benchmark_runner.to_doctor_checks(figures)] == ["ok", "note", "note", "note", "note"]
    assert benchmark_runner.join_lines([], with_disk=False)["failed"] == {"all": "the benchmark did not start"}


def test_gpus_without_nvlink_talk_at_the_rate_of_their_copies() -> None:
    links = {"text": "pairs by SYS, no NVLink", "is_without_nvlink": True}
    section = benchmark_runner.to_cluster_section({**MEASURED, "links": links})
    assert section["link_bandwidth"] == section["pcie_bandwidth"] == "52.00GB/s"
    assert "link_bandwidth" not in benchmark_runner.to_cluster_section(MEASURED)


def test_json_has_cores_memory_and_links_where_nothing_can_be_measured(tmp_path, monkeypatch):
    for name, value in made_up_gpu(tmp_path, ONE_H200).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(benchmark_runner, "read_child_lines", lambda *_, **__: [])
    figures = benchmark_runner.benchmark_host(None)
    rows, section = benchmark_runner.to_doctor_checks(figures), benchmark_runner.to_cluster_section(figures)
    body = json.loads(view.checks_as_json(rows, figures, section))
    measured = body["measured"]
    assert measured["cores"] >= 1
    assert measured["host_memory_bytes"] > 1 << 28
    assert measured["links"]["between"] == ["NV18"]
    assert measured["links"]["nvlink"] == pytest.approx(18 * 26.562e9)
    assert measured["failed"]["all"]
    assert body["cluster"] == {}
    assert "NVLink 478 GB/s" in next(row["value"] for row in body["rows"] if row["name"] == "GPU links")


def test_a_plan_with_measured_rates_is_less_vague() -> None:
    """With the optimizer on the CPU the guess of the host's memory bandwidth is most of the doubt."""

    def range_of(*options: str) -> float:
        spec = "ds_configs/llama-3.1-70b-zero3-cpu-offload.yaml"
        command = [sys.executable, "-m", "harness", "plan", spec, *options, "--format", "json"]
        low, high = json.loads(subprocess.check_output(command))["step_seconds_range"]
        return float(high / low)

    section = benchmark_runner.to_cluster_section({**MEASURED, "host_memory": 580e9})
    measured = [part for key, value in section.items() for part in ("--set", f"cluster.{key}={value}")]
    assert 1 < range_of(*measured) < 0.95 * range_of()


def test_a_disk_that_is_no_folder_is_a_finding() -> None:
    done = doctor("--measure", "--disk", "/no/such/folder")
    assert done.returncode == 2
    assert "MM007" in done.stderr
    assert "Traceback" not in done.stderr


def test_several_numa_nodes_are_worth_a_word(monkeypatch):
    monkeypatch.setattr(doctor_checks.machine, "count_numa_nodes", lambda: 2)
    monkeypatch.setattr(hardware_checks, "_probe_cpu_fp16", lambda: None)
    row = next(row for row in doctor_checks.run_checks() if row.name == "NUMA nodes")
    assert row.state == "note"
    assert row.value.startswith("2, numactl")
    assert "bind_cores_to_rank" in row.means


@pytest.mark.parametrize(("first", "is_crossed"), [(0, False), (1, True)])
def test_cores_of_another_socket_than_the_gpus_are_worth_a_word(monkeypatch, first, is_crossed):
    """DeepSpeed gives rank 0 the first cores, wherever GPU 0 is."""
    monkeypatch.setattr(hardware_checks.machine, "count_numa_nodes", lambda: 2)
    rows = hardware_checks._check_numa({gpu: (gpu // 4) ^ first for gpu in range(8)})
    assert ("would give rank 0 cores of another node than that of its GPU, 1" in rows.means) is is_crossed


def test_a_disk_is_not_measured_by_an_op_that_cannot_be_compiled(tmp_path, monkeypatch):
    """DeepSpeed's own error is about a path that is None."""
    for name, value in (made_up_gpu(tmp_path, ONE_H200) | {"CUDA_HOME": "/no/such"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(machine, "package_version", lambda _: "1")
    with pytest.raises(UserError, match="compiles its aio with nvcc"):
        aio_tuning.tune_aio(tmp_path, print, 1.0)
    line = {"name": "disk", "failed": "TypeError: expected str, bytes or os.PathLike object, not NoneType"}
    monkeypatch.setattr(benchmark_runner, "read_child_lines", lambda *_, **__: [line])
    assert "with nvcc" in benchmark_runner.benchmark_host(tmp_path)["failed"]["disk"]
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    assert benchmark_runner.benchmark_host(tmp_path)["failed"]["disk"] == line["failed"]


def test_a_model_that_is_not_here_is_a_usage_error():
    done = doctor("--model", "no/such-model")
    assert done.returncode == 2
    assert "no `config.json` with a `model_type`" in done.stderr
    assert doctor("--model", "x", "--measure").returncode == 2
