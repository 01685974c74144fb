# SPDX-License-Identifier: Apache-2.0
"""Runs the hardware benchmark and turns its figures into rows and a `cluster` section."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.hostinfo import machine
from harness.interpreter import python_command
from harness.launching.process.child_process import own_programs_path, read_child_answer
from harness.launching.programs.doctor_rows import DoctorCheck

_PROGRAM = "harness.runtime.hardware_benchmark"
_TIMEOUT_SECONDS = 900.0
_AREA = "measured"
_ADAM_BYTES_PER_PARAMETER = 28


def benchmark_host(folder: Path | None) -> dict[str, Any]:
    """The program's figures, or `failed` alone. `folder`: on the disk to measure."""
    missing = [name for name in ("torch", "deepspeed") if machine.package_version(name) is None]
    if missing:
        return {"failed": {"all": f"{' and '.join(missing)} not installed"}}
    command = python_command("-m", _PROGRAM, *([str(folder)] if folder else []))
    answer = read_child_answer(command, {"PATH": own_programs_path()}, timeout=_TIMEOUT_SECONDS)
    if answer.code or answer.body is None:
        return {"failed": {"all": "the benchmark failed"}}
    return answer.body


def to_doctor_checks(figures: Mapping[str, Any]) -> tuple[DoctorCheck, ...]:
    """One row per figure, measured or not."""
    rows = [DoctorCheck(_AREA, name, text) for key, name, text in _measurement_texts(figures) if key in figures]
    for name, reason in (figures.get("failed") or {}).items():
        rows.append(DoctorCheck(_AREA, name.replace("_", " "), "could not be measured", "note", str(reason)[:160]))
    return tuple(rows)


def _measurement_texts(figures: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    def rate(key: str, unit: float = 1e9) -> float:
        return float(figures.get(key) or 0.0) / unit

    adam = rate("cpu_adam", 1e6)
    return [
        ("host_memory", "host memory", f"{rate('host_memory'):.1f} GB/s, a stream of additions"),
        ("cpu_adam", "CPU Adam", f"{adam:,.0f} M parameters/s ({adam * _ADAM_BYTES_PER_PARAMETER / 1e3:.1f} GB/s)"),
        ("disk_read", "disk read", f"{rate('disk_read'):.2f} GB/s by DeepSpeed's aio"),
        ("disk_write", "disk write", f"{rate('disk_write'):.2f} GB/s by DeepSpeed's aio"),
        ("gpu_up", "host to GPU", f"{rate('gpu_up'):.1f} GB/s"),
        ("gpu_down", "GPU to host", f"{rate('gpu_down'):.1f} GB/s"),
        ("gpu_flops_16", "bf16 product", f"{rate('gpu_flops_16', 1e12):.0f} TFLOP/s"),
    ]


def to_cluster_section(figures: Mapping[str, Any]) -> dict[str, str]:
    """The `cluster` section of a run spec: the rates that the plan otherwise assumes."""
    keys = {
        "host_memory": "host_memory_bandwidth",
        "disk_read": "nvme_read_bandwidth",
        "disk_write": "nvme_write_bandwidth",
    }
    section = {name: f"{figures[key] / 1e9:.2f}GB/s" for key, name in keys.items() if figures.get(key)}
    if figures.get("gpu_up") and figures.get("gpu_down"):
        section["pcie_bandwidth"] = f"{min(figures['gpu_up'], figures['gpu_down']) / 1e9:.2f}GB/s"
    return section
